"""docs/fidelity.md follows from the tables, and has a row for every item of the papers that is known."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ITEMS = """
Definitions 1-2, score|Theorem 1|Theorems 2, 4, Corollary 1|Theorems 3, 5, 6|Theorem 7
Lemma 1; other appendix statements ?|Figure 1A, B|Figure 1C, D, E, F|Figure 2A, B|Figure 2C|Figure 3A|Figure 3B
Figure 3C|Figure 4|Figure 5|Figures 6-16 ?|Binding, Index, Retrieval, Partial induction
Figure 1, appendix B|Figure 2A|Figures 2B, 6|Figures 2C, 7|Figure 3A, B|Figure 3C, D, listing 1, definitions F.1-3
Figure 4A|Figure 4B|Figure 4C|Figure 5A|Figure 5B|Figure 5C, D, table 3|Figure 8, table 1|Table 2|Table 4
Theorem 3.1, Remark 3.1, Lemma F.1|Theorem 3.2, Definition 3.1|Remark 3.2
Assumptions 3.1, 3.2|Equations 1-2|Contraction theorem (v1)|Tasks 1, 2|accuracies|relative bias on count
deposit, figure 4|minimum number of RoPE heads, figure 6|hybrid absolute + RoPE|latent attention dilutes (5.3)
Propositions 6.1, 6.2, Theorem 6.1
"""


@pytest.fixture
def tools(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    yield
    for name in ("fidelity", "fidelity_items"):
        sys.modules.pop(name, None)


def test_the_page_is_the_one_that_the_tables_give(tools):
    from fidelity import page

    assert (ROOT / "docs" / "fidelity.md").read_text() == page(ROOT / "results")


def test_every_known_item_of_the_papers_has_a_row():
    rows = [
        line.split(" | ")[0].removeprefix("| ") for line in (ROOT / "docs" / "fidelity.md").read_text().splitlines()
    ]
    assert [item for item in ITEMS.strip().replace("\n", "|").split("|") if item not in rows] == []


def test_verdicts(tools):
    from fidelity_items import judge

    never = float("nan")
    assert judge(0.31, [0.30, 0.33], 0.05) == "agrees"
    assert judge(0.31, [0.05, 0.60], 0.05) == "within"
    assert judge(0.31, [0.05, 0.08], 0.05) == "differs"
    assert judge(0.31, [0.05], 0.05) == "differs"
    assert judge(never, [never, never], 1) == "agrees"
    assert judge(never, [never, 50.0], 1) == "differs"
