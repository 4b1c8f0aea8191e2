"""Figures show all numbers of the profile and nothing else; the same profile gives the same bytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread
from matplotlib.text import Annotation, Text

import wherewhat as ww
from conftest import ENVIRONMENT
from synthetic import random_ablation, random_atlas, random_profile
from wherewhat import cli
from wherewhat.core.kinds import kind
from wherewhat.errors import BadInput
from wherewhat.explorer.plots import plot
from wherewhat.studies.profile.profile import Profile

DRAWN = ("plane", "heatmaps", "frequencies", "layers")


def made_up_profile(layers: int = 4, heads: int = 6, planes: int = 5, seed: int = 0) -> Profile:
    """Random numbers; the last layer has one head fewer than the others, as in some models."""
    draws = np.random.default_rng(seed)
    places = [(layer, head) for layer in range(layers) for head in range(heads - (layer == layers - 1))]
    table = pd.DataFrame(places, columns=["layer", "head"])
    for name in ("positional", "symbolic", "entropy"):
        table[name] = draws.uniform(size=len(table))
    table["kind"] = [kind(*pair) for pair in zip(table["positional"], table["symbolic"], strict=True)]
    rows = [(layer, head, number) for layer, head in places for number in (*range(1, planes + 1), 0)]
    frequencies = pd.DataFrame(rows, columns=["layer", "head", "frequency"])
    for name in ("positional", "symbolic", "use_norm"):
        frequencies[name] = draws.uniform(size=len(frequencies))
    settings = {"weights": "none"}
    r = float(np.corrcoef(table["positional"], table["symbolic"])[0, 1])
    about: dict[str, Any] = {
        "correlation": {"r": r},
        "model": f"models/made-up-{seed}.gguf",
        "prompts": [{}] * 3,
        "level": "keys",
    }
    return Profile(table, frequencies, about | {"settings": settings}, {})


@pytest.fixture(scope="module")
def profile() -> Profile:
    return made_up_profile()


def dots(axes: Any) -> Any:
    return next(part for part in axes.collections if part.get_gid() == "heads")


def test_every_head_is_a_dot_at_its_scores_with_the_colour_of_its_layer_and_the_size_of_its_focus(
    profile: Profile,
) -> None:
    drawn, heads = dots(plot(profile, "plane").axes[0]), profile.heads
    np.testing.assert_array_equal(drawn.get_offsets(), heads[["positional", "symbolic"]].to_numpy())
    np.testing.assert_array_equal(drawn.get_array(), heads["layer"].to_numpy())
    order = np.argsort(heads["entropy"].to_numpy())
    assert (np.diff(drawn.get_sizes()[order]) < 0).all()


def test_the_plane_states_r_and_the_number_of_heads_and_names_the_purest_heads(profile: Profile) -> None:
    axes = plot(profile, "plane").axes[0]
    said, heads = [text.get_text() for text in axes.texts], profile.heads
    r = np.cov(heads["positional"], heads["symbolic"])[0, 1] / heads["positional"].std() / heads["symbolic"].std()
    assert any(f"23 heads, r = {r:.2f}, mean of 3 prompts" in text for text in said)
    purest = heads.loc[(heads["positional"] - heads["symbolic"]).idxmax()]
    assert f"{purest['layer']:.0f}.{purest['head']:.0f}" in said
    assert axes.get_title("left") == "made-up-0"


def test_names_of_heads_do_not_overlap() -> None:
    """Even if all heads are at the same spot."""
    crowded = made_up_profile(seed=1)
    crowded.heads["positional"] = 0.5 + crowded.heads["positional"] * 1e-2
    crowded.heads["symbolic"] = 0.5 + crowded.heads["symbolic"] * 1e-2
    figure = plot(crowded, "plane")
    figure.draw_without_rendering()
    names = [text for text in figure.axes[0].texts if isinstance(text, Annotation)]
    extents = [Text.get_window_extent(name) for name in names]  # without the line that leads to the dot
    assert len(extents) >= 4
    for at, one in enumerate(extents):
        assert not any(one.overlaps(other) for other in extents[at + 1 :])


@pytest.mark.slow
def test_several_profiles_are_drawn_side_by_side(profile: Profile) -> None:
    other = made_up_profile(seed=2)
    planes = [axes for axes in plot([profile, other], "plane").axes if axes.get_title("left")]
    assert [axes.get_title("left") for axes in planes] == ["made-up-0", "made-up-2"]
    np.testing.assert_array_equal(dots(planes[1]).get_offsets(), other.heads[["positional", "symbolic"]].to_numpy())
    with pytest.raises(BadInput, match="only plane takes several"):
        plot([profile, other], "heatmaps")


def test_heatmaps_hold_every_score_at_its_layer_and_head(profile: Profile) -> None:
    figure = plot(profile, "heatmaps")
    panels = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    assert len(panels) == 3
    for head in profile.heads.itertuples():
        shown = [panel[head.layer, head.head] for panel in panels]
        assert shown == [head.positional, head.symbolic, head.positional - head.symbolic]
    assert [np.ma.masked_invalid(panel).mask.sum() for panel in panels] == [1, 1, 1]  # the head that is not there


@pytest.mark.parametrize(("name", "by"), [("frequencies", "frequency"), ("layers", "layer")])
def test_lines_are_medians_and_bars_the_mean_use(profile: Profile, name: str, by: str) -> None:
    axes = plot(profile, name).axes
    table = profile.frequencies[profile.frequencies["frequency"] > 0] if by == "frequency" else profile.heads
    for line, score in zip(axes[0].lines, ("positional", "symbolic"), strict=True):
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True):
            assert y == np.median(table.loc[table[by] == x, score])
    if by == "frequency":
        heights = [bar.get_height() for bar in axes[1].patches]
        expected = [table.loc[table["frequency"] == number, "use_norm"].mean() for number in range(1, 6)]
        np.testing.assert_allclose(heights, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"), [("plane", "pdf"), ("plane", "svg"), *((name, "png") for name in DRAWN), ("layers", "pdf")]
)
def test_files_open_and_are_reproducible(profile: Profile, name: str, kind: str, tmp_path: Path) -> None:
    for copy in ("one", "two"):
        plot(profile, name, tmp_path / f"{copy}.{kind}")
    content = (tmp_path / f"one.{kind}").read_bytes()
    assert content == (tmp_path / f"two.{kind}").read_bytes()
    assert content.startswith({"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[kind])
    if kind == "png":
        assert imread(tmp_path / "one.png").std() > 0.05  # something is drawn


def test_a_model_without_rotation_has_no_frequencies(profile: Profile) -> None:
    still = Profile(profile.heads, profile.frequencies.query("frequency == 0"), profile.about, {})
    with pytest.raises(BadInput, match="frequencies to draw"):
        plot(still, "frequencies")


@pytest.mark.slow
def test_the_figure_of_an_atlas_holds_every_head(tmp_path: Path) -> None:
    atlas = random_atlas(5, 6, 4, families=2)
    for name in ("a.png", "b.png"):
        figure = plot(atlas, "atlas", tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    dots = [found for axes in figure.axes for found in axes.collections if found.get_gid() == "heads"]
    drawn = np.concatenate([np.asarray(one.get_offsets()) for one in dots])
    wanted = atlas.heads[["positional", "symbolic"]].to_numpy()
    assert np.array_equal(drawn[np.lexsort(drawn.T)], wanted[np.lexsort(wanted.T)])


@pytest.mark.slow
def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    random_profile(3, 4, 8).save(tmp_path / "profile")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["wherewhat", "plot", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), capsys.readouterr().err

    assert run("profile") == (0, "Saved plane.png\n")
    assert run("profile", "profile", "-o", "out/both.svg")[0] == 0
    assert (tmp_path / "out" / "both.svg").is_file()
    (tmp_path / "file").write_text("")
    for arguments, reason in (
        (["profile", "--figure", "pie"], "no figure 'pie'; figures of a profile: plane, heatmaps, heads, layers"),
        (["profile", "-o", "file/plane.png"], "cannot be written"),
        (["profile", "-o", "plane.gif"], "written as .png, .pdf or .svg"),
        (["nowhere"], "no such folder"),
    ):
        code, said = run(*arguments)
        assert code == 2
        assert said.startswith("wherewhat: ")
        assert said.count("\n") == 1
        assert reason in said


@pytest.mark.slow
@pytest.mark.parametrize(("thing", "name"), [("trace", "Trace"), ("ww.score(trace)", "Scores")])
def test_what_cannot_be_drawn_says_what_can(thing: str, name: str) -> None:
    """In a process of its own: here, the types of arguments are checked first."""
    made = "trace = ww.capture(ww.embedded('letter'), torch.ones(1, 9).long())"
    code = f"import torch, wherewhat as ww; {made}; ww.plot({thing})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT)
    assert f"BadInput: {name} cannot be shown: give a profile, dynamics" in done.stderr


def test_a_folder_names_its_own_figures_and_draws_whichever_it_holds(refuse, tmp_path: Path) -> None:
    profile = random_profile(3, 4, 8)
    made = random_ablation(profile)
    named = made.effects.assign(what=made.effects["what"].where(made.effects["draw"].notna(), "a set"), layer=None)
    first = named.drop_duplicates(["measure", "what", "draw"])
    ablation = ww.Ablation(first.assign(control_of=first["draw"].map(lambda _: "a set")), made.about)
    ablation.save(tmp_path / "ablation")
    refuse("no figure 'planes'; figures of an ablation: ablation", "plot", tmp_path / "ablation", "--figure", "planes")
    ablation.save(tmp_path / "both")
    profile.save(tmp_path / "both")
    both = ww.plot(tmp_path / "both", "ablation", tmp_path / "a.png")
    assert len(both.axes) == 2
    assert ww.plot(tmp_path / "both").axes[0].get_xlabel().startswith("looks at where")
    with pytest.raises(ww.BadInput, match="no figure 'x'; figures of a profile: plane, heatmaps"):
        ww.plot(tmp_path / "both", "x")
