"""Measures what speculative decoding saves and explains it with one equation.

`from specamort import plan` is the planner as a library; no engine is imported.
"""

from .planner import plan

__all__ = ["plan"]
