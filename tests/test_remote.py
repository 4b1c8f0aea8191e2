"""Remote folders: a real server on loopback, the real command."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname
from threading import Thread
from typing import Any

import pandas as pd
import pytest
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem
from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import FTPHandler
from pyftpdlib.servers import FTPServer
from typer.testing import CliRunner

from conftest import weights
from synthetic import random_profile
from wherewhat.cli import app
from wherewhat.cli.output import print_json
from wherewhat.errors import BadInput
from wherewhat.remote import _remote_folders, local_copy, upload
from wherewhat.studies.atlas.atlas import Atlas
from wherewhat.studies.atlas.card import COLUMNS

PROFILE = "--pairs 4 --samples 12 --seed 1".split()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The URL of a folder on a server, and its path on disk; the user "reader" has no write permission."""
    there = tmp_path / "there"
    there.mkdir()
    users = DummyAuthorizer()
    users.add_user("user", "secret", str(there), perm="elradfmwMT")
    users.add_user("reader", "secret", str(there), perm="elr")
    handler = type("Handler", (FTPHandler,), {"authorizer": users})
    serving = FTPServer(("127.0.0.1", 0), handler)
    Thread(target=serving.serve_forever, daemon=True).start()
    yield f"ftp://user:secret@127.0.0.1:{serving.address[1]}", there
    serving.close_all()


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "wherewhat", *map(str, words)]


def run(*words: str | Path, code: int = 0) -> str:
    """Standard error of a command that ends with this exit code."""
    ended = subprocess.run(command(*words), capture_output=True, text=True)
    assert ended.returncode == code, ended.stderr
    return ended.stderr


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.slow
@pytest.mark.weights
def test_a_killed_remote_study_resumes_and_ends_with_the_files_of_a_local_one(
    server: tuple[str, Path], tmp_path: Path
) -> None:
    url, there = server
    model = weights("stories260K")
    run("profile", model, "-o", tmp_path / "here", *PROFILE)
    begun = subprocess.Popen(command("profile", model, "-o", f"{url}/study", *PROFILE), stderr=subprocess.DEVNULL)
    while len(files(there)) < 3:
        assert begun.poll() is None
        time.sleep(0.01)
    begun.send_signal(signal.SIGKILL)
    begun.wait()
    kept = {name: data for name, data in files(there).items() if not name.endswith(".partial")}
    assert 2 <= len(kept) < len(files(tmp_path / "here"))

    stderr = run("profile", model, "-o", f"{url}/study", *PROFILE)
    assert f"Saved in {url.replace('user:secret@', '')}/study" in stderr
    assert "secret" not in stderr
    done = {name: data for name, data in files(there / "study").items() if not name.endswith(".partial")}
    alike = {name: data for name, data in files(tmp_path / "here").items() if name != "profile.json"}
    assert {name: data for name, data in done.items() if name != "profile.json"} == alike
    assert kept.items() <= {f"study/{name}": data for name, data in done.items()}.items()  # none was computed again
    assert "Reusing the profile in" in run("profile", model, "-o", f"{url}/study", *PROFILE)

    run("report", f"{url}/study", "-o", tmp_path / "page.html")
    assert "stories260K" in (tmp_path / "page.html").read_text()


@pytest.mark.slow
@pytest.mark.weights
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("secret", "wrong"), "cannot be read (530"),
        (("user", "reader"), "cannot be written (550"),
        (("ftp://user", "nowhere://user"), "cannot be read (Protocol not known"),
    ],
)
def test_a_folder_that_cannot_be_used_is_one_line(
    server: tuple[str, Path], change: tuple[str, str], reason: str
) -> None:
    place = f"{server[0]}/study".replace(*change)
    stderr = run("profile", weights("stories260K"), "-o", place, *PROFILE, code=2).strip().splitlines()[-1]
    assert stderr.startswith("wherewhat: ")
    assert reason in stderr
    assert "secret" not in stderr
    assert not files(server[1])


@pytest.mark.slow
def test_the_local_copy_is_complete_and_removed_with_the_process(server: tuple[str, Path]) -> None:
    url, there = server
    (there / "study" / "cells").mkdir(parents=True)
    (there / "study" / "cells" / "one").write_bytes(b"1" * 100_000)
    (there / "study" / ".two.7.partial").write_bytes(b"half")
    code = f"""
from wherewhat.remote import local_copy
from wherewhat.files import write_atomically
folder = local_copy({url + "/study"!r})
write_atomically(folder / "cells" / "three", b"3")
write_atomically(folder / "cells" / "three", b"4")
print(*sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()))
print(local_copy({url + "/study"!r}) == folder, folder / "cells")
print(folder, end="")
"""
    names, same, copy = subprocess.check_output([sys.executable, "-c", code], text=True).split("\n")
    assert names == "cells/one cells/three"
    assert same.startswith("True /")
    assert not Path(copy).exists()
    assert (there / "study" / "cells" / "three").read_bytes() == b"4"
    assert sorted(files(there)) == ["study/.two.7.partial", "study/cells/one", "study/cells/three"]


