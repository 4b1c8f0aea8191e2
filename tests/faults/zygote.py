"""Runs commands in forks of a process that has already imported everything: a command then starts at once.

Reads one JSON list of words per line, forks, and answers with the process id, then with the exit status.
"""

from __future__ import annotations

import json
import os
import sys

import torch

import wherewhat.cli
import wherewhat.studies.ablation.ablate
import wherewhat.studies.atlas.atlas
import wherewhat.studies.dynamics.dynamics
import wherewhat.studies.lengths.lengths
import wherewhat.studies.lengths.stretch
import wherewhat.studies.multihop.train
import wherewhat.studies.profile.profile
import wherewhat.studies.rotations.rotations
import wherewhat.studies.spectrum.spectrum
import wherewhat.studies.sweep.sweep

torch.set_num_threads(1)


def main() -> None:
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            os.setsid()
            silent = os.open(os.devnull, os.O_RDWR)
            os.dup2(silent, 0)
            os.dup2(silent, 1)
            log = os.open(json.loads(line)[0], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 2)
            sys.argv = ["wherewhat", *json.loads(line)[1:]]
            wherewhat.cli.main()
            os._exit(0)
        print(process, flush=True)
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
