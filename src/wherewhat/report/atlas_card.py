"""The card of an atlas: a README.md that the Hugging Face hub understands, written from the data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from huggingface_hub import DatasetCardData

from ..files import write_atomically
from ..studies.atlas import TABLES, Atlas
from ..studies.atlas_tables import MODELS
from .sentences import atlas_sentences
from .terminal import number

SCORE = "95 % interval, bootstrap over prompts"
HEADS = {
    "model": "name of the model",
    "layer": "layer of the model, from 0; one that runs several times has a row for each run",
    "head": "query head of the layer, from 0",
    "kv_head": "head of keys and values that it reads, from 0",
    "kind": "where, what, unfocused, mixed or unmeasured: see above",
    "positional": "positional score, 0 to 1, mean over prompts: attention stays in place when contents are swapped",
    "positional_low": f"lower end of its {SCORE}",
    "positional_high": "upper end",
    "symbolic": "symbolic score, 0 to 1, mean over prompts: attention follows the contents",
    "symbolic_low": f"lower end of its {SCORE}",
    "symbolic_high": "upper end",
    "entropy": "entropy of its attention as a share of the largest possible: 0 one key, 1 all alike",
    "variance": "variance of its logits over keys, squared logits (natural logarithm)",
    "exclusion_bound": "what that variance cannot exceed, squared logits",
    "positional_without_first": "positional score with the first token hidden",
    "symbolic_without_first": "symbolic score with the first token hidden",
    "mean_frequency": "mean ID of the RoPE frequencies that it uses, 1 the fastest",
    "previous_token": "attention on the token before, in repeated random tokens, 0 to 1",
    "induction": "attention on the token that followed last time, in repeated random tokens, 0 to 1",
    "sink": "attention on the first token, 0 to 1",
}
FREQUENCIES = {
    "model": HEADS["model"],
    "layer": HEADS["layer"],
    "head": HEADS["head"],
    "frequency": "ID of the frequency, 1 the fastest; 0 the dimensions that do not turn",
    "angle": "angle that it turns by from token to token, radians",
    "positional": "positional score of this frequency alone, 0 to 1",
    "symbolic": "symbolic score of this frequency alone, 0 to 1",
    "use_norm": "2-norm, over the keys before the query, of its share of the logits",
    "use_max": "largest of these shares, logits",
}
COLUMNS = {"models": {name: says for name, (_, says) in MODELS.items()}, "heads": HEADS, "frequencies": FREQUENCIES}
SIZES = ("1K", "10K", "100K", "1M", "10M", "100M")


def write_card(atlas: Atlas, folder: str | Path) -> None:
    """README.md of the data set in this folder.

    >>> write_card(Atlas.load("atlas"), "atlas")                      # doctest: +SKIP
    """
    write_atomically(Path(folder) / "README.md", card(atlas))


def card(atlas: Atlas) -> str:
    """What the hub reads at the top, what people read below it."""
    return f"---\n{front_matter(atlas)}\n---\n\n{body(atlas)}"


def front_matter(atlas: Atlas) -> str:
    """Licence, size and tables in the hub's own words; the heads are the table shown first."""
    names = sorted(TABLES, key=lambda name: name != "heads")
    configs: list[dict[str, Any]] = [
        {"config_name": name, "data_files": [{"split": "train", "path": f"data/{name}.parquet"}]} for name in names
    ]
    configs[0]["default"] = True
    about: Any = DatasetCardData(
        license=atlas.about["licence"],
        pretty_name=atlas.about["title"],
        size_categories=[size_category(max(len(atlas.heads), len(atlas.frequencies)))],
        tags=["interpretability", "attention", "attention-heads", "rope", "wherewhat"],
        configs=configs,
    )
    return about.to_yaml()


def size_category(rows: int) -> str:
    """A number of rows as the hub files it.

    >>> size_category(76), size_category(8640), size_category(2_500_000)
    ('n<1K', '1K<n<10K', '1M<n<10M')
    """
    power = max(0, len(str(rows)) - 3)
    return "n<1K" if power == 0 else f"{SIZES[power - 1]}<n<{SIZES[power]}"


