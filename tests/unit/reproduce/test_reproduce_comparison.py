from __future__ import annotations

import io

import pytest
from rich.console import Console

from figures.comparison import Comparison, comparison_table

ITEM = Comparison("start-up", 90.0, 99.0, "{:.1f} us")


def test_a_figure_beside_the_papers() -> None:
    assert ITEM.difference == pytest.approx(0.1)
    assert ITEM.as_json() == {
        "what": "start-up",
        "paper": 90.0,
        "ours": 99.0,
        "difference": ITEM.difference,
    }


def test_the_table() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(comparison_table("Beside", [ITEM], theirs="measured", own="price"))
    text = console.export_text()
    for part in ("Beside", "measured", "price", "start-up", "90.0 us", "99.0 us", "+10.0%"):
        assert part in text
