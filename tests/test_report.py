"""The page of a report: sentences written from the data, arrays that read back, and text that no prompt can break."""

from __future__ import annotations

import base64
import json
import math
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer

import wherewhat as ww
from conftest import missing
from page_data import decoded, held
from synthetic import random_ablation, random_lengths, random_profile, random_series
from wherewhat.cli import app
from wherewhat.errors import BadInput
from wherewhat.explorer import data_tokens
from wherewhat.explorer.data import encoded, names_of, profile_command, profile_data, series_data
from wherewhat.explorer.data_tokens import shown_prompt, token_data
from wherewhat.explorer.load import load_drawable, load_results
from wherewhat.explorer.page import explorer_html
from wherewhat.explorer.sentences import (
    depth_sentence,
    exclusion_sentence,
    kinds_sentence,
    length_sentences,
    series_sentences,
)
from wherewhat.prompts.request import request_prompts
from wherewhat.studies.ablation.ablate import Ablation
from wherewhat.studies.profile.result import Profile

ROOT = Path(__file__).parents[1]


def test_the_page_of_270_heads_is_small_and_requests_nothing():
    page = explorer_html([random_profile(30, 9, 32)])
    assert len(page.encode()) < 8e6  # random numbers hardly compress
    assert "default-src 'none'" in page
    assert not re.search(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", page)


def test_arrays_read_back_as_the_tables():
    profile = random_profile(3, 4, 5, blocks=6)
    (source,) = held(explorer_html([profile]))["sources"]
    for name in ("positional", "symbolic_low", "entropy", "exclusion_bound"):
        assert (decoded(source["arrays"][name]) == profile.heads[name]).all()
    for name in ("positional", "use_norm", "angle"):
        expected = profile.frequencies[name].to_numpy("f4")
        assert (decoded(source["arrays"][f"frequency_{name}"]) == expected).all()
    mass = decoded(source["arrays"]["mass"]).reshape(3, 4, 6, 6)
    assert (mass == profile.tensors["log_mass"].numpy()).all()
    assert source["frequencies"] == [1, 2, 3, 4, 5]
    assert source["labels"][5] == "1.1"


def test_heads_and_frequencies_that_a_layer_lacks_are_skipped():
    profile = random_profile(3, 4, 5, blocks=6)
    gone = "layer == 1 and head == 3"
    profile.tensors["block_attention"][:, 1, 3] = np.nan
    heads = profile.heads.query(f"not ({gone})").reset_index(drop=True)
    table = profile.frequencies.query(f"not ({gone}) and not (layer == 2 and frequency == 4)")
    source = profile_data(Profile(heads, table.reset_index(drop=True), profile.about, profile.tensors), "some")
    assert len(source["labels"]) == 11
    assert decoded(source["arrays"]["row"]).tolist() == [0] * 4 + [1] * 3 + [2] * 4
    wide = decoded(source["arrays"]["frequency_positional"]).reshape(11, 5)
    assert np.isnan(wide[7:, 3]).all()
    assert np.isfinite(np.delete(wide, 3, axis=1)).all()
    assert len(decoded(source["arrays"]["mass"])) == 11 * 36


def test_a_layer_that_runs_twice_has_two_rows():
    profile = random_profile(4, 2, 3, blocks=4)
    for table in (profile.heads, profile.frequencies):
        table["layer"] %= 2
    source = profile_data(profile, "looped")
    assert source["layers"] == [0, 1, 0, 1]
    assert source["labels"] == ["0.0", "0.1", "1.0", "1.1", "0.0-2", "0.1-2", "1.0-2", "1.1-2"]
    expected = profile.frequencies["symbolic"].to_numpy("f4")
    assert (decoded(source["arrays"]["frequency_symbolic"]) == expected).all()


def test_frequency_0_comes_last():
    profile = random_profile(2, 2, 3, blocks=4)
    profile.frequencies["frequency"] -= 1
    assert profile_data(profile, "some")["frequencies"] == [1, 2, 0]


def test_a_profile_of_level_prompt_has_no_frequencies_and_no_swaps():
    profile = random_profile(2, 2, 3, blocks=4)
    del profile.tensors["log_mass"]
    source = profile_data(Profile(profile.heads, profile.frequencies[:0], profile.about, profile.tensors), "some")
    assert source["frequencies"] is None
    assert "mass" not in source["arrays"]


def test_a_prompt_is_its_tokens_or_their_ids():
    prompt = random_profile(1, 1, 1, blocks=3).about["prompts"][0]
    shown = shown_prompt(prompt)
    assert "".join(shown["tokens"]) == prompt["text"]
    assert ["".join(shown["tokens"][slice(*span)]).strip() for span in shown["blocks"]] == prompt["labels"]
    assert shown_prompt(prompt | {"tokens": []})["tokens"][:2] == ["⟨0⟩ ", "⟨1⟩ "]


def test_attention_on_tokens_stays_within_its_bytes(monkeypatch):
    """Prompts and queries that exceed them are omitted, the last ones of each kind last."""
    profile = random_profile(3, 4, 1, blocks=5)
    there = np.ones((3, 4), bool)
    about, arrays = token_data(profile, there)
    assert (len(about["prompts"]), about["queries"], about["top"]) == (8, 25, 8)
    for name, values in arrays.items():
        own = profile.tensors[name].numpy()
        assert (values == (own.transpose(1, 2, 0, 3) if name == "token_attention" else own).reshape(values.shape)).all()
    monkeypatch.setattr(data_tokens, "MOST_BYTES", 2000)
    fewer, cut = token_data(profile, there)
    assert (len(fewer["prompts"]), fewer["queries"]) == (3, 5)  # 12 heads: 26 tokens; 8 keys and their attention
    assert (cut["strongest_keys"] == arrays["strongest_keys"][:, -5:]).all()


def test_no_prompt_ends_the_data():
    profile = random_profile(1, 2, 2, blocks=3)
    hostile = "</script><script>alert(1)</script><!-- & \u2028"
    profile.about["prompts"][0]["tokens"][0] = hostile
    profile.about["model"] = f"<img src=x onerror=alert(1)>{hostile}"
    page = explorer_html([profile])
    assert page.count("</script>") == 2
    assert "<img" not in page
    assert held(page)["sources"][0]["tokens"]["prompts"][0]["tokens"][0] == hostile


def test_sentences_agree_with_the_numbers():
    profile = random_profile(4, 5, 1, blocks=3)
    profile.heads["kind"] = ["where"] * 12 + ["what"] * 5 + ["unfocused"] + ["mixed"] * 2
    assert kinds_sentence(profile) == (
        "12 of 20 heads look at where (positional), 5 at what (symbolic), 1 is unfocused, 2 are mixed."
    )
    profile.heads.loc[0, "kind"] = "unmeasured"
    assert kinds_sentence(profile).endswith("2 are mixed; 1 head could not be measured.")
    for r, words in ((-0.9, "scores exclude"), (-0.3, "tend to exclude"), (0.1, "do not exclude")):
        profile.about["correlation"] = {"r": r, "r_low": None, "r_high": None}
        assert words in exclusion_sentence(profile)[0]
    profile.about["correlation"]["r"] = None
    assert exclusion_sentence(profile) == []

    def depth(early: tuple[float, float], late: tuple[float, float]) -> str:
        halves = (
            [{"median": value} for value in (early[0], late[0])],
            [{"median": value} for value in (early[1], late[1])],
        )
        profile.about["medians"] = dict(zip(("positional", "symbolic"), halves, strict=True))
        return depth_sentence(profile)[0]

    assert depth((0.9, 0.1), (0.2, 0.8)) == "Early layers look at where, late layers at what."
    assert depth((0.9, 0.1), (0.8, 0.2)).endswith("mostly look at where, late layers less purely.")
    assert depth((0.5, 0.5), (0.5, 0.6)) == "Early and late layers look at both."


def test_a_series_holds_every_step_and_the_steps_at_which_heads_became_pure():
    watched = random_series()
    source = series_data(watched, "number")
    found = decoded(source["arrays"]["positional"]).reshape(20, 8)
    for at, step in enumerate(source["steps"]):
        expected = watched.heads[watched.heads["step"] == step]["positional"].to_numpy("f4")
        assert (found[at] == expected).all()
    pure = watched.purity.query("gamma == 0.1")
    assert len(pure) == 8
    assert source["pure"] == {f"{row.layer}.{row.head}": row.step for row in pure.itertuples()}
    text = " ".join(series_sentences(watched, 0.1))
    assert "4 heads became purely positional (where)" in text
    assert "up to step 950" in text


def test_profiles_are_compared_in_pairs():
    one, other = random_profile(2, 3, 2, blocks=4), random_profile(2, 3, 2, blocks=4)
    other.heads["positional"] = other.heads["positional"][::-1].to_numpy()
    page = held(explorer_html([one, random_series(), other]))
    assert set(page["comparisons"]) == {"0,1", "0,2", "1,2"}
    assert not page["comparisons"]["0,1"]["matched"]
    assert page["comparisons"]["0,1"]["says"][1] == "The two do not have the same heads, so heads are not compared."
    assert names_of([one, other]) == ["random (1)", "random (2)"]


def test_the_command_on_the_page_asks_for_the_same_prompts():
    """Of several tasks, with blocks of several statements."""
    asked = request_prompts(["binding", "prose"], {"pairs": 8, "group": 4, "samples": 3, "width": 4, "stretch": 60})
    first, second = (request.settings() for request in asked)
    measured = {"level": "keys", "tau": 0.001, "dtype": "float32", "seed": 5}
    words = profile_command({"model": "some.gguf", "settings": first | measured | {"tasks": [second]}})
    assert words.startswith("wherewhat profile some.gguf ")
    command = vars(typer.main.get_command(app))["commands"]["profile"]
    given = command.make_context("profile", shlex.split(words)[2:]).params
    options = {name: given[name] for name in ("kind", "template", "pairs", "group", "samples", "width", "stretch")}
    assert [request.settings() for request in request_prompts(given["task"], options)] == [first, second]
    assert {name: given[name] for name in measured} == measured


def test_report_from_the_command_line(run, refuse, tmp_path):
    random_profile(2, 3, 2, blocks=4).save(tmp_path / "profile")
    (tmp_path / "run").mkdir()
    random_series().save(tmp_path / "run" / "dynamics")
    page = tmp_path / "page.html"
    code, out, err = run("report", tmp_path / "profile", tmp_path / "run", "-o", page)
    assert (code, out) == (0, "")
    assert re.fullmatch(r"Saved .*page\.html \(0\.\d MB\)\n", err)
    assert [source["type"] for source in held(page.read_text())["sources"]] == ["profile", "series"]
    first = page.read_bytes()
    run("report", tmp_path / "profile", tmp_path / "run", "-o", page)
    assert page.read_bytes() == first
    refuse("no such folder", "report", tmp_path / "nothing", "-o", page)
    (tmp_path / "empty").mkdir()
    refuse("holds no profile", "report", tmp_path / "empty", "-o", page)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "run.json").write_text("{}")
    refuse("not scored yet; run wherewhat dynamics", "report", tmp_path / "raw")
    refuse("cannot be written", "report", tmp_path / "profile", "-o", "/proc/page.html")
    with pytest.raises(BadInput, match="at least one"):
        explorer_html([])


