"""The checker refutes what is wrong: rule by rule, then by mutating what is right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncopate.errors import ScheduleError, UnknownNameError
from syncopate.schedules.base import Schedule, Transfer, Transfers, chunk_offsets
from syncopate.schedules.checker import check
from syncopate.schedules.conditions import chunks_at, conditions
from syncopate.schedules.registry import ALGORITHMS, build
from tests.conformance.drawn import drawn
from tests.unit.schedules.play import play, promised


def schedule(
    collective: str, p: int, *transfers: tuple, chunks: int = 1, root: int = 0
) -> Schedule:
    found = [Transfer(*transfer) for transfer in transfers]
    return Schedule(collective, "toy", p, chunks, found, root)


def refuted(match: str):
    return pytest.raises(ScheduleError, match=match)


def test_exchange_of_two_is_right():
    check(schedule("all_reduce", 2, (0, 0, 1, 0, 1, "reduce"), (0, 1, 0, 0, 1, "reduce")))


def test_one_rank_needs_nothing():
    for collective in ("all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast"):
        check(schedule(collective, 1))


def test_rooted_collectives():
    check(schedule("reduce", 3, (0, 0, 1, 0, 1, "reduce"), (1, 2, 1, 0, 1, "reduce"), root=1))
    check(schedule("broadcast", 3, (0, 1, 0, 0, 1, "copy"), (1, 0, 2, 0, 1, "copy"), root=1))
    with refuted("round 0, rank 0 to rank 1, chunk 0: the data sent are undefined"):
        check(schedule("broadcast", 2, (0, 0, 1, 0, 1, "copy"), root=1))


def test_a_missing_contribution():
    with refuted("at the end, rank 0, chunk 0: rank 1 is missing"):
        check(schedule("all_reduce", 2, (0, 0, 1, 0, 1, "reduce")))
    with refuted("rank 1, 2 is missing"):
        check(schedule("all_reduce", 3))


def test_a_contribution_twice():
    twice = [(step, 1, 0, 0, 1, "reduce") for step in range(2)]
    with refuted("round 1, rank 1 to rank 0, chunk 0: rank 1 is added twice"):
        check(schedule("reduce", 2, *twice))


def test_sends_read_the_start_of_the_round():
    """In one round both partners send what they held before; in two the second sends the sum."""
    with refuted("round 1, rank 1 to rank 0, chunk 0: rank 0 is added twice"):
        check(schedule("all_reduce", 2, (0, 0, 1, 0, 1, "reduce"), (1, 1, 0, 0, 1, "reduce")))


def test_undefined_data():
    with refuted("rank 0 to rank 1, chunk 1: the data sent are undefined"):
        check(schedule("all_gather", 2, (0, 0, 1, 1, 2, "copy"), chunks=2))
    with refuted("rank 0 to rank 1, chunk 0: the receiver adds to undefined data"):
        check(schedule("all_gather", 2, (0, 0, 1, 0, 1, "reduce"), chunks=2))
    with refuted("at the end, rank 0, chunk 1: the data are undefined"):
        check(schedule("all_gather", 2, (0, 0, 1, 0, 1, "copy"), chunks=2))


def test_two_writes_in_one_round():
    both = [(0, src, 0, 0, 1, "reduce") for src in (1, 2)]
    with refuted("round 0, rank 2 to rank 0, chunk 0: the chunk is written twice in this round"):
        check(schedule("reduce", 3, *both))


def test_a_copy_over_what_was_still_needed():
    with refuted("at the end, rank 0, chunk 0: rank 0 is missing"):
        check(schedule("all_reduce", 2, (0, 1, 0, 0, 1, "copy"), (0, 0, 1, 0, 1, "copy")))


def test_a_harmless_repetition_is_accepted():
    twice = [(step, 0, 1, 0, 1, "copy") for step in range(2)]
    check(schedule("all_gather", 2, *twice, (0, 1, 0, 1, 2, "copy"), chunks=2))


def test_a_broadcast_that_sums():
    """Rank 1 gets the root's data twice over, by two ways."""
    ways = [(0, 0, 1, 0, 1, "copy"), (1, 0, 1, 0, 1, "reduce")]
    with refuted("rank 0 is added twice"):
        check(schedule("broadcast", 2, *ways))


def test_results_that_may_differ_in_rounding():
    """Every rank has every contribution once, but the ranks added in two different orders."""
    found = schedule(
        "all_reduce",
        4,
        (0, 0, 1, 0, 1, "reduce"),  # rank 1: 0 + 1
        (0, 3, 0, 0, 1, "copy"),  # rank 0: 3
        (0, 2, 3, 0, 1, "reduce"),  # rank 3: 2 + 3
        (1, 1, 2, 0, 1, "reduce"),  # rank 2: (0 + 1) + 2
        (1, 3, 1, 0, 1, "reduce"),  # rank 1: (0 + 1) + (2 + 3)
        (2, 0, 2, 0, 1, "reduce"),  # rank 2: ((0 + 1) + 2) + 3
        (3, 1, 0, 0, 1, "copy"),
        (3, 2, 3, 0, 1, "copy"),
    )
    assert play(found, np.array([[1], [20], [300], [4000]])).ravel().tolist() == [4321] * 4
    tiny = np.float32(2**-24)
    ends = play(found, np.array([[1], [0], [tiny], [tiny]], np.float32))
    assert ends[0] != ends[2]
    with refuted("rank 2, chunk 0: the sum is built by other additions than on rank 0"):
        check(found)


def test_shards_must_divide():
    with refuted("3 chunks do not divide into one shard per rank; use a multiple of 2"):
        check(schedule("reduce_scatter", 2, chunks=3))


