"""Training and ablating a classifier: a step against torch's own encoder, all heads against a full evaluation a head.

Sides take turns; processor time of one thread, so that other work on the machine does not enter.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from time import process_time

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from wherewhat.lab.classifier import Classifier, Design
from wherewhat.lab.encodings import NOPE
from wherewhat.lab.fit import batches, learn, pieces
from wherewhat.studies.encodings.ablation import BATCH, ablate_heads
from wherewhat.studies.encodings.settings import SIZES
from wherewhat.tasks import Count, Distance


class TorchClassifier(nn.Module):
    """The same model of torch's parts, without any encoding."""

    def __init__(self, design: Design, dropout: float) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            design.width, design.heads, design.hidden, dropout, batch_first=True, norm_first=True
        )
        self.embedding = nn.Embedding(design.vocabulary, design.width)
        self.readout = nn.Linear(design.width, design.classes)
        self.encoder = nn.TransformerEncoder(
            layer, design.layers, nn.LayerNorm(design.width), enable_nested_tensor=False
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        padding = tokens == 0
        seen = (~padding)[..., None]
        stream = self.encoder(self.embedding(tokens), src_key_padding_mask=padding)
        return self.readout((stream * seen).sum(1) / seen.sum(1))


def compare_steps(task: Distance | Count, steps: int = 12) -> dict[str, float | str]:
    """One step of the small recipe, median of turns."""
    size = SIZES["small"]
    recipe = replace(size.recipe, steps=steps)
    design = Design(task.vocabulary, task.classes, task.tokens, NOPE, size.layers, size.heads, size.width, size.hidden)
    ours, theirs = Classifier(design), TorchClassifier(design, recipe.dropout)
    optimizers = [
        torch.optim.AdamW(model.parameters(), lr=recipe.rate, betas=recipe.betas, weight_decay=recipe.decay, fused=True)
        for model in (ours, theirs)
    ]
    times: dict[str, list[float]] = {"theirs": [], "ours": []}
    for step, (tokens, answers) in zip(range(steps), batches(task, recipe), strict=False):
        start = process_time()
        optimizers[1].zero_grad()
        cross_entropy(theirs(tokens), answers).backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), recipe.clip)
        optimizers[1].step()
        middle = process_time()
        optimizers[0].zero_grad()
        learn(ours, tokens, answers, recipe, step, optimizers[0])
        times["theirs"].append(middle - start)
        times["ours"].append(process_time() - middle)
    torch_s, lab_s = (median(times[name][2:]) for name in ("theirs", "ours"))
    return {"what": f"a training step, {task.name}", "plain s": torch_s, "wherewhat s": lab_s, "ratio": lab_s / torch_s}


@torch.no_grad()
def compare_ablation(rounds: int = 3) -> dict[str, float | str]:
    """All heads of a 6-layer, 16-head model, zero and mean ablation, against a full evaluation for each of the two."""
    size, task = SIZES["paper"], Count(tokens=40, most=30)
    design = Design(task.vocabulary, task.classes, task.tokens, NOPE, size.layers, size.heads, size.width, size.hidden)
    model, drawn = Classifier(design).eval(), task.sample(BATCH // 4)
    runs = 2 * size.layers * size.heads
    full, all_heads = [], []
    for _ in range(rounds):
        start = process_time()
        for _ in range(4):
            for tokens, _ in pieces(drawn.tokens, drawn.answers, size=BATCH):
                model(tokens).argmax(-1)
        middle = process_time()
        ablate_heads(model, drawn.tokens, drawn.answers)
        full.append((middle - start) / 4)
        all_heads.append((process_time() - middle) / runs)
    plain, each = median(full), median(all_heads)
    return {"what": "ablating a head, 6 x 16", "plain s": plain, "wherewhat s": each, "ratio": each / plain}


def compare() -> list[dict[str, float | str]]:
    torch.set_num_threads(1)
    return [compare_steps(Distance.small()), compare_steps(Count.small()), compare_ablation()]
