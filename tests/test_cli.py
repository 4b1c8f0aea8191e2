"""The command line as a user meets it: help with examples, JSON output, one clear line for bad input."""

from __future__ import annotations

import inspect
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import version

import pytest
import torch
import typer
from rich.console import Console
from transformers import CLIPConfig, CLIPModel, LlamaConfig, LlamaForCausalLM, ViTConfig, ViTForImageClassification

import wherewhat as ww
from conftest import weights
from wherewhat.cli import app
from wherewhat.display import terminal

SMOL = "SmolLM2-135M-Instruct-GGUF"


@pytest.fixture(scope="module")
def stories(tmp_path_factory):
    """A small real model that can be tampered with."""
    folder = tmp_path_factory.mktemp("models") / "stories"
    shutil.copytree(weights("stories260K"), folder)
    for path in [folder, *folder.iterdir()]:
        path.chmod(0o755)
    return folder


def short(model: object, output: object, *more: object) -> tuple[object, ...]:
    return ("profile", model, "-o", output, "--pairs", 4, "--samples", 2, *more)


def test_help_is_quick_and_every_command_shows_an_example(run):
    command = [sys.executable, "-X", "importtime", "-m", "wherewhat", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "typer" in done.stderr
    assert not re.search("torch|transformers|pandas", done.stderr)
    commands = re.findall(r"^│ (\w+)  ", done.stdout, re.MULTILINE)
    assert {"demo", "profile", "compare", "doctor"} <= set(commands)
    for command in commands:
        code, out, _ = run(command, "--help")
        assert code == 0
        assert re.search(rf"Examples:\s+wherewhat {command}\b", out)
    assert '"blocks": [[7, 22], [22, 37]]' in " ".join(run("profile", "--help")[1].split())


@pytest.mark.slow
def test_names_of_the_package_are_there_when_asked_for():
    code = (
        "import sys, wherewhat as ww; assert 'torch' not in sys.modules; "
        "from wherewhat.tracing.load import load; "
        "assert ww.load is load and callable(ww.capture) and ww.capture.__name__ == 'capture'; "
        "assert all(getattr(ww, name) for name in ww.__all__)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="attribute nothing"):
        ww.nothing  # noqa: B018


@pytest.mark.slow
def test_a_profile_and_a_comparison_in_json_and_in_words(run, stories, tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    code, out, err = run(*short(stories, one, "--json"))
    found = json.loads(out)
    assert (code, err) == (0, "")
    low, r, high = (found["correlation"][name] for name in ("r_low", "r", "r_high"))
    assert low - 1e-12 <= r <= high + 1e-12  # all three are means over prompts, rounded differently
    assert len(found["medians"]["positional"]) == 2
    assert found["accuracy"]["of"] == 2
    code, out, err = run(*short(stories, one))
    assert code == 0
    assert "Reusing the profile" in err
    assert "40 heads: " in out
    assert "Purest where" in out
    assert "one token" in out
    assert run(*short(stories, other, "--template", "record"))[0] == 0
    code, out, _ = run("compare", one, other)
    assert code == 0
    assert "template differs: plain and record" in out
    code, out, _ = run("compare", one, other, "--json")
    assert len(json.loads(out)["heads"]) == 40


def test_the_folder_is_named_after_the_model_unless_given(run, stories, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("profile", stories, "--pairs", 3, "--samples", 1, "--json")[0] == 0
    assert (tmp_path / "profiles" / "stories" / "profile.json").exists()


def test_stopped_from_the_keyboard_it_says_what_is_kept(run, stories, tmp_path):
    """A real interrupt, in the middle of the forward pass that follows the first kept prompt."""
    folder = tmp_path / "p"

    def stop(module: torch.nn.Module, *_: object) -> None:
        if isinstance(module, LlamaForCausalLM) and list(folder.glob("cells/*.safetensors")):
            signal.raise_signal(signal.SIGINT)

    hook = torch.nn.modules.module.register_module_forward_pre_hook(stop)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
    try:
        code, out, err = run(*short(stories, folder))
    finally:
        hook.remove()
        signal.signal(signal.SIGINT, before)
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == (
        f"wherewhat: stopped; 1 of 2 prompts are kept in {folder / 'cells'}; rerun the command to resume"
    )
    code, _, err = run(*short(stories, folder))
    assert code == 0
    assert "Resuming: 1 of 2 prompts were measured before" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--samples", 0), "samples must be at least 1, got 0"),
        (("--pairs", 1), "pairs must be 2 to 512, got 1"),
        (("--pairs", 513), "pairs must be 2 to 512, got 513"),
        (("--tau", 0), "tau must be positive"),
        (("--tau", -1), "tau must be positive"),
        (("--dtype", "int3"), "dtype is float32, bfloat16 or float16, got int3"),
        (("--task", "juggling"), "no task 'juggling'"),
        (("--task", "repeats", "--kind", "color"), "--kind does not apply to the task repeats"),
        (("--level", "cells"), "level is keys"),
        (("-o", "/proc/nowhere"), "/proc/nowhere: cannot be written"),
    ],
)
def test_what_no_model_could_do_is_refused_before_one_is_loaded(refuse, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    refuse(words, "profile", "no/such-model", *arguments)
    assert not list(tmp_path.iterdir())


def test_more_pairs_than_fit(refuse, stories, tmp_path):
    words = "more than the 512 that the model takes; use fewer pairs"
    refuse(words, "profile", stories, "-o", tmp_path, "--pairs", 400)


@pytest.mark.slow
def test_folders_that_cannot_be_written_or_hold_something_else(run, refuse, stories, tmp_path):
    (tmp_path / "file").write_text("no folder")
    refuse("cannot be written", *short(stories, tmp_path / "file" / "p"))
    assert run(*short(stories, tmp_path / "p", "--json"))[0] == 0
    refuse("holds a profile with --samples 2; choose another folder or give --overwrite",
           "profile", stories, "-o", tmp_path / "p", "--pairs", 4)  # fmt: skip
    small = LlamaForCausalLM(LlamaConfig(vocab_size=512, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                                         num_attention_heads=2, num_key_value_heads=2))  # fmt: skip
    shutil.copytree(stories, tmp_path / "other")
    small.save_pretrained(tmp_path / "other")
    refuse("holds the profile of another model", *short(tmp_path / "other", tmp_path / "p"))
    assert run(*short(tmp_path / "other", tmp_path / "p", "--overwrite", "--json"))[0] == 0
    (tmp_path / "p" / "heads.parquet").write_bytes(b"rubbish")
    refuse("heads.parquet: missing or damaged", *short(tmp_path / "other", tmp_path / "p"))
    refuse("no profile here", "compare", tmp_path / "p" / "cells", tmp_path / "p")


def test_models_that_cannot_be_read(refuse, stories, tmp_path):
    refuse("missing.gguf: no such file", *short(tmp_path / "missing.gguf", tmp_path / "p"))
    refuse("neither a folder, a .gguf file nor a hub id", *short(tmp_path / "missing", tmp_path / "p"))
    broken = tmp_path / "broken"
    shutil.copytree(stories, broken)
    whole = (broken / "model.safetensors").read_bytes()
    for content in (b"rubbish" * 100, whole[: len(whole) // 2]):
        (broken / "model.safetensors").write_bytes(content)
        refuse("broken: cannot be loaded", *short(broken, tmp_path / "p"))
    (broken / "model.safetensors").write_bytes(whole)
    for path in broken.glob("*token*"):
        path.unlink()
    refuse("broken: the folder holds no tokenizer", *short(broken, tmp_path / "p"))


@pytest.mark.slow
def test_gguf_files_that_are_corrupt_or_cut(refuse, tmp_path):
    folder = tmp_path / "gguf"
    folder.mkdir()
    for path in weights(SMOL).iterdir():
        if path.suffix == ".json":
            shutil.copy(path, folder)
    with (weights(SMOL) / "SmolLM2-135M-Instruct.Q4_1.gguf").open("rb") as file:
        head = file.read(4_000_000)
    for name, content in {"cut": head, "stump": head[:5000], "corrupt": b"no gguf at all", "empty": b""}.items():
        (folder / f"{name}.gguf").write_bytes(content)
        refuse(f"{name}.gguf: cannot be loaded", *short(folder / f"{name}.gguf", tmp_path / "p"))


def test_vision_models(refuse, stories, tmp_path):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {"vision_config": sizes | {"image_size": 32}, "text_config": sizes, "projection_dim": 16}
    made = {
        "vit": ViTForImageClassification(ViTConfig(image_size=32, **sizes)),
        "clip": CLIPModel(CLIPConfig(**vision)),
    }
    for name, model in made.items():
        shutil.copytree(stories, tmp_path / name)
        model.save_pretrained(tmp_path / name)
        refuse(f"{name}: cannot be loaded", *short(tmp_path / name, tmp_path / "p"))


def test_a_hub_that_cannot_be_reached_is_not_asked_twice(refuse, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://hub.invalid")
    monkeypatch.setenv("no_proxy", "*")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    started = time.monotonic()
    refuse("there is no connection to https://hub.invalid, and it is not in the local cache",
           *short("owner/name", tmp_path / "p"))  # fmt: skip
    assert time.monotonic() - started < 15


@pytest.mark.slow
def test_no_traceback_reaches_the_user(tmp_path):
    command = [sys.executable, "-m", "wherewhat", *map(str, short(tmp_path / "missing.gguf", tmp_path / "p"))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"wherewhat: {tmp_path / 'missing.gguf'}: no such file\n"


def test_the_version(run):
    assert run("--version") == (0, f"{version('wherewhat')}\n", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["report", "gone"], "gone: no such folder"),
        (["plot", "gone"], "gone: no such folder"),
        (["compare", "gone", "gone"], "gone: no such folder"),
        (["profile", "number", "--pairs", "-3"], "pairs must be 2 to 512, got -3"),
        (["ablate", "number", "--draws", "0"], "draws must be at least 1, got 0"),
        (["train", "letter", "--steps", "0"], "steps must be at least 1, got 0"),
    ],
)
def test_what_needs_no_model_is_refused_before_torch_is_imported(arguments, words, tmp_path):
    script = """import sys
from wherewhat.cli import main
try:
    main()
except SystemExit as ended:
    print(ended.code, "torch" in sys.modules)"""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("2 False\n", f"wherewhat: {words}\n")


def test_a_profile_that_is_missing_is_named(refuse, tmp_path):
    refuse("gone: no such folder", "ablate", "number", "--profile", tmp_path / "gone", "-o", tmp_path / "a")


COMMANDS = vars(typer.main.get_command(app))["commands"]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_no_line_break_inside_a_paragraph(name):
    """A break would stay where it is, whatever the width of the terminal; examples have one line each."""
    text, _, examples = inspect.cleandoc(COMMANDS[name].callback.__doc__).partition("[bold]Examples:[/bold]")
    assert [paragraph for paragraph in text.strip().split("\n\n") if "\n" in paragraph] == []
    assert all(line.startswith("wherewhat ") for line in examples.split("\n") if line.strip())


def test_help_shows_brackets_that_look_like_markup(run):
    text = run("atlas", "--help")[1]
    assert "[card]" in text
    assert "[[models]]" in text


@pytest.mark.parametrize("name", ["stretch", "deposit", "ablate", "profile", "spectrum", "rotations"])
def test_commands_that_load_a_model_take_a_device(name):
    assert "--device" in {flag for option in COMMANDS[name].params for flag in option.opts}


@pytest.mark.weights
@pytest.mark.parametrize("name", ["stretch", "deposit"])
def test_the_device_reaches_the_model(refuse, name, tmp_path):
    refuse("device nowhere cannot be used", name, weights("stories260K"), "--device", "nowhere", "-o", tmp_path / "x")


def test_progress_is_printed_into_a_log_file_from_time_to_time(monkeypatch):
    seconds = iter([100.0, 103.0, 112.0, 113.0, 125.0])
    monkeypatch.setattr(terminal, "monotonic", lambda: next(seconds))
    log = io.StringIO()
    with terminal.progress_bar(Console(file=log)) as progress:
        for done in (1, 2, 3, 4, 5):
            progress("prompts", done, 8)
    assert log.getvalue() == "prompts: 3 of 8, after 12 s\nprompts: 5 of 8, after 25 s\n"


def test_a_resumed_profile_says_so(tmp_path):
    said = []
    ww.profile("number", samples=2, folder=tmp_path)
    (tmp_path / "profile.json").unlink()
    ww.profile("number", samples=2, folder=tmp_path, say=said.append)
    assert said[-1] == "Resuming: 2 of 2 prompts were measured before"


@pytest.mark.slow
def test_a_resumed_training_run_says_so(tmp_path):
    said = []

    def interrupt(what: str, done: float, total: int) -> None:
        if done >= 3:
            raise KeyboardInterrupt

    settings = {"folder": tmp_path, "steps": 4, "every": 2, "warmup": 1, "batch": 4}
    with pytest.raises(KeyboardInterrupt):
        ww.train("letter", **settings, progress=interrupt)
    ww.train("letter", **settings, say=said.append)
    assert said == [f"{tmp_path}: resuming at step 2 of 4"]