def body(atlas: Atlas) -> str:
    models = atlas.models.to_dict("records")
    licences = sorted({row["licence"] for row in models})
    settings = sorted({_settings(row) for row in models})
    versions = sorted({f"wherewhat {row['wherewhat']}, torch {row['torch']}, transformers {row['transformers']}, "
                       f"Python {row['python']}" for row in models})  # fmt: skip
    high, low = (atlas.about["thresholds"][name] for name in ("high", "low"))
    failed = [[name, reason] for name, reason in atlas.failed.items()]
    tables = [
        part
        for name in TABLES
        for part in (
            f"### {name}: {len(getattr(atlas, name)):,} rows, `data/{name}.parquet`",
            markdown(("column", "meaning"), [(f"`{column}`", says) for column, says in COLUMNS[name].items()]),
        )
    ]
    parts = [
        f"# {escaped(atlas.about['title'])}",
        "Does an attention head look at **where**, or at **what**? For every head and every RoPE frequency of "
        f"{len(models)} language models, how much its attention stays in place and how much it follows the contents "
        "when contents are swapped. " + escaped(" ".join(atlas_sentences(atlas))),
        f"A head looks at *where* if its positional score is at least {high} and its symbolic score at most {low}, at "
        f"*what* the other way round; it is *unfocused* if both are at least {high}, else *mixed*; *unmeasured* if it "
        "gives the blocks no attention.",
        markdown(
            ("model", "family", "layers", "heads", "where", "what", "unfocused", "mixed", "r", "positional", "symbolic",
             "licence"),
            [
                [escaped(row["model"]), escaped(row["family"]), row["layers"], row["heads"]]
                + [f"{row[kind]:.0%}" for kind in ("where", "what", "unfocused", "mixed")]
                + [number(None if pd.isna(row[name]) else row[name]) for name in ("r", "positional", "symbolic")]
                + [escaped(row["licence"])]
                for row in models
            ],
        ),
        "r: correlation of the two scores over a model's heads; positional, symbolic: their medians.",
        "## Use",
        '```python\nimport pandas as pd\n\nheads = pd.read_parquet("data/heads.parquet")\n'
        'models = pd.read_parquet("data/models.parquet")\nheads.merge(models[["model", "family"]], on="model")\n```',
        "## Tables",
        *tables,
        "## How it was made",
        f"`{atlas.about['command']}`, with the list in `models.toml`.",
        "\n".join(f"- {escaped(line)}" for line in (*settings, *versions)),
        "Every model was checked before it was measured: what is captured must be its own attention "
        "(`deviation` in the table of models), else it is refused. `weights` tells exactly which weights they were.",
        *(
            ["Asked for, but not measured:", markdown(("model", "why"), [map(escaped, row) for row in failed])]
            if failed
            else []
        ),
        "## Licences",
        f"The data are under {escaped(atlas.about['licence'])}. They hold numbers measured on the models, not the "
        "models. Licences of the models, as declared by the list, by the model's card or by its file: "
        f"{escaped(', '.join(licences))}.",
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def markdown(titles: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table of cells that are already escaped.

    >>> print(markdown(("a", "b"), [(1, 2)]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [titles, ["---"] * len(titles), *rows]
    return (
        "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
        .replace("| --- ", "|---")
        .replace("|--- |", "|---|")
    )


def escaped(text: str) -> str:
    """Text that stays text in Markdown.

    >>> escaped("a_b | <c>")
    'a\\\\_b \\\\| \\\\<c\\\\>'
    """
    return re.sub(r"([\\`*_{}\[\]<>|#~&])", r"\\\1", " ".join(text.split()))


def _settings(row: dict[str, Any]) -> str:
    pairs = "" if pd.isna(row["pairs"]) else f" of {row['pairs']} pairs"
    return (
        f"{row['model']}: task {row['task']}, {row['prompts']} prompts{pairs}, up to {row['tokens']} tokens, "
        f"level {row['level']}, tau {row['tau']:g}, {row['dtype']}, seed {row['seed']}"
    )
