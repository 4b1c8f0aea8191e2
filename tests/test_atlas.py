"""Many models in one data set: it says what their own profiles say, and no model that fails takes another with it."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from huggingface_hub import DatasetCard
from safetensors.numpy import load_file
from typer.testing import CliRunner

import wherewhat as ww
from conftest import weights
from tiny import tiny_model, write_gguf
from wherewhat.cli import app
from wherewhat.studies.atlas.atlas import Atlas
from wherewhat.studies.atlas.card import COLUMNS
from wherewhat.studies.atlas.model_list import read_list
from wherewhat.studies.atlas.tables import by_depth, by_family
from wherewhat.studies.profile.cell import measure_keys
from wherewhat.studies.profile.profile import LEVELS
from wherewhat.studies.profile.result import Profile

HOSTILE = "<img src=x onerror='window.broken = 2'> | `a` [b](c) _d_"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a list of five models, of which two cannot be measured."""
    folder = tmp_path_factory.mktemp("atlas")
    for name, kind in (("models/tiny", "llama"), ("learnt", "gpt2")):
        tiny_model(kind, vocab_size=512).save_pretrained(folder / name)
        for file in weights("stories260K").glob("*token*"):
            shutil.copyfile(file, folder / name / file.name)
    (folder / "models/tiny/README.md").write_text("---\nlicense: apache-2.0\n---\nA tiny model.\n")
    (folder / "models.toml").write_text(f"""
        pairs = 4
        samples = 2

        [card]
        title = "Small models: <b>all</b> of them"
        licence = "odc-by"

        [[models]]
        model = "{weights("stories260K")}"
        family = "stories"
        licence = "mit"

        [[models]]
        model = "{weights("stories15M")}"
        family = "stories"
        pairs = 5
        seed = 1

        [[models]]
        model = "models/tiny"
        name = "{HOSTILE}"

        [[models]]
        model = "learnt"

        [[models]]
        model = "nobody/nothing"
    """)
    return folder


def give(*words: object) -> tuple[int, str, str]:
    """The command, as far as it is not bad input: exit code, standard output, standard error."""
    result = CliRunner().invoke(app, ["atlas", *map(str, words)])
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def made(folder) -> Atlas:
    code, out, err = give(folder / "models.toml", "-o", folder / "made", "--json")
    assert code == 1
    assert err.startswith("wherewhat: 2 of 5 models were not measured")
    atlas, told = Atlas.load(folder / "made"), json.loads(out)
    assert [row["model"] for row in told["models"]] == list(atlas.models["model"])
    assert told["failed"] == atlas.failed
    return atlas


def test_the_data_set_is_what_the_models_own_profiles_say(made, folder, stories260k, stories15m):
    for name, model, options in (
        ("stories260K", stories260k, {"pairs": 4, "seed": 0}),
        ("stories15M", stories15m, {"pairs": 5, "seed": 1}),
        (HOSTILE, ww.load(folder / "models/tiny"), {"pairs": 4, "seed": 0}),
    ):
        tokenizer = ww.load_tokenizer(weights(name if name.startswith("stories") else "stories260K"))
        alone = ww.profile(model, ww.binding(tokenizer, samples=2, **options), seed=options["seed"])
        for table in ("heads", "frequencies"):
            rows = getattr(made, table).query("model == @name").drop(columns="model").reset_index(drop=True)
            pd.testing.assert_frame_equal(rows, getattr(alone, table), check_exact=True)
        assert Profile.load(folder / "made" / "profiles" / name).heads.equals(alone.heads)
    assert list(made.heads["model"].drop_duplicates()) == sorted([HOSTILE, "stories15M", "stories260K"])


