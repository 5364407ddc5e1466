"""Overlap of a recording: what simulated trainings were told it costs is found again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from syncopate.analysis.overlap import recorded_overlap
from syncopate.analysis.workload import assumed, recorded_workload
from syncopate.artifacts.cluster import Cluster, Interference
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.planning.planner import make_plan
from syncopate.simulation import simulate

MODEL = Workload(
    model="forty layers",
    tensors=tuple(
        GradientTensor(name=f"layer {number}", numel=250_000, backward_s=0.01)
        for number in range(40)
    ),
    forward_s=0.3,
    backward_s=0.4000001,
)


def _recorded(interference: Interference, policy: str = "wfbp") -> Timeline:
    cluster = replace(Cluster.preset("1gbe", 4), interference=interference)
    return simulate(MODEL, make_plan(MODEL, cluster, policy), cluster, iterations=5)


@pytest.mark.parametrize("stretch", [1.0, 1.3, 2.0])
def test_the_stretch_of_messages_beside_computation_is_found(stretch):
    found = recorded_overlap(_recorded(Interference(collective_stretch=stretch)).columns)
    assert found.collective_stretch == pytest.approx(stretch, rel=0.05)
    assert found.compute_rate == 1


def test_what_slowed_computation_is_in_its_recorded_times():
    timeline = _recorded(Interference(compute_rate=0.7))
    found = recorded_workload(timeline)
    assert found.backward_s > 1.1 * MODEL.backward_s
    assert found.interference == Interference()
    elsewhere = replace(
        Cluster.preset("1gbe", 4), interference=Interference(compute_rate=0.7, collective_stretch=2)
    )
    assert found.interference_on(elsewhere).is_ideal


def test_where_all_messages_come_behind_backward_nothing_is_known_of_overlap():
    assert recorded_overlap(
        _recorded(Interference(collective_stretch=2), "single").columns
    ).is_ideal


def test_the_assumption_is_said():
    stretched, plain = _recorded(Interference(collective_stretch=2)), _recorded(Interference())
    assert "messages beside it take 2.0" in assumed(stretched, recorded_workload(stretched))
    assert "messages" not in assumed(plain, recorded_workload(plain))


def test_where_iterations_disagree_nothing_is_known_of_overlap():
    """Of five iterations one has messages that take three times as long, others twice."""
    quiet = _recorded(Interference(collective_stretch=1.2)).spans
    busy = _recorded(Interference(collective_stretch=4.0)).spans
    mixed = tuple(s for s in quiet if s.iteration % 2) + tuple(
        s for s in busy if s.iteration % 2 == 0
    )
    timeline = replace(_recorded(Interference()), spans=mixed)
    assert recorded_overlap(timeline.columns).is_ideal
