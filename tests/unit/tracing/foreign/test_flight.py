"""torch's flight recorder: arrivals, iterations, what ends are known, and what is refused."""

from __future__ import annotations

import itertools
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.analysis.collectives import collectives
from syncopate.artifacts.timeline import Group
from syncopate.errors import ArtifactError, InvalidValueError
from syncopate.tracing.foreign import flight, read_timeline
from syncopate.tracing.foreign.ranktrace import Launch, RankTrace, Work
from tests.unit.tracing.foreign.made import EPOCH_NS, MS, dump, entry, notes, times_ms, write

SIZES = (10, 20, 30)


def _training(late_ms=0.0, iterations=3, before=(7,)):
    """Entries of a rank that comes late to its last bucket, from 10 ms on, every 100 ms."""
    rows = [entry(number, number, size) for number, size in enumerate(before, start=1)]
    for iteration in range(iterations):
        for bucket, size in enumerate(SIZES):
            at_ms = 100 * iteration + 10 + 5 * bucket + (late_ms if bucket == 2 else 0)
            rows.append(entry(len(rows) + 1, at_ms, size))
    return rows


def _pickled(entries):
    shaped = [one | {"process_group": tuple(one["process_group"])} for one in entries]
    return pickle.dumps(dump(shaped))


def test_a_late_rank_is_waited_for_in_the_bucket_to_which_it_came_late(tmp_path):
    paths = write(tmp_path, "fr_trace_rank_", [dump(_training()), dump(_training(late_ms=40))])
    timeline = read_timeline(paths)
    assert timeline.world_size == 2
    # The first collective is set-up and all of iteration 0; it came at 1 ms, which is zero here.
    assert times_ms(timeline, "bucket 1", 3) == {0: (214, 214), 1: (214, 214)}
    assert times_ms(timeline, "bucket 2", 3) == {0: (219, 259), 1: (259, 259)}
    assert {(s.lane, s.channel, s.detail) for s in timeline.spans} == {
        ("push", 0, "gloo:all_reduce")
    }
    assert {s.nbytes for s in timeline.spans if s.iteration == 2} == {40, 80, 120}
    assert any("the transfer is missing" in note for note in notes(timeline))


def test_pickles_say_the_same_as_json(tmp_path):
    entries = _training()
    (text,) = write(tmp_path, "nccl_trace_rank_", [dump(entries)])
    binary = tmp_path / "nccl_trace_rank_0"
    binary.write_bytes(_pickled(entries))
    assert read_timeline([binary]) == read_timeline([text])


def test_a_pickle_that_could_run_code_is_refused(tmp_path):
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"version": print}))
    with pytest.raises(ArtifactError, match=r"plain values.*builtins\.print"):
        read_timeline([path])


def test_the_shortest_repetition_counts_and_ends_do_not(tmp_path):
    rows = [*_training(before=(7, 9), iterations=4)]
    rows.append(entry(len(rows) + 1, 500, 1))
    (path,) = write(tmp_path, "fr-", [dump(rows, ranks=1)])
    timeline = read_timeline([path])
    at = [(s.iteration, s.nbytes) for s in timeline.spans]
    assert at[:2] == [(0, 28), (0, 36)]
    assert at[2:-1] == [(number, 4 * size) for number in (1, 2, 3, 4) for size in SIZES]
    assert "every 3 collectives" in notes(timeline)[0]


def test_one_size_after_the_other_is_said_to_tell_no_iterations(tmp_path):
    rows = [entry(number, 10 * number, 5) for number in range(1, 7)]
    (path,) = write(tmp_path, "fr-", [dump(rows, ranks=1)])
    timeline = read_timeline([path])
    assert len({span.iteration for span in timeline.spans}) == 6
    assert "each collective counts as one" in notes(timeline)[0]


def test_what_a_device_says_moves_the_least_end(tmp_path):
    """NCCL's watchdog sees the end late: it bounds the end from above and is used where known."""
    own = [entry(1, 1, 5, duration_ms=6.0), entry(2, 20, 5, duration_ms=2.0)]
    other = [entry(1, 5, 5, duration_ms=2.0), entry(2, 20, 5, duration_ms=2.0)]
    own[1]["time_discovered_completed_ns"] = EPOCH_NS + 90 * MS
    timeline = read_timeline(write(tmp_path, "fr-", [dump(own), dump(other)]))
    assert times_ms(timeline, "bucket 0", 0) == {0: (0, 6), 1: (4, 6)}
    (late,) = [s for s in timeline.spans if s.iteration == 1 and s.rank == 0]
    assert round(late.end_s * 1e3, 3) == 89


def test_other_collectives_have_their_lanes_and_no_invented_ends(tmp_path):
    def rows(shift):
        names = ("gloo:broadcast", "nccl:_all_gather_base", "nccl:_reduce_scatter_base")
        found = [
            entry(n, 10 * n + shift, 5, profiling_name=x) for n, x in enumerate(names, start=1)
        ]
        return [*found, entry(4, 50 + shift, 5, profiling_name="nccl:send 0->1", is_p2p=True)]

    timeline = read_timeline(write(tmp_path, "fr-", [dump(rows(0)), dump(rows(3))]))
    lanes = {span.name: span.lane for span in timeline.spans}
    assert lanes == {
        "broadcast 0": "pull",
        "all_gather 0": "pull",
        "reduce_scatter 0": "push",
        "send 0": "push",
    }
    assert times_ms(timeline, "broadcast 0", 0)[0] == (0, 0)
    assert times_ms(timeline, "all_gather 0", 0)[0] == (10, 13)
    assert timeline.metadata["exchange"] == "sharded"
    assert {spans[0].name: kind for kind, spans in collectives(timeline)} == {
        name: name.split()[0] for name in lanes
    }


