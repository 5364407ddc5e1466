"""Recorded ranks: iterations by steps, clocks of several hosts, and files that do not fit."""

from __future__ import annotations

import gzip
import json

import pytest

from syncopate.artifacts.timeline import Timeline
from syncopate.errors import ArtifactError, InvalidValueError
from syncopate.tracing.foreign import is_document, read_timeline
from tests.unit.tracing.foreign.made import dump, entry, notes, profile, recorded, times_ms, write

STEP = ("user_annotation", "Optimizer.step#SGD.step", 40, 45, {})


def _rank(rank, clock_ms=0.0, host="one", first=1):
    """Two buckets of one size in each of three iterations, of which steps take 2 of 100 ms.

    Rank 1 comes 10 ms late to the second bucket, and both step 4 ms after that.
    """
    rows, steps = [], []
    for iteration in range(3):
        begin_ms = 100 * iteration + clock_ms
        for bucket in range(2):
            at_ms = begin_ms + 20 * bucket + (10 if rank == 1 and bucket else 0)
            rows.append(entry(first + len(rows), at_ms, 5))
        steps.append((begin_ms + 34, begin_ms + 36))
    return recorded(rank, rows, steps, host=host)


def test_steps_tell_iterations_where_sizes_do_not(tmp_path):
    timeline = read_timeline(write(tmp_path, "rank-", [_rank(0), _rank(1)]))
    for iteration in range(3):
        begin = 100 * iteration
        assert times_ms(timeline, "bucket 0", iteration)[1] == (begin, begin + 4)
        assert times_ms(timeline, "bucket 1", iteration) == {
            0: (begin + 20, begin + 34),
            1: (begin + 30, begin + 34),
        }
        assert times_ms(timeline, "SGD", iteration)[0] == (begin + 34, begin + 36)
    between = [times_ms(timeline, "input, forward, backward", n)[1] for n in (1, 2)]
    assert between == [(36, 130), (136, 230)]
    assert times_ms(timeline, "input, forward, backward", 0) == {}
    assert any("are not told apart" in note for note in notes(timeline))
    assert not any("clock" in note for note in notes(timeline))


def test_a_clock_within_what_the_training_allows_is_left_alone(tmp_path):
    """Rank 0 steps 4 ms after rank 1 came: a clock of rank 1 is at most 4 ms ahead of it.

    Rank 1 steps 14 ms after rank 0 came, so it is at most 14 ms behind.
    """
    paths = write(tmp_path, "rank-", [_rank(0), _rank(1, clock_ms=3, host="two")])
    timeline = read_timeline(paths)
    assert times_ms(timeline, "bucket 1", 0) == {0: (20, 34), 1: (33, 34)}
    # By its own clock rank 1 steps 3 ms after rank 0.
    assert "clocks of hosts agree to 3.00 ms" in notes(timeline)


@pytest.mark.parametrize("clock_ms", [1000.0, -1000.0])
def test_a_clock_that_cannot_be_right_is_moved_to_where_steps_begin_together(tmp_path, clock_ms):
    paths = write(tmp_path, "rank-", [_rank(0), _rank(1, clock_ms=clock_ms, host="two")])
    timeline = read_timeline(paths)
    for iteration in range(3):
        arrived_ms = [times_ms(timeline, "bucket 1", iteration)[rank][0] for rank in (0, 1)]
        assert arrived_ms[1] - arrived_ms[0] == 10
    assert any("the clocks of ranks 1 were moved" in note for note in notes(timeline))
    assert not any("clocks of hosts agree" in note for note in notes(timeline))


def test_a_clock_without_steps_that_agree_is_moved_to_the_nearest_bound(tmp_path):
    """Its steps come at any time, so nothing but the bounds says where it is."""
    early, late = _rank(0), _rank(1, clock_ms=1000.0, host="two")
    for step, by_ms in zip(late["steps"], (0, 30, 60), strict=True):
        step["start_ns"] += by_ms * 1_000_000
        step["end_ns"] += by_ms * 1_000_000
    timeline = read_timeline(write(tmp_path, "rank-", [early, late]))
    arrived_ms = [times_ms(timeline, "bucket 1", 0)[rank][0] for rank in (0, 1)]
    assert arrived_ms[1] - arrived_ms[0] == 14


