"""Reading: what a call may be given, and which iterations are kept."""

from __future__ import annotations

import gzip

import pytest
from msgspec.structs import replace

from syncopate import report
from syncopate.analysis.work import missing, whole
from syncopate.artifacts.timeline import Span, Spans, Timeline
from syncopate.artifacts.timelines.alike import Alike, SharedSpans
from syncopate.errors import ArtifactError, InvalidValueError
from syncopate.runs import reading
from syncopate.runs.explain import Explained, explain
from syncopate.runs.reading import latest, read
from tests.unit.analysis.made import made
from tests.unit.analysis.piped import piped
from tests.unit.analysis.troubled import trained
from tests.unit.analysis.written import written
from tests.unit.tracing.foreign.made import entry, profile, recorded, write
from tests.unit.tracing.foreign.test_profiler import _iteration


def _timeline(numbers: list[int]) -> Timeline:
    spans = tuple(
        Span(name="forward", lane="forward", rank=0, start_s=n, end_s=n + 0.5, iteration=n)
        for n in numbers
    )
    return Timeline(name="t", source="measured", world_size=1, spans=spans)


def test_iterations_that_are_there_count() -> None:
    """Of a long run every hundredth iteration was kept, and the last five."""
    found = read(_timeline([0, 100, 200, *range(250, 255)]))
    assert latest(found, 8) is found
    last = latest(found, 6)
    assert {span.iteration for span in last.timeline.spans} == {200, *range(250, 255)}
    assert last.remarks == ("the last 6 iterations are looked at, from iteration 200 on",)
    with pytest.raises(InvalidValueError, match="at least 1"):
        latest(found, 0)


def test_files_and_timelines_are_read_alike(tmp_path) -> None:
    timeline = _timeline([0, 1])
    path = timeline.save(tmp_path / "t.json")
    from_file, given = read(path), read(timeline)
    assert from_file.timeline == given.timeline == timeline
    assert (from_file.name, given.name) == (str(path), "t")
    assert read(str(path)).trips == []
    assert read(given) is given


def test_what_does_not_go_together_is_refused(tmp_path) -> None:
    timeline = _timeline([0])
    with pytest.raises(InvalidValueError, match="a run, a timeline, or one file of each rank"):
        read()
    with pytest.raises(InvalidValueError, match="a directory, a file, or a Timeline"):
        read(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="one timeline, or paths alone"):
        read(timeline, timeline)
    with pytest.raises(InvalidValueError, match="the directory of a run has all ranks"):
        read(tmp_path, tmp_path)


@pytest.mark.parametrize("prefix", ["host_17.", "rank-"])
def test_a_directory_of_traces_is_read_as_its_files(tmp_path, prefix) -> None:
    ranks = [profile(rank, [*_iteration(0), *_iteration(100)]) for rank in (0, 1)]
    paths = write(tmp_path, prefix, ranks)
    (tmp_path / "workload.json").write_text('{"kind": "workload"}')
    assert [*read(tmp_path).timeline.spans] == [*read(*paths).timeline.spans]


def test_an_empty_file_of_a_rank_is_said_and_hides_no_other_recording(tmp_path) -> None:
    """A process was killed as it began to write, or the disk was full."""
    for name in ("profiled", "captured"):
        (tmp_path / name).mkdir()
    write(tmp_path / "profiled", "host_17.", [profile(0, _iteration(0), world_size=1)])
    captured = written(tmp_path / "captured", made(2, 6))
    for folder in (tmp_path / "profiled", captured):
        (folder / "rank-0.json").touch()
        assert len(read(folder).timeline.spans) > 2
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "rank-1.json").touch()
    with pytest.raises(InvalidValueError, match=r"rank-1\.json is ''.*nothing was written yet"):
        read(plain)
    write(plain, "rank-", [recorded(0, [entry(1, 1, 5)], [(5, 6)])])
    assert f"left out: {plain / 'rank-1.json'}: it is empty" in read(plain).remarks


