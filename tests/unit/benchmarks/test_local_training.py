"""The comparison of trainings with fewer exchanges: what it reports of the tests it took."""

from __future__ import annotations

from typing import Any

import pytest

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


def test_all_variants_begin_with_a_tenth_of_synchronous_steps(script: Any) -> None:
    for steps in (16, 320):
        ddp, ssd, four, eight = script.variants(steps).values()
        assert ddp == "ddp"
        assert ssd.k == 4
        assert abs(ssd.wp - steps // 10) <= 3
        assert four == syncopate.LocalSGD(period=4, warm_up=steps // 10)
        assert eight == syncopate.LocalSGD(period=8, warm_up=steps // 10)
