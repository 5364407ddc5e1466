"""Iterations of units, against cases worked out by hand."""

from __future__ import annotations

import itertools

import pytest

from syncopate.artifacts.cluster import Cluster, Level, LinearFit
from syncopate.artifacts.plan import FSDP, Bucket, Plan
from syncopate.artifacts.sharding import Sharding
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.functions import Costs, Envelope, LinearCost
from syncopate.errors import InvalidValueError
from syncopate.planning import predict
from syncopate.recipe import Recipe
from syncopate.simulation import Variation, simulate
from syncopate.simulation.fsdp.predict import predict_units, unit_bound_s
from syncopate.simulation.fsdp.traffic import groups_of, unit_traffic
from syncopate.simulation.iteration import Iteration, play_traffic

FORWARD_S, BACKWARD_S = 10.0, 20.0
CLUSTER = Cluster.flat(4, latency_s=0.0, bandwidth_bytes_per_s=1e9)


def costs(gather_s: float, scatter_s: float) -> Costs:
    """Return what a byte takes."""
    return {
        "all_gather": Envelope({"ring": LinearCost(LinearFit(a_s=0, b_s_per_byte=gather_s))}),
        "reduce_scatter": Envelope({"ring": LinearCost(LinearFit(a_s=0, b_s_per_byte=scatter_s))}),
    }


def workload(sizes: list[int], device: str = "cuda", update_s: float = 0.0) -> Workload:
    """Return a model of layers of so many bytes, in the order of forward."""
    tensors = [
        GradientTensor(
            name=f"layer{index}.weight",
            numel=size,
            dtype="int8",
            backward_s=BACKWARD_S,
            forward_s=FORWARD_S,
        )
        for index, size in enumerate(sizes)
    ]
    return Workload(
        model="layers",
        tensors=tuple(reversed(tensors)),
        forward_s=FORWARD_S * len(sizes),
        backward_s=BACKWARD_S * len(sizes),
        update_s=update_s,
        metadata={"device": device},
    )


def plan(work: Workload, sharding: Sharding, world_size: int = 4) -> Plan:
    """Return a plan with a unit for each layer."""
    return Plan(
        model=work.model,
        fingerprint=work.fingerprint,
        world_size=world_size,
        policy="by hand",
        buckets=tuple(
            Bucket(
                tensors=(tensor.name,),
                nbytes=tensor.nbytes,
                push=Recipe("reduce_scatter", "ring", channel=1),
                pull=Recipe("all_gather", "ring"),
            )
            for tensor in work.tensors
        ),
        exchange=FSDP,
        channels=2,
        sharding=sharding,
    )


def played(work: Workload, sharding: Sharding, gather_s: float, scatter_s: float) -> Iteration:
    traffic = unit_traffic(work, plan(work, sharding), CLUSTER, costs(gather_s, scatter_s))
    return play_traffic(work, traffic)


def test_what_computation_hides_is_all_but_the_first_gather_and_the_last_pushes() -> None:
    # Gathers of 4 s and reduce-scatters of 6 s; layer 0 is the root unit, whose weights are kept.
    found = played(workload([4, 4, 4]), Sharding(kept=(2,)), 1.0, 1.5)
    assert found.pull_starts_s == (14, 4, 0)  # of layers 2, 1, 0
    assert found.pull_ends_s == (18, 8, 4)
    # Forward ends at 34; what backward begins with was freed, and is gathered again.
    assert found.again_s == ((34, 38), (38, 42))
    assert found.starts_s == (58, 78, 98)
    assert found.backward_end_s == 98
    assert found.iteration_s == 104
    assert found.compute_s == 90
    assert found.communication_s == 5 * 4 + 3 * 6


def test_what_stays_gathered_is_not_gathered_again() -> None:
    found = played(workload([4, 4, 4]), Sharding(kept=(0, 2)), 1.0, 1.5)
    assert found.again_s == ((34, 38),)
    assert found.iteration_s == 100
    everything = played(workload([4, 4, 4]), Sharding(kept=(0, 1, 2)), 1.0, 1.5)
    assert everything.again_s == ()
    assert everything.iteration_s == 100


def test_on_a_cpu_backward_waits_for_every_reduce_scatter() -> None:
    found = played(workload([4, 4, 4], "cpu"), Sharding(kept=(2,)), 1.0, 1.5)
    assert found.starts_s == (58, 84, 110)
    assert found.iteration_s == 116
    assert found.push_waits_s == ((58, 64), (84, 90))


