"""Ablations and deposits: measures, selections, controls, saved results, and the commands."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from scipy.stats import bootstrap

import wherewhat as ww
from conftest import weights
from synthetic import heads_table
from wherewhat.prompts import Prompt, binding, plain_text, repeats
from wherewhat.studies.ablation.ablate import baseline_warnings, effect_table, run_ablation
from wherewhat.studies.ablation.figures import ablation_figure
from wherewhat.studies.ablation.measures import losses, of_language_model, of_task
from wherewhat.studies.ablation.selections import select
from wherewhat.studies.ablation.terminal import show_ablation
from wherewhat.studies.ablation.trials import RANDOM, Trials
from wherewhat.studies.multihop.demo import profile_embedded
from wherewhat.tracing.gate import mean_outputs


@pytest.fixture(scope="session")
def profiles(tmp_path_factory) -> Path:
    """Profiles of both embedded models on few prompts."""
    folder = tmp_path_factory.mktemp("profiles")
    for name in ("number", "letter"):
        profile_embedded(name, prompts=4).save(folder / name)
    return folder


@pytest.mark.weights
def test_losses_are_those_of_hugging_face(stories260k) -> None:
    ids = torch.randint(10, 500, (3, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = [stories260k(input_ids=row[None], labels=row[None]).loss for row in ids]
    assert torch.allclose(losses(stories260k, ids).mean(1), torch.stack(expected), atol=1e-5)


@pytest.mark.weights
def test_measures_look_at_the_tokens_that_they_name(stories260k) -> None:
    """Against Hugging Face's loss on labels that are found by searching the prompt for the tokens."""
    tokenizer = ww.load_tokenizer(weights("stories260K"))
    found = of_language_model(stories260k, tokenizer, pairs=2, samples=3).measure(stories260k)

    def loss(ids: torch.Tensor, asked: list[int]) -> float:
        labels = torch.full_like(ids, -100)
        labels[asked] = ids[asked]
        with torch.no_grad():
            return float(stories260k(input_ids=ids[None], labels=labels[None]).loss)

    for row, prompt in enumerate(repeats(tokenizer, 32, 3, 0)):
        ids = torch.tensor([*prompt.ids, prompt.answer])
        start = len(ids) - 64  # two copies of 32
        assert torch.equal(ids[start : start + 32], ids[start + 32 :])
        second, first = list(range(start + 33, start + 64)), list(range(start + 1, start + 32))
        assert float(found["repeat_loss"][row]) == pytest.approx(loss(ids, second), abs=1e-4)
        assert float(found["induction"][row]) == pytest.approx(loss(ids, first) - loss(ids, second), abs=1e-4)
        doubled = torch.cat([ids[:start], torch.stack([ids[start : start + 32]] * 2, 1).flatten()])
        again = [at for at in range(start + 33, len(doubled)) if (at - start) % 2 == 1]
        assert all(doubled[at] == doubled[at - 1] for at in again)
        assert float(found["copy_loss"][row]) == pytest.approx(loss(doubled, again), abs=1e-4)
    for row, prompt in enumerate(binding(tokenizer, 2, 3, 0)):
        with torch.no_grad():
            chances = stories260k(input_ids=torch.tensor([prompt.ids])).logits[0, -1].softmax(-1)
        assert float(found["binding_probability"][row]) == pytest.approx(float(chances[prompt.answer]), abs=1e-5)
        assert float(found["binding_accuracy"][row]) == float(chances.argmax() == prompt.answer)
    story = files("wherewhat.prompts").joinpath("ferry.txt").read_text("utf-8")
    for row, prompt in enumerate(
        plain_text(tokenizer, story, tokens=128, samples=6)[3:]
    ):  # means are over the first three
        ids = torch.tensor([*prompt.ids, prompt.answer])
        assert float(found["text_loss"][row]) == pytest.approx(loss(ids, list(range(1, 129))), abs=1e-4)
    with pytest.raises(ww.BadInput, match="at least two stretches"):
        of_language_model(stories260k, tokenizer, pairs=2, samples=3, text="Once upon a time. " * 40)
    short = of_language_model(stories260k, tokenizer, pairs=2, samples=3, text="Once upon a time. " * 40, stretch=26)
    assert len(short.measure(stories260k)["text_loss"]) == 3


