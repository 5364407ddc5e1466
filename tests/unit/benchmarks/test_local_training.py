"""The comparison of trainings with fewer exchanges: what it reports of the tests it took."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import syncopate
from tests.scripts import scripts


@pytest.fixture(scope="module")
def script():
    with scripts("local_training") as (found,):
        yield found


def test_equal_time_is_that_of_the_first_to_be_done(script: Any) -> None:
    fast = [script.Point(4, 1.0, 0.25), script.Point(8, 2.0, 0.5)]
    slow = [script.Point(4, 1.9, 0.75), script.Point(8, 3.8, 1.0)]
    late = [script.Point(4, 2.5, 0.75), script.Point(8, 5.0, 1.0)]
    assert script.by_then(slow, 2.0) == slow[0]
    assert script.by_then(late, 2.0) is None
    table = script.table_of("digits", {"fast": fast, "slow": slow, "late": late})
    assert "8 steps take" in table
    assert "after 2.00 s" in table
    assert "| fast | 2.00 s | 50.0% | 8 | 50.0% |" in table
    assert "| slow | 3.80 s | 100.0% | 4 | 75.0% |" in table
    assert "| late | 5.00 s | 100.0% | - | - |" in table


@pytest.mark.parametrize("steps", [16, 320])
def test_all_variants_begin_with_a_tenth_of_synchronous_steps(script: Any, steps: int) -> None:
    ddp, ssd, four, eight, outer, adam, *streaming = script.variants(steps).values()
    assert ddp is None
    assert ssd.k == 4
    assert abs(ssd.wp - steps // 10) <= 3
    assert four == syncopate.LocalSGD(period=4, warm_up=steps // 10)
    assert eight == syncopate.LocalSGD(period=8, warm_up=steps // 10)
    whole, cut = (1, 0, 0.0), (2, 2, 0.5)
    assert (outer, adam) == ((8, steps // 10, None, *whole), (8, steps // 10, 0.001, *whole))
    assert streaming == [(8, steps // 10, None, *cut), (8, steps // 10, 0.001, *cut)]


def test_fragments_are_runs_of_parameters_about_equally_large(script: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 3))
    found = script.diloco.fragments_of(model, 2)
    assert [[each.numel() for each in part] for part in found] == [[12, 4, 16], [12, 3]]
    assert [each for part in found for each in part] == list(model.parameters())


def test_the_table_says_what_is_missing_and_what_helps(
    script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchft", None)
    missing = script.missing_of(script.variants(320))
    title = "DiLoCo, H = 8 (torchft)"
    assert set(missing) == {
        title,
        "DiLoCo, H = 8, AdamW (torchft)",
        "streaming DiLoCo, H = 8 (torchft)",
        "streaming DiLoCo, H = 8, AdamW (torchft)",
    }
    table = script.table_of("digits", {"fast": [script.Point(8, 2.0, 0.5)]}, missing)
    assert f"| {title} | torchft is not installed: pip install torchft | - | - | - |" in table


def test_a_torchft_that_cannot_be_imported_says_why(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torchft").mkdir()
    (tmp_path / "torchft" / "__init__.py").write_text("import no_such_module_at_all")
    for name in [name for name in sys.modules if name.split(".")[0] == "torchft"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    why = set(script.missing_of(script.variants(320)).values())
    assert why == {"torchft cannot be imported: No module named 'no_such_module_at_all'"}
