"""A check a person can act on: a line, `pass` or `fix` with what to do."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    what: str
    fix: str | None = None

    def __str__(self) -> str:
        return f"fix   {self.what}: {self.fix}" if self.fix else f"pass  {self.what}"