def test_controls_are_random_and_of_the_same_size() -> None:
    made = Trials(heads_table(), planes=16)
    trials = made.battery(fractions=(0.1, 0.3))
    assert [trial.choices for trial in trials[:2]] == [((2, 2),), ((0, 0),)]
    assert {trial.number for trial in trials if trial.how != "ablate"} == {4}
    controls = made.controls(trials, draws=4)
    assert made.controls(trials, draws=4) == controls
    for kind in {trial.kind for trial in trials}:
        like = [control for control in controls if control.kind == kind]
        assert len(like) == 4
        assert len({control.choices for control in like}) > 1
        assert {control.number for control in like} == {trial.number for trial in trials if trial.kind == kind}
    assert not any((2, 3) in control.choices for control in controls)  # it has no scores
    one = made.trial("some", "drop", [(0, 1, 3), (0, 1, 4), (2, 0, "fastest half")])
    (control, *_) = made.controls([one], draws=2)
    assert [sum(choice[:2] == place for choice in control.choices) for place in ((0, 1), (2, 0))] == [2, 8]


def simulated(effect: float, seed: int) -> tuple[pd.Series, torch.Tensor]:
    """The row of a trial that changes all units by 1 + effect while controls change them by 1, with noise; and the
    changes."""
    draw = np.random.default_rng(seed)
    made = Trials(heads_table(), planes=8)
    trial = made.trial("positional heads", "ablate", [(2, 2)])
    trials = [trial, *made.controls([trial], draws=6)]
    before = torch.tensor(draw.normal(5, 1, 40))
    changes = 1 + torch.tensor(draw.normal(0, 0.1, (7, 40)))
    changes[0] += effect
    results = [{"text_loss": before + change} for change in changes]
    return effect_table({"text_loss": before}, trials, results, seed=0).iloc[0], changes


def test_an_effect_counts_against_its_control_only() -> None:
    """A change that every choice of this size causes is not an effect of this one."""
    assert np.mean([simulated(0.0, seed)[0]["counts"] for seed in range(40)]) <= 0.1
    assert all(simulated(0.2, seed)[0]["counts"] for seed in range(10))


def test_changes_are_paired_and_their_intervals_those_of_scipy() -> None:
    row, changes = simulated(0.5, seed=0)
    assert row["change"] == pytest.approx(float(changes[0].mean()))
    assert row["control"] == pytest.approx(float(changes[1:].mean()))
    assert row["against"] == pytest.approx(row["change"] - row["control"])
    assert row["after"] - row["before"] == pytest.approx(row["change"])
    expected = bootstrap((changes[0].numpy(),), np.mean, method="percentile", rng=1).confidence_interval
    assert (row["low"], row["high"]) == pytest.approx(tuple(expected), abs=0.01)


def test_single_heads_are_compared_with_all_of_them() -> None:
    made = Trials(heads_table(), planes=8)
    trials = made.each_head()
    heads = len(trials) // 2
    assert heads == 11  # one has no scores
    assert made.controls(trials) == []
    before = torch.zeros(5)
    changes = torch.arange(heads).double()[:, None] + torch.linspace(-1, 1, 5)
    results = [{"text_loss": before + change} for change in changes.repeat(2, 1)]
    table = effect_table({"text_loss": before}, trials, results, seed=0)
    alone = table[table["draw"].isna()]
    assert [(row["layer"], row["head"]) for row in alone.to_dict("records")] == made.heads
    assert alone["control"].tolist() == pytest.approx([5.0] * heads)
    assert alone["against"].tolist() == pytest.approx([at - 5 for at in range(heads)])
    spread = bootstrap((np.arange(heads),), np.mean, method="percentile", rng=1).confidence_interval
    assert alone["against_low"].iloc[0] == pytest.approx(
        -spread.high, abs=0.3
    )  # over heads; over units there is no spread
    console = Console(record=True, width=80)
    show_ablation(ww.Ablation(table, {"ablation": "mean"}), console)
    shown = console.export_text()
    assert "single heads differ from random; the 5 largest effects are shown" in shown
    assert len(re.findall(r"ablate head \d\.\d", shown)) == 5
    alike = effect_table({"text_loss": before}, trials, [{"text_loss": before + 1}] * len(trials), seed=0)
    console = Console(record=True, width=80)
    show_ablation(ww.Ablation(alike, {"ablation": "mean"}), console)
    assert re.search(r"0 of 11 single heads differ from random$", console.export_text(), re.MULTILINE)


