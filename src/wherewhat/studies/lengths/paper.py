"""What the multi-hop paper publishes about length: figure 5B, and the language models that it asks."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

FIGURE_5B = Path(__file__).parent / "published" / "lengths.csv"
TRAINED_TOKENS = 17  # figure 5B counts the tokens added to these

KEPT_WINDOW, KEPT_ACCURACY = 16, 0.85  # the paper keeps models with at least this accuracy on letter at this window

# Accuracy on number and letter, by window.
PUBLISHED_MODELS: dict[str, dict[int, tuple[float, float]]] = {
    "GPT 5.4": {12: (0.98, 0.96), 32: (0.45, 0.99), 100: (0.08, 0.85), 300: (0.06, 0.40)},
    "GPT 5.5": {12: (0.55, 0.87), 32: (0.23, 0.96), 100: (0.07, 0.66), 300: (0.04, 0.50)},
    "Sonnet 3.7": {12: (0.40, 0.92), 32: (0.15, 0.88), 100: (0.06, 0.86), 300: (0.05, 0.80)},
}


def published_accuracy(task: str, lengths: Iterable[int]) -> dict[int, float]:
    """The paper's accuracy over all hops at these total lengths, interpolated linearly between the points of figure 5B.

    Lengths beyond the figure are left out, and so are all lengths of a task that it does not show.

    >>> published_accuracy("number", (17, 100, 9000))
    {17: 1.0, 100: 0.7868}
    """
    figure = published_lengths()
    if task not in figure.columns:
        return {}
    added, accuracy = figure["added_tokens"].to_numpy(), figure[task].to_numpy()
    covered = [length for length in lengths if 0 <= length - TRAINED_TOKENS <= added[-1]]
    values = np.interp(np.array(covered) - TRAINED_TOKENS, added, accuracy)
    return dict(zip(covered, values.round(4).tolist(), strict=True))


@cache
def published_lengths() -> pd.DataFrame:
    """Figure 5B: accuracy of number and letter by the number of tokens added to the 17 of training."""
    return pd.read_csv(FIGURE_5B)
