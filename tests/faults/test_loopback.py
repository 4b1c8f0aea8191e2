"""What a cluster that is started here listens on, and what reaches the terminal."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from conftest import ENVIRONMENT
from wherewhat.words import printable

LISTENING = """
import os, subprocess
from wherewhat.cells.ray import RayExecutor

RayExecutor("local")._join()
children, found = {os.getpid()}, []
listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True).stdout
rows = [line.split() for line in listed.splitlines()]
for _ in range(4):
    children |= {int(pid) for pid, parent in rows if int(parent) in children}
inodes = set()
for pid in children:
    try:
        links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        inodes |= {link[8:-1] for link in links if link.startswith("socket:[")}
    except OSError:
        pass
for name in ("tcp", "tcp6"):
    for line in open(f"/proc/net/{name}").read().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and words[9] in inodes:
            found.append(words[1].split(":")[0])
print(sorted(set(found)))
"""


@pytest.mark.slow
def test_a_cluster_started_here_listens_on_loopback_only(tried: Any) -> None:
    pytest.importorskip("ray")
    environment = ENVIRONMENT | {"RAY_AUTH_MODE": "disabled"}
    done = subprocess.run([sys.executable, "-c", LISTENING], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert set(eval(done.stdout.splitlines()[-1])) <= loopback, done.stdout


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\rb", "a\nb", "a\x07", "a\x9b31m", "a\u202eb"])
def test_control_characters_in_names_are_escaped(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "wherewhat", "compare", name, name], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.returncode == 2
    assert name not in done.stderr
    assert printable(name).replace("\n", " ") in done.stderr
    assert done.stderr.count("\n") == 1
