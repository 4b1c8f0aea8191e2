"""The examples in the docstrings give the documented results."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest
import torch

import wherewhat as ww
from conftest import mostly_slow

MODULES = [
    module.name for module in pkgutil.walk_packages(ww.__path__, "wherewhat.") if not module.name.endswith("__main__")
]
SLOW = ("studies.ablation.ablate", "studies.profile.profile", "studies.theorems.verify")


@pytest.mark.parametrize("name", mostly_slow(MODULES, *(name for name in MODULES if not name.endswith(SLOW))))
def test_the_examples_of(name):
    """Examples need not import `ww` and `torch`."""
    module = importlib.import_module(name)
    assert doctest.testmod(module, extraglobs={"ww": ww, "torch": torch}, optionflags=doctest.ELLIPSIS).failed == 0
