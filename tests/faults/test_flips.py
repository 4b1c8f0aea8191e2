"""Single bytes flipped in every kind of file: what is read is what was written, or the file is named in an error."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import synthetic
import wherewhat as ww
from conftest import share
from wherewhat.errors import BadInput, SetAside
from wherewhat.files import write_atomically
from wherewhat.lab import Recipe, Run, Shape, train_model
from wherewhat.prompts.one_hop import one_hop
from wherewhat.studies.lengths.answers import AnswerLog, Reply
from wherewhat.tasks import TASKS


def flip(path: Path, draw: random.Random) -> None:
    """Change one byte of a file."""
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= draw.randrange(1, 256)
    path.write_bytes(content)


def quietly(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a call returns, and the warnings about files that were set aside."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SetAside)
        found = call()
    return found, [str(one.message) for one in caught if issubclass(one.category, SetAside)]


def same(one: Any, other: Any) -> bool:
    """Whether two results hold the same tables, tensors and provenance."""
    for name, value in vars(one).items():
        match = getattr(other, name)
        if isinstance(value, pd.DataFrame):
            if not value.equals(match):
                return False
        elif isinstance(value, dict) and any(isinstance(part, torch.Tensor) for part in value.values()):
            if not all(torch.equal(part.nan_to_num(-1), match[key].nan_to_num(-1)) for key, part in value.items()):
                return False
        elif name == "about" and value != match:
            return False
    return True


RESULTS = {
    "profile": lambda: synthetic.random_profile(2, 2, 4, blocks=4, prompts=2),
    "dynamics": lambda: ww.Dynamics.load(Path(ww.__file__).parent / "lab" / "series" / "number"),
    "lengths": lambda: synthetic.random_lengths(),
    "atlas": lambda: synthetic.random_atlas(2, 2, 2),
    "ablation": lambda: synthetic.random_ablation(RESULTS["profile"]()),
    "plan": lambda: synthetic.random_plan(RESULTS["profile"]()),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RESULTS)
def test_a_flipped_byte_in_a_saved_result_is_noticed(kind: str, tmp_path: Path, tried: Any) -> None:
    made = RESULTS[kind]()
    made.save(tmp_path / "good")
    draw, silent = random.Random(kind), list[str]()
    flips = share(40, 8)
    for number in range(flips):
        folder = shutil.copytree(tmp_path / "good", tmp_path / str(number))
        path = draw.choice(sorted(file for file in folder.rglob("*") if file.is_file()))
        flip(path, draw)
        try:
            if not same(type(made).load(folder), made):
                silent.append(path.name)
        except BadInput as error:
            assert str(folder) in str(error)
        shutil.rmtree(folder)
    tried("flipped bytes", flips)
    assert silent == []


@pytest.mark.slow
def test_a_flipped_byte_in_a_cell_is_noticed_and_the_cell_computed_again(tmp_path: Path, tried: Any) -> None:
    def measure() -> ww.Profile:
        return ww.profile("number", samples=2, folder=tmp_path / "p")

    wanted, draw, flips = measure(), random.Random(0), share(80, 8)
    cells = sorted((tmp_path / "p" / "cells").glob("*.safetensors"))
    contents = {path: path.read_bytes() for path in cells}
    for _ in range(flips):
        (tmp_path / "p" / "profile.json").unlink()
        path = draw.choice(cells)
        flip(path, draw)
        found, said = quietly(measure)
        assert same(found, wanted)
        assert any(path.name in one for one in said)
        assert {path: path.read_bytes() for path in cells} == contents
    tried("flipped bytes", flips)


def test_the_file_of_another_cell_is_noticed(tmp_path: Path) -> None:
    def measure() -> ww.Profile:
        return ww.profile("number", samples=2, folder=tmp_path)

    wanted = measure()
    (tmp_path / "profile.json").unlink()
    sizes = [path for path in (tmp_path / "cells").glob("*.safetensors") if path.stat().st_size > 10_000]
    one, other = sorted(sizes, key=lambda path: path.stat().st_size)[-2:]
    shutil.copy(one, other)
    found, said = quietly(measure)
    assert said == [f"{other}: holds something else; set aside as {other.name}.damaged, computed again"]
    assert same(found, wanted)


SHAPE = Shape(TASKS["letter"]().vocabulary, layers=1, width=8, hidden=8)


def train(folder: Path) -> dict[str, torch.Tensor]:
    task = TASKS["letter"]()
    examples, validation = task.sample(64, 0), task.sample(200, 1)
    recipe = Recipe(steps=4, batch=8, warmup=1)
    model = train_model(SHAPE, examples, validation, recipe, folder, save_at=(0, 2), about={"task": "letter"})
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def interrupted(folder: Path) -> None:
    """A run that was stopped after step 2."""

    def stop(what: str, done: float, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    task = TASKS["letter"]()
    with pytest.raises(KeyboardInterrupt):
        train_model(
            SHAPE, task.sample(64, 0), task.sample(200, 1), Recipe(steps=4, batch=8, warmup=1), folder, save_at=(0, 2),
            about={"task": "letter"}, progress=stop,
        )  # fmt: skip


@pytest.mark.slow
def test_a_flipped_byte_in_an_interrupted_run_does_not_change_its_weights(tmp_path: Path, tried: Any) -> None:
    wanted, draw, flips = train(tmp_path / "whole"), random.Random(0), share(80, 10)
    files = {path.relative_to(tmp_path / "whole"): path.read_bytes() for path in (tmp_path / "whole").rglob("*.*")}
    interrupted(tmp_path / "begun")
    for number in range(flips):
        folder = shutil.copytree(tmp_path / "begun", tmp_path / str(number))
        path = draw.choice(sorted(file for file in folder.rglob("*.*") if file.is_file()))
        flip(path, draw)
        try:
            found, _ = quietly(lambda folder=folder: train(folder))
        except BadInput as error:  # run.json has become that of another run
            assert "run with other settings" in str(error)
            continue
        assert all(torch.equal(value, found[name]) for name, value in wanted.items()), path
        kept = {path: content for path, content in files.items() if (folder / path).read_bytes() != content}
        assert not kept, (path, sorted(kept))
    tried("flipped bytes", flips)


@pytest.mark.slow
def test_a_flipped_byte_in_a_finished_run_is_noticed(tmp_path: Path, tried: Any) -> None:
    train(tmp_path / "whole")
    wanted, draw, flips = Run.load(tmp_path / "whole"), random.Random(1), share(60, 10)
    weights = {step: wanted.model(step).state_dict() for step in wanted.steps}
    for number in range(flips):
        folder = shutil.copytree(tmp_path / "whole", tmp_path / str(number))
        path = draw.choice(sorted(file for file in folder.rglob("*.*") if file.is_file()))
        flip(path, draw)
        try:
            run = Run.load(folder)
            assert run.about == wanted.about
            assert run.loss.equals(wanted.loss)
            assert run.accuracy.equals(wanted.accuracy)
            for step in run.steps:
                found = run.model(step).state_dict()
                assert all(torch.equal(value, found[name]) for name, value in weights[step].items())
        except BadInput as error:
            assert str(folder) in str(error)
    tried("flipped bytes", flips)


def test_a_flipped_byte_in_the_answers_loses_at_most_the_answers_around_it(tmp_path: Path, tried: Any) -> None:
    questions = one_hop("letter", 12, 6, 0)
    path, draw, flips = tmp_path / "answers.jsonl", random.Random(0), share(100, 40)
    log = AnswerLog(path, "model")
    for number, question in enumerate(questions):
        log.add(question, Reply(f"text {number}", number, 1))
    content = path.read_bytes()
    for _ in range(flips):
        path.write_bytes(content)
        flip(path, draw)
        found, said = quietly(lambda: AnswerLog(path, "model"))
        kept = [question for question in questions if question in found]
        assert all(found[question] == log[question] for question in kept)
        assert len(kept) >= len(questions) - 2
        assert said or len(kept) == len(questions) or not path.read_bytes().endswith(b"\n")
    tried("flipped bytes", flips)


def test_answers_of_earlier_versions_and_odd_lines(tmp_path: Path) -> None:
    questions = one_hop("letter", 12, 4, 0)
    path = tmp_path / "answers.jsonl"
    log = AnswerLog(path, "model")
    for question in questions:
        log.add(question, Reply("A", 5, 1))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        del line["sha256"]
    lines[1] |= {"text": "\ud800"}
    lines[2] |= {"read": 1e40}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + "[" * 100_000 + "\n")
    with pytest.warns(SetAside, match=r"lines that do not hold are asked again: 2, 3, 5"):
        found = AnswerLog(path, "model")
    assert [question in found for question in questions] == [True, False, False, True]


def test_answers_are_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("")
    (tmp_path / "answers.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="a symbolic link, which is not written through"):
        AnswerLog(tmp_path / "answers.jsonl", "model")


@pytest.mark.parametrize("after", range(4))
def test_two_savers_in_one_folder_cannot_be_mixed_into_one_result(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second saver writes all its files after each file of the first: what loads is the result of one of them."""
    one, other = (synthetic.random_profile(2, 2, 4, blocks=4, prompts=2) for _ in range(2))
    other.heads["entropy"] += 1
    other.frequencies["use_max"] += 1
    written: list[Path] = []

    def write(path: Path, content: Any) -> None:
        write_atomically(path, content)
        written.append(path)
        if len(written) == after:
            monkeypatch.setattr("wherewhat.results.write_atomically", write_atomically)
            other.save(tmp_path)
            monkeypatch.setattr("wherewhat.results.write_atomically", write)

    monkeypatch.setattr("wherewhat.results.write_atomically", write)
    one.save(tmp_path)
    assert len(written) > after
    try:
        found = ww.Profile.load(tmp_path)
    except BadInput:
        assert after > 0
    else:
        assert same(found, one) or same(found, other)
