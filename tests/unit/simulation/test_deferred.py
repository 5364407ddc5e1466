"""Deferred updates: an iteration whose updates are left to the next forward, computed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from syncopate.artifacts.cluster import Cluster, Interference, LinearFit
from syncopate.artifacts.plan import Bucket, Plan
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.functions import Envelope, LinearCost
from syncopate.planning import predict
from syncopate.recipe import Recipe
from syncopate.simulation.iteration import Iteration, lasts_s, play_traffic
from syncopate.simulation.timeline import simulate
from syncopate.simulation.traffic import traffic_of
from tests.unit.simulation.workloads import play

SLOW = Interference(compute_rate=0.5, collective_stretch=1.5)


def workload(update_s: float = 0.4) -> Workload:
    """Two layers of 100 bytes: forward takes 1 s each, backward 2 s each, last layer first."""
    tensors = tuple(
        GradientTensor(name=name, numel=25, dtype="float32", backward_s=2.0, forward_s=1.0)
        for name in ("last", "first")
    )
    return Workload(model="m", tensors=tensors, forward_s=2.0, backward_s=4.0, update_s=update_s)


def bucket(name: str, *, replicated: bool = False) -> Bucket:
    push = Recipe("all_reduce" if replicated else "reduce_scatter", "ring")
    pull = None if replicated else Recipe("all_gather", "ring")
    return Bucket(tensors=(name,), nbytes=100, push=push, pull=pull)


def costs(push_s: float, pull_s: float) -> dict[str, Envelope]:
    """Messages of 100 bytes take so long, however many there are."""
    took = {"reduce_scatter": push_s, "all_gather": pull_s, "all_reduce": push_s + pull_s}
    return {
        name: Envelope({"ring": LinearCost(LinearFit(a_s=0.0, b_s_per_byte=seconds / 100))})
        for name, seconds in took.items()
    }


def played_of(buckets: Sequence[Bucket], push_s: float, pull_s: float, ranks: int = 4) -> Iteration:
    work = workload()
    traffic = traffic_of(work, buckets, costs(push_s, pull_s), world_size=ranks, deferred=True)
    return play_traffic(work, traffic)


BOTH = (bucket("last"), bucket("first"))


def test_each_bucket_is_updated_when_it_has_come_and_before_its_layer() -> None:
    played = played_of(BOTH, 1.0, 1.5)
    # Pulls begin when all pushes are over, that of the first layer first: they end 1.5 and 3 s
    # later. The first layer waits 1.5 s, is updated in 0.2 and computes 1 s, until 2.7; the last
    # waits until 3, is updated until 3.2 and computes until 4.2. Backward ends at 8.2; the push of
    # the first layer ends 1 s later.
    assert [at for wait in played.waits_s for at in wait] == pytest.approx([0.0, 1.5, 2.7, 3.0])
    assert played.pull_ends_s == pytest.approx((3.0, 1.5))
    assert played.backward_end_s == pytest.approx(8.2)
    assert played.ends_s == pytest.approx((7.2, 9.2))
    assert played.iteration_s == pytest.approx(9.2)
    assert played.compute_s == pytest.approx(6.4)


def test_every_rank_updates_everything() -> None:
    four, one = (played_of(BOTH, 0.0, 0.0, ranks) for ranks in (4, 1))
    assert four.iteration_s == one.iteration_s == pytest.approx(6.4)
    shards = play(workload(), BOTH, costs(0.0, 0.0), world_size=4)
    assert shards.iteration_s == pytest.approx(6.1)


def test_what_is_all_reduced_in_backward_is_updated_as_forward_begins() -> None:
    buckets = (bucket("last", replicated=True), bucket("first"))
    played = played_of(buckets, 1.0, 1.5)
    # 1.5 s for the first layer, both updates, and two layers.
    assert [at for wait in played.waits_s for at in wait] == pytest.approx([0.0, 1.5])
    assert played.backward_end_s == pytest.approx(1.5 + 0.4 + 2.0 + 4.0)


@pytest.mark.parametrize("interference", [Interference(), SLOW])
def test_what_is_searched_by_is_what_is_played(interference: Interference) -> None:
    for buckets in (BOTH, (bucket("last", replicated=True), bucket("first"))):
        traffic = traffic_of(workload(), buckets, costs(1.0, 1.5), world_size=4, deferred=True)
        played = play_traffic(workload(), traffic, interference)
        assert lasts_s(workload(), traffic, interference) == pytest.approx(played.iteration_s)


def test_a_timeline_shows_updates_between_waits_and_layers() -> None:
    work, cluster = workload(), Cluster.flat(4, latency_s=1e-9, bandwidth_bytes_per_s=50.0)
    plan = Plan(
        model="m",
        fingerprint=work.fingerprint,
        world_size=4,
        policy="by hand",
        buckets=BOTH,
        exchange="decoupled",
    )
    timeline = simulate(work, plan, cluster, iterations=2)
    spans = [s for s in timeline.spans if s.rank == 0 and s.iteration == 1]
    computing = sorted(
        (s.start_s, s.end_s, s.lane) for s in spans if s.lane in ("forward", "update", "wait")
    )
    lanes = [lane for _, _, lane in computing]
    # Gathers of 75 bytes at 50 B/s take 1.5 s each, as above.
    assert lanes == ["wait", "update", "forward", "wait", "update", "forward", "wait"]
    for (_, end_s, _), (start_s, _, _) in pairwise(computing[:6]):
        assert end_s == pytest.approx(start_s)
    lasted = {lane: sum(b - a for a, b, other in computing if other == lane) for lane in lanes}
    assert lasted["update"] == pytest.approx(0.4)
    assert lasted["forward"] == pytest.approx(2.0)
    found = predict(work, plan, cluster)
    assert max(s.end_s for s in spans) - min(s.start_s for s in spans) == pytest.approx(
        found.iteration_s
    )