def test_groups_are_channels_and_batches_count_within(tmp_path):
    rows = [
        entry(1, 1, 5),
        entry(1, 2, 6, record_id=1),
        entry(1, 3, 5, process_group=["12", "tp"], record_id=2),
    ]
    timeline = read_timeline(write(tmp_path, "fr-", [dump(rows), dump(rows)]))
    assert [(s.channel, s.nbytes) for s in timeline.spans if s.rank == 0] == [
        (0, 20),
        (0, 24),
        (1, 20),
    ]


def test_a_missing_rank_is_said(tmp_path):
    paths = write(tmp_path, "fr-", [dump(_training(), ranks=4)] * 2)
    timeline = read_timeline(paths)
    assert timeline.world_size == 4
    assert any("ranks 2 and 3 have no file" in note for note in notes(timeline))


def test_a_collective_without_a_time_is_no_step(tmp_path):
    entries = _training()
    entries[4]["time_created_ns"] = 0
    timeline = read_timeline(write(tmp_path, "fr-", [dump(_training()), dump(entries)]))
    assert timeline.world_size == 2


def test_what_is_no_dump_is_refused(tmp_path):
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(dump(_training())))
    with pytest.raises(ArtifactError, match="does not say its rank; end the name in it"):
        read_timeline([path])
    (path,) = write(tmp_path, "fr-", [dump([entry(1, 1, 5, time_created_ns="soon")])])
    with pytest.raises(ArtifactError, match=r"entries\[0\]: not an entry of torch's flight"):
        read_timeline([path])
    (path,) = write(tmp_path, "fr-", [dump([]) | {"version": "3.0"}])
    with pytest.raises(ArtifactError, match=r"version '3\.0' of torch's flight recorder"):
        read_timeline([path])
    (path,) = write(tmp_path, "fr-", [dump([])])
    with pytest.raises(InvalidValueError, match="at least one collective"):
        read_timeline([path])


WRONG = {
    "groups are a list": ({"pg_config": []}, r"\$\.pg_config: .*pg_config is not a dict"),
    "no groups": ({"pg_config": None}, r"\$\.pg_config: .*pg_config is not a dict"),
    "entries are no list": ({"entries": {"0": {}}}, r"\$\.entries: .*entries is not a list"),
    "no number": ({"entries": [{**entry(1, 1, 5), "record_id": None}]}, r"\$\.entries\[0\]: not"),
    "no entry": ({"entries": [entry(1, 1, 5), 7]}, r"\$\.entries\[1\]: not an entry"),
    "no end": (
        {"entries": [entry(1, 1, 5, time_discovered_completed_ns=float("inf"))]},
        r"\$\.entries\[0\]: not an entry",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_damaged_dump_is_refused_with_its_field(tmp_path, what):
    changed, said = WRONG[what]
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(dump(_training()) | changed))
    with pytest.raises(ArtifactError, match=said):
        read_timeline([path])


def test_a_group_that_is_none_has_no_ranks(tmp_path):
    (path,) = write(tmp_path, "fr-", [dump(_training(), ranks=1) | {"pg_config": {"": "?"}}])
    assert read_timeline([path]).world_size == 1


def test_a_date_in_the_name_of_a_dump_is_no_rank(tmp_path):
    (path,) = write(tmp_path, "dump-2024110", [dump(_training(), ranks=1)])
    with pytest.raises(ArtifactError, match="does not say its rank; end the name in it"):
        read_timeline([path])


MOMENT = st.integers(0, 40)


class _Counted(tuple):
    """A sequence that counts how often it is gone through."""

    times = 0

    def __iter__(self):
        self.times += 1
        return super().__iter__()


def _between(launches, work, marks):
    """Say the same for each iteration by itself, from all launches and all work."""
    for before, now in itertools.pairwise(marks):
        starts = [at for at in launches if before < at < now]
        ends = [end for begin, end in work if starts and begin < starts[0]]
        if ends and max(ends) < starts[-1]:
            yield max(ends), starts[-1]


@given(
    launches=st.lists(MOMENT, max_size=20),
    work=st.lists(st.tuples(MOMENT, MOMENT), max_size=8),
    marks=st.lists(MOMENT, max_size=8),
)
def test_what_comes_between_steps_is_found_in_one_go(launches, work, marks):
    launched = _Counted(
        Launch(None, "all_reduce", Group(name=""), at, None, 4) for at in sorted(launches)
    )
    done = _Counted(Work("SGD", "update", begin, end) for begin, end in work)
    trace = RankTrace(0, 1, "t", launched, done, tuple((at, n) for n, at in enumerate(marks)))
    found = [(one.start_ns, one.end_ns) for one in flight._between_steps(trace)]
    assert found == [*_between(sorted(launches), work, marks)]
    assert (launched.times, done.times) == (1, 1)
