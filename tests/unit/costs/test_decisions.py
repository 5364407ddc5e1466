"""Decisions: every size has one, from measurements where there are some, and noise changes none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from syncopate.artifacts.cluster import (
    Cluster,
    CollectiveCurve,
    CurvePoint,
    Level,
    LinearFit,
    standard_error,
)
from syncopate.costs.decide import decisions as decisions_module
from syncopate.costs.decide.decisions import (
    Decision,
    choose,
    decisions,
    find,
)
from syncopate.costs.decide.noise import DRIFT, NOISE, longer_beyond_noise
from syncopate.costs.model.collective import collective_costs, schedule_cost
from syncopate.costs.model.functions import CurveCost, Envelope, LinearCost
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.recipe import Recipe
from syncopate.schedules.registry import candidates, collectives

RACKS = Cluster(
    name="3 racks of 2 hosts of 2",
    levels=(
        Level(name="device", size=2, latency_s=2e-6, bandwidth_bytes_per_s=2e10),
        Level(name="host", size=2, latency_s=3e-5, bandwidth_bytes_per_s=1e9),
        Level(name="rack", size=3, latency_s=9e-5, bandwidth_bytes_per_s=3e8),
    ),
    placement=(0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11),
)
LEVELS = (Level(name="host", size=4, latency_s=1e-5, bandwidth_bytes_per_s=1e9),)


def curve(
    algorithm: str,
    seconds: Mapping[int, float | tuple[float, ...]],
    collective: str = "all_reduce",
    **options: int,
) -> CollectiveCurve:
    points = tuple(
        CurvePoint(nbytes=n, samples_s=s if isinstance(s, tuple) else (s,), options=dict(options))
        for n, s in seconds.items()
    )
    fit = LinearFit(a_s=0.0, b_s_per_byte=0.0)
    return CollectiveCurve(collective=collective, algorithm=algorithm, points=points, fit=fit)


def measured(*curves: CollectiveCurve) -> Cluster:
    return Cluster(name="measured", levels=LEVELS, curves=curves)


def table(*curves: CollectiveCurve) -> list[tuple[int | None, str]]:
    return [(d.max_bytes, d.recipe.algorithm) for d in decisions(measured(*curves), "all_reduce")]


def require_whole(found: tuple[Decision, ...]) -> None:
    """Every size from 0 on falls into exactly one decision, and neighbours differ."""
    assert found[0].min_bytes == 0
    assert found[-1].max_bytes is None
    for one, following in pairwise(found):
        assert one.max_bytes is not None
        assert one.min_bytes <= one.max_bytes == following.min_bytes - 1
        assert one.recipe != following.recipe


@pytest.mark.parametrize("collective", collectives())
@pytest.mark.parametrize("cluster", [Cluster.preset("10gbe", 8), RACKS], ids=["flat", "racks"])
def test_prices_decide_where_nothing_was_measured(cluster: Cluster, collective: str) -> None:
    found = decisions(cluster, collective)
    require_whole(found)
    costs = collective_costs(cluster, collective)
    for decision in found:
        assert decision.basis == "priced"
        ends = (max(decision.min_bytes, 1), decision.max_bytes or 2**40)
        for nbytes in (*ends, sum(ends) // 2):
            assert choose(cluster, collective, nbytes) == decision.recipe
            cost = schedule_cost(cluster, collective, decision.recipe.algorithm)
            cost = cost.fixed(decision.recipe.options)
            assert float(cost(nbytes)) <= float(costs(nbytes)) * (1 + NOISE) * (1 + 1e-9)


def test_a_slow_network_makes_other_choices_for_small_and_large_messages() -> None:
    small, large = (choose(RACKS, "broadcast", nbytes) for nbytes in (100, 10**8))
    assert small == Recipe("broadcast", "mst", options={"order": RACKS.placement})
    assert large.algorithm == "lp"
    assert large.options["blocks"] > 16


def test_prices_that_are_nearly_the_same_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def line(a_s: float, b_s_per_byte: float) -> LinearCost:
        return LinearCost(LinearFit(a_s=a_s, b_s_per_byte=b_s_per_byte))

    def chosen(**costs: LinearCost) -> list[tuple[int | None, str]]:
        monkeypatch.setattr(decisions_module, "collective_costs", lambda *_: Envelope(costs))
        found = decisions(structs.replace(RACKS), "all_reduce")
        return [(d.max_bytes, d.recipe.algorithm) for d in found]

    # Beyond 100 bytes the ring is ahead for ever, but by less than noise.
    assert chosen(mst=line(1.0, 0.0103), ring=line(1.03, 0.01)) == [(None, "mst")]
    assert chosen(mst=line(1.0, 0.0110), ring=line(1.10, 0.01)) == [(100, "mst"), (None, "ring")]


def test_one_rank_has_nothing_to_choose() -> None:
    alone = Cluster.preset("10gbe", 1)
    assert decisions(alone, "reduce") == (Decision(0, None, Recipe("reduce")),)


def test_the_fastest_measured_is_chosen_and_changes_where_curves_cross() -> None:
    found = table(
        curve("native", {100: 5.0, 1000: 5.0, 2000: 5.0}),
        curve("recursive_doubling", {100: 1.0, 1000: 2.0, 2000: 7.0}),
        curve("ring", {100: 4.0, 1000: 4.0, 2000: 4.0}),
    )
    # Between 1000 and 2000 bytes one goes from 2 to 7 s; the other takes 4 s.
    assert found == [(1400, "recursive_doubling"), (None, "ring")]


def test_where_curves_do_not_cross_the_choice_changes_half_way() -> None:
    """By ratio: what was left out at 1000 bytes was not the best at 10 either."""
    found = table(
        curve("ring", {10: 1.0, 1000: 9.0}),
        curve("binary_tree", {1000: 5.0}),
    )
    assert found == [(100, "ring"), (None, "binary_tree")]


def test_nothing_is_chosen_beyond_where_it_was_measured() -> None:
    assert table(
        curve("native", {10: 2.0, 1000: 20.0, 100_000: 2000.0}),
        curve("ring", {10: 1.0, 1000: 1.0}),
    ) == [(10_000, "ring"), (None, "native")]


def test_noise_decides_nothing() -> None:
    near = 1 + NOISE * 0.9
    # The backend's own is the simplest; an algorithm with options is the least simple.
    assert table(curve("ring", {10: 1.0}), curve("native", {10: near})) == [(None, "native")]
    assert table(curve("lp", {10: 1.0}, blocks=2), curve("ring", {10: near})) == [(None, "ring")]
    # What was chosen for the size before stays.
    assert table(
        curve("native", {10: 2.0, 100: 2.0, 1000: 2.0}),
        curve("ring", {10: 1.0, 100: near, 1000: near}),
        curve("binary_tree", {10: near * near, 100: 1.0, 1000: 1.0}),
    ) == [(None, "ring")]
    # Scattered samples say little, few of them less, and many agreeing ones more.
    scattered = (0.5, 1.5, 0.5, 1.5)
    assert table(curve("ring", {10: scattered}), curve("native", {10: 1.3})) == [(None, "native")]
    assert table(curve("ring", {10: (1.0, 1.01) * 2}), curve("native", {10: 1.3})) == [
        (None, "ring")
    ]


def test_many_samples_in_turns_tell_smaller_differences_apart() -> None:
    faster = tuple(1 + shift for shift in (-0.01, 0.0, 0.01, 0.0, 0.002, -0.002))
    near = tuple(sample * (1 + (DRIFT + NOISE) / 2) for sample in faster)
    same = tuple(sample * (1 + DRIFT * 0.9) for sample in faster)
    assert table(curve("ring", {10: faster}), curve("native", {10: near})) == [(None, "ring")]
    assert table(curve("ring", {10: faster}), curve("native", {10: same})) == [(None, "native")]
    few = curve("ring", {10: faster[:5]}), curve("native", {10: near[:5]})
    assert table(*few) == [(None, "native")]


@pytest.mark.parametrize(("slowest", "chosen"), [(13.0, "ring"), (10.3, "recursive_doubling")])
def test_one_straggler_does_not_hide_that_every_sample_was_longer(
    slowest: float, chosen: str
) -> None:
    """What was chosen for smaller messages goes, though the standard error is beyond the lead."""
    ring = curve("ring", {10: (2.0, 2.0, 2.0), 1000: (10.0, 10.1, 10.2)})
    other = curve("recursive_doubling", {10: (1.0,) * 3, 1000: (10.8, slowest, 14.0)})
    assert table(ring, other)[-1][1] == chosen


def test_the_incumbent_goes_when_the_backends_own_was_measured_faster() -> None:
    """Only noise separates the incumbent from the fastest, but not from the backend's own."""
    unsure = (0.8, 1.15, 0.8, 1.15)
    found = table(
        curve("native", {10: 1.0, 1000: 1.0}),
        curve("ring", {10: 0.5, 1000: 1.08}),
        curve("binary_tree", {10: 0.9, 1000: unsure}),
    )
    assert [name for _, name in found] == ["ring", "native"]


