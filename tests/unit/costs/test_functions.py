"""Lines, measured curves and envelopes of algorithms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from syncopate.artifacts.cluster import CollectiveCurve, CurvePoint, LinearFit, standard_error
from syncopate.costs.model.functions import (
    FREE,
    CurveCost,
    Envelope,
    LinearCost,
    VariantCost,
)
from syncopate.errors import InvalidValueError, UnknownNameError

RING = LinearCost(LinearFit(a_s=6.0, b_s_per_byte=1.0))
TREE = LinearCost(LinearFit(a_s=1.0, b_s_per_byte=2.0))


def curve(points: dict[int, list[float]], b: float = 0.5) -> CollectiveCurve:
    return CollectiveCurve(
        collective="all_reduce",
        algorithm="ring",
        points=tuple(CurvePoint(nbytes=n, samples_s=tuple(s)) for n, s in points.items()),
        fit=LinearFit(a_s=0.0, b_s_per_byte=b),
    )


def test_a_line_is_free_for_nothing_and_starts_at_a() -> None:
    assert RING([0, 1, 10]).tolist() == [0, 7, 16]
    assert RING.startup_s == 6
    assert FREE([0, 1e12]).tolist() == [0, 0]


def test_a_curve_goes_through_the_medians() -> None:
    cost = CurveCost(curve({10: [1.0, 1.2, 99.0], 20: [2.2], 40: [4.2]}))
    assert cost([0, 1, 10, 15, 20, 30, 40]) == pytest.approx([0, 1.2, 1.2, 1.7, 2.2, 3.2, 4.2])
    assert cost(80) == pytest.approx(8.2)  # as the last two points go on
    assert cost.startup_s == pytest.approx(1.2)


def test_a_decreasing_median_is_pooled() -> None:
    cost = CurveCost(curve({10: [1.0], 20: [3.0], 30: [2.0], 40: [4.0]}))
    assert cost([20, 25, 30]) == pytest.approx([2.5, 2.5, 2.5])


def test_beyond_a_level_end_the_fit_goes_on() -> None:
    cost = CurveCost(curve({10: [1.0], 20: [3.0], 30: [2.0]}, b=0.5))
    assert cost([30, 32]) == pytest.approx([2.5, 3.5])


def test_one_measured_point() -> None:
    cost = CurveCost(curve({10: [2.0]}, b=0.1))
    assert cost([1, 10, 20]) == pytest.approx([2.0, 2.0, 3.0])


def test_a_measurement_of_zero_bytes_is_the_start_up() -> None:
    cost = CurveCost(curve({0: [1.0], 10: [2.0]}))
    assert cost([0, 5, 10]) == pytest.approx([0.0, 1.5, 2.0])
    assert cost.startup_s == 1.0


@given(
    st.dictionaries(
        st.integers(0, 2**40), st.lists(st.floats(0, 10), min_size=1, max_size=3), min_size=1
    )
)
# Steep at large sizes: the intercept is 6e11 s, and its last bit 1e-4 s.
@example({0: [0.0], 1099511627732: [0.0], 1099511627741: [4.820739935266652]})
@example({0: [0.0], 1099511627771: [0.0], 1099511627776: [5.713522506529857]})
def test_any_curve_is_monotone(points: dict[int, list[float]]) -> None:
    cost = CurveCost(curve(dict(sorted(points.items()))))
    values = cost(np.sort([0, *points, *(n + 1 for n in points), 2**41]))
    assert (np.diff(values) >= 0).all()
    assert values[0] == 0


def test_the_envelope_names_the_cheapest() -> None:
    cheapest = Envelope({"ring": RING, "tree": TREE})
    assert [cheapest.best(n) for n in (0, 1, 4.9, 5.1, 100)] == [
        "tree",
        "tree",
        "tree",
        "ring",
        "ring",
    ]
    assert cheapest([1, 5, 10]).tolist() == [3, 11, 16]
    assert cheapest.startup_s == 1
    assert cheapest.names == ("ring", "tree")
    assert cheapest.only("ring")(1.0) == 7


def test_a_bucket_has_one_algorithm_for_all_its_dtypes() -> None:
    cheapest = Envelope({"ring": RING, "tree": TREE})
    assert cheapest.bucket([4, 0]) == ("tree", {}, 9.0)
    assert cheapest.bucket([8, 1]) == ("tree", {}, 20.0)  # ring would be best for 8 bytes alone
    assert cheapest.bucket([9, 9]) == ("ring", {}, 30.0)


def test_the_cheapest_stays_the_cheapest_where_all_are_held_to_the_same() -> None:
    costs = {"slow": LinearCost(LinearFit(a_s=2.0, b_s_per_byte=0.1)), "fast": FREE}
    held = Envelope(costs).at_least(1.0)
    assert held.best(9) == "fast"
    assert held.bucket([9]) == ("fast", {}, 9.0)
    assert held.bucket([9, 9]) == ("fast", {}, 18.0)


def test_unknown_algorithms_are_refused_by_name() -> None:
    with pytest.raises(UnknownNameError, match=r"'rign'.*known: ring, tree"):
        Envelope({"ring": RING, "tree": TREE}).of("rign")
    with pytest.raises(InvalidValueError, match="at least one algorithm"):
        Envelope({})


def test_a_variant_cost_tells_its_options() -> None:
    def price(options: Mapping[str, Any]) -> LinearCost:
        blocks = options["blocks"]
        return LinearCost(LinearFit(a_s=float(blocks), b_s_per_byte=1.0 / blocks))

    cost = VariantCost([({"blocks": b}, price({"blocks": b})) for b in (1, 2, 4)], price)
    assert cost([0, 1, 2, 4, 8, 16]).tolist() == [0, 2, 3, 4, 6, 8]
    assert cost.option_ranges == ((2, {"blocks": 1}), (8, {"blocks": 2}), (math.inf, {"blocks": 4}))
    assert [cost.options(n)["blocks"] for n in (0, 1, 2, 2.5, 8, 9, 1e12)] == [1, 1, 1, 2, 2, 4, 4]
    assert cost.fixed({"blocks": 4})(100) == 29.0
    assert cost.fixed({"blocks": 10})(100) == 20.0
    assert Envelope({"lp": cost, "ring": RING}).bucket([9, 1]) == ("lp", {"blocks": 2}, 9.0)


def test_a_curve_knows_the_options_it_was_measured_with() -> None:
    points = tuple(
        CurvePoint(nbytes=nbytes, samples_s=(1.0,), options=options)
        for nbytes, options in ((0, {}), (100, {}), (10_000, {"blocks": 2}))
    )
    fit = LinearFit(a_s=1.0, b_s_per_byte=0.0)
    piped = CollectiveCurve(collective="reduce", algorithm="lp", points=points, fit=fit)
    cost = CurveCost(piped)
    assert [dict(cost.options(n)) for n in (0, 1000, 1001, 1e9)] == [{}, {}] + 2 * [{"blocks": 2}]
    assert cost.fixed({"blocks": 7}) is cost
    ordered = CurveCost(structs.replace(piped, order=(1, 0)))
    assert ordered.options(50) == {"order": (1, 0)}
    assert ordered.options(10_000) == {"blocks": 2, "order": (1, 0)}


def test_the_uncertainty_of_a_curve_is_that_of_the_nearest_size() -> None:
    cost = CurveCost(curve({10: [1.0], 100: [2.0, 4.0], 1000: [5.0, 5.0, 5.0]}))
    assert [cost.point(n).nbytes for n in (1, 90, 1e6)] == [10, 100, 1000]
    uncertain = [standard_error(cost.point(n).samples_s) for n in (1, 90, 1e6)]
    assert uncertain == [0.0, pytest.approx(1.0), 0.0]
    assert cost.sizes == (10, 100, 1000)