@pytest.mark.weights
def test_prompts_hold_the_text_of_their_tokens(stories260k):
    from conftest import weights

    tokenizer = ww.load_tokenizer(weights("stories260K"))
    prompt = ww.binding(tokenizer, pairs=4, samples=1)[0]
    assert len(prompt.tokens) == len(prompt.ids)
    assert prompt.tokens[0] == tokenizer.bos_token
    assert "".join(prompt.tokens[1:]).strip() == prompt.text.strip()
    assert "".join(prompt.tokens[slice(*prompt.blocks[2])]).strip() == prompt.labels[2]
    assert prompt.target is not None
    assert prompt.says in prompt.labels[prompt.target]


def test_encoded_numbers_are_little_endian():
    assert base64.b64decode(encoded(np.array([1, 2], ">i4"))["base64"]) == b"\1\0\0\0\2\0\0\0"


def test_the_bundled_scripts_are_fresh(tmp_path):
    """The committed scripts are what the sources build."""
    if not (ROOT / "explorer" / "node_modules").exists() or not shutil.which("npx"):
        missing("no explorer/node_modules: run npm ci in the folder explorer")
    build = json.loads((ROOT / "explorer" / "package.json").read_text())["scripts"]["build"].split()
    subprocess.run(["npx", *build[:-1], f"--outdir={tmp_path}"], cwd=ROOT / "explorer", check=True, capture_output=True)
    for script in ("explorer.js", "live.js"):
        committed = ROOT / "src" / "wherewhat" / "explorer" / "static" / script
        assert (tmp_path / script).read_text() == committed.read_text(), "run make page"


