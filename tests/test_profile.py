"""A profile can be trusted, repeated, interrupted and refused."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from rich.console import Console
from transformers import AutoTokenizer

import wherewhat as ww
from conftest import weights
from tiny import tiny_model
from wherewhat.cells.cells import cell_hash, run_cells
from wherewhat.core.placement import Placement
from wherewhat.errors import BadInput, SetAside
from wherewhat.prompts import Prompt, binding
from wherewhat.studies.profile.attention import drawn_heads
from wherewhat.studies.profile.cell import merged_log_mass, other_blocks, signature_cell
from wherewhat.studies.profile.profile import profile
from wherewhat.studies.profile.result import Profile
from wherewhat.studies.profile.summary import SINK, by_position, sinks, warnings
from wherewhat.studies.profile.terminal import show_profile
from wherewhat.studies.stats import pearson

COLUMNS = """layer head kv_head kind positional positional_low positional_high symbolic symbolic_low symbolic_high
entropy variance exclusion_bound positional_without_first symbolic_without_first mean_frequency previous_token induction
sink on_blocks on_blocks_low on_blocks_high on_query on_query_low on_query_high on_first on_first_low on_first_high
elsewhere elsewhere_low elsewhere_high answer_token answer_token_low answer_token_high answer answer_low answer_high
answer_chance current_token""".split()

FILES = [file for file in Profile.files() if file != "tasks.parquet"]  # written for several tasks only


@pytest.fixture(scope="module")
def prompts(stories15m):
    tokenizer = AutoTokenizer.from_pretrained(weights("stories15M"))
    return binding(tokenizer, pairs=8, samples=3)


@pytest.fixture(scope="module")
def made(stories15m, prompts):
    return profile(stories15m, prompts)


def test_tables_hold_what_the_design_promises(made, stories15m):
    assert list(made.heads.columns) == COLUMNS
    assert len(made.heads) == 36
    assert list(made.frequencies.columns) == "layer head frequency angle positional symbolic use_norm use_max".split()
    assert len(made.frequencies) == 36 * 24
    assert made.frequencies["frequency"].between(1, 24).all()
    assert (made.heads["variance"] <= made.heads["exclusion_bound"] * (1 + 1e-5)).all()
    for axis in ("positional", "symbolic"):
        assert made.heads[f"{axis}_low"].le(made.heads[axis] + 1e-6).all()
        assert made.heads[f"{axis}_high"].ge(made.heads[axis] - 1e-6).all()


def test_scores_are_the_plain_mean_over_prompts(made, stories15m, prompts):
    each = [ww.score(ww.capture(stories15m, torch.tensor([p.ids])), p.blocks).positional[0] for p in prompts]
    expected = torch.stack(each).mean(0).flatten()
    torch.testing.assert_close(torch.tensor(made.heads["positional"].to_numpy()).float(), expected)


def test_previous_token_and_induction_scores_are_those_of_the_models_own_attention(made, stories15m):
    cell = signature_cell(stories15m, "", seed=0)
    stories15m.set_attn_implementation("eager")
    with torch.no_grad():
        rows = stories15m(torch.tensor([cell.ids]), output_attentions=True).attentions
    stories15m.set_attn_implementation("sdpa")
    queries = range(len(cell.ids) - cell.period // 2, len(cell.ids))
    for name, offset in (("previous_token", 1), ("induction", cell.period - 1)):
        expected = [torch.stack([row[0, :, q, q - offset] for q in queries]).mean(0) for row in rows]
        measured = torch.tensor(made.heads[name].to_numpy()).float()
        torch.testing.assert_close(measured, torch.cat(expected), atol=1e-5, rtol=0)


def test_answers_are_judged(made, stories15m, prompts):
    with torch.no_grad():
        for prompt, judged in zip(prompts, made.about["by_target"], strict=True):
            chances = stories15m(torch.tensor([prompt.ids])).logits[0, -1].softmax(-1)
            assert judged["probability"] == pytest.approx(chances[prompt.answer].item(), abs=1e-5)


def test_two_runs_give_the_same_bytes_and_load_gives_it_back(stories15m, prompts, tmp_path):
    for name in ("one", "two"):
        profile(stories15m, prompts, folder=tmp_path / name)
    for file in FILES[:-1]:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    again = Profile.load(tmp_path / "one")
    assert again.heads.equals(profile(stories15m, prompts).heads)


@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_is_named(stories15m, prompts, tmp_path, file):
    profile(stories15m, prompts[:1], folder=tmp_path)
    data = bytearray((tmp_path / file).read_bytes())
    data[len(data) // 2 :] = b"\0" * 10
    (tmp_path / file).write_bytes(data)
    with pytest.raises(ww.BadInput, match=file):
        Profile.load(tmp_path)


def test_the_folder_of_another_model_is_refused(stories15m, stories260k, prompts, tmp_path):
    profile(stories15m, prompts[:1], folder=tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(weights("stories260K"))
    with pytest.raises(ww.BadInput, match="another model"):
        profile(stories260k, binding(tokenizer, pairs=4, samples=1), folder=tmp_path)


def test_a_profile_with_other_settings_is_kept_unless_told_otherwise(stories15m, prompts, tmp_path):
    said: list[str] = []
    first = profile(stories15m, prompts[:1], folder=tmp_path, settings={"pairs": 8}, say=said.append)
    before = (tmp_path / "profile.json").read_bytes()
    for wrong, words in (
        ({"settings": {"pairs": 9}}, "--pairs 8"),
        ({"tau": 0.1}, "--tau 0.0001"),
        ({"seed": 3}, "--seed 0"),
    ):
        with pytest.raises(
            ww.BadInput, match=f"holds a profile with {words}; choose another folder or give --overwrite"
        ):
            profile(stories15m, prompts[:1], folder=tmp_path, **({"settings": {"pairs": 8}} | wrong))
    with pytest.raises(ww.BadInput, match="other prompts"):
        profile(stories15m, prompts[1:], folder=tmp_path, settings={"pairs": 8})
    assert (tmp_path / "profile.json").read_bytes() == before
    said.clear()
    again = profile(stories15m, prompts[:1], folder=tmp_path, settings={"pairs": 8}, say=said.append)
    assert again.heads.equals(first.heads)
    profile(stories15m, prompts[:2], folder=tmp_path, overwrite=True, say=said.append)
    assert said[0] == f"Reusing the profile in {tmp_path}"
    assert said[-1] == "Resuming: 1 of 2 prompts were measured before"
    assert len(Profile.load(tmp_path).tensors["positional"]) == 2


@dataclass(frozen=True)
class Square:
    number: int


def test_cells_that_are_there_are_skipped(tmp_path):
    computed: list[int] = []

    def square(cell: Square) -> dict[str, torch.Tensor]:
        computed.append(cell.number)
        return {"square": torch.tensor(cell.number**2)}

    cells = [Square(1), Square(2)]
    assert [int(r["square"]) for r in run_cells(tmp_path, cells, square)] == [1, 4]
    assert [int(r["square"]) for r in run_cells(tmp_path, [*cells, Square(3)], square)] == [1, 4, 9]
    assert computed == [1, 2, 3]
    (tmp_path / f"{cell_hash(Square(2))}.safetensors").write_bytes(b"rubbish")
    with pytest.warns(SetAside, match=f"{cell_hash(Square(2))}.*computed again"):
        assert [int(r["square"]) for r in run_cells(tmp_path, cells, square)] == [1, 4]
    assert computed == [1, 2, 3, 2]
    assert (tmp_path / f"{cell_hash(Square(2))}.safetensors.damaged").read_bytes() == b"rubbish"


@pytest.mark.parametrize(("blocks", "merged"), [(5, 1), (130, 3)])
def test_the_stored_table_is_the_placement_table_summed_over_blocks(blocks, merged):
    """By brute force: exp of every content on every place, added up token by token, and plain means of the merged."""
    torch.manual_seed(0)
    width, keys = 2, 2 * blocks + 3
    content, place = torch.randn(1, 2, keys + 1, 4), torch.randn(1, 1, keys + 1, 4)
    placement = Placement(content.double(), place.double())
    spans = torch.arange(3, 3 + blocks * width).view(blocks, width)
    found = merged_log_mass(placement, spans)
    for head in range(2):
        table = placement.table()[0, head].exp()
        mass = torch.stack([table[:, spans[:, t]][spans[:, t]] for t in range(width)]).sum(0)
        mass = mass / placement.logits()[0, head].exp().sum()
        groups = -(-blocks // merged)
        assert found.shape == (1, 2, groups, groups)
        for i in range(groups):
            for j in range(groups):
                part = mass[i * merged : (i + 1) * merged, j * merged : (j + 1) * merged]
                assert found[0, head, i, j].item() == pytest.approx(math.log(part.mean()), abs=1e-9)


def test_the_first_prompts_table_holds_the_real_attention_on_its_diagonal(made, prompts):
    table = made.tensors["log_mass"].float()
    assert table.shape == (6, 6, 8, 8)
    width = prompts[0].blocks[0][1] - prompts[0].blocks[0][0]
    real = made.tensors["block_attention"][0] * width
    torch.testing.assert_close(table.diagonal(dim1=-2, dim2=-1).exp(), real, rtol=1e-2, atol=1e-6)
    assert [row["label"] for row in made.about["table"]] == list(prompts[0].labels)


def test_prompts_with_fewer_blocks_are_padded(stories15m, prompts):
    shorter = replace(prompts[1], blocks=prompts[1].blocks[:6])
    attention = profile(stories15m, [prompts[0], shorter]).tensors["block_attention"]
    assert attention.shape == (2, 6, 6, 8)
    assert attention[1, ..., 6:].isnan().all()
    assert not attention[1, ..., :6].isnan().any()


def test_sensitivity_repeats_the_scores_at_other_taus_and_blocks(made, stories15m, prompts):
    traces = [ww.capture(stories15m, torch.tensor([prompt.ids])) for prompt in prompts]
    rows = made.about["sensitivity"]
    assert [row["tau"] for row in rows[:4]] == [1e-4, 1e-3, 1e-2, "inf"]
    assert [row["blocks"] for row in rows[4:]] == ["half", "one token", "two as one", "four as one"]
    for row in rows:
        tau = float(row["tau"])
        cut = [other_blocks(p.blocks).get(row["blocks"], p.blocks) for p in prompts]
        assert {stop - start for spans in cut for start, stop in spans} == {row["tokens_per_block"]}
        scores = [ww.score(trace, spans, tau) for trace, spans in zip(traces, cut, strict=True)]
        plane = [torch.cat([getattr(s, axis) for s in scores]).mean(0) for axis in ("positional", "symbolic")]
        assert row["r"] == pytest.approx(pearson(*(part.flatten() for part in plane))[0], abs=1e-6)
        assert row["median_symbolic"][1] == pytest.approx(plane[1][3:].flatten().quantile(0.5).item(), abs=1e-6)


def test_blocks_are_cut_into_equal_parts_and_joined_with_their_neighbours():
    cut = other_blocks([(2, 7), (7, 12), (13, 18), (18, 23), (23, 28)])
    assert cut["half"][:3] == ((2, 4), (5, 7), (7, 9))
    assert len(cut["one token"]) == 25
    assert cut["two as one"] == ((2, 12), (13, 23))
    assert "four as one" not in cut


def test_one_prompt_has_no_interval(stories15m, prompts):
    alone = profile(stories15m, prompts[:1])
    assert alone.heads[["positional_low", "symbolic_high"]].isna().all(axis=None)
    assert alone.about["correlation"]["r_low"] is None


def test_intervals_of_the_headlines_hold_their_values(made):
    found = made.about["correlation"]
    assert found["r_low"] <= found["r"] <= found["r_high"]
    for halves in made.about["medians"].values():
        assert all(0 <= half["low"] <= half["high"] <= 1 for half in halves)


def test_answers_are_counted_by_where_they_stand():
    placed = [{"place": place, "probability": place, "correct": place > 0.5} for place in (0.1, 0.2, 0.5, 0.6, 0.9)]
    thirds = by_position(placed)
    assert [row["prompts"] for row in thirds] == [2, 2, 1]
    assert [row["accuracy"] for row in thirds] == [0, 0.5, 1]
    assert len(by_position(placed * 4)) == 5
    assert by_position([]) == []


def test_guessing_and_half_precision_are_warned_about(made):
    assert any("indistinguishable from chance" in said for said in made.about["warnings"])
    half = profile(ww.load(weights("stories260K"), dtype="bfloat16"), [prompts_of("stories260K")])
    assert any("bfloat16" in said for said in half.about["warnings"])


def test_a_sink_inside_a_block_is_found(smollm2):
    whole = prompts_of("SmolLM2-135M-Instruct-GGUF")
    start = whole.blocks[0][0]
    cut = Prompt(whole.ids[start:], tuple((a - start, b - start) for a, b in whole.blocks))
    for prompt, inside in ((whole, False), (cut, True)):
        trace = ww.capture(smollm2, torch.tensor([prompt.ids]))
        rows = torch.cat([trace.attention_rows(layer)[0] for layer in range(30)])
        found = sinks([{"key_attention": rows.mean(0), "drawn_heads": drawn_heads(rows[None])}], [prompt])
        assert (found["share"] > SINK) != inside  # tokens before the blocks are counted as sinks
        assert (found["largest_in_a_block"] > SINK) == inside
        said = warnings({"accuracy": None, "sinks": found}, 8, "float32", 1e-4)
        assert [bool(said), "every head appears symbolic" in "".join(said)] == [inside, inside]


def prompts_of(name: str) -> Prompt:
    return binding(AutoTokenizer.from_pretrained(weights(name)), pairs=4, samples=1)[0]


def test_a_killed_profile_goes_on_and_equals_an_undisturbed_one(stories260k, tmp_path):
    """Killed at whatever moment follows a random number of finished prompts; then the command is rerun."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"

    def begin(folder: Path) -> subprocess.Popen[str]:
        words = ["profile", str(weights("stories260K")), "--pairs", "8", "-o", str(folder)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "wherewhat", *words]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)

    undisturbed = begin(whole)
    assert (undisturbed.communicate(), undisturbed.returncode)[1] == 0
    running, wanted, deadline = begin(broken), random.randint(1, 6), time.monotonic() + 120
    while len(list(broken.glob("cells/*.safetensors"))) < wanted and time.monotonic() < deadline:
        time.sleep(0.001)
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    kept = len(list(broken.glob("cells/*.safetensors")))
    assert kept >= wanted
    assert not (broken / "profile.json").exists()
    resumed = begin(broken)
    _, err = resumed.communicate()
    assert resumed.returncode == 0
    assert f"Resuming: {kept} of 8 prompts were measured before" in err
    for file in FILES[:-1]:
        assert (broken / file).read_bytes() == (whole / file).read_bytes()
    prompts = binding(AutoTokenizer.from_pretrained(weights("stories260K")), pairs=8, samples=8)
    here, there = profile(stories260k, prompts).heads, Profile.load(whole).heads
    pd.testing.assert_frame_equal(here, there, check_exact=True)


def test_heads_that_see_no_block_are_unmeasured_everywhere(tmp_path: Path) -> None:
    """A window shorter than the way to the blocks: no scores, and nothing breaks for it."""
    from rich.console import Console

    from wherewhat.explorer.plots import plot
    from wherewhat.studies.profile.terminal import show_comparison, show_profile

    model = tiny_model("mistral")
    prompts = [Prompt(tuple(range(3, 43)), ((2, 4), (4, 6), (6, 8)), answer=5)]
    screen = Console(record=True, width=120)
    for level in ("keys", "prompt"):
        made = ww.profile(model, prompts, level=level, folder=tmp_path / level)
        assert set(made.heads["kind"]) == {"unmeasured"}
        show_profile(made, screen)
        found = ww.compare(made, made)
        assert found.about["agreement"]["positional"]["mean_difference"] is None
        show_comparison(found, ("a", "b"), 3, screen)
        with pytest.raises(BadInput, match="no head has scores"):
            plot(made, "plane")
    assert "16 unmeasured" in screen.export_text()


@pytest.mark.parametrize("change", [{"correlation": {"r": 0.5}}, {"medians": None}, {"sha256": []}])
def test_a_changed_profile_json_is_refused(stories260k: Any, tmp_path: Path, change: dict[str, Any]) -> None:
    prompts = [Prompt(tuple(range(40, 60)), ((2, 6), (6, 10)))]
    ww.profile(stories260k, prompts, folder=tmp_path)
    said = json.loads((tmp_path / "profile.json").read_text())
    (tmp_path / "profile.json").write_text(json.dumps(said | change))
    with pytest.raises(BadInput, match=r"profile\.json: damaged"):
        Profile.load(tmp_path)