def test_a_compressed_trace_that_is_cut_off_is_not_passed_over(tmp_path) -> None:
    paths = write(tmp_path, "host_17.", [profile(rank, _iteration(0)) for rank in (0, 1)])
    paths[1].write_bytes(gzip.compress(paths[1].read_bytes())[:-200])
    with pytest.raises(ArtifactError, match=r"host_17\.1\.json: cannot be read: Compressed file"):
        read(tmp_path)


def _alike(ranks: int, iterations: int) -> Timeline:
    """Return what simulated ranks do, all of them the same."""
    spans = Spans.of(made(1, iterations).spans)
    alike = [Alike.of(0, range(ranks))]
    return replace(made(1, iterations), world_size=ranks, spans=SharedSpans(spans, alike, ranks))


def test_the_last_iterations_of_ranks_that_do_the_same_are_of_all_ranks(monkeypatch) -> None:
    monkeypatch.setattr(reading, "_MANY", 100)
    last = latest(read(_alike(64, 12)), 6)
    assert len(last.timeline.alike[0].all) == last.timeline.world_size == 64
    assert 1 < last.timeline.ranks_in_columns < 64
    assert {span.iteration for span in last.timeline.spans} == set(range(6, 12))
    said = f"{64 - last.timeline.ranks_in_columns} of the 64 ranks do what others do"
    assert any(remark.startswith(said) for remark in last.remarks)
    assert not explain(_alike(64, 12), last=6).abstains


def test_iterations_that_are_not_whole_are_left_out_of_ranks_that_do_the_same() -> None:
    timeline = _alike(64, 12)
    there = (timeline.kept.iteration != 3) | timeline.kept.in_lanes("push")
    spans = SharedSpans(timeline.kept.take(there), timeline.alike, 64)
    cut = replace(timeline, spans=spans.few(100))
    part, between = whole(cut)
    assert between == (4, 11)
    assert missing(part) == []
    assert part.ranks_in_columns == cut.ranks_in_columns


def _sampled(timeline: Timeline, ranks: tuple[int, ...], world_size: int) -> Timeline:
    """Return what a tool tells of a larger job, of which these are the ranks."""
    spans = tuple(replace(span, rank=ranks[span.rank]) for span in timeline.spans)
    return replace(timeline, spans=spans, world_size=world_size, metadata={"tool": "a table"})


def test_ranks_of_a_larger_job_are_called_as_there() -> None:
    own = (0, 8, 16, 24)
    slow = _sampled(made(4, 6, lambda r, i: {"forward_s": 6.0} if r == 1 else {}), own, 32)
    found = explain(slow)
    assert [(one.kind, one.ranks) for one in found.causes[:1]] == [("compute", (8,))]
    assert "rank 8 computes longer" in report(slow)
    silent = tuple(s for s in slow.spans if s.rank != 16 or s.lane not in {"push", "pull"})
    assert "no push or pull is recorded of ranks 16" in str(
        explain(replace(slow, spans=silent)).abstains
    )
    drifting = _sampled(trained(ranks=4), own, 32)
    spans = tuple(
        replace(s, start_s=1.005 * s.start_s, end_s=1.005 * s.end_s) if s.rank == 24 else s
        for s in drifting.spans
    )
    drifts = explain(replace(drifting, spans=spans)).found.drifts
    assert max(drifts, key=drifts.__getitem__) == 24


def test_a_stage_that_is_not_there_is_missed_by_the_others() -> None:
    """What a stage sends to it would be taken for a message to the stage behind it."""
    timeline = replace(piped([10.0] * 4, iterations=12), metadata={"tool": "torch.profiler"})

    def of(*ranks: int) -> Explained:
        spans = tuple(span for span in timeline.spans if span.rank in ranks)
        return explain(replace(timeline, spans=spans))

    assert "nothing is recorded of ranks 1, 3, 5, 7" in of(0, 2, 4, 6).abstains[0]
    assert "nothing is recorded of ranks 4, 7" in of(5, 6).abstains[0]
    whole_one = of(4, 5, 6, 7)
    assert whole_one.abstains == ()
    assert whole_one.causes[0].kind == "pipeline"
