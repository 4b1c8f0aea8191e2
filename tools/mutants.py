"""Mutation testing: does a test fail if one operator or number of the code is changed?

`python tools/mutants.py --sample 100 --seed 0` draws places in the code at random and changes each in a copy of the
package. It runs the quick tests that execute the changed line, the fastest first, until one fails; if none does, all
quick tests of their files, and for a line that runs on import all quick tests. It prints every mutant with its fate and
the share killed, and appends to a file, so that an interrupted run resumes. A mutant that runs out of time counts as
killed.

Which test executes which line is measured once, with coverage (`--map FILE`); remove the file after changing tests.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import resource
import shutil
import signal
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from coverage import Coverage

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "wherewhat"
MOST_TESTS, MOST_FILES = 60, 4  # per mutant
QUICK = "not slow and not weights and not browser and not integrations"
# Tests of pages, packages and speed.
NOT_OF_THE_CODE = ("test_docs", "test_docs_content", "test_bench", "test_wheel", "test_package", "test_fidelity")
# What is mutated.
PARTS = {
    "core": ["core/*.py"],
    "tracing": [f"tracing/{name}.py" for name in (
        "capture hook self_check confirm gate interventions rotation_probe check_prompt legacy_families".split()
    )],
    "cells": ["cells/cells.py", "cells/executors.py"],  # no quick test starts processes or Ray
    "trainer": ["lab/train.py", "lab/transformer.py"],
    "results": ["results.py", "studies/stats.py", "studies/*/result.py", "studies/profile/tables.py",
                "studies/profile/summary.py", "studies/ablation/ablate.py", "studies/dynamics/measure.py"],
}  # fmt: skip
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
    ast.USub: ast.UAdd,
}  # fmt: skip


class Places(ast.NodeVisitor):
    """The nodes that can be mutated; not in annotations, messages of errors or representations."""

    def __init__(self) -> None:
        self.found: list[ast.AST] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in ("__repr__", "_repr_html_"):
            return
        for part in (*node.args.defaults, *(one for one in node.args.kw_defaults if one), *node.body):
            self.visit(part)

    def visit_Raise(self, node: ast.Raise) -> None: ...

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        self.keep(node, type(node.ops[0]) in SWAPS)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        text = any(isinstance(side, (ast.JoinedStr, ast.List)) for side in (node.left, node.right))
        self.keep(node, type(node.op) in SWAPS and not text)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.keep(node, True)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self.keep(node, isinstance(node.op, (ast.Not, ast.USub)))

    def visit_Constant(self, node: ast.Constant) -> None:
        self.keep(node, isinstance(node.value, (bool, int, float)))

    def keep(self, node: ast.AST, mutable: bool) -> None:
        if mutable:
            self.found.append(node)
        self.generic_visit(node)


def mutate(node: ast.AST) -> str:
    """Change a node in place, and return what was done."""
    before = ast.unparse(node)
    match node:
        case ast.Compare():
            node.ops[0] = SWAPS[type(node.ops[0])]()
        case ast.BinOp() | ast.BoolOp():
            node.op = SWAPS[type(node.op)]()
        case ast.UnaryOp(op=ast.Not()):
            node.operand = ast.UnaryOp(ast.Not(), node.operand)
        case ast.UnaryOp():
            node.op = ast.UAdd()
        case ast.Constant(value=bool(value)):
            node.value = not value
        case ast.Constant(value=int(value)):
            node.value = value + 1
        case ast.Constant(value=value):
            node.value = value * 2 if value else 1.0
    return f"{before}  ->  {ast.unparse(node)}"


def mutants() -> Iterator[tuple[str, Path, int]]:
    """All of them, by part: the file and the number of the place in it."""
    for part, patterns in PARTS.items():
        for path in sorted({path for pattern in patterns for path in PACKAGE.glob(pattern)}):
            places = Places()
            places.visit(ast.parse(path.read_text()))
            yield from ((part, path, number) for number in range(len(places.found)))


class Map:
    """A pytest plugin that notes which test executes which lines of the package, and how long it takes."""

    def __init__(self) -> None:
        self.lines: dict[str, dict[int, list[str]]] = {}
        self.seconds: dict[str, float] = {}
        self.coverage = Coverage(data_file=None, include=[f"{PACKAGE}/*"], config_file=False)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def make(self, path: Path) -> None:
        self.coverage.start()
        tests = [str(test) for test in sorted((ROOT / "tests").glob("test_*.py")) if test.stem not in NOT_OF_THE_CODE]
        if pytest.main(["-q", "-p", "no:xdist", "-o", "addopts=", "-m", QUICK, "--rootdir", str(ROOT), *tests], [self]):
            sys.exit("the quick tests fail without any mutant")
        self.coverage.stop()
        data = self.coverage.get_data()
        for file in data.measured_files():
            by_line = data.contexts_by_lineno(file)
            name = str(Path(file).relative_to(PACKAGE))
            self.lines[name] = {line: sorted(filter(None, tests)) for line, tests in by_line.items()}
        path.write_text(json.dumps({"lines": self.lines, "seconds": self.seconds}))


def tests_of(known: dict[str, Any], path: Path, node: ast.AST) -> tuple[list[str], ...]:
    """The tests that execute a line, the fastest first, and their files, that of the module first.

    For a line that runs on import: tests that execute any line of the file, their files, and all tests.
    """
    lines = known["lines"].get(str(path.relative_to(PACKAGE)), {})
    spanned = range(node.lineno, node.end_lineno + 1)  # type: ignore[attr-defined]
    tests = {test for line in spanned for test in lines.get(str(line), ())}
    everything = [] if tests else sorted({test.partition("::")[0] for test in known["seconds"]})
    tests = tests or {test for some in lines.values() for test in some}
    in_order = sorted(tests, key=lambda test: known["seconds"].get(test, 0.0))
    files = sorted({test.partition("::")[0] for test in tests}, key=lambda file: (path.stem not in file, file))
    return in_order[:MOST_TESTS], files[:MOST_FILES], everything


def try_one(known: dict[str, Any], path: Path, number: int, seconds: int) -> tuple[str, str]:
    """Whether a test fails: "killed", "survived" or "timeout", and what was changed."""
    tree = ast.parse(path.read_text())
    places = Places()
    places.visit(tree)
    node = places.found[number]
    stages = tests_of(known, path, node)
    what = f"{path.relative_to(PACKAGE)}:{node.lineno}  {mutate(node)}"  # type: ignore[attr-defined]
    with TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        (source / path.relative_to(ROOT / "src")).write_text(ast.unparse(tree))
        for stage, chosen in enumerate(stages):
            if not chosen:
                continue
            child = os.fork()
            if not child:
                run_tests(source, chosen, seconds if stage < 2 else 10 * seconds)  # all quick tests take minutes
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if code:
                return ("timeout" if code in (-signal.SIGXCPU, -signal.SIGALRM) else "killed"), what
    return "survived" if any(stages) else "not executed", what


def run_tests(source: Path, tests: list[str], seconds: int) -> None:
    """In a forked process with the heavy libraries loaded: run the tests on the mutated copy and exit."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    signal.alarm(10 * seconds)  # for mutants that wait for ever
    sys.path.insert(0, str(source))
    os.environ["PYTHONPATH"] = f"{source}:{os.environ.get('PYTHONPATH', '')}"
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1), os.dup2(sink, 2)
    quick = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=", "-m", QUICK]
    os._exit(pytest.main([*quick, "--rootdir", str(ROOT), *tests]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=100, help="mutants, divided equally among the parts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=PARTS, help="only this part")
    parser.add_argument("--seconds", type=int, default=60, help="limit of CPU time; of wall time 10 times")
    parser.add_argument("--log", type=Path, default=Path("mutants.tsv"), help="results so far; reused")
    parser.add_argument("--map", type=Path, default=Path("mutants-map.json"), help="which test runs which line; reused")
    options = parser.parse_args()
    os.chdir(ROOT)
    if not options.map.exists():
        child = os.fork()
        if not child:
            Map().make(options.map)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit("no map")

    import matplotlib  # noqa: F401 - loaded once, before the forks
    import pandas  # noqa: F401
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401

    torch.set_num_threads(1)
    samples = []
    for part in [options.part] if options.part else PARTS:
        of_part = [one for one in mutants() if one[0] == part]
        number = options.sample // (1 if options.part else len(PARTS))
        samples.append(random.Random(f"{options.seed} {part}").sample(of_part, min(number, len(of_part))))
        print(f"{part}: {number} of {len(of_part)} mutants")
    tests = json.loads(options.map.read_text())
    known = dict(line.split("\t", 1) for line in options.log.read_text().splitlines()) if options.log.exists() else {}
    fates = []
    for part, path, number in (one for row in zip_longest(*samples) for one in row if one):  # one of each part in turn
        key = f"{path.relative_to(PACKAGE)}#{number}"
        if key not in known:
            fate, what = try_one(tests, path, number, options.seconds)
            known[key] = f"{fate}\t{what}"
            with options.log.open("a") as log:
                log.write(f"{key}\t{known[key]}\n")
        fates.append(known[key].split("\t")[0])
        print(f"{part:8} {known[key]}", flush=True)
    killed = sum(fate in ("killed", "timeout") for fate in fates)
    print(f"{killed} of {len(fates)} killed ({killed / max(1, len(fates)):.0%})")


if __name__ == "__main__":
    main()
