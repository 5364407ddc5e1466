"""Which sizes a calibration measures, and for whom: a cluster and a clock that are calculated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from syncopate.artifacts.cluster import Cluster, CurvePoint
from syncopate.calibration import calibrate as calibrating
from syncopate.calibration import curves
from syncopate.costs.decide.options import best_options
from syncopate.costs.model.collective import schedule_cost
from syncopate.errors import InvalidValueError
from syncopate.schedules.registry import ALGORITHMS, NATIVE, candidates
from syncopate.units import KIB, MIB

GIGABIT = Cluster.preset("1gbe", 4)
RESNET_BYTES = 102_228_128


def told(cluster: Cluster, sizes: tuple[int, ...]) -> dict[str, dict[int, dict[str, Any]]]:
    names = (NATIVE, *candidates("all_reduce", cluster))
    return {
        name: {
            size: {} if name == NATIVE else best_options(cluster, "all_reduce", name, size)
            for size in sizes
            if name == NATIVE or ALGORITHMS["all_reduce", name].carries(size)
        }
        for name in names
    }


def real_s(name: str, nbytes: int) -> float:
    """Every algorithm a tenth above its price, and the backend's own half above the ring's."""
    ring = schedule_cost(GIGABIT, "all_reduce", "ring" if name == NATIVE else name)
    return float(ring(nbytes)) * (1.5 if name == NATIVE else 1.1)


class Calculated:
    """A bench on which everything takes :func:`real_s`, and no time passes but that."""

    def __init__(self, *_: Any) -> None:
        self.now_s = 0.0

    def elapsed_s(self) -> float:
        return self.now_s

    def check(self, nbytes: int, here: Mapping[str, Any]) -> dict[str, list[float]]:
        self.now_s += sum(real_s(name, nbytes) for name in here)
        return {name: [real_s(name, nbytes)] for name in here}

    def sample(
        self, nbytes: int, here: Mapping[str, Any], budget_s: float
    ) -> dict[str, list[float]]:
        once_s = curves.FEWEST_REPETITIONS * sum(real_s(name, nbytes) for name in here)
        turns = 1
        while turns * curves.FEWEST_REPETITIONS < curves.MOST_REPETITIONS:
            if turns * once_s >= budget_s:
                break
            turns += 1
        self.now_s += turns * once_s
        return {n: [real_s(n, nbytes)] * turns * curves.FEWEST_REPETITIONS for n in here}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Calculated]]:
    made: list[Calculated] = []

    def make(*_: Any) -> Calculated:
        made.append(Calculated())
        return made[-1]

    monkeypatch.setattr(curves, "_Bench", make)
    return made


def measured(
    sizes: tuple[int, ...],
    budget_s: float,
    points: dict[str, dict[int, CurvePoint]] | None = None,
) -> curves.Curves:
    options = told(GIGABIT, sizes)
    return curves.measure_curves(
        SimpleNamespace(world_size=4),  # type: ignore[arg-type]
        "all_reduce",
        options,
        curves.prices(GIGABIT, "all_reduce", options),
        budget_s=budget_s,
        shared_clock=False,
        points=points,
    )


def test_what_was_measured_earlier_is_not_measured_again(
    bench: list[Calculated], monkeypatch: pytest.MonkeyPatch
) -> None:
    points: dict[str, dict[int, CurvePoint]] = {}
    whole = measured((4, 1024, 4096), 60.0, points)
    assert {name: sorted(curve) for name, curve in points.items()} == {
        curve.algorithm: [4, 1024, 4096] for curve in whole.curves
    }
    for curve in points.values():
        del curve[1024]
    seen = []
    check = Calculated.check

    def noted(self: Calculated, nbytes: int, here: Any) -> Any:
        seen.append(nbytes)
        return check(self, nbytes, here)

    monkeypatch.setattr(Calculated, "check", noted)
    again = measured((4, 1024, 4096), 60.0, points)
    assert seen == [1024]
    assert [curve.algorithm for curve in again.curves] == [c.algorithm for c in whole.curves]
    assert all(len(curve.points) == 3 for curve in again.curves)


def test_sizes_reach_as_far_as_the_model() -> None:
    sizes = curves.sizes_up_to(RESNET_BYTES)
    assert sizes[:9] == tuple(4**k for k in range(1, 10))
    assert sizes[9:] == (*(2**k * MIB for k in range(7)), RESNET_BYTES)
    assert curves.sizes_up_to(64 * MIB) == curves.DEFAULT_SIZES[:9] + sizes[9:15] + (64 * MIB,)
    assert curves.sizes_up_to(70_001) == (*(4**k for k in range(1, 8)), 70_004)
    assert curves.sizes_up_to(1) == (4,)
    assert curves.sizes_up_to(10**12)[-1] == curves.MOST_BYTES


def test_sizes_of_a_model_are_taken_as_they_are() -> None:
    assert calibrating._sizes(curves.sizes_up_to(RESNET_BYTES)) == curves.sizes_up_to(RESNET_BYTES)
    with pytest.raises(InvalidValueError, match="sizes"):
        calibrating._sizes(curves.sizes_up_to(0))


def test_a_model_is_measured_in_one_bucket_within_the_budget(bench: list[Calculated]) -> None:
    """At 1 Gbit/s one all-reduce of ResNet-50 takes 1.3 s, of a budget of 6 s."""
    sizes = curves.sizes_up_to(RESNET_BYTES)
    found = measured(sizes, 6.0)
    assert bench[0].now_s <= 6.0
    by_name = {curve.algorithm: curve for curve in found.curves}
    long = [size for size in found.repetitions if size >= MIB]
    assert all(after <= 4 * size for size, after in pairwise(long))
    whole = [name for name, curve in by_name.items() if curve.points[-1].nbytes == RESNET_BYTES]
    assert len(whole) == 1
    assert whole[0] in {"ring", "halving_doubling"}
    assert found.repetitions[RESNET_BYTES] == 1
    # The backend's own is slow at short messages, which says nothing about long ones.
    assert by_name[NATIVE].points[-1].nbytes >= 1 * MIB
    assert found.repetitions[4] >= curves.FEWEST_REPETITIONS
    # The price says that trees send every byte twice over the same links.
    assert by_name["binary_tree"].points[-1].nbytes < 1 * MIB
    assert found.left_out["binary_tree"].endswith("(no chance by price)")


def test_a_size_that_not_even_one_run_can_afford_is_left_out(bench: list[Calculated]) -> None:
    found = measured(curves.sizes_up_to(RESNET_BYTES), 1.5)
    assert bench[0].now_s <= 1.5
    assert RESNET_BYTES not in found.repetitions
    assert max(found.repetitions) >= 8 * MIB


def test_prices_are_those_of_the_options_and_native_stands_with_the_cheapest() -> None:
    options = told(GIGABIT, (64 * KIB, 16 * MIB))
    found = curves.prices(GIGABIT, "all_reduce", options)
    lp = schedule_cost(GIGABIT, "all_reduce", "lp").fixed(options["lp"][16 * MIB])
    assert found["lp"][16 * MIB] == float(lp(16 * MIB))
    assert set(found["flat_tree"]) == {64 * KIB}
    for size in (64 * KIB, 16 * MIB):
        others = [price[size] for name, price in found.items() if name != NATIVE if size in price]
        assert found[NATIVE][size] == min(others)
    assert curves.prices(GIGABIT, "all_reduce", {NATIVE: {4: {}}}) == {}


def test_what_is_expected_is_the_price_corrected_by_the_nearest_measurement() -> None:
    near = {MIB: CurvePoint(nbytes=MIB, samples_s=(3.0,))}
    short = {KIB: CurvePoint(nbytes=KIB, samples_s=(3.0,))}
    price_s = {KIB: 1.0, 2 * KIB: 1.5, MIB: 2.0, 4 * MIB: 5.0}
    assert curves._expected_s(near, 4 * MIB, price_s) == pytest.approx(7.5)
    assert curves._expected_s(short, 2 * KIB, price_s) == pytest.approx(4.5)
    assert curves._expected_s(short, 4 * MIB, price_s) == 5.0
    assert curves._expected_s({}, 4 * MIB, price_s) == 5.0
    assert curves._expected_s(near, 4 * MIB, {}) == 12.0


def test_who_stands_no_chance_is_not_measured_at_long_messages() -> None:
    points = {
        name: {KIB: CurvePoint(nbytes=KIB, samples_s=(seconds,))}
        for name, seconds in (("ring", 1.0), ("tree", 1.0), ("slow", 1.5))
    }
    expected = {
        "ring": {KIB: 1.0, MIB: 10.0},
        "tree": {KIB: 1.0, MIB: 21.0},
        "slow": {KIB: 1.0, MIB: 13.0},
    }
    assert curves.promising([*points], points, MIB, expected) == ["ring", "slow"]
    assert curves.promising([*points], points, 64 * KIB, expected) == [*points]
    assert curves.promising([], points, MIB, expected) == []