def test_the_folder_of_a_run_stands_for_its_dynamics(tmp_path):
    series = random_series()
    series.save(tmp_path / "number" / "dynamics")
    for folder in (tmp_path / "number", tmp_path / "number" / "dynamics"):
        (loaded,) = load_results(folder)
        assert isinstance(loaded, ww.Dynamics)
        pd.testing.assert_frame_equal(loaded.purity, series.purity)


@pytest.mark.slow
def test_report_and_plot_take_objects_and_folders_alike(tmp_path):
    profile, series, lengths = random_profile(2, 3, 2, blocks=4), random_series(), random_lengths()
    profile.save(tmp_path / "profile")
    series.save(tmp_path / "run" / "dynamics")
    from_folders = ww.report([tmp_path / "profile", str(tmp_path / "run")], tmp_path / "folders.html")
    from_objects = ww.report([profile, series], str(tmp_path / "objects.html"))
    assert from_folders == tmp_path / "folders.html"
    assert from_folders.read_bytes() == from_objects.read_bytes()
    assert ww.report(profile, tmp_path / "one.html").read_bytes() == (
        ww.report(f"{tmp_path}/profile", tmp_path / "two.html").read_bytes()
    )
    twice = held(ww.report([profile, tmp_path / "profile"], tmp_path / "twice.html").read_text())
    assert [source["name"] for source in twice["sources"]] == ["random (1)", "random (profile)"]
    named = held(ww.report([profile, series], tmp_path / "named.html", names=["a", "b"]).read_text())
    assert [source["name"] for source in named["sources"]] == ["a", "b"]
    for name, result in (("profile", profile), ("run", series)):
        ww.plot(tmp_path / name, path=tmp_path / "folder.png")
        ww.plot(result, path=tmp_path / "object.png")
        assert (tmp_path / "folder.png").read_bytes() == (tmp_path / "object.png").read_bytes()
    lengths.save(tmp_path / "lengths")
    with pytest.raises(BadInput, match="lengths: figures are drawn from a profile, dynamics, an ablation or an atlas"):
        load_drawable(tmp_path / "lengths")


