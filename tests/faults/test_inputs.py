"""Random command lines and files: a result, or one line that says what is wrong; never a traceback, never a hang."""

from __future__ import annotations

import json
import math
import pickle
import resource
import shutil
import string
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_training import train
from typer.testing import CliRunner

import synthetic
from conftest import share
from wherewhat.cli import app
from wherewhat.errors import BadInput, CellsFailed, NotMeasurable, SetAside
from wherewhat.prompts.text import own_prompts
from wherewhat.results import Result
from wherewhat.studies.atlas.model_list import read_list
from wherewhat.studies.profile.result import Profile

FINE = (BadInput, NotMeasurable, CellsFailed, SystemExit)
OPTIONS = """--seed --samples --pairs --tau --swaps --level --task --kind --template --width --dtype --device --revision
--prompts --longest --runs --steps --batch --rate --warmup --schedule --dropout --every --threads --symbols --seeds
--init-std --frequency --jobs --extra --endpoint --timeout --retries --per-minute --concurrency --price-in --measure
--draws --fraction --ablation --layer --head --figure --blocks --movers --device-map --ray --memory-per-cell""".split()
ABSURD = """nan inf -inf -1 0 1e999 1e40 2147483648 18446744073709551616 99999999999999999999 [] {} null '' ../.. / ~
\x1b[2J binding.jsonl \U0001f600 --seed auto:0=1YB http://127.0.0.1:9 zip://x::y s3:// memory:// {"a":{"a":1}} , a,b 1-2
.5 1_0""".split()
COMMANDS = """profile compare doctor train dynamics sweep lengths stretch ablate deposit spectrum rotations verify atlas
report plot demo reproduce""".split()
TARGETS = ["missing/folder/x", "number", "letter", "nothing", "/etc", "x.gguf", "x.toml", "\x1b[31mred", "a\nb"]

# A command line has at least one absurd value, so that most are refused before any work.
value = st.one_of(st.sampled_from(ABSURD), st.text(string.printable, max_size=8), st.integers(-5, 10**30).map(str))
lines = st.tuples(
    st.sampled_from(COMMANDS),
    st.lists(st.sampled_from(TARGETS), max_size=2),
    st.lists(st.tuples(st.sampled_from(OPTIONS), value), min_size=1, max_size=3),
)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def invoke(*words: str) -> None:
    """A command must not fail in any other way than those in FINE."""
    result = CliRunner().invoke(app, list(words))
    error = result.exception
    assert error is None or isinstance(error, FINE), f"{words}: {type(error).__name__}: {error}"
    if error is not None and not isinstance(error, SystemExit):
        assert str(error)


@pytest.mark.slow
def test_random_command_lines(tried: Any) -> None:
    number = share(1000, 60)

    @settings(max_examples=number, deadline=None, suppress_health_check=list(HealthCheck))
    @given(lines)
    def check(line: tuple[str, list[str], list[tuple[str, str]]]) -> None:
        command, targets, options = line
        if command in ("demo", "reproduce", "train") and not targets:
            targets = ["nothing"]
        invoke(command, *targets, *(word for pair in options for word in pair))

    check()
    tried("command lines", number)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text", "ids", "blocks", "answer", "model", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


class Decoder:
    """Enough of a tokenizer for prompts given as token ids."""

    def decode(self, ids: list[int]) -> str:
        return str(ids)

    def convert_ids_to_tokens(self, token: int) -> str:
        return str(token)


@pytest.mark.slow
def test_random_files_of_prompts_and_lists_of_models(tmp_path: Path, tried: Any) -> None:
    number = share(500, 40)

    @settings(max_examples=number, deadline=None, suppress_health_check=list(HealthCheck))
    @given(json_values, st.text(max_size=60), st.integers(0, 3))
    def check(given_value: Any, text: str, form: int) -> None:
        path = tmp_path / "x.jsonl"
        path.write_text([json.dumps(given_value), text, "[" * 10_000, json.dumps({"blocks": given_value})][form])
        for read in (lambda: own_prompts(Decoder(), path), lambda: read_list(path)):
            with pytest.raises(BadInput):
                read()

    check()
    tried("files", 2 * number)


IDS = '{"ids": [1, 2, 3, 4, 5, 6], "blocks": [[1, 3], [3, 5]]'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"ids": [1, 2.0, 3, 4, 5, 6], "blocks": [[1, 3], [3, 5]]}', r"ids must hold whole numbers, got 2\.0"),
        ('{"ids": [1, true, 3, 4, 5, 6], "blocks": [[1, 3], [3, 5]]}', "ids must hold whole numbers, got True"),
        ('{"ids": [1, 2, 3, 4, 5, 6], "blocks": [[1, 3.0], [3, 5]]}', r"blocks must hold whole numbers, got 3\.0"),
        (IDS + ', "answer": []}', r"answer must hold whole numbers, got \[\]"),
        (IDS + ', "answr": 3}', "unknown key 'answr'; known keys are text, ids, blocks, answer"),
        ('{"text": "ab", "blocks": [[0, 1], [1, 2]], "answer": []}', "text and answer must be text"),
        (IDS + ', "answer": 3}' + " " * 10**6, "at most 1,000,000 are read"),
        ("[" * 10_000, "nested too deeply"),
    ],
)
def test_lines_of_prompts_that_mean_something_else_are_refused(line: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(f"{IDS}}}\n{line}\n")
    with pytest.raises(BadInput, match=f"x.jsonl, line 2: .*{reason}"):
        own_prompts(Decoder(), tmp_path / "x.jsonl")


def test_a_file_of_100_mb_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "x.jsonl").open("wb") as file:
        file.truncate(100 * 2**20)
    with pytest.raises(BadInput, match="has 100 MB; at most 64 MB are read"):
        own_prompts(Decoder(), tmp_path / "x.jsonl")