def test_a_head_that_is_named_by_its_layer_alone_is_that_head() -> None:
    made = Trials(heads_table(layers=3, heads=1), planes=8)
    trial = made.trial("1", "ablate", select("1"))
    assert (trial.number, trial.alone) == (1, (1, 0))
    assert made.trial("twice", "ablate", [(1,), (1, 0), (0, 0)]).number == 2


@pytest.mark.slow
def test_words_choose_heads_and_frequencies(profiles) -> None:
    measured = ww.Profile.load(profiles / "number")
    heads = measured.heads
    leaning = (heads["positional"] - heads["symbolic"]).to_numpy()
    assert select("the 3 most positional heads", measured) == [(int(at), 0) for at in np.argsort(-leaning)[:3]]
    assert select("25% most symbolic heads", measured) == [
        (int(at), 0) for at in np.argsort(leaning, kind="stable")[:3]
    ]
    chosen = select("all frequencies with symbolic score above .9", measured)
    table = measured.frequencies.query("symbolic > .9")
    assert chosen == [tuple(map(int, row)) for row in table[["layer", "head", "frequency"]].to_numpy()]
    assert select("*.0.7") == [(None, 0, 7)]
    with pytest.raises(ww.BadInput, match="scores for 12 heads"):
        select("13 most positional heads", measured)
    with pytest.raises(ww.BadInput, match="needs a profile"):
        select("3 most positional heads")
    with pytest.raises(ww.BadInput, match="has no such frequencies"):
        select("frequencies with symbolic score above 1.5", measured)


@pytest.mark.slow
def test_number_needs_its_positional_heads_and_fast_frequencies_and_letter_does_not(profiles) -> None:
    after = {}
    for name in ("number", "letter"):
        made = Trials(ww.Profile.load(profiles / name).heads, planes=64)
        trials = [
            made.trial("positional", "ablate", made.ranked["positional"][:4]),
            made.trial("fast", "drop", [(None, None, "fastest quarter")]),
        ]
        effects = run_ablation(ww.embedded(name), of_task(name, samples=40), trials).effects
        rows = effects.query("measure == 'accuracy'")
        assert (rows["before"] > 0.95).all()
        after[name] = rows["after"].tolist()
    assert max(after["number"]) < 0.4
    assert min(after["letter"]) > 0.9


@pytest.mark.parametrize("ablation", ["mean", "zero"])
def test_an_ablated_head_gives_its_mean_or_nothing(ablation) -> None:
    """Against the same gate, applied by hand."""
    model, behaviour = ww.embedded("number"), of_task("number", samples=8)
    trial = Trials(heads_table(12, 1), planes=64).trial("head 1.0", "ablate", [(1, 0)])
    found = run_ablation(model, behaviour, [trial], ablation=ablation).effects
    mean = mean_outputs(model, behaviour.reference) if ablation == "mean" else None
    with ww.gate(model, ablate=[(1, 0)], mean_of=mean):
        expected = behaviour.measure(model)
    rows = found[found["draw"].isna()].set_index("measure")["after"]
    assert rows.to_dict() == pytest.approx({name: float(values.double().mean()) for name, values in expected.items()})


def test_what_an_ablation_cannot_use_is_refused_before_a_model_is_loaded() -> None:
    for options in ({"stretch": 64}, {"text": "story.txt"}):
        with pytest.raises(ww.BadInput, match="text does not apply"):
            ww.ablate("number", **options)
    with pytest.raises(ww.BadInput, match="a profile is needed"):
        ww.ablate("nobody/nothing")
    with pytest.raises(ww.BadInput, match="draws must be at least 2, got 1"):
        ww.ablate("number", draws=1)


