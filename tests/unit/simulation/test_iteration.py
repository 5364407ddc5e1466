"""Played iterations: the recurrence without interference, and the laws of the fluid with it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.artifacts.cluster import Interference, LinearFit
from syncopate.artifacts.plan import Bucket
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.functions import Envelope, LinearCost, startup_part_s
from syncopate.errors import PlanError, UnknownNameError
from syncopate.recipe import Recipe
from syncopate.simulation.fluid import Collective
from syncopate.units import DTYPE_BYTES
from tests.unit.simulation.workloads import (
    collectives,
    interferences,
    play,
    play_collectives,
    workload,
    workloads,
)

RING = Envelope({"ring": LinearCost(LinearFit(a_s=1.0, b_s_per_byte=0.25))})
COST = {"all_reduce": RING}


def bucket(*names: str, algorithm: str = "ring", channel: int = 0) -> Bucket:
    return Bucket(
        tensors=names, nbytes=4 * len(names), push=Recipe("all_reduce", algorithm, channel=channel)
    )


@given(st.data())
def test_without_interference_it_is_the_recurrence_to_the_last_bit(data: st.DataObject) -> None:
    work = data.draw(workloads())
    found = data.draw(collectives(work))
    played = play_collectives(work, found)
    end = 0.0
    for collective, start_s, end_s in zip(found, played.starts_s, played.ends_s, strict=True):
        start = max(end, collective.ready_s)
        end = start + collective.duration_s
        assert (start_s, end_s) == (start, end)
    assert played.backward_end_s == max(work.forward_s + work.backward_s, work.ready_s[-1])
    assert played.iteration_s == max(played.backward_end_s, end) + work.update_s


@given(st.data(), interferences)
def test_no_iteration_is_shorter_than_its_computation_or_communication(
    data: st.DataObject, interference: Interference
) -> None:
    work = data.draw(workloads())
    found = data.draw(collectives(work))
    played = play_collectives(work, found, interference)
    assert played.iteration_s >= work.compute_s * (1 - 1e-12)
    assert played.iteration_s >= played.communication_s + work.update_s - 1e-9
    assert played.exposed_s == pytest.approx(played.iteration_s - work.compute_s, abs=1e-9)


@given(st.data(), interferences, st.integers(1, 3))
def test_work_is_conserved(data: st.DataObject, interference: Interference, channels: int) -> None:
    """Computation's rate, integrated, is all computation; each collective does its duration."""
    work = data.draw(workloads())
    found = data.draw(collectives(work, channels))
    played = play_collectives(work, found, interference)
    times, done = np.array(played.progress).T
    assert (np.diff(times) >= -1e-12).all()
    assert (np.diff(done) >= -1e-12).all()
    assert (done <= times + 1e-9).all()
    assert done[-1] == pytest.approx(work.forward_s + work.backward_s)
    assert times[-1] == played.backward_end_s
    rate = interference.compute_rate
    slowed = sum(
        t1 - t0
        for (t0, d0), (t1, d1) in zip(played.progress, played.progress[1:], strict=False)
        if (d1 - d0) < (t1 - t0) * (1 - 1e-9)
    )
    assert times[-1] == pytest.approx(done[-1] + (1 - rate) * slowed, rel=1e-6, abs=1e-6)
    for collective, start, end in zip(found, played.starts_s, played.ends_s, strict=True):
        ready = played.wall_s(collective.ready_s)
        assert start >= ready - 1e-6
        assert end - start >= collective.duration_s * (1 - 1e-9)
        if channels == 1:
            assert end - start <= collective.duration_s * interference.collective_stretch + 1e-9