@pytest.mark.parametrize("nested", ["[" * 5000 + "]" * 5000, "{a=" * 5000 + "1" + "}" * 5000])
def test_a_list_of_models_that_is_nested_too_deeply_is_refused(nested: str, tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(f"x = {nested}")
    with pytest.raises(BadInput, match=r"models\.toml: is not valid TOML"):
        read_list(tmp_path / "models.toml")


RESULTS = {
    "profile": lambda: synthetic.random_profile(2, 2, 4, blocks=4, prompts=2),
    "dynamics": lambda: synthetic.random_series(3, 2, 2),
    "lengths": lambda: synthetic.random_lengths(),
    "atlas": lambda: synthetic.random_atlas(2, 2, 2),
}


class Changed(Result):
    """Saves a result with another `about`, under a valid digest."""

    def __init__(self, result: Result, about: Any) -> None:
        self.result, self.about = result, about

    def save(self, folder: str | Path) -> None:
        kind = type(self.result)
        values = {name: value for name, value in vars(self.result).items() if name != "about"}
        kind(**values, about=self.about).save(folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", RESULTS)
def test_results_of_another_form_under_a_valid_digest(kind: str, tmp_path: Path, tried: Any) -> None:
    made, number = RESULTS[kind](), 0
    needed = type(made).NEEDS
    for key in needed["about"]:
        for wrong in ({}, [], None, 3, "x"):
            if isinstance(wrong, needed["about"][key]):
                continue
            Changed(made, {**made.about, key: wrong}).save(tmp_path / "r")
            invoke("report", str(tmp_path / "r"), "-o", str(tmp_path / "r.html"))
            number += 1
        Changed(made, {name: value for name, value in made.about.items() if name != key}).save(tmp_path / "r")
        with pytest.raises(BadInput, match=f"{key} is missing or of another type"):
            type(made).load(tmp_path / "r")
        number += 1
    for whole in (b"[]", b"null", b"3", b'{"sha256": []}', b'{"sha256": {}}', b"[" * 100_000, b"\xff", b""):
        (tmp_path / "r" / made.FILE).write_bytes(whole)
        invoke("report", str(tmp_path / "r"), "-o", str(tmp_path / "r.html"))
        number += 1
    shutil.rmtree(tmp_path / "r")
    tried("files", number)


def test_training_runs_of_a_form_that_no_model_has(tmp_path: Path, tried: Any) -> None:
    shape = {"vocabulary": 10, "layers": 2, "heads": 1, "width": 8, "hidden": 8, "base": 1e4, "angles": None}
    good = {"shape": shape, "recipe": {"seed": 0}, "task": "letter"}
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-000001.safetensors").write_bytes(b"")
    before, number = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
    wrongs: list[Any] = [[], None, 3, {}, {"shape": []}, {**good, "recipe": {}}, {**good, "recipe": {"seed": "x"}}]
    bad = (10**6, 1.5, "x", [], -1, math.inf)
    wrongs += [{**good, "shape": shape | {name: wrong}} for name in shape for wrong in bad]
    for wrong in wrongs:
        (tmp_path / "run.json").write_text(json.dumps(wrong))
        for command in ("profile", "dynamics", "lengths"):
            invoke(command, str(tmp_path), "-o", str(tmp_path / "out"))
            number += 1
    tried("files", number)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2 * 2**20  # kilobytes


class Payload:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_in_place_of_any_file_is_never_loaded(tmp_path: Path) -> None:
    synthetic.random_profile(2, 2, 4, blocks=4, prompts=2).save(tmp_path / "profile")
    train(tmp_path / "run")
    content = pickle.dumps(Payload(tmp_path / "loaded"))
    loaders = {"profile": lambda folder: Profile.load(folder), "run": train}
    for kind, load in loaders.items():
        for path in sorted(path for path in (tmp_path / kind).rglob("*.*") if path.is_file()):
            folder = shutil.copytree(tmp_path / kind, tmp_path / "copy")
            target = folder / path.relative_to(tmp_path / kind)
            target.write_bytes(content)
            with suppress(BadInput), warnings.catch_warnings():
                warnings.simplefilter("ignore", SetAside)  # what does not hold in a run is computed again
                load(folder)
            shutil.rmtree(folder)
    assert not (tmp_path / "loaded").exists()
    pickle.loads(content)
    assert (tmp_path / "loaded").exists()  # it would have


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("profile number --seed 18446744073709551616", "seed must be below 2"),
        ("profile number --samples 2147483648", "samples must be at most 100000"),
        ("train letter --batch 500000", "at most"),
        ("train letter --threads 2147483648", "threads must be 1 to 1024"),
        ("train letter --rate inf", "rate, steps and batch must be positive"),
        ("train letter --rate nan", "rate, steps and batch must be positive"),
        ("sweep index --batch 1000000000000", "at most"),
        ("sweep index --init-std nan", "init_std must be positive"),
        ("sweep index --init-std inf", "init_std must be positive"),
        ("lengths number --prompts 2147483648", "prompts must be at most"),
        ("demo --prompts 2147483648", "prompts must be at most"),
        ("profile number --revision main", "revision: only for language models"),
        ("lengths m --endpoint http://127.0.0.1:9/v1 --extra " + "[" * 5000, "must be a JSON object"),
    ],
)
def test_absurd_options_are_refused_before_any_work(command: str, reason: str) -> None:
    result = CliRunner().invoke(app, command.split())
    assert isinstance(result.exception, BadInput), result.output
    assert reason in str(result.exception)
