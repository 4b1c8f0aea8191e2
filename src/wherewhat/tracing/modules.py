"""A fast list of the modules of a model, which every capture needs several times."""

from __future__ import annotations

from torch import nn


def modules_of(model: nn.Module) -> list[nn.Module]:
    """What `list(model.modules())` gives, without its nested generators, which take most of the time.

    >>> modules_of(nn.Sequential(nn.ReLU(), nn.Tanh()))[1:]
    [ReLU(), Tanh()]
    """
    found: dict[int, nn.Module] = {}
    waiting: list[nn.Module | None] = [model]
    while waiting:
        module = waiting.pop()
        if module is not None and id(module) not in found:
            found[id(module)] = module
            waiting.extend(reversed(vars(module)["_modules"].values()))
    return list(found.values())
