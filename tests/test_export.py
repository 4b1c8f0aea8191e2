"""Profiles written for other programs, read back as those programs read them; sets of heads that are shared."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pandas as pd
import pytest
import torch

import wherewhat as ww
from tiny import tiny_model
from wherewhat.tracing.hook import implementation

PROMPTS = [
    ww.Prompt(
        tuple((7 * at * at + 3 * start) % 120 + 3 for at in range(26)), tuple((at, at + 2) for at in range(4, 24, 2))
    )
    for start in range(2)
]


@pytest.fixture(scope="module")
def profile() -> ww.Profile:
    return ww.profile(tiny_model("llama"), PROMPTS)


def test_csv_and_json_hold_the_table_of_heads(profile, tmp_path):
    with ww.export(profile, to="csv", path=tmp_path / "heads.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["symbolic"]) for row in rows] == profile.heads["symbolic"].tolist()
    made = json.loads(ww.export(profile, to="json", path=tmp_path / "all.json", heads="1.*").read_text())
    assert {(row["layer"], row["head"]) for row in made["heads"]} == {(1, head) for head in range(4)}
    assert {row["layer"] for row in made["frequencies"]} == {1}
    assert made["about"]["settings"]["weights"] == profile.about["settings"]["weights"]


def test_latex_has_one_line_per_head_and_equally_many_columns(profile, tmp_path):
    lines = ww.export(profile, to="latex", path=tmp_path / "heads.tex").read_text().splitlines()
    body = lines[lines.index(r"\midrule") + 1 : lines.index(r"\bottomrule")]
    columns = re.fullmatch(r"\\begin\{tabular\}\{([lr]+)\}", lines[0])
    assert columns is not None
    assert len(body) == len(profile.heads)
    assert {line.count("&") + 1 for line in body} == {len(columns[1])}


def test_a_pattern_is_read_as_duo_attention_does(profile, tmp_path):
    folder = ww.export(profile, to="duo", path=tmp_path / "duo", share=0.5, sink=2, recent=8)
    read = np.loadtxt(folder / "full_attention_heads.tsv", dtype=float, delimiter="\t")
    expected = np.zeros((4, 2))  # in plain loops: the largest of the query heads that share a key head
    for row in profile.heads.to_dict("records"):
        need = max(row["symbolic"] * row["on_blocks"], row["induction"])
        place = row["layer"], row["head"] // 2
        expected[place] = max(expected[place], need)
    np.testing.assert_allclose(read, expected, atol=1e-6)
    config = json.loads((folder / "config.json").read_text())
    assert (config["sink_size"], config["recent_size"]) == (2, 8)
    full = read >= np.quantile(read, 0.5)  # its rule for a sparsity of one half
    stream = ww.HeadSet.load(folder / "streaming_heads.json")
    assert {(layer, head // 2) for layer, head in stream.heads} == {*map(tuple, np.argwhere(~full).tolist())}
    assert len(stream.heads) == 8


def test_a_pattern_of_given_heads_keeps_exactly_these(profile, tmp_path):
    folder = ww.export(profile, to="duo", path=tmp_path, heads="0.1, 3.3")
    read = np.loadtxt(folder / "full_attention_heads.tsv", delimiter="\t")
    assert np.argwhere(read == 1).tolist() == [[0, 0], [3, 1]]
    assert len(ww.HeadSet.load(folder / "streaming_heads.json").heads) == 12


def test_a_set_of_heads_is_saved_with_its_digest_and_belongs_to_its_model(profile, tmp_path):
    path = ww.export(profile, to="heads", path=tmp_path / "some.json", heads="2 most symbolic heads")
    made = ww.HeadSet.load(path)
    lead = (profile.heads["symbolic"] - profile.heads["positional"]).nlargest(2).index
    assert set(made.heads) == set(profile.heads.loc[lead, ["layer", "head"]].itertuples(index=False, name=None))
    table = pd.read_csv(ww.export(profile, to="csv", path=tmp_path / "some.csv", heads=f"@{path}"))
    assert len(table) == 2
    other = ww.profile(tiny_model("llama", num_hidden_layers=2), PROMPTS)
    with pytest.raises(ww.BadInput, match="chosen in another model"):
        ww.export(other, to="csv", path=tmp_path / "x.csv", heads=f"@{path}")
    path.write_text(path.read_text().replace('"name": "2', '"name": "3'))
    with pytest.raises(ww.BadInput, match=r"some.json: not a set of heads, or damaged"):
        ww.HeadSet.load(path)


def test_headvis_data_holds_the_attention_of_the_model(tmp_path):
    """Decoded as its frontend does (flat index = query * seq_len + key), against eager attention."""
    model = tiny_model("llama")
    made = ww.profile(model, PROMPTS)
    folder = ww.export(made, to="headvis", path=tmp_path / "data")
    config, rows = (json.loads((folder / f"{name}.json").read_text()) for name in ("config", "scatter_data"))
    assert config["heads"] == [[layer, head] for layer in range(4) for head in range(4)]
    assert (config["n_layers"], config["n_heads"], config["has_umap"]) == (4, 4, False)
    assert config["metric_descriptions"].keys() == set(config["metrics"])
    assert json.loads((folder / "server_config.json").read_text()) == {}
    with implementation(model, "eager"), torch.no_grad():
        shown = [model(torch.tensor([one.ids]), output_attentions=True).attentions for one in PROMPTS]
    for row, own in zip(rows, made.heads.to_dict("records"), strict=True):
        layer, head = row["layer"], row["head"]
        assert row.keys() == {"layer", "head", *config["metrics"]}
        assert row["positional_score"] == pytest.approx(own["positional"], abs=1e-4)
        assert row["induction_score"] == pytest.approx(own["induction"], abs=1e-4)
        ends = [one[layer][0, head, -1].double() for one in shown]
        reach = [sum(float(share) * (25 - key) for key, share in enumerate(end)) for end in ends]
        assert row["qk_distance"] == pytest.approx(sum(reach) / 2, abs=2e-3)
        data = json.loads((folder / "heads" / f"L{layer}H{head}.json").read_text())
        assert sum(data["qk_distance_histogram"]["bin_values"]) == sum(
            len(one["attention_indices"]) for one in data["sequences"]
        )
        assert sorted(one["interval"] for one in data["sequences"]) == [5, 10]
        for one, matrices in zip(data["sequences"], shown, strict=True):
            exact, largest = matrices[layer][0, head], 0.0
            assert len(one["tokens"]) == one["seq_len"] == 26
            for index, value in zip(one["attention_indices"], one["attention_values"], strict=True):
                query, key = index // one["seq_len"], index % one["seq_len"]
                assert abs(value - float(exact[query, key])) < 1e-4
                largest = max(largest, value if query and key else 0.0)
            assert one["max_activation"] == largest
            strong = {25 * 26 + key for key in range(26) if exact[25, key] > 0.006}
            assert strong <= set(one["attention_indices"])
        first = data["sequences"][0]  # every query of the first prompt, with its strongest keys
        assert {index // 26 for index in first["attention_indices"]} == set(range(1, 26))
    some = ww.export(made, to="headvis", path=tmp_path / "some", heads="2.1")
    assert [file.name for file in (some / "heads").iterdir()] == ["L2H1.json"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"to": "xml"}, "to is csv, latex, json, heads, duo or headvis, got xml"),
        ({"to": "heads"}, "to heads: name them"),
        ({"to": "duo", "share": 1.5}, "share lies in 0 to 1"),
        ({"to": "csv", "heads": "9.9"}, "the profile has no head 9.9"),
    ],
)
def test_what_cannot_be_exported_is_refused(profile, tmp_path, options, reason):
    with pytest.raises(ww.BadInput, match=reason):
        ww.export(profile, path=tmp_path / "x", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_ablate_takes_a_set_of_heads_of_its_model_only(tmp_path):
    found = ww.profile("number", samples=4)
    path = ww.export(found, to="heads", path=tmp_path / "some.json", heads="0.0")
    effects = ww.ablate("number", samples=8, draws=2, heads=f"@{path}").effects
    plain = ww.ablate("number", samples=8, draws=2, heads="0.0").effects
    assert effects["after"].tolist() == plain["after"].tolist()
    with pytest.raises(ww.BadInput, match="chosen in another model, number"):
        ww.ablate("letter", samples=8, draws=2, heads=f"@{path}")