def test_options_are_those_that_were_measured() -> None:
    points = tuple(
        CurvePoint(nbytes=n, samples_s=(float(n),), options={"blocks": blocks})
        for n, blocks in ((1, 1), (100, 2), (10_000, 2), (1_000_000, 8))
    )
    fit = LinearFit(a_s=0.0, b_s_per_byte=1.0)
    piped = CollectiveCurve(
        collective="all_reduce", algorithm="lp", points=points, fit=fit, order=(3, 1, 2, 0)
    )
    found = decisions(measured(piped), "all_reduce")
    require_whole(found)
    ranges = [(d.max_bytes, d.recipe.options["blocks"]) for d in found]
    assert ranges == [(10, 1), (100_000, 2), (None, 8)]
    assert {d.recipe.options["order"] for d in found} == {(3, 1, 2, 0)}
    assert {d.basis for d in found} == {"measured"}
    # A file written before options were recorded ran the defaults, and so does the choice.
    old = decisions(measured(curve("lp", {1: 1.0})), "all_reduce")
    assert old == (Decision(0, None, Recipe("all_reduce", "lp"), "measured"),)


def test_a_collective_that_was_not_measured_is_priced() -> None:
    cluster = measured(curve("native", {10: 1.0}))
    native = Decision(0, None, Recipe("all_reduce"), "measured")
    assert decisions(cluster, "all_reduce") == (native,)
    assert {d.basis for d in decisions(cluster, "broadcast")} == {"priced"}
    assert choose(cluster, "broadcast", 4).algorithm in candidates("broadcast", cluster)


