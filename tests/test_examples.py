"""The examples in the docstrings say what the code does."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import wherewhat

MODULES = [
    module.name
    for module in pkgutil.walk_packages(wherewhat.__path__, "wherewhat.")
    if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of(name):
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).failed == 0
