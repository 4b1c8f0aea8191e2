"""The modules of a model, as often as every capture looks at them."""

from __future__ import annotations

from torch import nn


def modules_of(model: nn.Module) -> list[nn.Module]:
    """All modules once, in the order of `model.modules()`, which passes each of them through a chain of generators.

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
