"""The worked examples in the model's docstrings hold, and every equation has one."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

from specamort import model
from specamort.model import equation

MODULES = [m.name for m in pkgutil.iter_modules(model.__path__, "specamort.model.")]
EQUATIONS = [
    f
    for name, f in inspect.getmembers(equation, inspect.isfunction)
    if f.__module__ == equation.__name__ and not name.startswith("_")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted and not found.failed


@pytest.mark.parametrize("function", EQUATIONS, ids=lambda f: f.__name__)
def test_every_equation_has_an_example(function):
    assert doctest.DocTestFinder().find(function)[0].examples
