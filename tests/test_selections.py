"""Sets of heads, chosen by number, from a file or in words, and the random heads that they are compared with."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import wherewhat as ww
from synthetic import heads_table
from wherewhat.studies.ablation.selections import select, select_heads
from wherewhat.studies.ablation.trials import Trials


def scored_profile(layers: int = 4, heads: int = 6) -> ww.Profile:
    """Heads of even layers retrieve, the more the higher their number; odd layers put little on the blocks."""
    table = heads_table(layers, heads)
    even = table["layer"] % 2 == 0
    table["answer"] = np.where(even, 0.1 + table["head"] / 10 + table["layer"] / 1000, 0.01)
    table["answer_low"], table["answer_chance"] = table["answer"] - 0.02, 0.05
    table["on_blocks"] = np.where(even, 0.1 + table["head"] / 10, 0.001)
    table["kind"] = np.where(table["positional"] > 0.5, "where", "what")
    for role in ("induction", "previous_token", "current_token", "on_first"):
        table[role] = 0.1
    table.loc[3, "induction"] = 0.7
    return ww.Profile(table, pd.DataFrame({"frequency": [1]}), {"settings": {"weights": "0"}}, {})


def test_several_heads_are_one_set(tmp_path) -> None:
    assert select_heads("3.0 4.0") == select_heads("3.0, 4.0") == select_heads("3.0,4.0,3.0") == [(3, 0), (4, 0)]
    (tmp_path / "heads.txt").write_text("# the best\n3.0 4.0\n\n5.1  # and one more\n")
    assert select_heads(f"@{tmp_path}/heads.txt") == [(3, 0), (4, 0), (5, 1)]
    with pytest.raises(ww.BadInput, match=r"none\.txt: no such file"):
        select_heads(f"@{tmp_path}/none.txt")
    for words in ("fastest quarter", "3.1.5", "three best heads of all", "slowest half of 3.1"):
        with pytest.raises(ww.BadInput, match=r"does not choose heads|no band|no such heads"):
            select_heads(words)
    with pytest.raises(ww.BadInput, match="chooses nothing"):
        select_heads(" , ")


def test_words_choose_heads_by_what_they_retrieve() -> None:
    measured = scored_profile()
    assert select_heads("3 most retrieving heads", measured) == [(2, 5), (0, 5), (2, 4)]
    assert select_heads("retrieving heads with on_blocks above 0.55", measured) == [(2, 5), (0, 5)]
    assert len(select_heads("retrieving heads", measured)) == 12
    limited = "2 most retrieving heads with on_blocks below 0.35 and answer above 0.2"
    assert select_heads(limited, measured) == [(2, 2), (0, 2)]
    assert select_heads("induction heads", measured) == [(0, 3)]
    assert len(select_heads("what heads", measured)) + len(select_heads("where heads", measured)) == 24
    assert select("slowest quarter of 1 most retrieving heads", measured) == [(2, 5, "slowest quarter")]
    with pytest.raises(ww.BadInput, match="a limit is a column"):
        select_heads("retrieving heads with nothing above 1", measured)
    with pytest.raises(ww.BadInput, match="no such heads; there are where, what"):
        select_heads("clever heads", measured)
    with pytest.raises(ww.BadInput, match="the profile has no such heads"):
        select_heads("sink heads", measured)
    with pytest.raises(ww.BadInput, match="needs a profile"):
        select_heads("10 most retrieving heads")


def test_controls_of_a_set_are_other_heads_of_the_same_layers() -> None:
    made = Trials(heads_table(layers=4, heads=6)[["layer", "head"]], planes=8)
    chosen = [(0, 1), (0, 2), (3, 5)]
    one = made.head_set("some", chosen)
    drawn = made.controls([one], draws=6)
    assert len({control.choices for control in drawn}) > 1
    for control in drawn:
        assert [layer for layer, _ in sorted(control.choices)] == [0, 0, 3]
        assert not set(control.choices) & set(chosen)
        assert control.kind == one.kind
    most = made.head_set("most of a layer", [(1, head) for head in range(4)])
    for control in made.controls([most], draws=4):  # the layer has two others: the rest comes from elsewhere
        assert control.number == 4
        assert {(1, 4), (1, 5)} < set(control.choices)
        assert not set(control.choices) & set(most.choices)
    alone = Trials(heads_table(layers=3, heads=1), planes=8)
    elsewhere = {control.choices for control in alone.controls([alone.head_set("one", [(1, 0)])], draws=8)}
    assert elsewhere == {((0, 0),), ((2, 0),)}
