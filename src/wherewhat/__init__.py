"""Does this attention head look at where, or at what?"""

from .capture import capture, load
from .core.measure import entropy, exclusion, frequency_use, score, score_frequencies
from .core.trace import Trace
from .errors import BadInput, NotMeasurable
from .prompts import Prompt
from .studies.profile import Profile, profile

__all__ = [
    "BadInput",
    "NotMeasurable",
    "Profile",
    "Prompt",
    "Trace",
    "capture",
    "entropy",
    "exclusion",
    "frequency_use",
    "load",
    "profile",
    "score",
    "score_frequencies",
]
