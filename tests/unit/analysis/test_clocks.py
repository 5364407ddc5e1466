"""Clocks that run faster or slower than the others are no slow links."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from syncopate.analysis.causes.explanation import explanation
from syncopate.analysis.evidence.clocks import straightened
from syncopate.artifacts.timeline import Timeline
from tests.unit.analysis.troubled import (
    cost_s,
    late_input,
    slow_backward,
    slow_link,
    trained,
    with_wrong_clocks,
)


def drifting(timeline: Timeline, drifts: dict[int, float], *, ahead_s: float = 0.0) -> Timeline:
    """Return what ranks note whose clocks run faster, by these parts."""

    def noted(rank: int, at_s: float) -> float:
        return at_s * (1 + drifts[rank]) + ahead_s if rank in drifts else at_s

    spans = (
        replace(s, start_s=noted(s.rank, s.start_s), end_s=noted(s.rank, s.end_s))
        for s in timeline.spans
    )
    return replace(timeline, spans=tuple(spans))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("drift", [0.005, -0.005, 0.0005])
@pytest.mark.parametrize("exchange", ["allreduce", "sharded", "decoupled"])
def test_a_clock_that_drifts_is_no_slow_link(exchange, drift, ranks):
    timeline = drifting(trained(exchange=exchange, ranks=ranks), {1: drift})
    found = explanation(timeline)
    assert (found.abstains, [one.kind for one in found.causes]) == ((), ["transfers"])
    assert found.drifts[1] - found.drifts.get(0, 0.0) == pytest.approx(drift, rel=0.1)


@pytest.mark.parametrize("ahead_s", [0.0, 0.01])
@pytest.mark.parametrize(("make", "kind"), [(slow_backward, "compute"), (late_input, "input")])
def test_who_is_slow_is_told_by_clocks_that_drift(make, kind, ahead_s):
    for rank in (1, 2):
        timeline = drifting(trained([make(rank)]), {1: 0.005, 3: -0.002}, ahead_s=ahead_s)
        found = explanation(timeline)
        assert (found.causes[0].kind, found.causes[0].ranks) == (kind, (rank,))
        assert found.causes[0].gain_s == pytest.approx(cost_s([make(rank)]), rel=0.05)
        assert found.drifts[1] - found.drifts[3] == pytest.approx(0.007, rel=0.05)


def test_links_and_clocks_that_do_not_drift_are_left_as_they_are():
    def later(doing, rank, iteration, luck):
        doing.tail_ms += 20.0 * (rank == 1 and iteration >= 12)

    for timeline in (
        trained([slow_link(1)]),
        trained([later]),
        trained([slow_backward(1)]),
        with_wrong_clocks(trained(), 5e-4),
    ):
        same, drifts = straightened(timeline)
        assert same is timeline
        assert drifts == {}
