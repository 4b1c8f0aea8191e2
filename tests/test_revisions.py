"""Series of revisions by pattern: folders and git repositories of a model that really learnt, in the order of steps."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch

import revisions as made
import wherewhat as ww
from conftest import weights
from wherewhat.errors import BadInput
from wherewhat.prompts import binding
from wherewhat.studies.dynamics.revisions import find_revisions
from wherewhat.studies.dynamics.series import series_of_revisions
from wherewhat.tracing import load_tokenizer

NAMES = [f"step{step}" for step in made.STEPS]
Run = Callable[..., tuple[int, str, str]]
Refuse = Callable[..., None]
SMALL = ("--pairs", 8, "--prompts", 2, "--json")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.learn(tmp_path_factory.mktemp("revisions"), weights("stories260K"))


@pytest.fixture(scope="module")
def repository(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last two revisions are tags."""
    path = tmp_path_factory.mktemp("git") / "tiny"
    made.commit_all(folders, path, tags=NAMES[-2:])
    return path


def copied(folders: Path, to: Path, *names: str) -> Path:
    for name in names:
        shutil.copytree(folders / name, to / name)
    return to


@pytest.mark.slow
def test_folders_are_measured_by_their_steps(folders: Path, tmp_path: Path, run: Run) -> None:
    code, out, _ = run("dynamics", folders, "--revisions", "step*", "-o", tmp_path, *SMALL)
    assert code == 0
    series = json.loads(out)["series"]
    assert [one["name"] for one in series] == NAMES  # step16 before step128
    heads = pd.read_parquet(tmp_path / "heads.parquet")
    assert heads["step"].unique().tolist() == list(made.STEPS)
    prompts = binding(load_tokenizer(folders / "step128"), 8, 2, 0)
    model = ww.load(folders / "step128")
    expected = torch.stack(
        [ww.score(ww.capture(model, torch.tensor([one.ids])), one.blocks).symbolic[0] for one in prompts]
    ).mean(0)
    ours = torch.tensor(heads.query("step == 128")["symbolic"].to_numpy()).reshape(2, 4)
    assert torch.allclose(ours, expected, atol=1e-5)


@pytest.mark.slow
def test_git_gives_what_folders_give(folders: Path, repository: Path, tmp_path: Path, run: Run) -> None:
    for name, source in {"folders": folders, "git": repository}.items():
        assert run("dynamics", source, "--revisions", "step*", "-o", tmp_path / name, *SMALL)[0] == 0
    tables = [(tmp_path / name / "heads.parquet").read_bytes() for name in ("folders", "git")]
    assert tables[0] == tables[1]
    about = [json.loads((tmp_path / name / "dynamics.json").read_text()) for name in ("folders", "git")]
    assert [one["weights"] for one in about[0]["series"]] == [one["weights"] for one in about[1]["series"]]
    commits = [made.git(repository, "rev-parse", f"{name}^{{commit}}") for name in NAMES]
    assert [one["commit"] for one in about[1]["series"]] == commits


def test_a_clone_has_the_branches_of_its_origin(repository: Path, tmp_path: Path) -> None:
    made.git(tmp_path, "clone", "-q", str(repository), "clone")
    assert [one.name for one in find_revisions(str(tmp_path / "clone"), "step*")] == NAMES
    made.git(tmp_path, "clone", "-q", "--bare", str(repository), "bare")
    assert find_revisions(str(tmp_path / "bare"), "step*") == find_revisions(str(repository), "step*")


