"""Iterations that pull: forward waits for weights, and every iteration is like the one before."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from syncopate.analysis.phases import mean, phases
from syncopate.artifacts.cluster import Cluster, Interference, LinearFit
from syncopate.artifacts.plan import EXCHANGES, SERVERLESS, Bucket, Plan
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.functions import Costs, Envelope, LinearCost
from syncopate.errors import PlanError, UnknownNameError
from syncopate.recipe import Recipe
from syncopate.simulation import simulate
from syncopate.simulation.fluid import Collective
from syncopate.simulation.iteration import IDEAL, play_several, play_traffic
from syncopate.simulation.traffic import Pull, Traffic
from tests.unit.simulation.workloads import (
    collectives,
    interferences,
    play,
    play_collectives,
    times_s,
    workload,
    workloads,
)

LINEAR = Envelope({"ring": LinearCost(LinearFit(a_s=1.0, b_s_per_byte=0.25))})
COSTS = dict.fromkeys(("all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast"), LINEAR)


def layers(forward_s: list[float], backward_s: list[float], **times: float) -> Workload:
    """Layers of one float each; both lists are in forward order."""
    tensors = tuple(
        GradientTensor(name=f"w{i}", numel=1, forward_s=f, backward_s=b)
        for i, (f, b) in reversed(list(enumerate(zip(forward_s, backward_s, strict=True))))
    )
    totals = {"forward_s": sum(forward_s), "backward_s": sum(backward_s)}
    return Workload(model="layers", tensors=tensors, **(totals | times))


def bucket(exchange: str, *names: str, channel: int = 0, root: int = 0) -> Bucket:
    kind = EXCHANGES[exchange]
    return Bucket(
        tensors=names,
        nbytes=4 * len(names),
        push=Recipe(kind.push, "ring", root=root, channel=channel),
        pull=Recipe(kind.pull, "ring", root=root, channel=channel) if kind.pull else None,
    )


@st.composite
def traffics(draw: st.DrawFn, of: Workload, channels: int = 1) -> Traffic:
    """Draw the pushes of a partition, and a pull of each, in any order, that any moment needs."""
    pushes = draw(collectives(of, channels))
    pulls = tuple(
        Pull(
            draw(st.integers(0, 8)) / 8 * of.forward_s,
            draw(times_s),
            draw(times_s),
            draw(st.integers(0, channels - 1)),
        )
        for _ in pushes
    )
    order = draw(st.just(()) | st.permutations(range(len(pulls))).map(tuple))
    return Traffic(tuple(pushes), pulls, of.update_s, order)


@given(st.data())
def test_on_one_channel_forward_waits_by_its_recurrence(data: st.DataObject) -> None:
    work = data.draw(workloads())
    traffic = data.draw(traffics(work))
    arrived_s = {}
    now = done = arrived = 0.0
    for index in traffic.pulled:
        arrived = arrived_s[index] = arrived + traffic.pulls[index].duration_s
    for index, pull in sorted(enumerate(traffic.pulls), key=lambda each: each[1].needed_s):
        now, done = max(now + pull.needed_s - done, arrived_s[index]), pull.needed_s
    late_s = now - done
    end = 0.0
    for push in traffic.pushes:
        end = max(end, push.ready_s + late_s) + push.duration_s
    computed_s = late_s + work.forward_s + work.backward_s
    played = play_traffic(work, traffic)
    assert played.backward_end_s == pytest.approx(computed_s)
    assert played.iteration_s == pytest.approx(max(computed_s, end) + work.update_s)
    assert sum(stop - start for start, stop in played.waits_s) == pytest.approx(late_s, abs=1e-9)


@given(st.data(), interferences, st.integers(1, 3))
def test_every_iteration_is_like_the_one_before(
    data: st.DataObject, interference: Interference, channels: int
) -> None:
    # Where computation stalls, a collective that is ready an ulp before its end costs all of it.
    interference = structs.replace(interference, compute_rate=max(interference.compute_rate, 0.1))
    work = data.draw(workloads())
    traffic = data.draw(traffics(work, channels))
    first, *others = play_several(work, traffic, interference, 4)
    steady = play_traffic(work, traffic, interference)
    assert first.pull_ends_s == ()
    assert first.iteration_s == pytest.approx(
        play_collectives(work, traffic.pushes, interference).iteration_s
    )
    for other in others:
        assert other.iteration_s == pytest.approx(steady.iteration_s)
        assert other.pull_ends_s == pytest.approx(steady.pull_ends_s, abs=1e-9)
        assert other.starts_s == pytest.approx(steady.starts_s)
    assert steady.iteration_s >= first.iteration_s - 1e-9


@given(st.data(), interferences, st.integers(1, 3))
def test_no_layer_runs_before_its_weights_and_the_link_is_never_faster_than_itself(
    data: st.DataObject, interference: Interference, channels: int
) -> None:
    work = data.draw(workloads())
    traffic = data.draw(traffics(work, channels))
    played = play_traffic(work, traffic, interference)
    for pull, start, end in zip(
        traffic.pulls, played.pull_starts_s, played.pull_ends_s, strict=True
    ):
        assert end - start >= pull.duration_s * (1 - 1e-9)
        reached = float(played.wall_s(pull.needed_s))
        waited = max((b for a, b in played.waits_s if a <= reached + 1e-9), default=0.0)
        assert end <= max(reached, waited) + 1e-9
    bytes_s = sum(
        max(message.duration_s - message.startup_s, 0.0)
        for message in (*traffic.pushes, *traffic.pulls)
    )
    assert played.iteration_s >= bytes_s + work.update_s - 1e-9
    assert played.iteration_s >= work.compute_s * (1 - 1e-12)


@st.composite
def worked_traffics(draw: st.DrawFn) -> tuple[Workload, Traffic]:
    """Draw a workload and the traffic of it on one channel."""
    work = draw(workloads())
    return work, draw(traffics(work))


def ready_at_the_end(
    forward_s: float, backward_s: list[float], needed_s: list[float]
) -> tuple[Workload, Traffic]:
    """A push per gradient; the last takes 1 s and is ready at the end of backward."""
    work = workload(backward_s, forward_s=forward_s)
    durations_s = [0.0] * (len(backward_s) - 1) + [1.0]
    pushes = tuple(map(Collective, work.ready_s, durations_s))
    return work, Traffic(pushes, tuple(Pull(at_s, 0.0) for at_s in needed_s))


STALLED = Interference(compute_rate=0.0, collective_stretch=2.0)


@given(worked_traffics(), interferences)
# Of these, sums of the same times in another order differ by an ulp.
@example(
    ready_at_the_end(7.655133710864973, [1.0, 8.18748781301605, 2.398307768777745], [0.0, 2.87, 0]),
    STALLED,
)
@example(
    ready_at_the_end(5.397839099331538, [7.0, 9.58540616270543], [0.0, 4.723109211915096]), STALLED
)
def test_pulls_that_cost_nothing_leave_what_backward_costs(
    drawn: tuple[Workload, Traffic], interference: Interference
) -> None:
    work, traffic = drawn
    free = tuple(pull._replace(duration_s=0.0) for pull in traffic.pulls)
    played = play_traffic(work, replace(traffic, pulls=free), interference)
    alone = play_collectives(work, traffic.pushes, interference)
    assert played.waits_s == ()
    assert played.iteration_s == pytest.approx(alone.iteration_s)
    without = Traffic(tuple(push._replace(duration_s=0.0) for push in traffic.pushes), free)
    compute_s = work.forward_s + work.backward_s
    assert play_traffic(work, without).iteration_s == pytest.approx(compute_s)


def test_what_forward_needs_first_is_pulled_first() -> None:
    """Layers of 4, 1 and 3 s; each pull takes 2 s. Forward waits for the first and the third."""
    work = layers([4.0, 1.0, 3.0], [0.0, 0.0, 0.0])
    buckets = [bucket("sharded", name) for name in ("w2", "w1", "w0")]
    costs = {"reduce_scatter": LINEAR, "all_gather": Envelope({"ring": LinearCost(TWO_S)})}
    played = play(work, buckets, costs, world_size=4)
    assert played.pull_starts_s == (4.0, 2.0, 0.0)
    assert played.pull_ends_s == (6.0, 4.0, 2.0)
    assert played.waits_s == ((0.0, 2.0),)
    together = play(work, [bucket("sharded", "w2", "w1"), bucket("sharded", "w0")], costs)
    assert together.pull_ends_s == (4.0, 2.0)
    # In forward order, whatever the order of the buckets; the second needs 7 s of pulls before it.
    slow = costs | {"all_gather": Envelope({"ring": LinearCost(LinearFit(a_s=7, b_s_per_byte=0))})}
    played = play(work, buckets, slow, world_size=4)
    assert played.pull_ends_s == (21.0, 14.0, 7.0)
    assert played.waits_s == ((0.0, 7.0), (11.0, 14.0), (15.0, 21.0))
    assert played.wall_s([2.0, 4.0, 4.5, 5.0, 5.5]).tolist() == [9.0, 11.0, 14.5, 15.0, 21.5]
    assert played.backward_end_s == 24.0
    # A bucket is needed as soon as any of its weights is: the second layer's, after 4 s.
    merged = play(work, [bucket("sharded", "w2", "w1"), bucket("sharded", "w0")], slow)
    assert merged.waits_s == ((0.0, 7.0), (11.0, 14.0))


def test_pulls_go_in_the_order_of_the_plan() -> None:
    """Layers of 4, 1 and 3 s, pulls of 2 s: the middle one's is first, and the first's last."""
    work = layers([4.0, 1.0, 3.0], [0.0, 0.0, 0.0])
    buckets = tuple(bucket("sharded", name) for name in ("w2", "w1", "w0"))
    costs = COSTS | {"all_gather": Envelope({"ring": LinearCost(TWO_S)})}
    played = play(work, buckets, costs, world_size=4, pull_order=(1, 0, 2))
    assert played.pull_starts_s == (2.0, 0.0, 4.0)
    assert played.waits_s == ((0.0, 6.0),)
    plan = structs.replace(plan_of(work, "sharded", buckets), pull_order=(1, 0, 2))
    timeline = simulate(work, plan, Cluster.preset("10gbe", 2), costs=costs, iterations=2)
    pulls = [span for span in timeline.spans if (span.lane, span.rank) == ("pull", 0)]
    assert [span.name for span in sorted(pulls, key=lambda span: span.start_s)] == [
        "bucket 1",
        "bucket 0",
        "bucket 2",
    ]


TWO_S = LinearFit(a_s=2.0, b_s_per_byte=0.0)


def test_pulls_on_two_channels_share_the_link_but_not_their_start_ups() -> None:
    """1 s of start-up and 2 s of bytes each: together the start-ups, then the bytes at half."""
    work = layers([0.0, 5.0], [0.0, 0.0])
    pulls = tuple(Pull(0.0, 3.0, 1.0, channel) for channel in (1, 0))
    pushes = tuple(Collective(5.0, 0.0) for _ in pulls)
    assert play_traffic(work, Traffic(pushes, pulls)).pull_ends_s == (5.0, 5.0)
    one = tuple(pull._replace(channel=0) for pull in pulls)
    assert play_traffic(work, Traffic(pushes, one)).pull_ends_s == (6.0, 3.0)


def test_pulls_and_forward_slow_each_other_and_neither_while_forward_waits() -> None:
    """2 s of waiting at full speed; then the second pull, stretched, beside a slower forward."""
    work = layers([4.0, 1.0], [0.0, 0.0])
    pulls = (Pull(4.0, 1.0), Pull(0.0, 2.0))
    pushes = (Collective(5.0, 0.0), Collective(5.0, 0.0))
    interference = Interference(compute_rate=0.5, collective_stretch=2.0)
    played = play_traffic(work, Traffic(pushes, pulls), interference)
    assert played.pull_ends_s == (4.0, 2.0)
    # From 2 to 4 s it computes 1 s, and 4 s more are left.
    assert played.backward_end_s == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("exchange", "roots", "part"),
    [
        ("allreduce", (0, 0), 1.0),
        ("sharded", (0, 0), 0.25),
        ("rooted", (0, 0), 1.0),
        ("rooted", (1, 2), 2 / 3),
    ],
)
def test_each_exchange_updates_its_part(exchange: str, roots: tuple[int, int], part: float) -> None:
    work = layers([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], update_s=12.0)
    buckets = [
        bucket(exchange, "w2", "w1", root=roots[0]),
        bucket(exchange, "w0", root=roots[1]),
    ]
    played = play(work, buckets, COSTS, world_size=4)
    assert played.update_s == pytest.approx(12.0 * part)
    assert played.compute_s == pytest.approx(6.0 + 12.0 * part)
    pulls = 0 if exchange == "allreduce" else 2
    assert len(played.pull_ends_s) == pulls
    assert played.communication_s == pytest.approx((3.0 + 2.0) * (2 if pulls else 1))


@pytest.mark.parametrize(
    ("ranks", "roots", "shares"),
    [(2, (0, 1), False), (2, (0, 0), True), (2, (1, 1), True), (3, (0, 1), True)],
)
def test_of_two_ranks_what_goes_one_way_shares_no_link_with_what_goes_the_other(
    ranks: int, roots: tuple[int, int], shares: bool
) -> None:
    work = layers([0.0, 0.0], [0.0, 0.0], update_s=0.0)
    buckets = [bucket("rooted", f"w{i}", channel=i, root=roots[i]) for i in (1, 0)]
    played = play(work, buckets, COSTS, world_size=ranks)
    # Each starts up for 1 s, and sends for 1 s more where it has the link to itself.
    each_s = 3.0 if shares else 2.0
    lasts_s = [
        end_s - start_s
        for starts_s, ends_s in (
            (played.starts_s, played.ends_s),
            (played.pull_starts_s, played.pull_ends_s),
        )
        for start_s, end_s in zip(starts_s, ends_s, strict=True)
    ]
    assert lasts_s == [each_s] * 4
    assert played.iteration_s == 2 * each_s
    plan = Plan(
        model=work.model,
        fingerprint=work.fingerprint,
        world_size=ranks,
        policy="by hand",
        channels=2,
        exchange="rooted",
        buckets=tuple(buckets),
    )
    cluster = Cluster.flat(ranks, latency_s=0.0, bandwidth_bytes_per_s=1.0)
    timeline = simulate(work, plan, cluster, costs=COSTS, iterations=4)
    waits = [
        span for span in timeline.spans if span.lane in ("push", "pull") and span.iteration == 2
    ]
    assert {round(span.end_s - span.start_s, 9) for span in waits} == {each_s}


def test_refuses_a_collective_without_costs() -> None:
    work = layers([1.0], [1.0])
    with pytest.raises(UnknownNameError, match="unknown collective 'all_gather'"):
        play(work, [bucket("sharded", "w0")], {"reduce_scatter": LINEAR})


def test_when_weights_are_needed() -> None:
    """In the reverse of ready order unless said; a module needs all it has as it begins."""
    work = layers([1.0, 2.0, 4.0], [0.0, 0.0, 0.0])
    assert work.needed_s == (3.0, 1.0, 0.0)
    assert structs.replace(work, forward_order=(0, 2, 1)).needed_s == (0.0, 5.0, 4.0)
    modules = tuple(
        GradientTensor(name=name, numel=1, forward_s=1.0, backward_s=1.0)
        for name in ("b.bias", "b.weight", "a.bias", "root", "a.weight")
    )
    work = Workload(model="m", tensors=modules, forward_s=9.0, backward_s=5.0)
    assert work.needed_s == (3.0, 3.0, 0.0, 1.0, 0.0)
    # Layers that take longer than all of forward are needed at its end.
    assert structs.replace(work, forward_s=2.0).needed_s == (2.0, 2.0, 0.0, 1.0, 0.0)
    # Where nobody timed the layers of forward, they take their part of backward.
    bare = tuple(structs.replace(tensor, forward_s=0.0) for tensor in work.tensors)
    bare = (structs.replace(bare[0], backward_s=4.0), *bare[1:])
    work = Workload(model="m", tensors=bare, forward_s=4.0, backward_s=8.0)
    assert work.needed_s == (1.5, 1.5, 0.0, 0.5, 0.0)


def plan_of(work: Workload, exchange: str, buckets: tuple[Bucket, ...]) -> Plan:
    return Plan(
        model=work.model,
        fingerprint=work.fingerprint,
        world_size=2,
        policy="by hand",
        channels=2,
        exchange=exchange,
        buckets=buckets,
    )


def test_backward_begins_after_a_wait_at_the_very_end_of_forward() -> None:
    """The last layer takes no time, and its weights arrive 2 s after all the others have run."""
    work = layers([2.0, 0.0], [1.0, 1.0])
    buckets = (bucket("sharded", "w1"), bucket("sharded", "w0"))
    costs = COSTS | {"all_gather": Envelope({"ring": LinearCost(TWO_S)})}
    plan = plan_of(work, "sharded", buckets)

    def second(costs: Costs) -> list[tuple[str, float, float]]:
        """Names, starts and ends of rank 0's spans in the second iteration, from its start on."""
        timeline = simulate(work, plan, Cluster.preset("10gbe", 2), costs=costs, iterations=2)
        spans = [span for span in timeline.spans if (span.iteration, span.rank) == (1, 0)]
        start_s = min(span.start_s for span in spans)
        return [(s.name, s.start_s - start_s, s.end_s - start_s) for s in spans]

    assert second(costs)[:5] == [
        ("wait for weights", 0.0, 2.0),
        ("forward", 2.0, 4.0),
        ("w1", 4.0, 5.0),
        ("w0", 5.0, 6.0),
        ("bucket 0", 2.0, 4.0),
    ]
    late = costs | {"all_gather": Envelope({"ring": LinearCost(LinearFit(a_s=3, b_s_per_byte=0))})}
    assert second(late)[:4] == [
        ("wait for weights", 0.0, 3.0),
        ("forward", 3.0, 5.0),
        ("wait for weights", 5.0, 6.0),
        ("w1", 6.0, 7.0),
    ]