def test_collectives_without_ends_share_the_time_until_the_first_step(tmp_path):
    """Bytes of the three are as 1 : 2 : 1; the last two travel in the 30 ms after the second."""
    ranks = [
        recorded(
            rank,
            [entry(1, 0, 10), entry(2, 10 * rank, 20), entry(3, 20, 10)],
            [(40 + 5 * rank, 50)],
        )
        for rank in (0, 1)
    ]
    timeline = read_timeline(write(tmp_path, "rank-", ranks))
    assert times_ms(timeline, "bucket 0", 0) == {0: (0, 10), 1: (0, 10)}
    assert times_ms(timeline, "bucket 1", 0) == {0: (0, 30), 1: (10, 30)}
    assert times_ms(timeline, "bucket 2", 0) == {0: (20, 40), 1: (20, 40)}
    (note,) = [one for one in notes(timeline) if "ended" in one]
    assert note.startswith("when 6 collectives ended is not recorded: the last before a step")


def test_collectives_that_no_step_follows_end_where_the_last_rank_came(tmp_path):
    entries = [entry(1, 0, 10), entry(2, 60, 10)]
    ranks = [recorded(rank, entries, [(40, 50)]) for rank in (0, 1)]
    timeline = read_timeline(write(tmp_path, "rank-", ranks))
    assert {s.duration_s for s in timeline.spans if s.iteration == 1 and s.nbytes} == {0.0}
    assert any("when 2 collectives ended is not known" in note for note in notes(timeline))


def test_an_iteration_that_is_partly_forgotten_is_left_out(tmp_path):
    timeline = read_timeline(write(tmp_path, "rank-", [_rank(0, first=100), _rank(1, first=100)]))
    assert {span.iteration for span in timeline.spans} == {1, 2}
    assert any("up to 99 earlier collectives" in note for note in notes(timeline))


def test_steps_that_were_forgotten_count(tmp_path):
    document = recorded(0, [entry(1, 1, 5)], [(5, 6)], world_size=1, first=7)
    timeline = read_timeline(write(tmp_path, "rank-", [document]))
    assert {span.iteration for span in timeline.spans} == {7}


def test_a_timeline_comes_back_as_it_is_and_alone(tmp_path):
    made = read_timeline(write(tmp_path, "rank-", [_rank(0), _rank(1)]))
    path = made.save(tmp_path / "whole.json")
    assert read_timeline([path]) == made
    with pytest.raises(InvalidValueError, match="the only file"):
        read_timeline([path, tmp_path / "rank-0.json"])


def test_compressed_files_are_read(tmp_path):
    path = tmp_path / "rank-0.json.gz"
    path.write_bytes(gzip.compress(json.dumps(_rank(0)).encode()))
    assert is_document(path)
    assert len(read_timeline([path]).spans) == 11
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_timeline([path])


def test_ranks_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(InvalidValueError, match="there are several of rank 0"):
        read_timeline(write(tmp_path, "a", [_rank(0), _rank(0)]))
    larger = _rank(1) | {"world_size": 3}
    with pytest.raises(InvalidValueError, match=r"world sizes of the files is \[2, 3\]"):
        read_timeline(write(tmp_path, "b", [_rank(0), larger]))
    with pytest.raises(InvalidValueError, match="of one tool"):
        read_timeline(write(tmp_path, "c", [_rank(0), profile(1, [STEP])]))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[1]", "found a list at the top; expected a timeline, files of"),
        ('{"kind": "plan", "schema_version": 1}', "found a 'plan' artefact; expected a timeline"),
        ('{"traceEvents": [], "otherData": {}}', "none of its 0 events is a kernel, a collective"),
        ("[]", "none of its 0 events is a kernel, a collective"),
        ("", "it is empty; expected a timeline"),
        ('{"kind": "timeli', "damaged or truncated"),
        ('{"kind": "timeline", "schema_version": 99}', "newer than this Syncopate reads"),
        ('{"kind": "recorded rank", "schema_version": 1, "rank": "a"}', r"at \$\.rank"),
        ("{}", "found an object of nothing"),
        ("[" * 100_000, "deeper than any file of this kind needs; expected a timeline"),
    ],
)
def test_what_was_found_is_said(tmp_path, text, complaint):
    path = tmp_path / "file-0.json"
    path.write_text(text)
    with pytest.raises(ArtifactError, match=complaint):
        read_timeline([path])


def test_files_that_are_not_there_are_refused(tmp_path):
    for use in (lambda path: read_timeline([path]), is_document):
        with pytest.raises(ArtifactError, match=r"none\.json: cannot be read"):
            use(tmp_path / "none.json")


def test_a_dump_and_a_recorded_rank_are_told_apart_by_content(tmp_path):
    (path,) = write(tmp_path, "rank-", [dump(_rank(0)["flight_recorder"]["entries"])])
    assert {span.lane for span in read_timeline([path]).spans} == {"push"}
    assert {span.lane for span in Timeline.from_json(read_timeline([path]).to_json()).spans}