def test_steps_in_names(tmp_path: Path) -> None:
    for name in ("stage1-step2000-tokens8B", "stage1-step1000-tokens4B", "stage1-step10000-tokens40B", "last", "first"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")

    def steps(pattern: str) -> dict[int, str]:
        return {one.step: one.name[:5] for one in find_revisions(str(tmp_path), pattern)}

    assert list(steps("*step*")) == [1000, 2000, 10000]
    assert steps("*st") == {0: "first", 1: "last"}
    with pytest.raises(BadInput, match="first has no step in its name"):
        steps("*")
    (tmp_path / "stage2-step1000").mkdir()
    (tmp_path / "stage2-step1000/config.json").write_text("{}")
    with pytest.raises(BadInput, match="stage1-step1000-tokens4B and stage2-step1000 are both step 1000"):
        steps("*step*")


def test_repeated_weights_are_refused_unless_allowed(folders: Path, tmp_path: Path, run: Run, refuse: Refuse) -> None:
    source = copied(folders, tmp_path / "series", "step0", "step4")
    shutil.copytree(folders / "step4", source / "step512")
    ww.load(folders / "step4").save_pretrained(source / "step600", max_shard_size="20KB")  # the same in other files
    asked = ("dynamics", source, "--revisions", "step*", "-o", tmp_path / "out", *SMALL)
    refuse("step4 and step512 hold the same weights .--allow-repeated", *asked)
    assert not (tmp_path / "out").exists()  # seen before anything was measured
    shutil.rmtree(source / "step512")
    refuse("step4 and step600 hold the same weights .--allow-repeated", *asked)
    shutil.copytree(folders / "step4", source / "step512")
    code, out, _ = run(*asked, "--allow-repeated")
    assert code == 0
    assert len({one["weights"] for one in json.loads(out)["series"]}) == 2
    heads = pd.read_parquet(tmp_path / "out/heads.parquet")
    one, *others = (heads.query("step == @step")["positional"].tolist() for step in (4, 512, 600))
    assert others == [one, one]


def test_a_revision_that_fails_is_told_and_the_others_are_kept(folders: Path, tmp_path: Path, run: Run) -> None:
    source = copied(folders, tmp_path / "series", *NAMES[:3])
    whole = (source / "step4/model.safetensors").read_bytes()
    (source / "step4/model.safetensors").write_bytes(whole[:1000])
    asked = ("dynamics", source, "--revisions", "step*", "-o", tmp_path / "out", *SMALL)
    code, out, err = run(*asked)
    assert code == 1
    assert "1 of 3 checkpoints failed; the others are kept" in err
    assert f"step4  {source}/step4: cannot be loaded" in err
    assert [one["step"] for one in json.loads(out)["series"]] == [0, 8]
    assert run("report", tmp_path / "out", "-o", tmp_path / "page.html")[0] == 0
    assert "checkpoint step4 was not measured" in (tmp_path / "page.html").read_text()
    cells = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out/cells").glob("*.safetensors")}
    (source / "step4/model.safetensors").write_bytes(whole)
    code, out, _ = run(*asked)
    assert code == 0
    assert [one["step"] for one in json.loads(out)["series"]] == [0, 4, 8]
    assert "failed" not in json.loads(out)
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out/cells").glob("*.safetensors")}
    assert cells.items() <= kept.items()


def test_all_fail(folders: Path, tmp_path: Path, run: Run) -> None:
    source = copied(folders, tmp_path / "series", "step0", "step4")
    for name in ("step0", "step4"):
        (source / name / "model.safetensors").unlink()
    code, out, err = run("dynamics", source, "--revisions", "step*", "-o", tmp_path / "out", *SMALL)
    assert (code, out) == (1, "")
    assert "2 of 2 checkpoints failed" in err


@pytest.mark.slow
def test_a_run_of_many_at_a_time_gives_the_same_bytes(folders: Path, tmp_path: Path, run: Run) -> None:
    """As a process of its own: functions that the tests check for shapes do not travel to workers."""
    asked = ["dynamics", folders, "--revisions", "step?", *SMALL, "-o"]
    assert run(*asked, tmp_path / "one")[0] == 0
    words = [sys.executable, "-m", "wherewhat", *map(str, asked), str(tmp_path / "two"), "--jobs", "2"]
    subprocess.run(words, check=True, capture_output=True)
    assert (tmp_path / "one/heads.parquet").read_bytes() == (tmp_path / "two/heads.parquet").read_bytes()


def test_what_is_refused(folders: Path, repository: Path, tmp_path: Path, refuse: Refuse) -> None:
    asked = ("dynamics", folders, "--revisions")
    refuse("no revision matches 'ckpt.'; found step0, step4, step8, step16, step128", *asked, "ckpt*")
    refuse("no revision matches 'v1'; found main, step0, step4, step8, step16 and 1 more", "dynamics", repository,
           "--revisions", "v1")  # fmt: skip
    refuse("main has no step in its name", "dynamics", repository, "--revisions", "*")
    refuse("revisions are those of one model, got 2", "dynamics", folders, repository, "--revisions", "*")
    refuse("no revision matches .*found none", "dynamics", tmp_path, "--revisions", "*")
    refuse("revisions are for models", "dynamics", made_run(tmp_path), "--revisions", "*")


def made_run(folder: Path) -> Path:
    (folder / "run.json").write_text("{}")
    return folder


def test_pointers_of_git_lfs_are_told(folders: Path, tmp_path: Path) -> None:
    source = copied(folders, tmp_path / "series", "step0")
    (source / "step0/model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    )
    made.commit_all(source, tmp_path / "git")
    (only,) = series_of_revisions(str(tmp_path / "git"), "step0")
    with pytest.raises(BadInput, match="git lfs fetch"), only.opened():
        pass