@pytest.mark.parametrize("exchange", ["sharded", "rooted"])
def test_a_timeline_of_several_iterations_shows_pulls_and_waits(exchange: str) -> None:
    work = layers([2.0, 2.0], [1.0, 1.0], update_s=1.0)
    buckets = (bucket(exchange, "w1", channel=1), bucket(exchange, "w0"))
    plan = plan_of(work, exchange, buckets)
    timeline = simulate(work, plan, Cluster.preset("10gbe", 2), costs=COSTS, iterations=3)
    update_s = 0.5 if exchange == "sharded" else 1.0
    traffic = Traffic(
        (Collective(5.0, 2.0, 1.0, 1), Collective(6.0, 2.0, 1.0, 0)),
        (Pull(2.0, 2.0, 1.0, 1), Pull(0.0, 2.0, 1.0, 0)),
        update_s,
    )
    first, second, third = play_several(work, traffic, IDEAL, 3)
    spans = [span for span in timeline.spans if span.rank == 1]
    origins = (0.0, first.iteration_s, first.iteration_s + second.iteration_s)
    found = [[s for s in spans if s.iteration == index] for index in range(3)]
    assert [(s.name, s.lane) for s in found[0]] == [
        ("forward", "forward"),
        ("w1", "backward"),
        ("w0", "backward"),
        ("bucket 0", "push"),
        ("bucket 1", "push"),
        ("wait for communication", "wait"),
        ("update", "update"),
    ]
    # Both pulls start up together, then share the link: both arrive after 3 s.
    for iteration, origin in ((1, origins[1]), (2, origins[2])):
        mine = [(s.name, s.lane, s.start_s - origin, s.end_s - origin) for s in found[iteration]]
        assert mine[:4] == [
            ("wait for weights", "wait", 0.0, pytest.approx(3.0)),
            ("forward", "forward", pytest.approx(3.0), pytest.approx(7.0)),
            ("w1", "backward", pytest.approx(7.0), pytest.approx(8.0)),
            ("w0", "backward", pytest.approx(8.0), pytest.approx(9.0)),
        ]
        assert mine[4:6] == [
            ("bucket 0", "pull", 0.0, pytest.approx(3.0)),
            ("bucket 1", "pull", 0.0, pytest.approx(3.0)),
        ]
    pulls = [span for span in spans if span.lane == "pull"]
    assert [(s.channel, s.nbytes, s.detail) for s in pulls[:2]] == [(1, 4, "ring"), (0, 4, "ring")]
    assert timeline.duration_s == pytest.approx(origins[2] + third.iteration_s)
    average = mean([phase for phase in phases(timeline) if phase.iteration == 2])
    assert average.duration_s == pytest.approx(third.iteration_s)
    assert average.computation_s == pytest.approx(third.compute_s)
    assert average.communication_s == pytest.approx(3.0 + 3.0)