@pytest.mark.slow
def test_a_line_says_what_can_be_computed_again_from_the_heads_and_the_weights(made):
    for row in made.models.to_dict("records"):
        heads = made.heads.query("model == @row['model']")
        scores = heads[["positional", "symbolic"]].to_numpy()
        assert row["r"] == pytest.approx(
            np.corrcoef(scores.T)[0, 1], abs=1e-6
        )  # means over prompts in single precision
        assert [row["positional"], row["symbolic"]] == pytest.approx(np.median(scores, axis=0), abs=1e-9)
        assert row["where"] == ((scores[:, 0] >= 0.8) & (scores[:, 1] <= 0.2)).mean()
        assert sum(row[kind] for kind in ("where", "what", "unfocused", "mixed", "unmeasured")) == pytest.approx(1)
        assert 0 < row["deviation"] < 1e-4
    rows = {row["model"]: row for row in made.models.to_dict("records")}
    for name in ("stories260K", "stories15M"):
        config = json.loads((weights(name) / "config.json").read_text())
        row = rows[name]
        assert row["parameters"] == sum(part.size for part in load_file(weights(name) / "model.safetensors").values())
        sizes = [config[one] for one in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")]
        assert [row["layers"], row["heads_per_layer"], row["kv_heads"]] == sizes
        assert row["head_size"] == config["hidden_size"] // config["num_attention_heads"]
        assert row["heads"] == sizes[0] * sizes[1]
        assert row["rope_base"] == 10_000
    told = {name: (row["family"], row["licence"], row["licence_from"]) for name, row in rows.items()}
    assert told == {
        "stories260K": ("stories", "mit", "the list"),
        "stories15M": ("stories", "unknown", ""),
        HOSTILE: ("llama", "apache-2.0", "its card"),
    }


@pytest.mark.slow
def test_models_that_fail_are_told_with_their_reason(made):
    assert made.failed.keys() == {"learnt", "nothing"}
    assert "prompt" in made.failed["learnt"]  # GPT-2 has scores at level prompt only
    assert "not in the local cache" in made.failed["nothing"]


def test_depth_is_cut_into_fifths(made):
    """Against a cut by hand: stories260K has five layers, stories15M six of which the middle two share a fifth."""
    table = by_depth(made.heads)
    for model, cut in (
        ("stories260K", [[0], [1], [2], [3], [4]]),
        ("stories15M", [[0], [1], [2, 3], [4], [5]]),
        (HOSTILE, [[0], [1], [], [2], [3]]),
    ):
        rows = table[table["model"] == model].sort_values("fifth").to_dict("records")
        for row, layers in zip(rows, cut, strict=True):
            heads = made.heads[(made.heads["model"] == model) & made.heads["layer"].isin(layers)]
            assert row["heads"] == len(heads)
            if not layers:
                assert math.isnan(row["r"])
                continue
            assert row["r"] == pytest.approx(np.corrcoef(heads["positional"], heads["symbolic"])[0, 1])
            assert row["symbolic"] == np.median(heads["symbolic"])
    stories = by_family(made.models, made.models).query("family == 'stories'").to_dict("records")[0]
    assert stories["models"] == 2
    assert stories["r"] == pytest.approx(made.models.query("family == 'stories'")["r"].mean())
    assert len(by_family(table, made.models, "fifth")) == 10


def test_the_card_is_one_that_the_hub_reads(made, folder):
    card = DatasetCard.load(folder / "made" / "README.md")
    about = card.data.to_dict()
    assert about["license"] == "odc-by"
    assert about["pretty_name"] == "Small models: <b>all</b> of them"
    tables = {one["config_name"]: one["data_files"][0]["path"] for one in about["configs"]}
    assert tables.keys() == COLUMNS.keys()
    for name, path in tables.items():
        schema = pq.read_schema(folder / "made" / path)
        assert schema.names == list(COLUMNS[name])
        assert "null" not in map(str, schema.types)
        assert f"{len(getattr(made, name)):,} rows" in card.text
    code = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
    text = re.sub(r"\\[\\`*_{}\[\]<>|#~&]", "", code.sub("", card.text))
    assert "onerror" in text
    assert not re.search(r"[<>\[\]_`]", text)  # what a name holds stays text
    lines = [line for line in re.sub(r"\\.", "", card.text).splitlines() if line.startswith("| ") and "onerror" in line]
    assert {line.count("|") for line in lines} == {13}
    assert "apache-2.0, mit, unknown" in card.text


@pytest.mark.slow
def test_what_was_measured_is_not_measured_again(made, folder):
    before = contents(folder / "made")
    code, out, _ = give(folder / "models.toml", "-o", folder / "made")
    assert code == 1
    assert contents(folder / "made") == before
    assert re.search(r"stories260K +40 +\d+% +\d+%", out)
    assert "Not measured: nothing: nobody/nothing: its tokenizer cannot be loaded" in " ".join(out.split())


@pytest.mark.slow
def test_models_at_a_time_give_the_same_bytes(folder):
    models = "".join(f"[[models]]\nmodel = '{name}'\n" for name in ("learnt", "models/tiny", "nobody/nothing"))
    (folder / "few.toml").write_text(f"pairs = 3\nsamples = 1\n{models}")
    for name, jobs in (("one", 1), ("two", 2)):
        code, _, err = give(folder / "few.toml", "-o", folder / name, "--jobs", jobs)
        assert (code, err.splitlines()[-1][:33]) == (1, "wherewhat: 2 of 3 models were not")
    names = ("README.md", "atlas.json", "data/heads.parquet", "data/frequencies.parquet", "data/models.parquet")
    for name in (*names, *(f"profiles/tiny/{file}" for file in Profile.files() if file != "tasks.parquet")):
        assert (folder / "two" / name).read_bytes() == (folder / "one" / name).read_bytes()


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All that was measured, and when; what is only made of it again may be newer."""
    made = ("README.md", "atlas.json", "models.toml", "report.html", "data")
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {
        str(path.relative_to(folder)): (
            0 if path.relative_to(folder).parts[0] in made else path.stat().st_mtime_ns,
            path.read_bytes(),
        )
        for path in files
    }


@pytest.mark.slow
def test_killed_it_goes_on(folder, made, monkeypatch):
    """Killed within the second model, it measures neither the first nor that model's first prompts again."""
    words = [sys.executable, "-m", "wherewhat", "atlas", "models.toml", "-o", "killed"]
    process = subprocess.Popen(words, cwd=folder, stderr=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
    prompts = folder / "killed" / "unfinished" / "stories15M" / "cells"
    until = time.monotonic() + 300
    while not list(prompts.glob("*.safetensors")) and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert [path.stem for path in (folder / "killed" / "unfinished").iterdir()] == ["stories15M"]
    assert not (folder / "killed" / "atlas.json").exists()
    left = 4 - len(list(prompts.glob("*.safetensors")))  # of both models, two prompts each

    asked = []
    monkeypatch.setitem(LEVELS, "keys", lambda *given: asked.append(given[0].config.model_type) or measure_keys(*given))
    again = ww.atlas(folder / "models.toml", folder / "killed")
    assert asked == ["llama"] * left + ["gpt2"]  # which is tried again, and refused again
    for table in ("models", "heads", "frequencies"):
        pd.testing.assert_frame_equal(getattr(again, table), getattr(made, table), check_exact=True)
    assert not (folder / "killed" / "unfinished" / "stories15M").exists()


@pytest.mark.slow
def test_a_gguf_file_is_measured_like_the_model_that_it_holds(folder, tmp_path):
    """The weights of a folder as a GGUF file of the same numbers, in the order of dimensions that such files have."""
    model = tiny_model("llama", vocab_size=512, attention_bias=False, num_hidden_layers=2)
    model.save_pretrained(tmp_path / "folder")
    write_gguf(tmp_path / "gguf" / "model.gguf", model)
    for name in ("folder", "gguf"):
        for file in weights("stories260K").glob("*token*"):
            shutil.copyfile(file, tmp_path / name / file.name)
    (tmp_path / "models.toml").write_text("""
        pairs = 3
        samples = 1
        models = [{model = "folder"}, {model = "gguf/model.gguf"}]
    """)
    atlas = ww.atlas(tmp_path / "models.toml", tmp_path / "atlas")
    assert atlas.failed == {}
    assert not (tmp_path / "atlas" / "unfinished").exists()
    one, other = (rows.drop(columns="model").reset_index(drop=True) for _, rows in atlas.heads.groupby("model"))
    pd.testing.assert_frame_equal(one, other)
    rows = {row["model"]: row for row in atlas.models.to_dict("records")}
    assert (rows["model"]["licence"], rows["model"]["licence_from"]) == ("apache-2.0", "its GGUF file")
    assert rows["folder"]["licence"] == "unknown"
    for name in ("layers", "heads_per_layer", "kv_heads", "head_size", "rope_base", "parameters"):
        assert rows["model"][name] == rows["folder"][name]


MODEL = '[[models]]\nmodel = "models/tiny"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pairs = ", "is not valid TOML"),
        ("pairs = 4", "lists no models"),
        ("models = 3", "lists no models"),
        ("[[models]]\nname = 'a'", "model 1: has no line model"),
        (f"pair = 4\n{MODEL}", "at the top: unknown key 'pair'; known keys are family, licence"),
        (f"{MODEL}pair = 4", "model 1: unknown key 'pair'; known keys are model, name, revision"),
        (f"name = 'x'\n{MODEL}", "at the top: unknown key 'name'"),
        (f"[card]\nauthor = 'x'\n{MODEL}", r"\[card\]: unknown key 'author'; known keys are title, licence"),
        (f"card = 3\n{MODEL}", "card must be a table"),
        (f"{MODEL}pairs = '4'", "pairs must be a whole number, got '4'"),
        (f"{MODEL}pairs = true", "pairs must be a whole number, got True"),
        (f"{MODEL}tau = 'inf'", "tau must be a number"),
        (f"{MODEL}pairs = 1", "pairs"),
        (f"{MODEL}width = 4", "width does not apply to the task binding"),
        (f"{MODEL}task = 'book.txt'", "book.txt"),
        (f"{MODEL}dtype = 'int8'", "dtype is float32"),
        (f"{MODEL}level = 'all'", "level is keys or prompt"),
        (f"{MODEL}tau = -1", "tau"),
        (f"{MODEL}seed = -1", "seed must not be negative"),
        (f"{MODEL}revision = 'main'", "revision applies only to models from the hub"),
        (f"{MODEL}name = '../x'", "cannot be used for a folder"),
        (f"{MODEL}name = 'a,b'", "cannot be used for a folder"),
        (f"{MODEL}{MODEL}pairs = 8", "2 models are called tiny; give each its own name"),
        (f"{MODEL}{MODEL}name = 'other'", "tiny and other are the same model"),
        ("[[models]]\nmodel = 'models/missing'", r"model 1 \(models/missing\): no such folder"),
        ("[[models]]\nmodel = './missing'", "no such folder"),
        ("[[models]]\nmodel = 'missing.gguf'", "no such file"),
        ("[[models]]\nmodel = 'models'", "the folder holds no config.json"),
    ],
)
def test_a_list_that_is_wrong_is_refused_before_any_work(text, words, folder, refuse):
    (folder / "wrong.toml").write_text(text)
    refuse(words, "atlas", folder / "wrong.toml", "-o", folder / "nothing")
    assert not (folder / "nothing").exists()