def test_local_paths_are_used_as_they_are(tmp_path: Path) -> None:
    assert local_copy(str(tmp_path)) == local_copy(tmp_path) == local_copy(f"file://{tmp_path}") == tmp_path
    assert f"{local_copy('memory://runs/')}" == "memory://runs"
    assert f"{local_copy('memory://runs') / 'cells'}" == "memory://runs/cells"


def archive(path: Path, *names: str) -> str:
    """The URL of the folder "p" in a .zip file that holds an empty file of each name."""
    with zipfile.ZipFile(path, "w") as made:
        for name in names:
            made.writestr(name, "")
    return f"zip://p::{path}"


@pytest.mark.parametrize("name", ["p/../../x", "p/a/../../../x", "p/..\\..\\x", "p/C:/x", "p/./x", "p/.."])
def test_names_that_lead_out_of_a_remote_folder_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "copies"))
    url = archive(tmp_path / "evil.zip", "p/profile.json", name)
    with pytest.raises(BadInput, match=r"evil.zip: holds a name that leads out of the folder"):
        local_copy(url)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written == [tmp_path / "evil.zip"]  # refused before any download


@pytest.mark.parametrize("command", ["report URL", "compare URL URL", "profile number -o URL"])
def test_commands_refuse_a_hostile_archive_in_one_line(command: str, tmp_path: Path) -> None:
    url = archive(tmp_path / "evil.zip", "p/profile.json", f"p/{'../' * 30}{tmp_path}/outside")
    result = CliRunner().invoke(app, command.replace("URL", url).split())
    assert (result.exit_code, "leads out of the folder" in result.output) == (2, True)
    assert not (tmp_path / "outside").exists()


def test_files_outside_the_folder_are_not_uploaded(tmp_path: Path) -> None:
    copy = local_copy("memory://uploads/study")
    (tmp_path / "private").write_text("mine")
    (copy / "link").symlink_to(tmp_path / "private")
    with pytest.raises(BadInput, match=r"^memory://uploads/study/link: a link to a file outside the folder"):
        upload(copy / "link")
    (copy.parent / f"{copy.name}-beside").write_text("beside")
    with pytest.raises(BadInput, match="leads out of the folder"):
        upload(copy / ".." / f"{copy.name}-beside")
    assert not local_copy("memory://uploads").joinpath("study").exists()


def test_a_link_in_a_remote_folder_is_not_followed() -> None:
    class Linked(MemoryFileSystem):
        protocol = "linked"

        def find(self, path: str, **options: Any) -> Any:
            return {f"{path}/profile.json": {"name": f"{path}/profile.json", "type": "link", "size": 3}}

    register_implementation("linked", Linked, clobber=True)
    with pytest.raises(BadInput, match=r"'profile.json' is a link"):
        local_copy("linked://there/p")


@pytest.mark.parametrize("command", ["profile number --samples 2", "sweep index --frequency 3 --seeds 1 --steps 2"])
def test_what_a_command_prints_and_records_names_the_url(command: str) -> None:
    url = f"memory://named/{command.split()[0]}"
    result = CliRunner().invoke(app, [*command.split(), "-o", url, "--json"])
    assert result.exit_code == 0, result.output
    copy = next(folder for folder, remote in _remote_folders.items() if remote.url == url)
    assert str(copy) not in result.output
    stored = [path for path in copy.rglob("*") if path.suffix in (".json", ".md", ".html")]
    assert stored
    assert not [path for path in stored if str(copy) in path.read_text()]


def test_json_names_the_url_even_of_a_plain_path(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"folder": str(local_copy("memory://named/json") / "cells")})
    assert capsys.readouterr().out == '{"folder": "memory://named/json/cells"}\n'


def test_errors_about_a_remote_folder_name_the_url(refuse: Any, tmp_path: Path) -> None:
    random_profile(2, 2, 4, blocks=4, prompts=2).save(tmp_path / "p")
    (tmp_path / "p" / "heads.parquet").write_bytes(b"damaged")
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as made:
        for path in (tmp_path / "p").iterdir():
            made.write(path, f"p/{path.name}")
    url = f"zip://p::{tmp_path}/some.zip"
    refuse(rf"{re.escape(url)}/heads\.parquet: missing or damaged", "report", url, "-o", tmp_path / "x.html")


def test_what_a_killed_process_left_in_a_subfolder_is_removed(tmp_path):
    """A killed process: one of this machine that has ended."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = tmp_path / "data" / f".models.parquet.{gethostname()}.{gone.pid}.9bb23743186d.partial"
    left.parent.mkdir()
    left.write_bytes(b"half of a table")
    tables = {name: pd.DataFrame({column: [] for column in columns}) for name, columns in COLUMNS.items()}
    Atlas(**tables, about={}).save(tmp_path)
    assert not left.exists()
    assert (tmp_path / "data" / "models.parquet").exists()
