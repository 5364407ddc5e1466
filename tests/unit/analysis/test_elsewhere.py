"""Recorded runs on other networks, against the same training made or simulated there."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from msgspec.structs import replace

from syncopate.analysis.replay import program
from syncopate.analysis.replay.elsewhere import REPLAYED, played_on
from syncopate.analysis.replay.fitted import FittedNetwork, Line, fitted_network
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import ALLREDUCE, DECOUPLED, ROOTED, SERVED, SHARDED
from syncopate.artifacts.timeline import SERVER_COUNT, Span, Timeline
from syncopate.artifacts.timelines.network import Message
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.replayed import ClusterNetwork
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.planning.planner import make_plan
from syncopate.protocol.limits import Limits
from syncopate.simulation import Variation, simulate
from syncopate.simulation.traffic import MOST_PARTS
from tests.unit.analysis.made import made
from tests.unit.analysis.troubled import trained

MIB = 1 << 20

DOINGS = {
    "even": {},
    "slow": {1: {"backward_s": 7.0}},
    "starved": {2: {"input_s": 3.0}, 3: {"forward_s": 2.5}},
    "early": {0: {"ready": (0.25, 0.5)}, 3: {"ready": (0.75, 1.0)}},
}


def change_of(case, **fields):
    return lambda r, i: fields | DOINGS[case].get(r, {}) | {"update_s": 1.0 + 0.25 * (i % 2)}


def recorded_of(case, **fields) -> Timeline:
    """Return what is made, its pushes with when they were ready, as our recordings have them."""
    timeline = made(4, 6, change_of(case, **fields))
    back = {(s.rank, s.iteration): s for s in timeline.spans if s.lane == "backward"}
    spans = []
    for span in timeline.spans:
        one = span
        if span.lane == "push":
            of = back[span.rank, span.iteration]
            share = DOINGS[case].get(span.rank, {}).get("ready", (0.5, 1.0))[int(span.name[-1])]
            one = replace(span, ready_s=of.start_s + share * of.duration_s)
        spans.append(one)
    return replace(timeline, spans=tuple(spans))


def iterations_s(timeline: Timeline):
    """How long iterations take, from one's last end to the next's, but the first."""
    ends: dict[int, float] = {}
    for span in timeline.spans:
        if span.lane != "pull":
            ends[span.iteration] = max(ends.get(span.iteration, 0.0), span.end_s)
    return [ends[other] - ends[one] for one, other in pairwise(sorted(ends))]


def spans_of(timeline: Timeline):
    return {
        (s.rank, s.iteration, s.name, s.channel): (
            pytest.approx(s.start_s, abs=1e-9),
            pytest.approx(s.end_s, abs=1e-9),
        )
        for s in timeline.spans
    }


@pytest.mark.parametrize("case", DOINGS)
@pytest.mark.parametrize("bandwidth", [1.0, 2.0, 4.0, 0.5])
def test_a_run_is_what_the_same_training_is_made_to_be_there(case, bandwidth):
    """Transfers take 1 s for each 100 bytes, and no start-up; nothing else changes."""
    recorded = recorded_of(case, transfers_s=(1.0, 2.0))
    there = made(4, 6, change_of(case, transfers_s=(1 / bandwidth, 2 / bandwidth)))
    own = fitted_network(recorded)
    assert own.lines["all_reduce"] == (0.0, pytest.approx(0.01))
    found = played_on(recorded, own.changed(bandwidth), own)
    counted = [n for n in range(1, 6) if n in found.iterations]
    told = dict(zip(found.iterations, found.replayed_s, strict=True))
    assert [told[n] for n in counted] == pytest.approx(iterations_s(there))
    played = found.timeline
    got = {(s.rank, s.iteration, s.name, s.channel): (s.start_s, s.end_s) for s in played.spans}
    assert got == spans_of(there)
    assert (played.source, played.metadata[REPLAYED]) == ("simulated", found.network)


@pytest.mark.parametrize("exchange", ["allreduce", "sharded", "decoupled"])
def test_a_run_on_its_own_network_takes_what_it_took(exchange):
    recorded = trained(exchange=exchange, jitter=0.05)
    own = fitted_network(recorded)
    found = played_on(recorded, own, own)
    assert found.replayed_s == pytest.approx(found.recorded_s, rel=1e-9)
    before, after = found.spent
    assert after == pytest.approx(before)


def workload() -> Workload:
    sizes = (MIB, 4 * MIB, 2 * MIB, 6 * MIB, 3 * MIB, MIB)
    tensors = tuple(
        GradientTensor(name=f"t{n}", numel=size // 4, backward_s=0.008)
        for n, size in enumerate(sizes)
    )
    return Workload(model="m", tensors=tensors, forward_s=0.025, backward_s=0.05, update_s=0.004)


def flat(gbit: float, latency_s: float = 5e-5) -> Cluster:
    return Cluster.flat(
        4,
        latency_s=latency_s,
        bandwidth_bytes_per_s=gbit * 1e9 / 8,
        reduction_s_per_byte=2.5e-10,
        name=f"{gbit:g} Gbit/s",
    )


VARIATION = Variation(slow_ranks={2: 1.3}, jitter=0.05, seed=3)


def simulated(exchange: str, cluster: Cluster, planned_on: Cluster) -> Timeline:
    plan = make_plan(workload(), planned_on, "threshold", exchange=exchange)
    return simulate(workload(), plan, cluster, iterations=6, variation=VARIATION)


@pytest.mark.parametrize("exchange", [ALLREDUCE, DECOUPLED, SHARDED, ROOTED])
def test_a_simulated_run_is_within_two_percent_of_itself(exchange):
    own = flat(1)
    recorded = simulated(exchange, own, own)
    found = played_on(recorded, ClusterNetwork(own), ClusterNetwork(own))
    assert found.replayed_s == pytest.approx(found.recorded_s, rel=0.02)
    # By prices alone, which are what it was simulated with, it is the same.
    assert played_on(recorded, ClusterNetwork(own)).medians_s[1] == pytest.approx(
        found.medians_s[0], rel=0.02
    )


@pytest.mark.parametrize("exchange", [ALLREDUCE, DECOUPLED, SHARDED])
@pytest.mark.parametrize("gbit", [0.25, 4])
def test_a_simulated_run_elsewhere_is_what_is_simulated_there(exchange, gbit):
    own, place = flat(1), flat(gbit, latency_s=2e-5)
    recorded, there = (simulated(exchange, one, own) for one in (own, place))
    found = played_on(recorded, ClusterNetwork(place), ClusterNetwork(own))
    assert np.median(found.replayed_s) == pytest.approx(np.median(iterations_s(there)), rel=0.02)
    assert found.medians_s[0] != pytest.approx(found.medians_s[1], rel=0.1)


def served_by(cluster: Cluster, planned_on: Cluster) -> tuple[Timeline, int]:
    plan = make_plan(workload(), planned_on, "threshold", exchange=SERVED)
    recorded = simulate(workload(), plan, cluster, iterations=6)
    return recorded, int(recorded.metadata[SERVER_COUNT])


@pytest.mark.parametrize("gbit", [0.25, 1, 4])
def test_a_served_run_is_played_with_the_links_of_its_servers(gbit):
    """Weights of the first slices come back while the last ones are pushed."""
    own, place = flat(1), flat(gbit)
    recorded, servers = served_by(own, own)
    there, _ = served_by(place, own)
    networks = (ClusterNetwork(one, servers) for one in (place, own))
    found = played_on(recorded, *networks)
    off = 0.003 if gbit == 1 else 0.03  # on its own links one figure is fitted to the median
    assert found.medians_s[1] == pytest.approx(np.median(iterations_s(there)), rel=off)
    assert (Limits().slice_bytes, MOST_PARTS) == (program.SLICE_BYTES, program.MOST_SLICES)


def test_messages_share_a_link_while_they_are_on_it_together():
    """Two of 2 s begin 1 s apart: alone both are done 3 s after the first began, together 4 s.

    On links twice as fast each takes 1 s, and the second begins as the first ends.
    """
    recorded = Timeline(
        name="two channels", source="measured", world_size=2, spans=tuple(_two_channels())
    )
    own = FittedNetwork("own", 2, {"all_reduce": Line(0.0, 1.0)})
    again = played_on(recorded, own, own)
    faster = played_on(recorded, own.changed(2.0), own)
    assert ends(again.timeline) == {"bucket 0": 4.0, "bucket 1": 5.0}
    assert ends(faster.timeline) == {"bucket 0": 2.0, "bucket 1": 3.0}
    slower = played_on(recorded, own.changed(0.5), own)
    assert ends(slower.timeline) == {"bucket 0": 8.0, "bucket 1": 9.0}


def _two_channels():
    for rank in range(2):
        fields = {"rank": rank}
        yield Span(name="backward", lane="backward", start_s=0.0, end_s=2.0, **fields)
        yield Span(name="bucket 0", lane="push", start_s=1.0, end_s=4.0, nbytes=2, **fields)
        later = {"start_s": 2.0, "end_s": 5.0, "nbytes": 2, "channel": 1}
        yield Span(name="bucket 1", lane="push", **later, **fields)
        yield Span(name="update", lane="update", start_s=5.0, end_s=6.0, **fields)


def ends(timeline: Timeline):
    return {s.name: pytest.approx(s.end_s) for s in timeline.spans if s.lane == "push"}


def test_start_ups_and_bytes_change_apart():
    """Messages of 100 and 200 bytes take 2 and 3 s: 1 s is start-up."""
    recorded = made(2, 6, change_of("even", transfers_s=(2.0, 3.0)))
    own = fitted_network(recorded)
    assert own.lines["all_reduce"] == (pytest.approx(1.0), pytest.approx(0.01))
    there = made(2, 6, change_of("even", transfers_s=(1.0, 1.5)))
    found = played_on(recorded, own.changed(bandwidth=2.0, latency=0.5), own)
    assert found.replayed_s == pytest.approx(tuple(iterations_s(there)))


def test_alike_ranks_are_played_once_and_stay_alike():
    own = flat(1)
    plan = make_plan(workload(), own, "threshold", exchange=ALLREDUCE)
    recorded = simulate(workload(), plan, own, iterations=5)
    assert recorded.alike
    found = played_on(recorded, ClusterNetwork(flat(4)), ClusterNetwork(own))
    assert found.timeline.alike == recorded.alike
    there = simulate(workload(), plan, flat(4), iterations=5)
    assert found.replayed_s == pytest.approx(tuple(iterations_s(there)), rel=1e-6)


@pytest.mark.parametrize(
    ("timeline", "complaint"),
    [
        (made(2, 4, nbytes=()), "a run whose ranks communicate"),
        (replace(made(2, 4), world_size=3), r"ranks without a span is \[2\]"),
        (
            replace(made(2, 4), spans=tuple(s for s in made(2, 4).spans if s.lane == "push")),
            "with computation",
        ),
    ],
    ids=["silent", "a rank is missing", "nothing is computed"],
)
def test_a_run_that_cannot_be_played_is_refused(timeline, complaint):
    with pytest.raises(InvalidValueError, match=complaint):
        fitted_network(timeline)
    network = FittedNetwork("own", 0, {"all_reduce": Line(0.0, 0.01)})
    with pytest.raises(InvalidValueError, match=complaint):
        played_on(timeline, network)


def test_a_network_of_other_ranks_or_collectives_is_refused():
    with pytest.raises(InvalidValueError, match="ranks of 1 Gbit/s is 4; it must be that of the"):
        played_on(made(2, 4), ClusterNetwork(flat(1)))
    with pytest.raises(UnknownNameError, match="unknown collective 'all_reduce'"):
        played_on(made(2, 4), FittedNetwork("own", 2, {}))
    with pytest.raises(InvalidValueError, match="servers is 2; it must be"):
        fitted_network(made(2, 4)).changed(servers=2)
    with pytest.raises(InvalidValueError, match="bytes of a message is -1"):
        ClusterNetwork(flat(1)).price(Message("all_reduce", "ring", -1))
