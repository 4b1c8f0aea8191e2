"""What the page of a report holds: sentences from the data, arrays that read back, nothing that a prompt can break."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import wherewhat as ww
from conftest import missing
from synthetic import random_profile, random_series
from wherewhat.errors import BadInput
from wherewhat.report.explorer import explorer_html, load_source
from wherewhat.report.explorer_data import encoded, names_of, profile_data, series_data, shown_prompt
from wherewhat.report.sentences import depth_sentence, exclusion_sentence, kinds_sentence, series_sentences
from wherewhat.studies.profile_file import Profile

ROOT = Path(__file__).parents[1]


def held(page: str) -> dict:
    """The data inside of a page."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


def decoded(array: dict[str, str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(array["base64"]), np.dtype("<" + array["type"]))


def test_the_page_of_270_heads_is_small_and_asks_for_nothing():
    page = explorer_html([random_profile(30, 9, 32)])
    assert len(page.encode()) < 5e6
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


def test_heads_and_frequencies_that_a_layer_lacks_are_left_out():
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


def test_a_prompt_is_its_tokens_in_order():
    prompt = random_profile(1, 1, 1, blocks=3).about["prompts"][0]
    shown = shown_prompt(prompt)
    assert "".join(piece["text"] for piece in shown["pieces"]) == prompt["text"]
    assert [piece["block"] for piece in shown["pieces"]] == [None, 0, 1, 2, None, None]
    assert [piece["text"] for piece in shown["pieces"]][-1] == "?"


def test_a_prompt_of_an_older_profile_is_found_by_its_labels():
    prompt = random_profile(1, 1, 1, blocks=3).about["prompts"][0]
    older = {name: value for name, value in prompt.items() if name not in ("tokens", "says")}
    shown = shown_prompt(older)
    assert "".join(piece["text"] for piece in shown["pieces"]) == prompt["text"]
    assert [piece["text"] for piece in shown["pieces"] if piece["block"] == 1] == ["Person 1 likes red."]
    nameless = shown_prompt(older | {"text": "", "labels": []})
    assert [piece["block"] for piece in nameless["pieces"]][:3] == [0, 1, 2]


def test_no_prompt_ends_the_data():
    profile = random_profile(1, 2, 2, blocks=3)
    hostile = "</script><script>alert(1)</script><!-- & \u2028"
    profile.about["prompts"][0]["tokens"][0] = hostile
    profile.about["model"] = f"<img src=x onerror=alert(1)>{hostile}"
    page = explorer_html([profile])
    assert page.count("</script>") == 2
    assert "<img" not in page
    assert held(page)["sources"][0]["prompt"]["pieces"][0]["text"].startswith(hostile)


def test_sentences_say_what_the_numbers_say():
    profile = random_profile(4, 5, 1, blocks=3)
    profile.heads["kind"] = ["where"] * 12 + ["what"] * 5 + ["unfocused"] + ["mixed"] * 2
    assert kinds_sentence(profile) == "12 of 20 heads look at where, 5 at what, 1 is unfocused, 2 are mixed."
    profile.heads.loc[0, "kind"] = "unmeasured"
    assert kinds_sentence(profile).endswith("2 are mixed; 1 head could not be measured.")
    for r, words in ((-0.9, "exclude each other"), (-0.3, "tend to"), (0.1, "do not exclude")):
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

    assert depth((0.9, 0.1), (0.2, 0.8)) == "Early layers look at where, late ones at what."
    assert depth((0.9, 0.1), (0.8, 0.2)).endswith("mostly look at where, late ones less purely.")
    assert depth((0.5, 0.5), (0.5, 0.6)) == "Early and late layers look at both alike."


def test_a_series_holds_every_step_and_says_when_heads_became_pure():
    watched = random_series()
    source = series_data(watched, "number")
    found = decoded(source["arrays"]["positional"]).reshape(20, 8)
    for at, step in enumerate(source["steps"]):
        expected = watched.heads[watched.heads["step"] == step]["positional"].to_numpy("f4")
        assert (found[at] == expected).all()
    pure = watched.purity.query("gamma == 0.1")
    assert len(pure) == 8
    assert source["pure"] == {f"{row.layer}.{row.head}": row.step for row in pure.itertuples()}
    said = " ".join(series_sentences(watched, 0.1))
    assert "4 heads came to look purely at where" in said
    assert "to step 950" in said


def test_profiles_are_compared_in_pairs():
    one, other = random_profile(2, 3, 2, blocks=4), random_profile(2, 3, 2, blocks=4)
    other.heads["positional"] = other.heads["positional"][::-1].to_numpy()
    page = held(explorer_html([one, random_series(), other]))
    assert set(page["comparisons"]) == {"0,1", "0,2", "1,2"}
    assert page["comparisons"]["0,1"][1] == "They do not have the same heads, so none is compared with another."
    assert names_of([one, other]) == ["random (1)", "random (2)"]


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
    refuse("holds no profile", "report", tmp_path / "nothing", "-o", page)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "run.json").write_text("{}")
    refuse("wherewhat dynamics", "report", tmp_path / "raw")
    refuse("cannot be written", "report", tmp_path / "profile", "-o", "/proc/page.html")
    with pytest.raises(BadInput, match="at least one"):
        explorer_html([])


def test_prompts_say_what_their_tokens_are(stories260k):
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


def test_the_bundled_script_is_fresh(tmp_path):
    """What is committed is what the sources give."""
    if not (ROOT / "explorer" / "node_modules").exists() or not shutil.which("npx"):
        missing("no explorer/node_modules: run npm ci in the folder explorer")
    build = json.loads((ROOT / "explorer" / "package.json").read_text())["scripts"]["build"].split()
    made = tmp_path / "explorer.js"
    subprocess.run(["npx", *build[:-1], f"--outfile={made}"], cwd=ROOT / "explorer", check=True, capture_output=True)
    committed = ROOT / "src" / "wherewhat" / "report" / "page" / "explorer.js"
    assert made.read_text() == committed.read_text(), "run make page"


def test_sources_are_read_by_what_they_are(tmp_path):
    random_series().save(tmp_path / "number" / "dynamics")
    assert load_source(tmp_path / "number").about == load_source(tmp_path / "number" / "dynamics").about
    assert isinstance(load_source(tmp_path / "number").purity, pd.DataFrame)
