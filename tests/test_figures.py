"""Figures of single heads and of learning show the numbers of the tables; what does not apply is refused in a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import wherewhat as ww
from conftest import weights
from synthetic import random_profile, random_series
from wherewhat.display.style import WHAT, WHERE
from wherewhat.errors import BadInput
from wherewhat.explorer.plots import FIGURES, OF_A_HEAD, OF_A_PROFILE, OF_DYNAMICS, plot
from wherewhat.studies.dynamics.dynamics import Dynamics
from wherewhat.studies.dynamics.measure import purity_table
from wherewhat.studies.multihop.demo import learning
from wherewhat.studies.profile.result import Profile

COLOURS = {"positional": WHERE, "symbolic": WHAT}


@pytest.fixture(scope="module")
def profile() -> Profile:
    """The last layer has a head less than the others; one part of every head does not turn."""
    made = random_profile(4, 3, 5, blocks=6)
    still = made.frequencies.query("frequency == 1").assign(frequency=0, angle=0.0)
    heads, frequencies = (
        table.query("layer < 3 or head < 2").reset_index(drop=True)
        for table in (made.heads, pd.concat([made.frequencies, still]))
    )
    for table in (tensor for tensor in made.tensors.values() if tensor.is_floating_point()):
        table[(slice(None),) * (table.dim() == 4 and len(table) == 8) + (3, 2)] = torch.nan
    return Profile(heads, frequencies, made.about, made.tensors)


@pytest.fixture(scope="module")
def series() -> Dynamics:
    return random_series()


def of_head(profile: Profile, layer: int, head: int) -> Any:
    table = profile.frequencies.query(f"layer == {layer} and head == {head} and frequency > 0")
    return table.sort_values("frequency")


def named(parts: Any, gid: str) -> Any:
    return next(part for part in parts if part.get_gid() == gid)


def test_a_head_shows_its_scores_and_its_use_by_frequency(profile: Profile) -> None:
    upper, lower = plot(profile, "head", layer=3, head=1).axes
    wanted = of_head(profile, 3, 1)
    for line, axis in zip(upper.lines, COLOURS, strict=True):
        assert line.get_color() == COLOURS[axis]
        assert list(line.get_xdata()) == [1, 2, 3, 4, 5]
        np.testing.assert_allclose(line.get_ydata(), wanted[axis], rtol=1e-6)
    np.testing.assert_allclose([bar.get_height() for bar in lower.patches], wanted["use_norm"], rtol=1e-6)
    assert upper.get_title("left").startswith("head 3.1 ")


def test_the_purest_heads_of_both_kinds_are_shown_unless_one_is_chosen(profile: Profile) -> None:
    leaning = profile.heads["positional"] - profile.heads["symbolic"]
    purest = [profile.heads.loc[at] for at in (leaning.idxmax(), leaning.idxmin())]
    titles = [axes.get_title("left") for axes in plot(profile, "head").axes[:2]]
    for row, title in zip(purest, titles, strict=True):
        assert title.startswith(f"head {row['layer']}.{row['head']} ")


def test_a_path_visits_every_frequency_in_order(profile: Profile) -> None:
    axes = plot(profile, "path", layer=1, head=2).axes[0]
    wanted = of_head(profile, 1, 2)[["positional", "symbolic"]].to_numpy()
    dots = named(axes.collections, "frequencies")
    np.testing.assert_allclose(dots.get_offsets(), wanted, rtol=1e-6)
    np.testing.assert_array_equal(dots.get_array(), [1, 2, 3, 4, 5])
    assert any(np.allclose(line.get_xydata(), wanted, rtol=1e-6) for line in axes.lines if len(line.get_xdata()) == 5)


def test_the_name_of_a_corner_is_where_no_frequency_is() -> None:
    """Frequencies alone are often unfocused: in that corner they lie along the edges of the plane."""
    made = random_profile(1, 1, 24)
    made.frequencies["positional"] = [*np.linspace(0.8, 1, 12), *np.ones(12)]
    made.frequencies["symbolic"] = [*np.ones(12), *np.linspace(0.9, 1, 12)]
    figure = plot(made, "path", layer=0, head=0)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    (name,) = (text for text in axes.texts if text.get_text() == "unfocused")
    (left, bottom), (right, top) = name.get_window_extent().get_points()
    dots = axes.transData.transform(named(axes.collections, "frequencies").get_offsets())
    inside = (dots > (left, bottom)).all(1) & (dots < (right, top)).all(1)
    assert not inside.any()


def test_a_small_picture_of_every_head(profile: Profile) -> None:
    axes = plot(profile, "heads").axes[0]
    corners = [path.vertices.min(0) for path in named(axes.collections, "cells").get_paths()]
    assert len(corners) == 11
    assert len({tuple(corner) for corner in corners}) == 11
    for axis in COLOURS:
        lines = named(axes.collections, axis).get_segments()
        for row, corner, line in zip(profile.heads.itertuples(), corners, lines, strict=True):
            wanted = of_head(profile, row.layer, row.head)[axis]
            np.testing.assert_allclose(line[:, 1] - corner[1], wanted, atol=1e-6)
    rows = {row.layer: corner[1] for row, corner in zip(profile.heads.itertuples(), corners, strict=True)}
    assert sorted(rows, key=rows.__getitem__, reverse=True) == [0, 1, 2, 3]  # layers down


def test_attention_after_a_swap_is_that_of_a_run_with_the_keys_exchanged(stories260k) -> None:
    """The bars of a real head against softmax over its logits, two blocks of which were put into each other's place."""
    prompts = ww.binding(ww.load_tokenizer(weights("stories260K")), pairs=6, samples=1)
    made = ww.profile(stories260k, prompts)
    layer, head, (i, j) = 2, 3, (1, 4)
    trace = ww.capture(stories260k, torch.tensor([prompts[0].ids]))
    table = trace.placement(layer, head)[0].double()  # contents x places
    own = trace.attention_rows(layer)[0, head, -1].double()  # of the query itself, which is not in the table
    blocks = [list(range(*span)) for span in prompts[0].blocks]
    contents = list(range(len(table)))
    for one, other in zip(blocks[i], blocks[j], strict=True):
        contents[one], contents[other] = other, one
    now = table.diagonal().exp()
    rest = own * now.sum() / (1 - own)
    drawn = plot(made, "swap", layer=layer, head=head, blocks=(i + 1, j + 1)).axes
    for axes, logits in ((drawn[0], table.diagonal()), (drawn[1], table[contents, range(len(table))])):
        attention = logits.exp() / (logits.exp().sum() + rest)
        wanted = [float(attention[block].sum()) for block in blocks]
        bars = axes.patches[: len(blocks)]
        np.testing.assert_allclose([bar.get_height() for bar in bars], wanted, rtol=5e-3)  # float16: of logarithms
        assert [bar.get_x() + bar.get_width() / 2 for bar in bars] == pytest.approx(range(1, len(blocks) + 1))
    assert [text.get_text() for text in drawn[1].texts] == ["A", "B"]
    assert [text.xy[0] for text in drawn[1].texts] == [j + 1, i + 1]  # the contents, where they now stand


