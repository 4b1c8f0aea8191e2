"""Which positional encodings are trained, on which tasks, with which seeds and at which sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ...errors import BadInput
from ...lab.classifier import Design
from ...lab.encodings import NOPE, Encoding
from ...lab.train import Recipe
from ...tasks import Count, Distance

TASKS = {"distance": Distance, "count": Count}


def encodings(heads: int = 8, width: int = 64) -> dict[str, Encoding]:
    """Every encoding by name, for a model of this size.

    The latent vector has half of the width, its decoupled part a sixteenth: 128 and 16 at the published width of 256.
    Partial RoPE rotates half of the dimensions of a head, and p-RoPE stops half of its planes.

    >>> encodings(heads=16, width=256)["mla"].latent
    128
    """
    head_dim = width // heads
    some_heads = [number for number in (1, 2, 4, 8) if number < heads]
    return {
        "rope": Encoding(rotary=True),
        "nope": NOPE,
        "alibi": Encoding(bias="alibi"),
        "sinusoidal": Encoding(added="sinusoidal"),
        "mla": Encoding(rotary=True, latent=width // 2, decoupled=max(2, width // 16)),
        **{f"rope, {count} head{'s' * (count > 1)}": Encoding(rotary=True, heads=count) for count in some_heads},
        "rope, half the dimensions": Encoding(rotary=True, dims=head_dim // 2),
        "p-rope": Encoding(rotary=True, stopped=head_dim // 4),
        "learned": Encoding(added="learned"),
        "t5": Encoding(bias="t5"),
        "t5-plain": Encoding(bias="t5-plain"),
        "rope + sinusoidal": Encoding(rotary=True, added="sinusoidal"),
    }


ENCODINGS = encodings()  # of the small model
MAIN = ("rope", "nope", "alibi", "sinusoidal")
CLEAN = "clean"
# Flaws of the published code: variants have one of them each, and one variant all of them.
FLAWS = ("unmasked", "fixed keys", "added sinusoids", "exponential slopes")
FLAWED = "quirky"  # all of them; the value stands in published tables
TIMES = {"first layer": (0, 1), "first 2 layers": (0, 2), "last layer": (-1, None), "last 2 layers": (-2, None)}

SMALL_RECIPE = Recipe(
    steps=1000, batch=64, rate=1e-3, betas=(0.9, 0.999), decay=1e-5, warmup=60, schedule="cosine", clip=math.inf,
    dropout=0.0,
)  # fmt: skip
PAPER_RECIPE = Recipe(
    steps=13_600, batch=512, rate=1e-4, betas=(0.98, 0.9), decay=1e-5, warmup=816, schedule="cosine", clip=math.inf,
    dropout=0.1,
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """Size of the model, of the task ("small", "published", or "published, fresh": without a fixed data set) and of
    the training recipe. With `solved`, training ends once the accuracy over 100 steps reaches it."""

    layers: int = 3
    heads: int = 8
    width: int = 64
    hidden: int = 128
    recipe: Recipe = SMALL_RECIPE
    tested: int = 2048
    task: str = "small"
    solved: float | None = None

    def labels(self, task: str) -> Distance | Count:
        if task not in TASKS:
            raise BadInput(f"no task {task!r}: {', '.join(TASKS)}")
        if self.task == "small":
            return TASKS[task].small()
        return TASKS[task]() if self.task == "published" else replace(TASKS[task](), samples=None)


# What differs from the published setting, one size at a time. These names are the values of the column `size`.
LONG_TASK, LARGE_MODEL, FEW_SEQUENCES = (
    "small model, published task",
    "published model, small task",
    "published, batch of 16",
)
SIZES = {
    "small": Size(),
    LONG_TASK: Size(
        recipe=replace(SMALL_RECIPE, steps=5000, batch=32, warmup=300), task="published, fresh", solved=0.99
    ),
    LARGE_MODEL: Size(6, 16, 256, 512, recipe=replace(SMALL_RECIPE, batch=32, rate=5e-4), tested=512),
    FEW_SEQUENCES: Size(
        6, 16, 256, 512, tested=512, task="published, fresh",
        recipe=replace(SMALL_RECIPE, steps=5000, batch=16, rate=5e-4, warmup=300),
    ),
    "paper": Size(6, 16, 256, 512, recipe=PAPER_RECIPE, tested=0, task="published"),
}  # fmt: skip
PLANS = ("small", "medium", "paper")


@dataclass(frozen=True)
class EncodingSetting:
    """One row of the table: an encoding on a task with a seed. `variant` names what differs from the clean set-up."""

    encoding: str
    task: str
    seed: int = 0
    variant: str = CLEAN
    size: str = "small"
    dropout: float = 0.0

    def design(self, size: Size) -> Design:
        task = size.labels(self.task)
        encoding, flaws = encodings(size.heads, size.width)[self.encoding], flaws_of(self.variant)
        if self.variant in TIMES:
            encoding = replace(encoding, layers=TIMES[self.variant])
        if "added sinusoids" in flaws and encoding.rotary:
            encoding = replace(encoding, added="sinusoidal")
        if "exponential slopes" in flaws and encoding.bias == "alibi":
            encoding = replace(encoding, bias="alibi-exponential")
        return Design(
            task.vocabulary, task.classes, task.tokens, encoding, size.layers, size.heads, size.width, size.hidden,
            unmasked="unmasked" in flaws, fixed_keys="fixed keys" in flaws,
        )  # fmt: skip


def flaws_of(variant: str) -> tuple[str, ...]:
    """The flaws of the published code that a variant has on purpose."""
    return FLAWS if variant == FLAWED else (variant,) if variant in FLAWS else ()


def variant_label(variant: str) -> str:
    """How a variant is shown."""
    return "all flaws" if variant == FLAWED else variant


def setting_label(size: str, dropout: float) -> str:
    """How a size and a dropout are shown."""
    return f"{size}, dropout {dropout:g}"


def plan(name: str, seeds: Sequence[int] = range(3), quick: bool = False) -> list[EncodingSetting]:
    """The runs of a plan: "small" and "paper" are all runs at that size, "medium" what two cores can do between."""
    if name not in PLANS:
        raise BadInput(f"no size {name!r}: {', '.join(PLANS)}")
    if name == "medium":
        return medium_settings(seeds, quick)
    if quick:
        return list(at_size(name, (EncodingSetting(encoding, task) for task in TASKS for encoding in MAIN)))
    return settings(seeds, name)


def at_size(name: str, wanted: Iterable[EncodingSetting], dropout: float | None = None) -> list[EncodingSetting]:
    """The same settings at another size, with its dropout unless another is given."""
    dropout = SIZES[name].recipe.dropout if dropout is None else dropout
    return [replace(one, size=name, dropout=dropout) for one in wanted]


def settings(seeds: Sequence[int] = range(3), size: str = "small") -> list[EncodingSetting]:
    """All runs of one size, the most informative ones first, seed by seed."""
    names = encodings(SIZES[size].heads, SIZES[size].width)
    everything = [
        *(EncodingSetting(encoding, task, seed) for seed in seeds for task in TASKS for encoding in MAIN),
        *(EncodingSetting(encoding, task, seed, FLAWED) for seed in seeds for task in TASKS for encoding in MAIN),
        *(EncodingSetting(encoding, "distance", seed) for seed in seeds for encoding in names),
        *(EncodingSetting("rope", "distance", seed, when) for seed in seeds for when in TIMES),
        *(
            EncodingSetting("alibi", "distance", seed, flaw)
            for seed in seeds
            for flaw in FLAWS
            if flaw != "added sinusoids"
        ),
        *(EncodingSetting(encoding, "count", seed) for seed in seeds for encoding in names),
        *(
            EncodingSetting("rope", "distance", seed, flaw)
            for seed in seeds
            for flaw in FLAWS
            if flaw != "exponential slopes"
        ),
        *(
            EncodingSetting("alibi", "count", seed, flaw)
            for seed in seeds
            for flaw in ("fixed keys", "exponential slopes")
        ),
        *(
            EncodingSetting("sinusoidal", "distance", seed, when)
            for seed in seeds
            for when in TIMES
            if when.startswith("last")
        ),
    ]
    return at_size(size, dict.fromkeys(everything))


def medium_settings(seeds: Sequence[int] = range(3), quick: bool = False) -> list[EncodingSetting]:
    """Between the small runs and the published ones, cheapest first: the dropout of the paper alone, its task alone,
    its model alone, with RoPE also with all flaws of the published code, then its model on its task in small batches.
    `quick` leaves one seed of RoPE and ALiBi.
    """
    long_task = ("rope", "alibi", "sinusoidal", "nope", "t5")
    large_model = ("rope", "alibi", "sinusoidal", "mla", "rope, 1 head", "rope + sinusoidal")
    groups = [
        ("small", [EncodingSetting(name, task, seed) for task in TASKS for seed in seeds for name in ENCODINGS]),
        (LONG_TASK, [EncodingSetting(name, task, seed) for seed in seeds for task in TASKS for name in long_task]),
        (LARGE_MODEL, [EncodingSetting(name, "distance", seed) for seed in seeds for name in large_model]),
        (LARGE_MODEL, [EncodingSetting("rope", "distance", seed, FLAWED) for seed in seeds]),
        (FEW_SEQUENCES, [EncodingSetting(name, "distance", seeds[0]) for name in ("rope", "alibi")]),
    ]
    wanted = [one for size, some in groups for one in at_size(size, some, PAPER_RECIPE.dropout)]
    few = [one for one in wanted if one.seed == seeds[0] and one.encoding in ("rope", "alibi") and one.variant == CLEAN]
    return few if quick else wanted
