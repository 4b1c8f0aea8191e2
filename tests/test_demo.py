"""The handmade heads land where theory puts them, through the library and through the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

import wherewhat as ww
from wherewhat.studies.demo import demo
from wherewhat.theory import handmade


@pytest.mark.parametrize("seed", range(3))
def test_the_forward_pass_gives_the_closed_form(seed):
    made, ids = handmade.build(seed), handmade.prompts(3, seed)
    trace = ww.capture(made.model, ids)
    for head in range(len(handmade.HEADS)):
        table = torch.stack([made.table(prompt)[head, :-1, :-1] for prompt in ids])
        assert (trace.placement(0, head) - table).abs().max() < 1e-5


@pytest.mark.parametrize("seed", range(3))
def test_every_head_is_what_it_was_built_to_be(seed):
    heads, check = demo(prompts=16, seed=seed)
    assert [head.kind for head in heads] == ["where", "what", "mixed", "unfocused"]
    assert all(head.as_theory_says for head in heads)
    assert max(check.values()) < 1e-5
    where, what, mixed, uniform = heads
    assert where.positional == pytest.approx(1, abs=1e-6)
    assert what.symbolic == pytest.approx(1, abs=1e-6)
    assert (uniform.positional, uniform.symbolic, uniform.entropy) == pytest.approx((1, 1, 1), abs=1e-6)
    assert mixed.variance <= mixed.exclusion_bound


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "wherewhat", *arguments], capture_output=True, text=True, check=False)


def test_the_command_shows_the_plane_and_the_table():
    done = run("demo", "--prompts", "2")
    assert done.returncode == 0
    assert done.stderr == ""
    assert "positional" in done.stdout
    assert "unfocused" in done.stdout
    assert " NO" not in done.stdout


def test_the_command_speaks_json():
    answer = json.loads(run("demo", "--json").stdout)
    assert [head["built_as"] for head in answer["heads"]] == list(handmade.HEADS)


def test_help_shows_an_example_and_bad_input_exits_with_2():
    assert "wherewhat demo --prompts 32" in run("demo", "--help").stdout
    refused = run("demo", "--prompts", "0")
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr
