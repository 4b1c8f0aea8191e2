"""The table of benchmarks: every comparison with the ratio last committed, and a warning where one worsened."""

from __future__ import annotations

import copy
import json

from bench.__main__ import PARTS, RESULTS
from bench.table import lines, table


def test_every_committed_part_is_in_the_table():
    results = json.loads(RESULTS.read_text())
    found = list(lines(results))
    assert len({line.work for line in found}) == len(found)
    for part in set(PARTS) & set(results) - {"agreement"}:  # compares numbers, not costs
        assert list(lines({part: results[part]})), part


def test_a_ratio_that_worsens_by_more_than_15_percent_is_a_warning():
    before = json.loads(RESULTS.read_text())
    assert table(before, before)[1] == []
    after = copy.deepcopy(before)
    after["training"][0]["ratio"] /= 1.2
    after["overhead"][0]["heads ratio"] *= 1.1
    after["overhead"][1]["heads ratio"] *= 1.2
    named = [warning.split(":")[0] for warning in table(after, before)[1]]
    assert len(named) == 2
    assert named[1] == "a training step"