def test_answers_that_are_no_tokens_and_negative_seeds_are_refused(stories260k: Any) -> None:
    blocks = ((2, 6), (6, 10))
    for answer in (-1, 100_000):
        with pytest.raises(BadInput, match="is not a token id"):
            ww.profile(stories260k, [Prompt(tuple(range(40, 60)), blocks, answer=answer)])
    with pytest.raises(BadInput, match="seed"):
        ww.profile(stories260k, [Prompt(tuple(range(40, 60)), blocks)], seed=-1)


def test_a_block_at_the_very_beginning_leaves_one_without_it(stories260k: Any) -> None:
    made = ww.profile(stories260k, [Prompt(tuple(range(40, 60)), ((0, 4), (4, 8)))]).heads
    assert made["positional_without_first"].isna().all()
    assert made["positional"].notna().all()


@pytest.mark.slow
def test_layers_that_run_several_times_are_compared_by_their_order() -> None:
    model = tiny_model("hrm_text")
    made = ww.profile(model, [Prompt(tuple(range(3, 23)), ((2, 6), (6, 10), (10, 14)))])
    assert made.heads.duplicated(["layer", "head"]).any()
    heads = ww.compare(made, made).heads
    assert heads is not None
    assert (heads["moved"] == 0).all()


@pytest.mark.weights
@pytest.mark.slow
def test_further_tasks_have_a_table_each_which_is_that_of_their_own_profile(stories260k, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(weights("stories260K"))
    options = {"tokenizer": tokenizer, "samples": 3}
    both = ww.profile(stories260k, task=["binding", "prose"], pairs=6, folder=tmp_path, **options)
    alone = ww.profile(stories260k, task="binding", pairs=6, **options)
    prose = ww.profile(stories260k, task="prose", **options)
    pd.testing.assert_frame_equal(both.heads, alone.heads)
    assert alone.tasks is None
    assert both.tasks is not None
    assert set(both.tasks["task"]) == {"prose"}
    pd.testing.assert_frame_equal(both.tasks.drop(columns="task"), prose.heads)
    (found,) = both.about["tasks"]
    same = [a == b for a, b in zip(alone.heads["kind"], prose.heads["kind"], strict=True)]
    assert (found["kept"]["all"]["same"], found["kept"]["all"]["of"]) == (sum(same), len(same))
    assert found["correlation"] == prose.about["correlation"]
    assert Profile.load(tmp_path).about == both.about
    console = Console(record=True, width=200)
    show_profile(both, console)
    assert f"From binding to prose, {sum(same)} of 40 heads keep their kind" in console.export_text()
