"""Results of any size with random numbers, for tests of pages that show them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch

from wherewhat.core.kinds import kind
from wherewhat.studies.ablation.ablate import Ablation, effect_table
from wherewhat.studies.ablation.trials import Trials
from wherewhat.studies.atlas.atlas import Atlas
from wherewhat.studies.atlas.tables import KINDS, MODELS
from wherewhat.studies.dynamics.dynamics import Dynamics
from wherewhat.studies.dynamics.measure import purity_table
from wherewhat.studies.lengths.lengths import Lengths
from wherewhat.studies.profile.attention import fixed_point
from wherewhat.studies.profile.result import Profile
from wherewhat.studies.rotations.plan import RotationPlan, most_needed, plane_table, ranks


def random_profile(layers: int, heads: int, frequencies: int, blocks: int = 64, prompts: int = 8) -> Profile:
    """A complete profile; only its shapes are meaningful."""
    draw = np.random.default_rng(0)
    layer, head = (part.flatten() for part in np.indices((layers, heads)))
    columns: dict[str, Any] = {"layer": layer, "head": head, "kv_head": head // 2}
    positional = draw.random(len(layer))
    for axis, values in (("positional", positional), ("symbolic", (1 - positional) * draw.random(len(layer)) ** 0.2)):
        columns |= {axis: values, f"{axis}_low": values - 0.01, f"{axis}_high": values + 0.01}
    for name in """entropy variance exclusion_bound positional_without_first symbolic_without_first mean_frequency
                   previous_token induction sink current_token on_blocks on_query on_first elsewhere answer answer_token
                   answer_chance""".split():
        columns[name] = draw.random(len(layer))
    for name in ("on_blocks", "on_query", "on_first", "elsewhere", "answer", "answer_token"):
        columns |= {f"{name}_low": columns[name] - 0.01, f"{name}_high": columns[name] + 0.01}
    table = pd.DataFrame(columns)
    table.insert(3, "kind", [kind(*pair) for pair in zip(table["positional"], table["symbolic"], strict=True)])
    index = [part.flatten() for part in np.indices((layers, heads, frequencies))]
    turning = {"layer": index[0], "head": index[1], "frequency": index[2] + 1, "angle": 10000.0 ** (-index[2] / 32)}
    turning |= {name: draw.random(len(index[0])) for name in ("positional", "symbolic", "use_norm", "use_max")}
    torch.manual_seed(0)
    attention = torch.rand(prompts, layers, heads, blocks).mul(20).softmax(-1) / 4
    spans = [[4 * at + 4, 4 * at + 8] for at in range(blocks)]
    labels = [f"Person {at} likes red." for at in range(blocks)]
    said = ["Here", " is", " a", " list."] + [f" {word}" for label in labels for word in label.split()] + [" Who", "?"]
    prompt = {
        "ids": list(range(len(said))), "blocks": spans, "text": "".join(said), "answer": 1, "target": 1, "skipped": 0,
        "choices": 2, "labels": labels, "tokens": said, "says": "red",
    }  # fmt: skip
    middle = [{"median": 0.9, "low": 0.8, "high": 1.0}] * 2
    about = {
        "model": "models/random", "level": "keys", "tau": 1e-4,
        "settings": {"weights": "0", "prompts": "0", "level": "keys"},
        "thresholds": {"high": 0.8, "low": 0.2}, "correlation": {"r": -0.5, "r_low": -0.6, "r_high": -0.4, "p": 0.01},
        "medians": {"positional": middle, "symbolic": middle}, "accuracy": None, "answer_probability": None,
        "sinks": {"share": 0.1, "largest_in_a_block": 0.0, "tokens": []}, "swaps": None, "sensitivity": [],
        "warnings": [],
        "skipped": {"statements": 0, "of_statements": 0, "swaps": 0, "of_swaps": 0},
        "little": {"threshold": 0.01, "heads": 0, "of": layers * heads, "correlation": {"r": -0.5}},
        "retrieval": None,
        "self_check": {"attention": 1e-7}, "versions": {"wherewhat": "0"}, "architecture": "random",
        "table": [{"first": at, "last": at, "label": label} for at, label in enumerate(labels)],
        "prompts": [prompt] * prompts,
    }  # fmt: skip
    mass = torch.rand(layers, heads, blocks, blocks) / 4 / blocks
    tensors = {"block_attention": attention, "log_mass": mass.log().half()}
    tensors |= {axis: torch.rand(prompts, layers, heads) for axis in ("positional", "symbolic")}
    queries = torch.arange(1, len(said))
    seen = torch.rand(layers, heads, len(queries), 8)
    tensors |= {
        "token_attention": fixed_point(torch.rand(prompts, layers, heads, len(said)).mul(20).softmax(-1)),
        "strongest_attention": fixed_point(seen.softmax(-1).sort(descending=True).values),
        "strongest_keys": (seen * (queries + 1)[:, None]).to(torch.uint16),
    }
    return Profile(table, pd.DataFrame(turning), about, tensors)


def random_series(steps: int = 20, layers: int = 4, heads: int = 2, hops: int = 3) -> Dynamics:
    """A series in which heads move to corners of the plane."""
    draw = np.random.default_rng(0)
    time, layer, head = (part.flatten() for part in np.indices((steps, layers, heads)))
    way = (time / (steps - 1)) * (0.9 + 0.1 * draw.random(len(time)))
    early = layer < layers // 2
    table = pd.DataFrame(
        {"step": 50 * time, "query": 0, "layer": layer, "head": head}
        | {"positional": np.where(early, way, 1 - way), "symbolic": np.where(early, 1 - way, way)}
        | {"entropy": 1 - way, "mean_frequency": np.round(10 * way + 1)}
    )
    table["kind"] = [kind(*pair) for pair in zip(table["positional"], table["symbolic"], strict=True)]
    at, hop = (part.flatten() for part in np.indices((steps, hops)))
    accuracy = pd.DataFrame({"step": 50 * at, "hops": hop + 1, "accuracy": np.clip(at / steps * 2 - hop / 4, 0, 1)})
    about = {"task": "number", "seed": 0, "prompts": 10, "tau": 1e-4, "checkpoints": steps}
    return Dynamics(table, accuracy, purity_table(table), about)


def random_ablation(profile: Profile, units: int = 6) -> Ablation:
    """Every head ablated by itself, with random effects; that of the first head is the largest."""
    made = Trials(profile.heads, planes=2).each_head()
    draw = torch.Generator().manual_seed(0)
    plain = {name: torch.rand(units, generator=draw) for name in ("binding_probability", "text_loss")}
    alone = len(made) // 2
    changes = torch.randn(alone, 1, generator=draw) + 0.1 * torch.randn(alone, units, generator=draw)
    changes[0] += 2
    results = [
        {"binding_probability": plain["binding_probability"] - change, "text_loss": plain["text_loss"] + change}
        for change in changes.repeat(2, 1)
    ]
    about = {"ablation": "mean", "weights": profile.about["settings"]["weights"], "model": "some"}
    return Ablation(effect_table(plain, made, results, seed=0), about)


def random_plan(profile: Profile, keep: int = 1) -> RotationPlan:
    """A plan with random effects for the model of a profile, with keys shared as there."""
    layers, kv_heads = (int(profile.heads[name].max()) + 1 for name in ("layer", "kv_head"))
    angles = torch.tensor(sorted(set(profile.frequencies["angle"]), reverse=True)).float().expand(layers, -1)
    effect = torch.rand(layers, kv_heads, angles.shape[1], generator=torch.Generator().manual_seed(0))
    kept = most_needed(effect, keep, "model")
    about = {"model": "some", "weights": profile.about["settings"]["weights"], "keep": keep, "budget": "model"}
    about |= {"planes": angles.shape[1], "layers": list(range(layers)), "groups": [2] * layers, "lengths": [64, 256]}
    tensors = {"effect": effect, "norm": effect.clone(), "rank": ranks(effect), "kept": kept}
    return RotationPlan(plane_table(effect, effect, kept, list(range(layers)), angles), None, about, tensors)


def random_lengths(task: str = "number", layers: int = 4, hops: int = 3) -> Lengths:
    """Accuracy that falls with length and hops; some heads lose their token."""
    grid, draw = (17, 20, 50, 100, 300, 1000), np.random.default_rng(0)
    shares = [
        (length, hop, max(0.0, 1 - (hop + 1) * np.log(length / 17) / 12)) for length in grid for hop in range(hops + 1)
    ]
    accuracy = pd.DataFrame(shares, columns=["length", "hops", "accuracy"]).assign(right=0, asked=40)
    accuracy = accuracy.assign(low=accuracy["accuracy"] * 0.9, high=accuracy["accuracy"] * 0.9 + 0.1)
    places = [(length, layer, 0) for length in grid for layer in range(layers)]
    heads = pd.DataFrame(places, columns=["length", "layer", "head"])
    heads[["self", "next", "later"]] = draw.random((len(heads), 3)) / 3
    measured, predicted = [120.0, np.inf, 40.0, 900.0][:layers], [90.0, 500.0, np.inf, 3000.0][:layers]
    loss = pd.DataFrame({"layer": range(layers), "head": 0, "attention": heads["next"][:layers]})
    return Lengths(
        accuracy, heads, loss.assign(measured=measured, predicted=predicted), {"task": task, "prompts": 40, "seed": 0}
    )


def random_atlas(models: int, layers: int, heads: int, families: int = 2, names: str = "model-{}") -> Atlas:
    """An atlas of models with random heads, deeper ones more symbolic; `names` may be anything."""
    tables, rows = [], []
    for number in range(models):
        draw = np.random.default_rng(number)
        own = random_profile(layers, heads, 1, blocks=2, prompts=1).heads
        depth = own["layer"].to_numpy() / max(1, layers - 1)
        own["positional"] = np.clip(draw.normal(0.95 - 0.5 * depth, 0.15), 0, 1)
        own["symbolic"] = np.clip(draw.normal(1 - own["positional"], 0.1 + 0.02 * number % 0.3), 0, 1)
        own["kind"] = [kind(*pair) for pair in zip(own["positional"], own["symbolic"], strict=True)]
        r = np.corrcoef(own["positional"], own["symbolic"])[0, 1]
        shares = {one: float((own["kind"] == one).mean()) for one in KINDS}
        told = {name: "1" if form == "string" else 1 for name, (form, _) in MODELS.items()}
        told |= {"model": names.format(number), "family": f"family {number % families}", "deviation": 1e-6, "r": r}
        told |= {"layers": layers, "heads": len(own), "heads_per_layer": heads, "r_low": r - 0.02, "r_high": r + 0.02}
        rows.append(told | {axis: own[axis].median() for axis in ("positional", "symbolic")} | shares)
        own.insert(0, "model", told["model"])
        tables.append(own)
    about = {"title": "Random models", "licence": "cc0-1.0", "command": "wherewhat atlas random.toml"}
    about |= {"thresholds": {"high": 0.8, "low": 0.2}, "failed": {"absent": "it is not there"}}
    listed = pd.DataFrame(rows).astype({name: form for name, (form, _) in MODELS.items()})
    return Atlas(listed, pd.concat(tables, ignore_index=True), pd.DataFrame(), about)


def pure_profile() -> Profile:
    """Head 0.0 attends to block 2 wherever its content is, head 1.1 to the content of block 2."""
    made = random_profile(2, 2, 2, blocks=4)
    for at, pair in enumerate(((1.0, 0.0), (0.5, 0.5), (0.4, 0.4), (0.0, 1.0))):
        made.heads.loc[at, ["positional", "symbolic"]] = pair
        made.heads.loc[at, "kind"] = kind(*pair)
    made.heads["on_blocks"] = 0.9
    mass = torch.full((2, 2, 4, 4), 0.01)
    mass[0, 0, :, 2] = 0.6
    mass[1, 1, 2, :] = 0.6
    made.tensors["log_mass"] = mass.log().half()
    return made


def heads_table(layers: int = 3, heads: int = 4) -> pd.DataFrame:
    """Later heads are more positional; the last one has no scores."""
    places = [(layer, head) for layer in range(layers) for head in range(heads)]
    scores = np.linspace(0, 1, len(places))
    scores[-1] = np.nan
    return pd.DataFrame(places, columns=["layer", "head"]).assign(positional=scores, symbolic=1 - scores)
