"""Where do models that were trained with dropout depend on it? Their accuracy with dropout at some places only.

python tools/encoding_dropout.py --folder runs/encodings-medium    # adds its models to results/dropout-places.parquet
python tools/encoding_dropout.py --torch    # NoPE on count by torch's own encoder and dropout, two seeds
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from wherewhat.cells.cells import cell_path
from wherewhat.files import read_tensors, write_table
from wherewhat.lab.classifier import Classifier
from wherewhat.lab.fit import batches, held_out
from wherewhat.studies.encodings.runs import restore, training_cell
from wherewhat.studies.encodings.settings import CLEAN, PAPER_RECIPE, SIZES, EncodingSetting, medium_settings

KEYS = ["size", "encoding", "task", "seed"]
BATCH = 2**16  # tokens in one forward pass
LAYER = ("attention weights", "attention output", "hidden units", "MLP output")  # in the order of a forward pass
NAMES = {  # in a block of ours: in torch's
    "attention.inward.": "self_attn.in_proj_", "attention_out": "self_attn.out_proj", "hidden_in": "linear1",
    "hidden_out": "linear2", "attention_norm": "norm1", "hidden_norm": "norm2",
}  # fmt: skip
CONDITIONS = {
    "nowhere": (),
    "everywhere": ("embeddings", *LAYER),
    **{place: (place,) for place in ("embeddings", *LAYER)},
}


class DropoutAt:
    """Dropout at some places of one forward pass."""

    def __init__(self, places: tuple[str, ...], rate: float = PAPER_RECIPE.dropout, seed: int = 0) -> None:
        self.places, self.rate, self.calls = places, rate, 0
        self.random = torch.Generator().manual_seed(seed)

    def __call__(self, values: Tensor) -> Tensor:
        place = LAYER[(self.calls - 1) % len(LAYER)] if self.calls else "embeddings"
        self.calls += 1
        if place not in self.places:
            return values
        return values * (torch.rand(values.shape, generator=self.random) >= self.rate) / (1 - self.rate)


@torch.no_grad()
def measure(folder: Path, known: pd.DataFrame) -> Iterator[dict[str, object]]:
    """What all finished clean runs with dropout that are not in the table answer to the test sequences."""
    in_table = set(known[KEYS].itertuples(index=False, name=None))
    for setting in medium_settings():
        cell = training_cell(setting)
        about = {name: getattr(setting, name) for name in KEYS}
        if (
            setting.variant != CLEAN
            or tuple(about.values()) in in_table
            or not (path := cell_path(folder / "cells", cell)).exists()
        ):
            continue
        model = restore(cell, read_tensors(path))
        tokens, answers = held_out(cell.labels, cell.recipe, SIZES[setting.size].tested)
        for condition, places in CONDITIONS.items():
            if setting.size != "small" and condition not in ("nowhere", "everywhere"):
                continue
            logits = [
                model(some, drop=DropoutAt(places, seed=at))
                for at, some in enumerate(tokens.split(BATCH // tokens.shape[1]))
            ]
            yield about | {"dropout_at": condition} | shares(torch.cat(logits), answers)


def shares(logits: Tensor, answers: Tensor) -> dict[str, float]:
    """Of answers that are right, above and below, and of those that miss by one."""
    error = logits.argmax(-1) - answers
    found = {"accuracy": error == 0, "one_above": error == 1, "above": error > 0, "one_below": error == -1}
    found["below"] = error < 0
    return {name: share.double().mean().item() for name, share in found.items()}


class TorchEncoder(nn.Module):
    """A classifier without positions as torch builds it, with torch's dropout and the same initial weights."""

    def __init__(self, model: Classifier, rate: float) -> None:
        super().__init__()
        design = model.design
        layer = nn.TransformerEncoderLayer(
            design.width, design.heads, design.hidden, rate, batch_first=True, norm_first=True
        )
        self.embedding, self.norm, self.readout = model.embedding, model.norm, model.readout
        self.encoder = nn.TransformerEncoder(layer, design.layers, enable_nested_tensor=False)
        self.dropout = nn.Dropout(rate)
        for theirs, block in zip(self.encoder.layers, model.blocks, strict=True):
            weights = block.state_dict()
            for own, name in NAMES.items():
                weights = {key.replace(own, name): value for key, value in weights.items()}
            theirs.load_state_dict(weights)

    def forward(self, tokens: Tensor) -> Tensor:
        stream = self.norm(self.encoder(self.dropout(self.embedding(tokens))))
        return self.readout(stream.mean(1))


def by_torch(seed: int) -> Iterator[dict[str, object]]:
    """NoPE on count, trained by torch's own code, tested with dropout and without."""
    cell = training_cell(EncodingSetting("nope", "count", seed, dropout=PAPER_RECIPE.dropout))
    recipe, model = cell.recipe, TorchEncoder(Classifier(cell.design, seed), PAPER_RECIPE.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.rate, betas=recipe.betas, weight_decay=recipe.decay)
    torch.manual_seed(seed)
    for step, (tokens, answers) in zip(range(recipe.steps), batches(cell.labels, recipe), strict=False):
        optimizer.param_groups[0]["lr"] = recipe.rate_at(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens), answers).backward()
        optimizer.step()
    tokens, answers = held_out(cell.labels, recipe, SIZES["small"].tested)
    with torch.no_grad():
        for dropout in (True, False):
            yield {"seed": seed, "dropout": dropout, **shares(model.train(dropout)(tokens), answers)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results/dropout-places.parquet"), help="the table")
    parser.add_argument("--folder", type=Path, default=Path("runs/encodings-medium"), help="of the trained models")
    parser.add_argument("--torch", action="store_true", help="train and test with torch's own encoder")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.torch:
        print(pd.DataFrame(row for seed in range(2) for row in by_torch(seed)).to_string(index=False))
        return
    known = pd.read_parquet(given.results) if given.results.exists() else pd.DataFrame(columns=KEYS)
    found = pd.DataFrame(measure(given.folder, known))
    if found.empty:
        parser.error(
            f"no new trained model in {given.folder}; `wherewhat reproduce encodings --size medium` trains them"
        )
    write_table(given.results, pd.concat([known, found], ignore_index=True))


if __name__ == "__main__":
    main()