@given(st.data(), st.floats(1, 3))
def test_longer_collectives_never_shorten_an_iteration(data: st.DataObject, by: float) -> None:
    """Where overlap pays; where it does not, delaying communication can help."""
    rate = data.draw(st.floats(0.2, 1))
    stretch = data.draw(st.floats(1, 1 / (1 - rate))) if rate < 1 else 2.0
    interference = Interference(compute_rate=rate, collective_stretch=stretch)
    work = data.draw(workloads())
    found = data.draw(collectives(work))
    longer = list(found)
    index = data.draw(st.integers(0, len(found) - 1))
    longer[index] = longer[index]._replace(duration_s=longer[index].duration_s * by)
    before = play_collectives(work, found, interference)
    after = play_collectives(work, longer, interference)
    assert after.iteration_s >= before.iteration_s * (1 - 1e-9)
    assert all(b >= a * (1 - 1e-9) for a, b in zip(before.ends_s, after.ends_s, strict=True))


def test_a_collective_beside_backward_slows_both() -> None:
    """Ready at 1 s of 5 s; cost 2 s, stretched to 3 s, in which computation does 1.5 s."""
    work = workload([1.0], tail_s=4.0, update_s=0.5)
    interference = Interference(compute_rate=0.5, collective_stretch=1.5)
    played = play_collectives(work, [Collective(1.0, 2.0)], interference)
    assert (played.starts_s, played.ends_s) == ((1.0,), (4.0,))
    assert played.backward_end_s == pytest.approx(6.5)
    assert played.iteration_s == pytest.approx(7.0)
    assert played.exposed_s == pytest.approx(1.5)
    assert played.wall_s([0.5, 1.0, 2.5, 3.5]).tolist() == pytest.approx([0.5, 1.0, 4.0, 5.0])


def test_after_backward_a_collective_runs_at_full_speed() -> None:
    """1 s of backward is left and takes 2 s; the collective does 1 of its 3 s meanwhile."""
    work = workload([1.0], tail_s=1.0)
    interference = Interference(compute_rate=0.5, collective_stretch=2.0)
    played = play_collectives(work, [Collective(1.0, 3.0)], interference)
    assert played.backward_end_s == pytest.approx(3.0)
    assert played.ends_s == pytest.approx((5.0,))


def test_computation_may_stall_entirely() -> None:
    work = workload([1.0], tail_s=1.0)
    played = play_collectives(work, [Collective(1.0, 2.0)], Interference(compute_rate=0.0))
    assert played.ends_s == (3.0,)
    assert played.backward_end_s == 4.0


def test_channels_overlap_start_ups_and_share_the_link() -> None:
    """Two collectives of 1 s start-up and 2 s transfer: start-ups together, transfers at half."""
    work = workload([1.0, 0.0])
    pair = [Collective(1.0, 3.0, 1.0, channel) for channel in (0, 1)]
    assert play_collectives(work, pair).ends_s == (6.0, 6.0)
    alone = [collective._replace(channel=0) for collective in pair]
    assert play_collectives(work, alone).ends_s == (4.0, 7.0)


def test_a_start_up_beside_a_transfer_costs_nothing() -> None:
    """The second starts 2 s later: its start-up hides behind the first one's transfer."""
    work = workload([1.0, 2.0])
    found = [Collective(1.0, 4.0, 1.0, 0), Collective(3.0, 2.0, 1.0, 1)]
    # From 4 s on both transfer 1 s each at half speed.
    assert play_collectives(work, found).ends_s == (6.0, 6.0)


def test_plays_the_buckets_of_a_plan() -> None:
    work = workload([1.0, 1.0, 1.0], forward_s=2.0)
    played = play(work, [bucket("w0"), bucket("w1", "w2")], COST)
    assert played.starts_s == (3.0, 5.0)
    assert played.ends_s == (5.0, 8.0)
    assert played.communication_s == 5.0


def test_plays_the_buckets_on_the_channels_of_the_plan() -> None:
    """Both buckets are ready at once; of 1 s start-up and 1 s transfer each."""
    work = workload([1.0, 0.0])
    one, other = bucket("w0"), bucket("w1")
    assert play(work, [one, other], COST).ends_s == (3.0, 5.0)
    beside = bucket("w1", channel=1)
    assert play(work, [one, beside], COST).ends_s == (4.0, 4.0)


