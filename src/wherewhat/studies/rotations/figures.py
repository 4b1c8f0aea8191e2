"""A plan of rotations on paper: which planes are kept in which layer, and what dropping the others costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...display.style import INK, NEITHER, WHAT, WHERE, new_figure
from .plan import RotationPlan

COLOURS = {"plan": WHERE, "norm": WHAT}


def plan_figure(plan: RotationPlan) -> Figure:
    """Layers against frequencies: the share of key heads that keep each plane; then, against the number kept, the
    effect of all that is dropped or, if it was evaluated, the KL; then KL by criterion."""
    panels = 2 if plan.losses is None else 3
    figure = new_figure(3.2 * panels, 3.2)
    grid, curve, *rest = figure.subplots(1, panels)
    kept, effect = plan.tensors["kept"].float(), plan.tensors["effect"].double()
    share = kept.sum(1) / (~effect.isnan()).sum(1).clamp(min=1)
    image = grid.imshow(share.numpy(), aspect="auto", cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
    ticks = np.linspace(0, share.shape[1] - 1, min(5, share.shape[1])).round().astype(int)
    grid.set_xticks(ticks, [str(at + 1) for at in ticks])
    layers = plan.about["layers"]
    ticks = np.linspace(0, len(layers) - 1, min(6, len(layers))).round().astype(int)
    grid.set_yticks(ticks, [str(layers[at]) for at in ticks])
    grid.set(xlabel="frequency ID (1: fastest)", ylabel="layer", title="Share of key heads that keep it")
    figure.colorbar(image, ax=grid, fraction=0.05)
    curve.axvline(plan.about["keep"], color=NEITHER, lw=0.8)
    curve.set(yscale="log", xlabel="planes kept per key head")
    curve.xaxis.set_major_locator(MaxNLocator(integer=True))
    if plan.losses is None:
        for name, order, style in (("whole model", effect.flatten(), "-"), ("each head alike", None, ":")):
            curve.plot(*_dropped(effect, order), color=INK, ls=style, lw=1.2, label=name)
        curve.set(ylabel="nats per query", title="Effect of what is dropped")
        curve.legend(frameon=False, fontsize=6)
    else:
        curve.plot(*zip(*plan.curve().items(), strict=True), color=WHERE, marker="o", ms=3, lw=1.2)
        several = f"largest KL at {' or '.join(map(str, plan.tested))} tokens"
        kl = several if len(plan.tested) > 1 else "KL, nats per token"
        curve.set(ylabel=kl, title="KL by number kept")
        order = [name for name in plan.losses["criterion"].unique() if name != "none"]
        worst, (bars,) = plan.worst(), rest
        drawn = bars.barh(order, [worst[name] for name in order], color=[COLOURS.get(name, NEITHER) for name in order])
        bars.bar_label(drawn, fmt="%.3g", padding=2, fontsize=6)
        bars.margins(x=0.15)
        bars.invert_yaxis()
        bars.set(xlabel=kl, title="KL by criterion")
    figure.suptitle(
        f"{plan.name}: {plan.about['keep']} of {plan.about['planes']} rotations", fontsize=10, x=0.01, ha="left"
    )
    return figure


def _dropped(effect: torch.Tensor, flat: torch.Tensor | None) -> tuple[np.ndarray, np.ndarray]:
    """Planes kept per key head, and the effects of all others added up: ranked over the model, or within each head."""
    present = ~effect.isnan()
    heads, planes = int(present.any(-1).sum()), effect.shape[-1]
    values = effect.nan_to_num(nan=0.0)
    if flat is None:
        ranked = values.sort(-1, descending=True).values.flatten(0, 1).sum(0)
        left = ranked.sum() - ranked.cumsum(0)
        return np.arange(1, planes), left[:-1].numpy()
    ranked = values.flatten().sort(descending=True).values
    left = ranked.sum() - ranked.cumsum(0)
    at = torch.arange(1, planes) * heads - 1
    return np.arange(1, planes), left[at].clamp(min=0).numpy()


# By criterion of the experiment: colour, line style, width.
CURVES = {
    "plan": (WHERE, "-", 1.8),
    "plan per head": (WHERE, "--", 1.2),
    "norm": (WHAT, "-", 1.2),
    "norm over the model": (WHAT, "--", 1.2),
    "uniform": (NEITHER, "-", 0.9),
    "highest": (NEITHER, "--", 0.9),
    "random": (NEITHER, ":", 1.2),
}


def experiment_figure(summary: Any, labels: dict[str, str]) -> Figure:
    """KL by share of planes kept, one line per criterion with its 95 % interval; models by row, lengths by column.

    `summary` is that of `experiment.summarise`; `labels` maps models to what they are called in the figure.
    """
    found: Any = summary.query("measure == 'kl' and calibrated == length and share > 1")
    names, lengths = [one for one in labels if one in set(found["model"])], sorted(found["length"].unique())
    figure = new_figure(1.2 + 1.9 * len(lengths), 0.6 + 1.95 * len(names))
    panels = figure.subplots(len(names), len(lengths), squeeze=False, sharex=True, sharey="row")
    for row, name in enumerate(names):
        for column, length in enumerate(lengths):
            panel, here = panels[row, column], found[(found["model"] == name) & (found["length"] == length)]
            if here.empty:
                panel.set_axis_off()
                continue
            for criterion, (colour, style, width) in CURVES.items():
                line = here[here["criterion"] == criterion].sort_values("share")
                at = np.log2(line["share"])
                panel.plot(at, line["value"], color=colour, ls=style, lw=width, label=criterion)
                panel.fill_between(at, line["low"], line["high"], color=colour, alpha=0.15, lw=0)
            panel.set(yscale="log", title=f"{labels[name]}\n{length:,} tokens")
            shares = sorted(here["share"].unique())
            panel.set_xticks(np.log2(shares), [f"1/{share}" for share in shares])
            if row == len(names) - 1:
                panel.set_xlabel("planes kept")
        panels[row, 0].set_ylabel("KL, nats per token")
    handles, words = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, words, loc="outside lower center", ncols=2 if len(lengths) == 1 else 4, frameon=False)
    return figure