def test_on_a_gpu_backward_waits_for_the_last_but_one_reduce_scatter() -> None:
    # Reduce-scatters of 32 s: layer 2's is from 58 to 90, and layer 0 does not begin before that.
    found = played(workload([4, 4, 4]), Sharding(kept=(2,)), 1.0, 8.0)
    assert found.starts_s == (58, 90, 122)
    assert found.push_waits_s == ((78, 90),)
    assert found.backward_end_s == 110
    assert found.iteration_s == 154


@pytest.mark.parametrize(("prefetch", "forward_s"), [(1, 50), (2, 45)])
def test_what_is_asked_for_earlier_hides_longer(prefetch: int, forward_s: float) -> None:
    # Layer 1 has 4 s and layer 2 15 s of gathers. Layer 2's begins with the forward of layer 1, at
    # 14 s, or behind layer 1's gather, at 8 s.
    sharding = Sharding(prefetch=prefetch, kept=(0, 1, 2))
    found = played(workload([4, 4, 30]), sharding, 1.0, 0.0)
    assert found.pull_starts_s[0] == {1: 14, 2: 8}[prefetch]
    assert found.backward_end_s == {1: 44, 2: 38}[prefetch] + FORWARD_S + 3 * BACKWARD_S


def test_gathers_longer_than_computation_follow_one_another() -> None:
    """All but the last unit's forward hide behind gathers, and they behind nothing."""
    count, gather_s = 6, 15.0
    kept = Sharding(kept=tuple(range(count)))
    found = played(workload([15] * count), kept, 1.0, 0.0)
    assert found.iteration_s == count * gather_s + FORWARD_S + count * BACKWARD_S


def test_gathers_and_reduce_scatters_share_the_link() -> None:
    # Of 4 layers; layer 1's gather for backward, of 30 s, begins with layer 2's backward, and is
    # under way as layer 3's reduce-scatter begins: from then on each takes twice as long.
    work = workload([4, 30, 4, 4])
    found = played(work, Sharding(kept=(3,)), 1.0, 1.5)
    begin_s = found.again_s[2][0]
    assert begin_s == found.starts_s[0]
    # 6 s of each reduce-scatter take 12, in which 6 of the gather's 30 are done.
    assert found.ends_s[0] == begin_s + 12
    assert found.again_s[2][1] == begin_s + 42


def test_an_update_takes_a_share_of_each_rank() -> None:
    assert played(workload([4, 4], update_s=8.0), Sharding(kept=(1,)), 1.0, 1.0).update_s == 2.0


def test_a_single_unit_hides_nothing() -> None:
    found = played(workload([4]), Sharding(kept=(0,)), 1.0, 1.5)
    assert found.iteration_s == 4 + 10 + 20 + 6


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("prefetch", [1, 2, 3])
def test_without_meetings_it_is_the_recurrence(device: str, prefetch: int) -> None:
    """What the module prints, with reduce-scatters that take no time."""
    sizes = [7, 3, 19, 11, 2, 23]
    kept = (1, 5)
    found = played(workload(sizes, device), Sharding(prefetch=prefetch, kept=kept), 1.0, 0.0)
    gathered = end_s = 0.0
    begins_s: list[float] = []

    def unit(place: int, size: float, lasts_s: float, begin_s: float) -> None:
        nonlocal gathered, end_s
        if size:
            gathered = max(gathered, begin_s) + size
        begins_s.append(max(end_s, gathered if size else end_s))
        end_s = begins_s[-1] + lasts_s

    for place, size in enumerate(sizes):
        unit(place, size, FORWARD_S, begins_s[max(place - prefetch, 0)] if place else 0.0)
    turn_s, first = end_s, len(begins_s)
    for place, size in enumerate(reversed(sizes)):
        asked_s = begins_s[first + max(place - prefetch, 0)] if place else turn_s
        unit(place, 0 if place in kept else size, BACKWARD_S, asked_s)
    assert found.iteration_s == pytest.approx(end_s, rel=1e-12)