def test_use_is_shared_out_over_frequencies(profile: Profile) -> None:
    axes = plot(profile, "use").axes[0]
    shown = axes.collections[0].get_array()
    assert shown.shape == (4, 5)
    for layer in range(4):
        rows = profile.frequencies.query(f"layer == {layer} and frequency > 0")
        mean = [np.mean(rows.loc[rows["frequency"] == number, "use_max"]) for number in range(1, 6)]
        np.testing.assert_allclose(shown[layer], np.array(mean) / sum(mean))
    medians = [np.median(profile.heads.query(f"layer == {layer}")["mean_frequency"]) for layer in range(4)]
    np.testing.assert_allclose(axes.lines[0].get_xdata(), medians)


def test_scores_over_training_are_those_of_the_table(series: Dynamics) -> None:
    panels = plot(series, "scores").axes
    assert [axes.get_title("left") for axes in panels] == [f"layer {layer}" for layer in range(4)]
    for layer, axes in enumerate(panels):
        for axis in COLOURS:
            drawn = [line for line in axes.lines if line.get_gid() == axis]
            for head, line in enumerate(drawn):
                wanted = series.heads.query(f"layer == {layer} and head == {head}").sort_values("step")
                np.testing.assert_array_equal(line.get_xdata(), wanted["step"])
                np.testing.assert_array_equal(line.get_ydata(), wanted[axis])
            assert len(drawn) == 2
        pure = series.purity.query(f"gamma == 0.1 and layer == {layer}")["step"]
        marks = [line.get_xdata()[0] for line in axes.lines if line.get_gid() == "pure"]
        assert sorted(marks) == sorted(pure)
        entropy = named(axes.lines, "entropy").get_ydata()
        assert (entropy.min(), entropy.max()) == (0, 1)


def test_bars_begin_where_heads_became_pure(series: Dynamics) -> None:
    axes = plot(series, "purity").axes[0]
    for kind in ("where", "what"):
        for gamma in (0.2, 0.1, 0.05):
            bars = [bar for bar in axes.patches if bar.get_gid() == f"{kind} {gamma}"]
            found = {(round(bar.get_y() + bar.get_height() / 2), bar.get_x()) for bar in bars}
            rows = series.purity.query("kind == @kind and gamma == @gamma").to_dict("records")
            assert found == {(2 * row["layer"] + row["head"], row["step"]) for row in rows}
            assert {bar.get_x() + bar.get_width() for bar in bars} == {1000}  # a checkpoint after the last
            assert rows


