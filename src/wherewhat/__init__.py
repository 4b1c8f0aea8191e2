"""Does this attention head look at where, or at what?"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .studies.explorable import Explorable

if TYPE_CHECKING:
    from .capture import capture, load, load_tokenizer
    from .capture.gate import gate
    from .core.measure import entropy, exclusion, frequency_use, score, score_frequencies
    from .core.spectrum import spectrum
    from .core.trace import Trace
    from .errors import BadInput, NotMeasurable
    from .lab import embedded
    from .prompts import Prompt, binding
    from .report.plots import plot
    from .studies.atlas import Atlas, atlas
    from .studies.compare import compare
    from .studies.demo import multihop
    from .studies.doctor import Diagnosis, doctor
    from .studies.dynamics import Dynamics
    from .studies.profile import Profile, profile
    from .studies.spectra import Spectra, spectra

__all__ = [
    "Atlas",
    "BadInput",
    "Diagnosis",
    "Dynamics",
    "NotMeasurable",
    "Profile",
    "Prompt",
    "Spectra",
    "Trace",
    "atlas",
    "binding",
    "capture",
    "compare",
    "doctor",
    "embedded",
    "entropy",
    "exclusion",
    "frequency_use",
    "gate",
    "load",
    "load_tokenizer",
    "multihop",
    "plot",
    "profile",
    "score",
    "score_frequencies",
    "spectra",
    "spectrum",
]

# Where each name comes from; it is fetched when it is first asked for, so that `--help` need not wait for torch.
_HOMES = {
    "capture": "capture load load_tokenizer",
    "capture.gate": "gate",
    "core.measure": "entropy exclusion frequency_use score score_frequencies",
    "core.spectrum": "spectrum",
    "core.trace": "Trace",
    "errors": "BadInput NotMeasurable",
    "lab": "embedded",
    "prompts": "Prompt binding",
    "report.plots": "plot",
    "studies.atlas": "Atlas atlas",
    "studies.compare": "compare",
    "studies.demo": "multihop",
    "studies.doctor": "Diagnosis doctor",
    "studies.dynamics": "Dynamics",
    "studies.profile": "Profile profile",
    "studies.spectra": "Spectra spectra",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


class _Package(ModuleType):
    """`ww.capture` is the function, also after the folder of that name was imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__


def _page(result: Any) -> str:
    """What a notebook shows of a result; only this module may look both at results and at the pages made of them."""
    from .report.notebook import explorer_frame

    return explorer_frame(result)


Explorable.page = _page

sys.modules[__name__].__class__ = _Package