def test_an_ablation_joins_the_profile_of_its_model(run, refuse, tmp_path):
    profile = random_profile(4, 3, 2, blocks=4)
    ablation = random_ablation(profile)
    profile.save(tmp_path / "profile")
    ablation.save(tmp_path / "ablation")
    Ablation(ablation.effects, ablation.about | {"weights": "others"}).save(tmp_path / "other")
    Ablation(ablation.effects.query("draw == draw"), ablation.about).save(tmp_path / "draws")
    code, _, err = run("report", tmp_path / "profile", tmp_path / "ablation", "-o", tmp_path / "page.html")
    assert code == 0, err
    ablation.save(tmp_path / "profile")  # one folder may hold both
    assert run("report", tmp_path / "profile", "-o", tmp_path / "same.html")[0] == 0
    assert (tmp_path / "page.html").read_bytes() == (tmp_path / "same.html").read_bytes()
    page = tmp_path / "not.html"
    refuse("random is another model, or has", "report", tmp_path / "profile", tmp_path / "other", "-o", page)
    refuse("its model, some, and no profile is given", "report", tmp_path / "ablation", "-o", page)
    refuse("--each-head", "report", tmp_path / "profile", tmp_path / "draws", "-o", page)
    (tmp_path / "ablation" / ww.Ablation.FILE).write_text("{}")
    refuse("damaged", "report", tmp_path / "profile", tmp_path / "ablation", "-o", page)
    assert not page.exists()


def test_a_page_is_not_written_into_a_folder_that_does_not_exist(refuse, tmp_path):
    random_profile(2, 2, 2, blocks=4).save(tmp_path / "profile")
    refuse("there is no folder", "report", tmp_path / "profile", "-o", tmp_path / "missing" / "page.html")
    assert not (tmp_path / "missing").exists()


def test_the_sentences_give_the_length_up_to_which_answers_are_right():
    found = random_lengths()
    found.accuracy["accuracy"] = 0.0
    for hops, reach in ((0, 50), (1, 100), (2, 20), (3, 17)):
        found.accuracy.loc[(found.accuracy["hops"] == hops) & (found.accuracy["length"] <= reach), "accuracy"] = 0.95
    found.accuracy.loc[found.accuracy["length"] == 1000, "accuracy"] = 0.93  # right again, but wrong before
    assert length_sentences(found) == [
        "At least 90 % of answers are right up to 50 tokens; at 1,000 tokens, 93 % are.",
        "With one hop this holds up to 100 tokens, with 3 hops up to 17 tokens.",
        "3 of 4 heads lose half of their attention on the next token of the path within 1,000 tokens, the first at 40.",
    ]
    assert math.isinf(found.loss["measured"][1])
