"""The seeds of positional heads before any training: how far sequences agree, and the margins of layers.

Prints one row per size and encoding, means over seeds with 95 % intervals; a few minutes on one core.

    python tools/encoding_seeds.py
"""

from __future__ import annotations

import torch

from wherewhat.lab.classifier import Classifier
from wherewhat.studies.encodings.runs import training_cell
from wherewhat.studies.encodings.settings import FEW_SEQUENCES, LARGE_MODEL, EncodingSetting
from wherewhat.studies.encodings.signals import long_sequences, pulls
from wherewhat.studies.encodings.tables import margins, over_seeds

SEEDS = range(5)
ENCODINGS = ("rope", "rope, 1 head", "mla", "alibi", "t5")


def measure(setting: EncodingSetting) -> dict[str, float]:
    """Of one untrained model: the largest seed, the mean agreement of its heads, and the growth of margins."""
    cell = training_cell(setting)
    tokens, answers, _ = long_sequences(cell)
    found = pulls(Classifier(cell.design, setting.seed), tokens, answers)
    margin = margins(found["seed"])
    return {
        "largest seed": float(found["seed"].max()),
        "layer of it": float(found["seed"].argmax() // cell.design.heads),
        "agreement": float(found["seed_agreement"].nanmean()),
        "margin growth per layer": float((margin[0] / margin[-1]) ** (1 / (len(margin) - 1))),
        "layers with growth": float((margin[:-1] > margin[1:]).float().mean()),
    }


def main() -> None:
    torch.set_num_threads(1)
    for size in ("small", LARGE_MODEL, FEW_SEQUENCES):
        for name in ENCODINGS:
            found = [measure(EncodingSetting(name, "distance", seed, size=size)) for seed in SEEDS]
            means = {what: over_seeds([one[what] for one in found]) for what in found[0]}
            shown = ", ".join(
                f"{what} {mean:.3g} ({low:.3g} to {high:.3g})" for what, (mean, low, high) in means.items()
            )
            print(f"{size}: {name}: {shown}", flush=True)


if __name__ == "__main__":
    main()