@given(
    st.sampled_from(sorted(SERVERLESS)),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(1, 3),
    interferences,
)
def test_the_parts_of_a_tensor_are_played_as_so_many_tensors(
    exchange: str, sizes: list[int], channels: int, interference: Interference
) -> None:
    """Ready at once, needed at once, each with its own bytes, recipe and channel."""
    rest = GradientTensor(name="rest", numel=3, forward_s=2.0, backward_s=1.0)
    table = GradientTensor(name="table", numel=sum(sizes), forward_s=5.0, backward_s=4.0)
    last = GradientTensor(name="last", numel=2, forward_s=1.0, backward_s=2.0)
    pieces = [GradientTensor(name=f"p{i}", numel=size) for i, size in enumerate(sizes)]
    # The first is ready when backward is through with the table; forward comes to it last.
    pieces[0] = structs.replace(pieces[0], backward_s=4.0, forward_s=5.0)
    times = {"forward_s": 8.0, "backward_s": 7.0, "update_s": 1.0}
    whole = Workload(model="whole", tensors=(rest, table, last), **times)
    split = Workload(model="split", tensors=(rest, *pieces, last), **times)
    ends = list(accumulate(sizes, initial=0))
    parts, tensors = [bucket(exchange, "rest")], [bucket(exchange, "rest")]
    for index, size in enumerate(sizes):
        one = bucket(exchange, "table", channel=index % channels, root=index % 4)
        parts.append(structs.replace(one, nbytes=4 * size, elements=(ends[index], ends[index + 1])))
        tensors.append(structs.replace(parts[-1], tensors=(f"p{index}",), elements=None))
    end = bucket(exchange, "last")
    ours = play(whole, [*parts, end], COSTS, interference, world_size=4)
    theirs = play(split, [*tensors, end], COSTS, interference, world_size=4)
    assert ours.starts_s == pytest.approx(theirs.starts_s)
    assert ours.pull_ends_s == pytest.approx(theirs.pull_ends_s)
    assert ours.iteration_s == pytest.approx(theirs.iteration_s)
    beyond = structs.replace(parts[-1], elements=(ends[-2], ends[-1] + 1))
    with pytest.raises(PlanError, match=rf"the parts of 'table' hold .* it has {ends[-1]}\."):
        play(whole, [*parts[:-1], beyond, end], COSTS)
