"""The card of an atlas: a README.md for the Hugging Face hub, written from the data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from huggingface_hub import DatasetCardData

from ...files import write_atomically
from ...words import number
from .result import TABLES, Atlas
from .sentences import atlas_sentences
from .tables import MODELS

SCORE = "95 % interval, bootstrap over prompts"
SHARES = {
    "on_blocks": "on all blocks together",
    "on_query": "on the query's own token",
    "on_first": "on the first token",
    "elsewhere": "on all other tokens",
    "answer_token": "on the answer, inside its block",
    "answer": "on the block that holds the answer",
}
HEADS = {
    "model": "name of the model",
    "layer": "layer of the model, from 0; a layer that runs several times has one row per run",
    "head": "query head of the layer, from 0",
    "kv_head": "key-value head that it reads, from 0",
    "kind": "where, what, unfocused, mixed or unmeasured: see above",
    "positional": "positional score, 0 to 1, mean over prompts: attention stays in place when contents are swapped",
    "positional_low": f"lower end of its {SCORE}",
    "positional_high": "upper end",
    "symbolic": "symbolic score, 0 to 1, mean over prompts: attention follows the contents",
    "symbolic_low": f"lower end of its {SCORE}",
    "symbolic_high": "upper end",
    "entropy": "entropy of its attention as a share of the maximum: 0 for a single key, 1 for uniform attention",
    "variance": "variance of its logits over keys, squared logits (natural logarithm)",
    "exclusion_bound": "upper bound on that variance, squared logits",
    "positional_without_first": "positional score with the first token masked",
    "symbolic_without_first": "symbolic score with the first token masked",
    "mean_frequency": "mean ID of the RoPE frequencies that it uses; 1 is the fastest",
    "previous_token": "attention on the previous token, in repeated random tokens, 0 to 1",
    "induction": "attention on the token that followed the query before, in repeated random tokens, 0 to 1",
    "sink": "attention on the first token, 0 to 1",
    **{
        name: meaning
        for column, what in SHARES.items()
        for name, meaning in (
            (column, f"attention {what}, 0 to 1, mean over prompts"),
            (f"{column}_low", f"lower end of its {SCORE}"),
            (f"{column}_high", "upper end"),
        )
    },
    "answer_chance": "attention on all blocks together, divided by their number: the chance level of answer",
    "current_token": "attention on the query's own token, in repeated random tokens, 0 to 1",
}
FREQUENCIES = {
    "model": HEADS["model"],
    "layer": HEADS["layer"],
    "head": HEADS["head"],
    "frequency": "ID of the frequency: 1 is the fastest, 0 stands for the non-rotary dimensions",
    "angle": "rotation angle per token, radians",
    "positional": "positional score of this frequency alone, 0 to 1",
    "symbolic": "symbolic score of this frequency alone, 0 to 1",
    "use_norm": "2-norm, over the keys before the query, of its contribution to the logits",
    "use_max": "largest of these contributions, logits",
}
COLUMNS = {
    "models": {name: meaning for name, (_, meaning) in MODELS.items()},
    "heads": HEADS,
    "frequencies": FREQUENCIES,
}
SIZES = ("1K", "10K", "100K", "1M", "10M", "100M")


def write_card(atlas: Atlas, folder: str | Path) -> None:
    """Write the README.md of the data set to this folder.

    >>> write_card(Atlas.load("atlas"), "atlas")                      # doctest: +SKIP
    """
    write_atomically(Path(folder) / "README.md", card(atlas))


def card(atlas: Atlas) -> str:
    """The metadata for the hub, and the text below it."""
    return f"---\n{front_matter(atlas)}\n---\n\n{body(atlas)}"


def front_matter(atlas: Atlas) -> str:
    """Licence, size and tables as the hub expects them; the table of heads is shown first."""
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
    """The hub's category for a number of rows.

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
            markdown(("column", "meaning"), [(f"`{column}`", meaning) for column, meaning in COLUMNS[name].items()]),
        )
    ]
    parts = [
        f"# {escaped(atlas.about['title'])}",
        "Does an attention head look at **where**, or at **what**? The data set holds, for every head and every RoPE "
        f"frequency of {len(models)} language models, how much attention stays in place (positional score) and how "
        "much it follows the contents (symbolic score) when contents are swapped. "
        + escaped(" ".join(atlas_sentences(atlas))),
        f"A head looks at *where* if its positional score is at least {high} and its symbolic score at most {low}, at "
        f"*what* the other way round; it is *unfocused* if both are at least {high}, otherwise *mixed*. A head that "
        "gives no attention to the blocks is *unmeasured*.",
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
        "Every model was checked before it was measured: the captured attention must equal the model's own "
        "(`deviation` in the table of models), otherwise the model is refused. `weights` identifies the exact weights.",
        *(
            ["Requested, but not measured:", markdown(("model", "reason"), [map(escaped, row) for row in failed])]
            if failed
            else []
        ),
        "## Licences",
        f"The data are licensed under {escaped(atlas.about['licence'])}. They hold numbers measured on the models, not "
        "the models. Licences of the models, as declared by the list, the model's card or its file: "
        f"{escaped(', '.join(licences))}.",
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def markdown(titles: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table; cells must already be escaped.

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
    """Text with all special characters of Markdown escaped.

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
