"""One training step of the lab against the same step with Hugging Face's eager GPT-J, alternating."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from wherewhat.lab import Recipe, Shape, Transformer
from wherewhat.lab.gptj import to_gptj
from wherewhat.lab.train import Trainer
from wherewhat.tasks import Number

KINDS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "mkldnn::_linear_pointwise"),
    "gelu": ("aten::gelu", "aten::gelu_backward"),
}


def compare(steps: int = 40) -> dict[str, float | int]:
    """Medians over steps; all use the batch, dropout, clipping and optimiser of the recipe."""
    recipe, task = Recipe(), Number()
    examples = task.sample(recipe.batch * (steps + 2))
    batches = list(zip(examples.tokens.split(recipe.batch), examples.answers.split(recipe.batch), strict=True))
    model = Transformer(Shape(task.vocabulary))
    theirs = to_gptj(model, dropout=recipe.dropout).train()
    theirs.set_attn_implementation("eager")
    optimizer = torch.optim.AdamW(
        theirs.parameters(), lr=recipe.rate, betas=recipe.betas, weight_decay=recipe.decay, fused=True
    )

    def hugging_face(tokens: torch.Tensor, answers: torch.Tensor) -> None:
        loss = nn.functional.cross_entropy(theirs(tokens, use_cache=False).logits[:, -1], answers)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), recipe.clip)
        optimizer.step()

    run = Trainer(model, recipe, Path())
    rounded = Trainer(Transformer(model.shape), replace(recipe, bfloat16=True), Path())
    steps_of = {"theirs": hugging_face, "ours": run.learn, "bfloat16": rounded.learn}
    times: dict[str, list[float]] = {name: [] for name in steps_of}
    cpu: dict[str, list[float]] = {name: [] for name in steps_of}
    for tokens, answers in batches:
        for name, step in steps_of.items():
            start, start_cpu = perf_counter(), process_time()
            step(tokens, answers)
            times[name].append(perf_counter() - start)
            cpu[name].append(process_time() - start_cpu)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run.learn(*batches[0])
    spent = {event.key: event.self_cpu_time_total for event in seen.key_averages()}
    shares = {
        f"{name}, share of ours": sum(spent.get(key, 0) for key in keys) / sum(spent.values())
        for name, keys in KINDS.items()
    }
    eager, lab, fast = (median(taken[2:]) for taken in times.values())
    eager_cpu, lab_cpu, fast_cpu = (median(taken[2:]) for taken in cpu.values())
    return {
        "batch": recipe.batch,
        "eager GPT-J s": eager,
        "wherewhat s": lab,
        "ratio": eager / lab,
        "ratio of processor time": eager_cpu / lab_cpu,
        "bfloat16 s": fast,
        "bfloat16 ratio": eager / fast,
        "bfloat16 ratio of processor time": eager_cpu / fast_cpu,
    } | shares
