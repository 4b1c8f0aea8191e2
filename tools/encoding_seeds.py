"""The seeds of positional heads before any training: how far sequences agree, and the margins of layers.

Writes one row per size, encoding and seed to results/initial-encodings.parquet; a few minutes on one core.

    python tools/encoding_seeds.py
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch

from wherewhat.files import write_table
from wherewhat.lab.classifier import Classifier
from wherewhat.studies.encodings.runs import training_cell
from wherewhat.studies.encodings.settings import FEW_SEQUENCES, LARGE_MODEL, EncodingSetting
from wherewhat.studies.encodings.signals import long_sequences, pulls
from wherewhat.studies.encodings.tables import margins

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
    rows = []
    for size in ("small", LARGE_MODEL, FEW_SEQUENCES):
        for name in ENCODINGS:
            for seed in SEEDS:
                found = measure(EncodingSetting(name, "distance", seed, size=size))
                rows.append({"size": size, "encoding": name, "seed": seed} | found)
            print(f"{size}: {name}", flush=True)
    write_table(Path(__file__).parents[1] / "results" / "initial-encodings.parquet", pd.DataFrame(rows))


if __name__ == "__main__":
    main()