def test_curves_of_unknown_algorithms_are_passed_over() -> None:
    assert table(curve("mine", {10: 1.0}), curve("ring", {10: 2.0})) == [(None, "ring")]


def test_the_choice_may_be_limited() -> None:
    cluster = measured(curve("native", {10: 1.0}), curve("ring", {10: 2.0}))
    assert decisions(cluster, "all_reduce", ("ring",))[0].recipe.algorithm == "ring"


def test_answers_are_remembered() -> None:
    assert decisions(RACKS, "reduce") is decisions(RACKS, "reduce")


def test_refusals() -> None:
    with pytest.raises(UnknownNameError, match="unknown collective 'all_redcue'"):
        decisions(RACKS, "all_redcue")
    with pytest.raises(InvalidValueError, match="nbytes is -1"):
        choose(RACKS, "all_reduce", -1)


SIZES = (4, 64, 1024, 16384, 1 << 20)
NAMES = ("native", "ring", "halving_doubling", "lp")


@given(
    st.lists(
        st.lists(
            st.lists(st.floats(0.5, 2.0), min_size=1, max_size=6),
            min_size=len(SIZES),
            max_size=len(SIZES),
        ),
        min_size=len(NAMES),
        max_size=len(NAMES),
    )
)
@example([[[1.0]] * 5] * 3 + [[[1.0]] * 3 + [[1.0] * 3, [0.5]]])
def test_whatever_was_measured(samples: list[list[list[float]]]) -> None:
    cluster = measured(
        *(
            curve(name, {n: tuple(s) for n, s in zip(SIZES, of_name, strict=True)})
            for name, of_name in zip(NAMES, samples, strict=True)
        )
    )
    found = decisions(cluster, "all_reduce")
    require_whole(found)
    costs = collective_costs(cluster, "all_reduce").costs
    for nbytes in SIZES:
        chosen, native = costs[found[find(found, nbytes)].recipe.algorithm], costs["native"]
        assert isinstance(chosen, CurveCost)
        assert isinstance(native, CurveCost)
        points = chosen.point(nbytes), native.point(nbytes)
        error_s = math.hypot(*(standard_error(point.samples_s) for point in points))
        lead = float(chosen(nbytes)) - float(native(nbytes))
        assert lead <= max(NOISE * float(native(nbytes)), 2 * error_s)


def test_stages_at_several_levels_do_not_stay_where_a_flat_algorithm_is_cheaper():
    """Two racks of four hosts with links alike: BlueConnect is next, by less than noise."""
    levels = (
        Level(name="host", size=4, latency_s=6e-5, bandwidth_bytes_per_s=1.2e8),
        Level(name="rack", size=2, latency_s=7.5e-5, bandwidth_bytes_per_s=1.2e8),
    )
    racks = Cluster(name="racks", levels=levels, placement=(0, 2, 4, 6, 1, 3, 5, 7))
    nbytes = 32 << 20
    costs = collective_costs(racks, "all_reduce").costs
    ring, staged = (float(costs[name](nbytes)) for name in ("ring", "blueconnect"))
    assert ring < staged < (1 + NOISE) * ring
    assert any(row.recipe.algorithm == "blueconnect" for row in decisions(racks, "all_reduce"))
    assert choose(racks, "all_reduce", nbytes).algorithm == "ring"


def test_what_was_measured_in_turns_takes_longer_beyond_noise() -> None:
    few, many = [1.0, 1.0, 1.0], [1.0, 1.01, 0.99] * 4
    # Few samples tell more than NOISE apart, many more than DRIFT.
    assert not longer_beyond_noise([one * (1 + 0.9 * NOISE) for one in few], few)
    assert longer_beyond_noise([one * (1 + 1.1 * NOISE) for one in few], few)
    assert not longer_beyond_noise([one * (1 + 0.9 * DRIFT) for one in many], many)
    assert longer_beyond_noise([one * (1 + 3 * DRIFT) for one in many], many)
    # What scatters does not tell.
    assert not longer_beyond_noise([0.8, 1.0, 1.6], few)
    # Unless every one of its samples was longer.
    assert longer_beyond_noise([1.1, 1.2, 9.0], few)
    assert not longer_beyond_noise(few, few)
    assert not longer_beyond_noise(few, [2.0, 2.0, 2.0])