@pytest.mark.slow
def test_a_saved_ablation_is_read_back(profiles, tmp_path) -> None:
    drop = ["fastest quarter", "3.0.1"]
    found = ww.ablate("number", profile=profiles / "number", folder=tmp_path, samples=4, draws=2, drop=drop)
    loaded = ww.Ablation.load(tmp_path)
    pd.testing.assert_frame_equal(loaded.effects, found.effects)
    assert loaded.about == found.about
    assert loaded.name == "number"
    assert not list(tmp_path.glob("*.png"))
    profile = ww.Profile.load(profiles / "number")
    again = ww.ablate(ww.embedded("number"), profile=profile, samples=4, draws=2, drop=drop)
    pd.testing.assert_frame_equal(again.effects, found.effects)
    one = ww.ablate("number", profile=profile, samples=4, draws=2, drop=drop[0]).effects
    same = found.effects[found.effects["what"] == drop[0]]
    pd.testing.assert_frame_equal(one[one["draw"].isna()].reset_index(drop=True), same.reset_index(drop=True))
    (tmp_path / "effects.parquet").write_bytes(b"")
    with pytest.raises(ww.BadInput, match=r"effects\.parquet: missing or damaged; rerun the wherewhat ablate command"):
        ww.Ablation.load(tmp_path)


@pytest.mark.slow
def test_the_command_measures_saves_and_reuses(run, profiles, tmp_path) -> None:
    command = ("ablate", "number", "--profile", profiles / "number", "-o", tmp_path, "--samples", 8, "--draws", 2)
    command += ("--ablate", "2 most positional heads")
    code, out, err = run(*command, "--drop", "fastest quarter", "--json")
    assert code == 0, err
    shown = json.loads(out)
    table = pd.read_parquet(tmp_path / "effects.parquet")
    assert len(shown["effects"]) == len(table) == 2 * (2 + 4)  # two measures of two trials with two controls each
    assert set(table["what"]) == {"2 most positional heads", "fastest quarter", RANDOM}
    assert (tmp_path / "ablation.png").read_bytes()[:4] == b"\x89PNG"
    code, out, err = run(*command)
    assert code == 0
    assert "ablations were measured before" in err.replace("\n", " ")
    assert "ablate 2 most positional heads" in out
    assert "drop 16 fastest quarter" not in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.slow
def test_bad_selections_end_with_one_clear_line(refuse, profiles, tmp_path) -> None:
    number = ("ablate", "number", "--profile", profiles / "number", "-o", tmp_path)
    refuse("head 7: layer 3 has heads 0 to 0", *number, "--ablate", "3.7")
    refuse("layer 12: attention is in layers 0 to 11", *number, "--drop", "12.0.1")
    refuse("band 'slowest 0' is empty", *number, "--freeze", "slowest 0")
    refuse("no band 'loudest'", *number, "--drop", "loudest")
    refuse("between 0 and 1", *number, "--fraction", "1.0")
    refuse("at least one and not all of them, got 0.01", *number, "--fraction", "0.01")
    refuse("ablation is zero or mean", *number, "--ablation", "noise")
    refuse("draws must be at least 2", *number, "--draws", 1)
    refuse("samples must be at least 2", *number, "--samples", 1)
    refuse("text does not apply", *number, "--text", "story.txt")
    refuse("of another model, letter", "ablate", "number", "--profile", profiles / "letter", "-o", tmp_path)
    refuse("no profile here", "ablate", "number", "--profile", tmp_path, "-o", tmp_path)
    refuse("give the folder that `wherewhat profile some/model` saved", "ablate", "some/model", "-o", tmp_path)
    assert not (tmp_path / "cells").exists()


@pytest.mark.weights
@pytest.mark.slow
def test_a_profile_of_another_model_is_refused(refuse, profiles, tmp_path) -> None:
    model = weights("stories260K")
    refuse("of another model, letter", "ablate", model, "--profile", profiles / "letter", "-o", tmp_path)


