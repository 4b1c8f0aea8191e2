"""A profile can be trusted, repeated, interrupted and refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest
import torch
from transformers import AutoTokenizer

import wherewhat as ww
from conftest import weights
from wherewhat.prompts import binding
from wherewhat.studies.cells import cell_hash, run_cells
from wherewhat.studies.profile import FILES, Profile, profile, signature_cell

COLUMNS = """layer head kv_head kind positional positional_low positional_high symbolic symbolic_low symbolic_high
entropy variance exclusion_bound positional_without_first symbolic_without_first mean_frequency previous_token induction
sink""".split()


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
    for file in FILES[1:]:
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
    with pytest.raises(ww.BadInput, match=cell_hash(Square(2))):
        list(run_cells(tmp_path, cells, square))


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "wherewhat", "profile", str(weights("stories260K")), "--pairs", "8", *arguments]


def test_a_killed_profile_goes_on_and_equals_an_undisturbed_one(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run(command("-o", str(whole)), check=True, capture_output=True)
    running = subprocess.Popen(command("-o", str(broken)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(broken.glob("cells/*.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert list(broken.glob("cells/*.safetensors"))
    subprocess.run(command("-o", str(broken)), check=True, capture_output=True)
    for file in FILES[1:]:
        assert (broken / file).read_bytes() == (whole / file).read_bytes()


def test_the_command_speaks_json_and_refuses_in_one_line(tmp_path):
    done = subprocess.run(
        command("-o", str(tmp_path / "p"), "--samples", "2", "--json"), capture_output=True, text=True
    )
    assert -1 <= json.loads(done.stdout)["correlation"]["r"] <= 1
    wrong = [
        ["--pairs", "400", "-o", str(tmp_path / "q")],
        ["--samples", "0", "-o", str(tmp_path / "q")],
        ["--task", "juggling", "-o", str(tmp_path / "q")],
        ["--tau", "0", "-o", str(tmp_path / "q")],
        ["--dtype", "int3", "-o", str(tmp_path / "q")],
        ["-o", "/proc/nowhere"],
    ]
    for arguments in wrong:
        done = subprocess.run(command(*arguments), capture_output=True, text=True)
        assert done.returncode == 2, arguments
        assert "Traceback" not in done.stderr
        assert done.stderr.splitlines()[-1].startswith("wherewhat: ")