def test_an_unknown_collective():
    with pytest.raises(UnknownNameError, match="unknown collective 'gossip'; known: all_reduce,"):
        check(schedule("gossip", 2))


REDUNDANT = {("broadcast", "be"), ("all_reduce", "two_level")}
"""After a scatter along a tree, the all-gather brings some ranks what they passed on before."""


@pytest.mark.parametrize("key", [key for key in ALGORITHMS if key not in REDUNDANT], ids="-".join)
@pytest.mark.parametrize("p", [2, 5, 6, 8])
def test_no_transfer_can_be_left_out_or_change_its_op(key, p):
    proved = build(*key, p)
    transfers = list(proved.transfers)
    other = {"copy": "reduce", "reduce": "copy"}
    for index, transfer in enumerate(transfers):
        rest = transfers[:index] + transfers[index + 1 :]
        for mutant in (rest, [*rest, transfer._replace(op=other[transfer.op])]):
            with pytest.raises(ScheduleError):
                check(Schedule(*key, p, proved.chunks, mutant))


@st.composite
def mutants(draw: st.DrawFn) -> Schedule:
    """Draw a proved schedule with one to three transfers dropped, doubled or changed.

    A mutant that is not even well-formed raises ScheduleError as it is made.
    """
    key = draw(st.sampled_from(list(ALGORITHMS)))
    p = draw(st.integers(2, 8))
    proved = build(*key, p)
    transfers = list(proved.transfers)
    for _ in range(draw(st.integers(1, 3))):
        index = draw(st.integers(0, len(transfers) - 1))
        transfer = transfers[index]
        values = {
            "round": st.integers(0, proved.rounds),
            "src": st.integers(0, p - 1),
            "dst": st.integers(0, p - 1),
            "op": st.sampled_from(["copy", "reduce"]),
            "start": st.integers(0, proved.chunks - 1),
            "stop": st.integers(1, proved.chunks),
        }
        what = draw(st.sampled_from(["drop", "double", *values]))
        if what == "drop" and len(transfers) > 1:
            transfers.pop(index)
        elif what == "double":
            transfers.append(transfer._replace(round=draw(values["round"])))
        elif what in values:
            transfers[index] = transfer._replace(**{what: draw(values[what])})
    return Schedule(*key, p, proved.chunks, transfers)


@settings(max_examples=400)
@given(st.data())
def test_a_mutant_is_refuted_or_equivalent(data):
    try:
        mutant = data.draw(mutants())
        check(mutant)
    except ScheduleError:
        return
    random = np.random.default_rng(mutant.rounds)
    shape = (mutant.world_size, mutant.chunks)
    whole = random.integers(-(2**60), 2**60, shape)
    ends = play(mutant, whole)
    for place, value in promised(mutant, whole).items():
        assert ends[place] == value
    ends = play(mutant, random.lognormal(0, 20, shape).astype(np.float32))
    end = conditions(mutant.collective).end
    for chunk in range(mutant.chunks):
        results = {
            ends[rank, chunk].tobytes()
            for rank in range(mutant.world_size)
            if chunk in chunks_at(end, mutant, rank)
        }
        assert len(results) == 1


def test_an_equivalent_mutant_is_accepted():
    """The checker proves meaning, not form: an idle round and a repeated copy change nothing."""
    proved = build("all_reduce", "binary_tree", 4)
    later = [t._replace(round=t.round + 3) for t in proved.transfers]
    last = max(later)
    check(Schedule("all_reduce", "toy", 4, 1, [*later, last._replace(round=last.round + 1)]))


@pytest.mark.parametrize("key", list(ALGORITHMS), ids="-".join)
@pytest.mark.parametrize("p", [1, 2, 3, 4, 6, 7, 8, 12])
def test_what_is_proved_also_computes(key, p):
    proved = build(*key, p)
    whole = np.random.default_rng(p).integers(-(2**60), 2**60, (p, proved.chunks))
    ends = play(proved, whole)
    assert all(ends[place] == value for place, value in promised(proved, whole).items())


@settings(max_examples=150)
@given(drawn(48), st.data())
def test_any_world_root_options_and_order(case, data):
    """No p, factorisation, root, number of blocks or order is wrong, proved and computed."""
    schedule = case.schedule()
    check(schedule)
    numel = data.draw(st.integers(0, 2 * schedule.chunks))
    compute(schedule, numel, seed=case.world_size)


def compute(schedule: Schedule, numel: int, seed: int) -> None:
    """Play ``schedule`` on buffers of ``numel`` elements, element by element."""
    offsets = chunk_offsets(numel, schedule.chunks)
    whole = np.random.default_rng(seed).integers(-(2**60), 2**60, (schedule.world_size, numel))
    ends = whole.copy()
    for step in range(schedule.rounds):
        before = ends.copy()
        for t in Transfers(schedule.table.table[schedule.table.round == step]):
            elements = slice(offsets[t.start], offsets[t.stop])
            kept = ends[t.dst, elements] if t.op == "reduce" else 0
            ends[t.dst, elements] = before[t.src, elements] + kept
    rule = conditions(schedule.collective)
    result = whole.sum(axis=0)
    for rank in range(schedule.world_size if not rule.reduces else 0):
        for chunk in chunks_at(rule.start, schedule, rank):
            elements = slice(offsets[chunk], offsets[chunk + 1])
            result[elements] = whole[rank, elements]
    for rank in range(schedule.world_size):
        for chunk in chunks_at(rule.end, schedule, rank):
            elements = slice(offsets[chunk], offsets[chunk + 1])
            assert (ends[rank, elements] == result[elements]).all()
