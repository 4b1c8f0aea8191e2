"""One hop as text: questions with one right answer, answers of real models, and accuracies with known values."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch

import wherewhat as ww
from conftest import weights
from tiny import tiny_model
from wherewhat.errors import BadInput, SetAside
from wherewhat.prompts.one_hop import WORDINGS, one_hop, read_answer
from wherewhat.studies.lengths.answers import NEW_TOKENS, AnswerLog, Reply
from wherewhat.studies.lengths.figures import text_length_curves
from wherewhat.studies.lengths.local_model import LocalModel
from wherewhat.studies.lengths.paper import PUBLISHED_MODELS
from wherewhat.studies.lengths.text_lengths import WINDOWS, measure_text_lengths


def solve(task: str, sequence: str) -> str:
    """The rule of the paper; fails unless it names exactly one symbol."""
    *symbols, query = sequence.split()
    if task == "number":
        return symbols[len(symbols) - int(query)]
    (found,) = [symbol for symbol in symbols if symbol[0] == query[1]]
    return found


class Solver:
    """Answers by the rule, except where `fails` returns another answer."""

    identity = "solver"

    def __init__(self, fails=lambda question: None):
        self.fails, self.asked = fails, []

    def ask(self, questions, keep):
        for question in questions:
            self.asked.append(question)
            keep(question, Reply(self.fails(question) or solve(question.task, question.sequence), 10, 2))


@pytest.mark.parametrize("task", WORDINGS)
def test_examples_and_questions_have_one_answer_by_the_rule(task):
    for sequence, answer in WORDINGS[task].examples:
        assert solve(task, sequence) == answer
    for window in WINDOWS:
        for question in one_hop(task, window, count=30, seed=1):
            assert len(question.sequence.split()) == window + 1
            assert solve(task, question.sequence) == question.answer == read_answer(task, question.answer)


@pytest.mark.parametrize("task", WORDINGS)
def test_answers_are_spread_over_the_whole_window(task):
    def place(question):
        *symbols, query = question.sequence.split()
        return len(symbols) - int(query) if task == "number" else symbols.index(question.answer)

    assert sorted(map(place, one_hop(task, 48, count=48))) == list(range(48))
    assert one_hop(task, 48, 9, seed=1) == one_hop(task, 48, 9, seed=1) != one_hop(task, 48, 9, seed=2)


def test_letters_are_drawn_uniformly():
    questions = one_hop("letter", 300, count=200)
    assert {len({symbol[0] for symbol in one.sequence.split()[:-1]}) for one in questions} == {26}
    assert not any(one.sequence[-2] == one.sequence[-1] for one in questions)
    answers = [one.answer[0] for one in one_hop("letter", 12, 2600)]
    assert min(map(answers.count, set(answers))) > 50  # of 100 expected
    assert len(set(answers)) == 26


def test_prompts_hold_the_instruction_three_examples_and_the_sequence():
    question = one_hop("letter", 12, 1)[0]
    chat = question.messages
    assert [message["role"] for message in chat] == ["user", "assistant"] * 3 + ["user"]
    assert [message["content"] for message in chat[1::2]] == ["c2", "k7", "x4"]
    assert chat[-1]["content"] == f"Sequence: {question.sequence}"
    assert question.prompt.endswith(f"Answer: x4\n\nSequence: {question.sequence}\nAnswer:")
    assert question.prompt.startswith(WORDINGS["letter"].instruction)


@pytest.mark.parametrize(
    ("task", "said", "read"),
    [
        ("number", "y", "y"), ("number", " Y.\n\nSequence: a b 1", "y"), ("number", "**y**", "y"),
        ("number", "Answer: y", "y"), ("number", "", None), ("number", "7", None), ("number", "yes", None),
        ("number", "The letter is y", None), ("letter", "`k7`", "k7"), ("letter", "K7\n", "k7"), ("letter", "k", None),
        ("letter", "k 7", None), ("letter", "7k", None), ("letter", "k77", None), ("letter", "é7", None),
    ],
)  # fmt: skip
def test_the_first_word_is_the_answer_or_malformed(task, said, read):
    assert read_answer(task, said) == read


class Words:
    """The parts of a tokenizer that answers need: tokens are written as their numbers."""

    chat_template, eos_token_id, is_fast = None, 2, True

    def get_vocab(self):
        return {str(number): number for number in range(128)}

    def batch_decode(self, rows, skip_special_tokens):
        return [" ".join(map(str, row.tolist())) for row in rows]


def test_generation_settings_of_a_model_do_not_matter_and_its_angles_do():
    ids = [list(range(3, 40))]
    plain, bent = tiny_model("llama").eval(), tiny_model("llama").eval()
    bent.generation_config.no_repeat_ngram_size = 1  # no token may be repeated
    bent.generation_config.suppress_tokens = list(range(64))
    own = bent.generation_config
    assert LocalModel(bent, Words()).generate(ids) == LocalModel(plain, Words()).generate(ids)
    assert bent.generation_config is own
    before = LocalModel(plain, Words()).identity
    assert LocalModel(bent, Words()).identity == before
    for name, angles in plain.named_buffers():
        if "inv_freq" in name:
            angles *= 0.5
    assert LocalModel(plain, Words()).identity != before


@pytest.mark.parametrize("family", ["llama", "gpt2", "mpt", "gemma3_text", "mistral", "mamba", "qwen3_next"])
def test_answers_in_a_batch_are_those_to_each_prompt_alone(family):
    """Whatever a family caches: all keys, some of them, or a state."""
    model = tiny_model(family).eval()
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 128, (4, 30), generator=draw)
    ids[:, :18] = ids[0, :18]
    found = LocalModel(model, Words()).generate(ids.tolist())
    for prompt, reply in zip(ids, found, strict=True):
        alone = model.generate(
            input_ids=prompt[None], attention_mask=torch.ones(1, 30, dtype=torch.long), do_sample=False, num_beams=1,
            max_new_tokens=NEW_TOKENS, eos_token_id=2, pad_token_id=0,
        )[0, 30:]  # fmt: skip
        assert reply == Reply(" ".join(map(str, alone.tolist())), 30, len(alone))


@pytest.fixture(scope="module")
def stories(stories260k):
    return LocalModel(stories260k, ww.load_tokenizer(weights("stories260K")))


@pytest.mark.weights
def test_a_real_model_answers_and_prompts_that_do_not_fit_have_no_accuracy(stories, stories260k, tmp_path):
    found = measure_text_lengths(stories, tmp_path, windows=(12, 300), prompts=2, seeds=(3,))
    tokenizer = stories.tokenizer
    for row in found.answers.query("window == 12").to_dict("records"):
        question = next(one for one in one_hop(row["task"], 12, 2, 3) if one.sequence == row["sequence"])
        ids = tokenizer(question.prompt, return_tensors="pt").input_ids
        alone = stories260k.generate(ids, do_sample=False, max_new_tokens=NEW_TOKENS)[0, ids.shape[1] :]
        assert row["text"] == tokenizer.decode(alone, skip_special_tokens=True)
        assert (row["read"], row["written"]) == (ids.shape[1], NEW_TOKENS)
    long = found.accuracy.query("window == 300")
    assert long["unfit"].tolist() == [2, 2]
    assert long[["accuracy", "low", "high", "spread"]].isna().all(axis=None)
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 4  # prompts that do not fit are not saved


def test_accuracy_of_a_model_with_known_answers():
    """Wrong on some letters, malformed on number at 16, right otherwise."""

    def fails(question):
        if question.task == "number" and question.window == 16:
            return "I do not know"
        return "a1" if question.task == "letter" and question.answer[0] in "qrst" else None

    prices = {"price_in": 3.0, "price_out": 10.0}
    found = measure_text_lengths(Solver(fails), windows=(12, 16), prompts=10, seeds=range(5), about=prices)
    rows = {(row["task"], row["window"]): row for row in found.accuracy.to_dict("records")}
    assert list(rows) == [("number", 12), ("number", 16), ("letter", 12), ("letter", 16)]
    assert [rows["number", 12][name] for name in ("right", "accuracy", "high", "spread")] == [50, 1.0, 1.0, 0.0]
    assert [rows["number", 16][name] for name in ("wrong", "malformed", "accuracy")] == [0, 50, 0.0]
    asked = [one_hop("letter", 16, 10, seed) for seed in range(5)]
    wrong = [sum(one.answer[0] in "qrst" for one in some) for some in asked]
    row = rows["letter", 16]
    assert row["wrong"] == sum(wrong) > 0 == row["malformed"]
    assert row["spread"] == pytest.approx(np.std(np.array(wrong) / 10, ddof=1))
    share, z = row["accuracy"], 1.959963984540054
    centre, half = share + z * z / 100, z * math.sqrt(share * (1 - share) / 50 + (z / 100) ** 2)
    assert (row["low"], row["high"]) == pytest.approx(
        ((centre - half) / (1 + z * z / 50), (centre + half) / (1 + z * z / 50))
    )
    assert found.tokens == (2000, 400)
    assert found.cost == pytest.approx(0.01)


@pytest.mark.parametrize(("wrong", "kept"), [(3, True), (4, False)])  # of 20: 85 % and 80 %
def test_the_papers_rule(wrong, kept):
    failing = one_hop("letter", 16, 20)[:wrong]
    solver = Solver(lambda question: "a0" if question in failing else None)
    assert measure_text_lengths(solver, windows=(16,), prompts=20, seeds=(0,)).kept is kept
    assert measure_text_lengths(solver, windows=(12,), prompts=2, seeds=(0,)).kept is None


def test_answers_are_reused_and_a_cut_line_is_asked_again(tmp_path):
    first, second, third = Solver(), Solver(), Solver()
    whole = measure_text_lengths(first, tmp_path, windows=(12, 24), prompts=3, seeds=(0,))
    file = tmp_path / "answers.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    again = measure_text_lengths(second, tmp_path, windows=(12, 24), prompts=3, seeds=(0,))
    assert second.asked == first.asked[-1:]
    pd.testing.assert_frame_equal(again.answers, whole.answers)
    with pytest.warns(SetAside, match="lines that do not hold are asked again: 12"):
        measure_text_lengths(third, tmp_path, windows=(12, 24), prompts=3, seeds=(0,))
    assert third.asked == []
    with pytest.warns(SetAside, match="lines that do not hold are asked again: 12"):
        log = AnswerLog(file, "another model")
    assert not any(question in log for question in first.asked)


def test_the_figure_shows_the_table():
    found = measure_text_lengths(Solver(), windows=(12, 32, 300), prompts=2, seeds=range(2))
    left, right = text_length_curves(found, "solver").axes
    assert {line.get_label() for line in right.lines} == {
        f"{name}, {task}" for name in PUBLISHED_MODELS for task in WORDINGS
    }
    lines = {container.get_label(): container.lines[0].get_xydata() for container in left.containers}
    for task in WORDINGS:
        rows = found.accuracy.query(f"task == '{task}'")
        assert (lines[task] == rows[["window", "accuracy"]].to_numpy()).all()


def test_what_is_saved_is_what_is_returned(tmp_path):
    """Of an object that answers, asked like any model, and of answers with missing parts."""
    found = ww.lengths(Solver(), longest=16, prompts=2, runs=2, folder=tmp_path / "solved")
    assert isinstance(found, ww.TextLengths)
    assert (found.accuracy["accuracy"] == 1).all()
    assert found.name == "Solver"

    class Unfit(Solver):
        def ask(self, questions, keep):
            for question in questions:
                keep(question, Reply(None if question.window > 12 else "?", 10))

    unfit = ww.lengths(Unfit(), longest=16, prompts=2, runs=1, folder=tmp_path / "unfit")
    assert unfit.accuracy["unfit"].tolist() == [0, 2, 0, 2]
    for folder, result in (("solved", found), ("unfit", unfit)):
        loaded = ww.TextLengths.load(tmp_path / folder)
        pd.testing.assert_frame_equal(loaded.answers, result.answers)
        pd.testing.assert_frame_equal(loaded.accuracy, result.accuracy)
        assert loaded.about == result.about
    files = {path.name for path in (tmp_path / "solved").iterdir()}
    assert files == {*ww.TextLengths.files(), "answers.jsonl", "lengths.pdf"}


@pytest.mark.weights
@pytest.mark.slow
def test_the_command(run, refuse, tmp_path):
    model = weights("stories260K")
    asked = ("lengths", model, "-o", tmp_path / "made", "--prompts", 1, "--runs", 2, "--longest", 16)
    code, out, _ = run(*asked)
    assert code == 0
    assert "stories260K: one hop as text, 2 prompts per task and window, 2 seeds" in out
    assert "would not be kept" in " ".join(out.split())
    code, out, err = run(*asked, "--json")
    summary = json.loads(out)
    assert (code, err, summary["kept"], summary["cost"]) == (0, "", False, None)
    assert [row["window"] for row in summary["lengths"]] == [12, 16, 12, 16]
    assert (tmp_path / "made" / "lengths.pdf").read_bytes().startswith(b"%PDF")
    assert len(pd.read_parquet(tmp_path / "made" / "answers.parquet")) == 8
    refuse("windows start at 12", "lengths", model, "--longest", 11)
    refuse("timeout applies only to a model behind an endpoint", "lengths", model, "--timeout", 3)
    refuse("runs applies only to language models", "lengths", "letter", "--runs", 3)
    refuse("sharpen applies only to models of the lab", "lengths", model, "--sharpen")
    refuse("runs must be at least 1", "lengths", model, "--runs", 0)


def test_refusals():
    with pytest.raises(BadInput, match="no task"):
        one_hop("digit", 12, 1)
    with pytest.raises(BadInput, match="at least 1"):
        one_hop("letter", 12, 0)
    with pytest.raises(BadInput, match="at least one window"):
        measure_text_lengths(Solver(), windows=())