def test_other_things_are_not_written_over(folder, run, refuse, tmp_path):
    (tmp_path / "README.md").write_text("mine")
    refuse("does not belong to an atlas; choose another folder", "atlas", folder / "models.toml", "-o", tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"
    refuse("cannot be read", "atlas", folder / "no.toml", "-o", tmp_path)
    (tmp_path / "none.toml").write_text("[[models]]\nmodel = 'nobody/nothing'\n")
    code, out, err = run("atlas", tmp_path / "none.toml", "-o", tmp_path / "x")
    assert (code, out) == (1, "")
    assert re.search(r"1 of 1 models failed.*\n  nothing  nobody/nothing: its tokenizer cannot be loaded", err)
    assert not (tmp_path / "x" / "atlas.json").exists()
    refuse("atlas.json: damaged", "report", broken(tmp_path / "broken"), "-o", tmp_path / "page.html")


def broken(folder: Path) -> Path:
    folder.mkdir()
    (folder / "atlas.json").write_text("{}")
    return folder


def test_paths_start_from_the_list_and_what_is_only_said_is_not_measured_again(folder, tmp_path, monkeypatch):
    (folder / "one.toml").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    (entry,) = read_list(folder / "one.toml").entries
    (folder / "two.toml").write_text(f"{MODEL}name = 'x'\nlicence = 'mit'\nfamily = 'y'\n")
    assert read_list(folder / "two.toml").entries[0].cell == entry.cell


def test_a_model_on_disk_is_known_by_its_contents(folder):
    (folder / "one.toml").write_text(MODEL)
    (entry,) = read_list(folder / "one.toml").entries
    weights = folder / "models/tiny/model.safetensors"
    before, content = weights.stat(), weights.read_bytes()
    os.utime(weights, (1, 1))
    assert read_list(folder / "one.toml").entries[0].cell == entry.cell
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # of the same size
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    try:
        assert read_list(folder / "one.toml").entries[0].cell != entry.cell
    finally:
        weights.write_bytes(content)


@pytest.mark.slow
def test_bundled_models_are_measured_on_their_own_task(tmp_path):
    (tmp_path / "models.toml").write_text('samples = 2\n[[models]]\nmodel = "number"\n')
    made = ww.atlas(tmp_path / "models.toml", folder=tmp_path / "atlas")
    alone = ww.profile("number", samples=2)
    assert made.heads["symbolic"].tolist() == alone.heads["symbolic"].tolist()
    (row,) = made.models.to_dict("records")
    assert (row["task"], row["prompts"], row["layers"], row["licence"]) == ("number", 2, 12, "mit")


@pytest.mark.parametrize("name", ["atlas", "atlas-published"])
def test_the_example_is_a_list_of_models_from_the_hub(name):
    entries = read_list(Path(__file__).parents[1] / "examples" / f"{name}.toml").entries
    assert len(entries) >= 5
    assert all(re.fullmatch(r"[\w-]+/[\w.-]+", entry.cell.model) and not entry.cell.files for entry in entries)


def test_the_list_of_published_models_has_the_published_settings_and_states_the_cost_of_each():
    path = Path(__file__).parents[1] / "examples" / "atlas-published.toml"
    entries = read_list(path).entries
    assert {entry.family for entry in entries} == {"Gemma 2", "Qwen 2", "Llama 3"}
    assert {(entry.cell.task.name, entry.cell.task.pairs, entry.cell.tau) for entry in entries} == {
        ("binding", 256, 1e-4)
    }
    stated = re.findall(r"# ([\d.]+)e9 parameters: ([\d.]+) GB, ([\d.]+) s", path.read_text())
    assert len(stated) == len(entries)
    for billions, memory, seconds in (map(float, one) for one in stated):
        assert memory == pytest.approx(2 * billions, rel=0.05)
        assert seconds == pytest.approx(8 * 3 * 2 * billions * 1e9 * 2100 / 150e12, rel=0.25)