def test_accuracy_is_a_line_a_hop(series: Dynamics) -> None:
    axes = plot(series, "accuracy").axes[0]
    for hops, line in enumerate(axes.lines, 1):
        np.testing.assert_array_equal(line.get_ydata(), series.accuracy.query(f"hops == {hops}")["accuracy"])
    assert len(axes.lines) == 3
    unknown = Dynamics(series.heads, series.accuracy.assign(accuracy=np.nan), series.purity, series.about)
    with pytest.raises(BadInput, match="no answers"):
        plot(unknown, "accuracy")


def test_mean_frequency_by_layer_at_the_start_and_at_the_end() -> None:
    watched = learning("number")
    axes = plot(watched, "mean-frequency").axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    for step in (0, 6750):
        wanted = watched.heads.query(f"query == 0 and step == {step}")["mean_frequency"]
        np.testing.assert_array_equal(lines[f"step {step:,}"].get_ydata(), wanted)
    assert list(lines["where"].get_xdata()) == [1, 2, 3]


def test_a_series_seen_from_hops_is_drawn_from_its_last_token(series: Dynamics) -> None:
    hopping = series.heads.assign(query=1, positional=0.5)
    seen = Dynamics(pd.concat([series.heads, hopping]), series.accuracy, series.purity, series.about)
    for name in ("scores", "mean-frequency"):
        for one, other in zip(plot(series, name).axes, plot(seen, name).axes, strict=True):
            for line, same in zip(one.lines, other.lines, strict=True):
                np.testing.assert_array_equal(line.get_xydata(), same.get_xydata())


def test_a_head_that_never_became_pure_has_no_bar(series: Dynamics) -> None:
    mixed = series.heads.assign(positional=0.5)
    none = Dynamics(mixed, series.accuracy, purity_table(mixed), series.about)
    assert not plot(none, "purity").axes[0].patches


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OF_A_PROFILE, *OF_A_HEAD, *OF_DYNAMICS])
def test_files_are_vectors_and_the_same_twice(profile: Profile, series: Dynamics, name: str, tmp_path: Path) -> None:
    if name == "plane-projection":
        pytest.skip("needs the model of the profile: test_sweep.py")
    one, two = (tmp_path / f"{copy}.svg" for copy in ("one", "two"))
    for path in (one, two):
        plot(series if name in OF_DYNAMICS else profile, name, path)
    assert one.read_bytes() == two.read_bytes()
    assert (b"<image" in one.read_bytes()) == (name in ("heatmaps", "use", "path"))  # bars of colours are pixels


def test_the_command_line(profile: Profile, series: Dynamics, run, refuse, tmp_path: Path, monkeypatch) -> None:
    profile.save(tmp_path / "profile")
    series.save(tmp_path / "run" / "dynamics")
    monkeypatch.chdir(tmp_path)
    text = " ".join(run("plot", "--help")[1].replace("│", " ").split())
    assert [name for name in FIGURES if name not in text] == []
    assert run("plot", "run")[::2] == (0, "Saved scores.png\n")
    assert run("plot", "profile", "--figure", "swap", "--layer", 1, "--blocks", 2, 5, "-o", "swap.svg")[0] == 0
    assert (tmp_path / "swap.svg").is_file()
    for words, *arguments in (
        ("figure plane shows a profile; figures of dynamics: scores", "run", "--figure", "plane"),
        ("figure purity shows dynamics; figures of a profile: plane", "profile", "--figure", "purity"),
        ("figure scores shows one result, got 2", "run", "run"),
        ("--layer does not apply to the figure plane", "profile", "--layer", 1),
        ("--blocks does not apply to the figure head", "profile", "--figure", "head", "--blocks", 1, 2),
        ("layers are 0 to 3", "profile", "--figure", "head", "--layer", 4),
        ("layer 3 has 2 heads", "profile", "--figure", "path", "--layer", 3, "--head", 2),
        ("has blocks 1 to 6", "profile", "--figure", "swap", "--blocks", 0, 2),
        ("choose two further apart", "profile", "--figure", "swap", "--blocks", 2, 2),
    ):
        refuse(words, "plot", *arguments)
    whole = Profile(profile.heads, profile.frequencies.head(0), profile.about | {"level": "prompt"}, {})
    for name in ("head", "path", "heads", "use", "frequencies"):
        with pytest.raises(BadInput, match="level prompt has no frequencies to draw"):
            plot(whole, name)
    with pytest.raises(BadInput, match="level prompt keeps no swaps"):
        plot(whole, "swap")