def test_predictions_are_what_is_played_and_simulated() -> None:
    work = workload([4, 4, 4], update_s=8.0)
    made = plan(work, Sharding(kept=(2,)))
    prices = costs(1.0, 1.5)
    found = predict(work, made, CLUSTER, prices)
    assert found == predict_units(work, made, CLUSTER, prices)
    assert found.iteration_s == 104 + 2
    timeline = simulate(work, made, CLUSTER, costs=prices, iterations=2)
    spans = timeline.columns.take(timeline.columns.rank == 0)
    assert float(spans.end_s.max()) == 2 * found.iteration_s
    names = [spans.texts[place] for place in spans.name.tolist()]
    assert names.count("bucket 0 again") == 2
    assert names.count("bucket 2 again") == 0
    one = [
        (names[at], float(spans.start_s[at]), float(spans.end_s[at]))
        for at in spans.in_lanes("wait").nonzero()[0].tolist()
        if spans.iteration[at] == 0
    ]
    assert one == [
        ("wait for weights", 0, 4),
        ("wait for weights", 34, 38),
        ("wait for communication", 98, 104),
    ]


def test_a_slow_rank_is_waited_for() -> None:
    work, prices = workload([4, 4, 4]), costs(1.0, 1.5)
    made = plan(work, Sharding(kept=(2,)))
    slow = simulate(work, made, CLUSTER, costs=prices, variation=Variation(slow_ranks={1: 2.0}))
    assert float(slow.columns.end_s.max()) == 104 + 90


TWO_LEVELS = Cluster(
    name="two hosts of four",
    levels=(
        Level(name="device", size=4, latency_s=0.0, bandwidth_bytes_per_s=4.0),
        Level(name="host", size=2, latency_s=0.0, bandwidth_bytes_per_s=2.0),
    ),
)


def test_groups_all_reduce_over_their_own_links() -> None:
    work = workload([16, 16])
    made = plan(work, Sharding(kept=(1,), ranks=4), world_size=8)
    inner, outer = groups_of(TWO_LEVELS, 4)
    assert outer is not None
    assert (inner.world_size, outer.world_size) == (4, 2)
    traffic = unit_traffic(work, made, TWO_LEVELS)
    found = play_traffic(work, traffic)
    # 3/4 of 16 bytes at 4 bytes/s; twice 1/2 of 16 at 2 bytes/s between the hosts.
    assert found.pull_ends_s[1] == pytest.approx(3)
    last_s = found.backward_end_s + 3 + 8
    assert found.across_s[1] == (pytest.approx(found.backward_end_s + 3), pytest.approx(last_s))
    assert found.iteration_s == pytest.approx(last_s)
    assert found.update_s == 0.0
    # The reduce-scatter of layer 0 does not share a link with the all-reduce of layer 1.
    names = [span.name for span in simulate(work, made, TWO_LEVELS).spans if span.rank == 0]
    assert {"all_reduce 0", "all_reduce 1"} < set(names)


def test_the_bound_is_the_bytes_that_must_pass_each_link() -> None:
    work = workload([16, 16, 16])
    hand = plan(work, Sharding(kept=(2,), ranks=4), world_size=8)
    # Within a host 3/4 of 48 + 32 + 48 bytes at 4 bytes/s; between hosts 48 at 2 bytes/s.
    assert unit_bound_s(hand, TWO_LEVELS, 1.0) == pytest.approx(24)
    assert unit_bound_s(hand, TWO_LEVELS, 90.0) == 90
    kept = plan(work, Sharding(kept=(0, 1, 2), ranks=4), world_size=8)
    assert unit_bound_s(kept, TWO_LEVELS, 1.0) == pytest.approx(24)
    flat = plan(work, Sharding(kept=(0, 1, 2)), world_size=8)
    # Between hosts half of 48 bytes twice, by each host as one.
    assert unit_bound_s(flat, TWO_LEVELS, 1.0) == pytest.approx(24)


@pytest.mark.parametrize("ranks", [2, 3, 16])
def test_ranks_that_no_levels_join_are_refused(ranks: int) -> None:
    with pytest.raises(InvalidValueError, match=r"as many as inner levels join \(4 of"):
        groups_of(TWO_LEVELS, ranks)


def test_no_iteration_is_below_the_bound() -> None:
    for gather_s, kept, prefetch in itertools.product((0.1, 1.0, 5.0), ((2,), (0, 1, 2)), (1, 2)):
        work = workload([4, 9, 2])
        made = plan(work, Sharding(prefetch=prefetch, kept=kept))
        found = predict(work, made, CLUSTER, costs(gather_s, gather_s))
        assert found.iteration_s >= found.bound_s