def test_each_dtype_of_a_bucket_is_a_collective() -> None:
    work = Workload(
        model="mixed",
        tensors=(
            GradientTensor(name="a", numel=1, dtype="float32"),
            GradientTensor(name="b", numel=2, dtype="bfloat16"),
            GradientTensor(name="c", numel=0, dtype="float64"),
        ),
        forward_s=1.0,
        backward_s=0.0,
    )
    both = Bucket(tensors=("a", "b", "c"), nbytes=8, push=Recipe("all_reduce", "ring"))
    # 1 + 4 / 4 for each of the two dtypes that have bytes.
    assert play(work, [both], COST).ends_s == (5.0,)


@pytest.mark.parametrize(
    ("buckets", "named"),
    [
        ([bucket("w0")], "w1"),
        ([bucket("w0", "w1", "w9")], "w9"),
        ([bucket("w0", "w1"), bucket("w0")], "w0"),
    ],
)
def test_refuses_buckets_of_another_model(buckets: list[Bucket], named: str) -> None:
    with pytest.raises(PlanError, match=named):
        play(workload([1.0, 1.0]), buckets, COST)


def test_refuses_an_algorithm_without_a_cost() -> None:
    with pytest.raises(UnknownNameError, match="known: ring"):
        play(workload([1.0]), [bucket("w0", algorithm="native")], COST)


def two_gradients(dtypes: tuple[str, str] = ("float32", "float32")) -> Workload:
    tensors = tuple(
        GradientTensor(name=name, numel=8 // DTYPE_BYTES[dtype], dtype=dtype)
        for name, dtype in zip("ab", dtypes, strict=True)
    )
    return Workload(model="two", tensors=tensors, forward_s=0.0, backward_s=0.0)


@pytest.mark.parametrize("channels", [(0, 1), (1, 0)])
def test_a_start_up_on_any_channel_leaves_the_link_to_the_others(channels: tuple[int, int]) -> None:
    """One bucket has 2 s to start up and 2 s of bytes, the other 3 s of bytes.

    The link is the second's alone for 2 s, then both share it until the second's last second is
    through, and the first has 1 s left.
    """
    costs = Envelope(
        {
            "slow to start": LinearCost(LinearFit(a_s=2.0, b_s_per_byte=0.25)),
            "bytes alone": LinearCost(LinearFit(a_s=0.0, b_s_per_byte=0.375)),
        }
    )
    buckets = [
        bucket(name, algorithm=algorithm, channel=channel)
        for name, algorithm, channel in zip("ab", costs.names, channels, strict=True)
    ]
    assert play(two_gradients(), buckets, {"all_reduce": costs}).ends_s == (5.0, 4.0)
    whole = [Collective(0.0, 4.0, 2.0, channels[0]), Collective(0.0, 3.0, 0.0, channels[1])]
    assert play_collectives(two_gradients(), whole).ends_s == (5.0, 4.0)
    one_by_one = [one._replace(channel=0) for one in whole]
    assert play_collectives(two_gradients(), one_by_one).ends_s == (4.0, 7.0)


def test_every_dtype_starts_up() -> None:
    mixed = two_gradients(("float32", "bfloat16"))
    assert play(two_gradients(), [bucket("a", "b")], COST).ends_s == (5.0,)
    assert play(mixed, [bucket("a", "b")], COST).ends_s == (6.0,)
    ring = RING.of("ring")
    assert startup_part_s(ring, [8, 8], 6.0) == 2.0
    assert startup_part_s(ring, [8, 0], 3.0) == 1.0
    # What the bytes need on the link is no start-up.
    held = RING.at_least(0.3).of("ring")
    assert startup_part_s(held, [8, 8], 6.0) == pytest.approx(6.0 - 0.3 * 16)