@pytest.mark.weights
@pytest.mark.slow
def test_heads_by_number_need_no_profile_and_the_answers_are_those_of_the_gated_model(stories260k, tmp_path) -> None:
    """Answers before and after against Hugging Face's own greedy generation."""
    tokenizer = ww.load_tokenizer(weights("stories260K"))
    chosen = [(0, 1), (1, 2), (4, 7)]
    found = ww.ablate(
        stories260k, tokenizer=tokenizer, heads="0.1 1.2, 4.7", pairs=3, samples=4, draws=2, ablation="zero"
    )
    assert found.trials is not None
    assert found.answers is not None
    assert found.trials["chosen"].iloc[0] == "0.1, 1.2, 4.7"
    assert found.trials["control_of"].tolist()[1:] == ["0.1 1.2, 4.7"] * 2
    for drawn in found.trials["chosen"].iloc[1:]:
        assert [head.split(".")[0] for head in drawn.split(", ")] == ["0", "1", "4"]
    rows = found.answers.query("draw != draw").to_dict("records")
    assert len(rows) == 3

    def generated(prompt: Prompt) -> str:
        ids = torch.tensor([prompt.ids])
        out = stories260k.generate(ids, do_sample=False, max_new_tokens=4, pad_token_id=0, eos_token_id=None)
        return tokenizer.decode(out[0, ids.shape[1] :])

    for row, prompt in zip(rows, binding(tokenizer, 3, 4, 0), strict=False):
        assert (row["text"], row["right"]) == (prompt.text, prompt.says)
        assert row["before"] == generated(prompt)
        with ww.gate(stories260k, ablate=chosen):
            assert row["after"] == generated(prompt)
    found.save(tmp_path)
    pd.testing.assert_frame_equal(ww.Ablation.load(tmp_path).trials, found.trials)
    with pytest.raises(ww.BadInput, match="needs a profile"):
        ww.ablate(stories260k, tokenizer=tokenizer, heads="3 most retrieving heads")


@pytest.mark.slow
def test_the_figure_draws_every_set_and_its_controls(tmp_path) -> None:
    found = ww.ablate("number", samples=8, draws=3, heads=["1.0", "2.0, 3.0"], drop="fastest quarter")
    figure = ablation_figure(found)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["ablate 1.0", "ablate 2.0, 3.0", "drop fastest quarter"]
    for axes, measure in zip(figure.axes, found.effects["measure"].unique(), strict=True):
        rows = found.effects[found.effects["measure"] == measure]
        drawn = [artist.get_offsets()[:, 0].tolist() for artist in axes.collections if artist.get_gid() == "random"]
        for (how, what), dots in zip(
            [("ablate", "1.0"), ("ablate", "2.0, 3.0"), ("drop", "fastest quarter")], drawn, strict=True
        ):
            like = rows[(rows["control_of"] == what) & (rows["how"] == how)]
            assert dots == pytest.approx(like["after"].tolist())
            assert len(dots) == 3


def test_no_number_is_cut_in_a_narrow_terminal() -> None:
    made = Trials(heads_table(), planes=8)
    words = "slowest quarter of 10 most retrieving heads with on_blocks above 0.2 and answer above 0.1"
    trials = [made.trial(words, "drop", [(1, 0, "slowest quarter")])]
    trials += made.controls(trials, draws=2)
    before = torch.full((4,), 10.0)
    results = [{"text_loss": before + at} for at in (1.25, 2, 3)]
    effects = effect_table({"text_loss": before}, trials, results, seed=0)
    answer = {"draw": None, "control_of": None, "prompt": 0, "text": "A list.", "right": "red", "before": "red"}
    answers = pd.DataFrame([answer | {"what": words, "how": "drop", "after": "a rather long answer of many words"}])
    console = Console(record=True, width=80)
    show_ablation(ww.Ablation(effects, {"ablation": "mean"}, answers=answers), console)
    shown = console.export_text()
    assert "…" not in shown
    assert re.search(r"11\.250 +\+1\.250 +-1\.25 \(", shown)
    assert max(map(len, shown.splitlines())) <= 80
    assert "a rather long answer of many words" in " ".join(shown.split())


def test_a_baseline_of_zero_is_said_before_the_effects() -> None:
    made = Trials(heads_table(), planes=8)
    trial = made.head_set("1.0", [(1, 0)])
    results = [{"binding_accuracy": torch.zeros(4), "text_loss": torch.ones(4)} for _ in range(3)]
    trials = [trial, *made.controls([trial], draws=2)]
    effects = effect_table(results[0], trials, results, seed=0)
    warnings = baseline_warnings(effects)
    assert warnings == ["right answers (binding_accuracy) is 0 for the intact model: no ablation can lower it"]
    console = Console(record=True, width=80)
    show_ablation(ww.Ablation(effects, {"ablation": "mean", "warnings": warnings}), console)
    shown = " ".join(console.export_text().split())
    assert shown.index("no ablation can lower it") < shown.index("against random")
