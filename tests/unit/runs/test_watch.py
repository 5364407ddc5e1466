"""Watching a run: figures of each rank, the worst cause, and a run that stands still."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from syncopate.analysis.ranks.by_rank import by_rank
from syncopate.errors import ArtifactError, InvalidValueError
from syncopate.runs import watch as module
from syncopate.runs.watch import Watch, line_of, watch
from tests.unit.analysis.made import made
from tests.unit.analysis.troubled import slow_backward, trained
from tests.unit.analysis.written import written


def test_figures_of_each_rank_are_those_of_its_spans():
    """Rank 1 computes 4 s longer; for 1 of them the others wait with a message that moves."""
    timeline = made(4, 6, lambda r, i: {"forward_s": 6.0} if r == 1 else {})
    figures = by_rank(timeline)
    assert [one.rank for one in figures] == [0, 1, 2, 3]
    assert {one.iteration for one in figures} == {5}
    assert {round(one.step_s, 6) for one in figures} == {13.0}
    assert [round(one.waiting_s, 6) for one in figures] == [3.0, 0.0, 3.0, 3.0]
    assert figures[0].bus_bytes_per_s == pytest.approx(figures[1].bus_bytes_per_s)


def test_a_look_has_the_last_iterations_the_plan_and_the_worst_cause(tmp_path: Path):
    found = watch(written(tmp_path / "a", trained([slow_backward(2)])), last=12)
    assert (found.iteration, len(found.ranks)) == (23, 4)
    assert found.plan == "allreduce"
    assert found.cause.startswith("rank 2 computes longer than the others")
    waits = {one.rank: one.waiting_s for one in found.ranks}
    assert max(waits, key=waits.__getitem__) != 2
    assert f"{tmp_path / 'a'}: iteration 23, step " in str(found)


def test_a_line_of_json_has_everything(tmp_path: Path):
    line = line_of(watch(written(tmp_path / "a", trained())))
    assert line.count(b"\n") == 1
    said = json.loads(line)
    assert [row["rank"] for row in said["ranks"]] == [0, 1, 2, 3]
    assert {"step_s", "waiting_s", "exposed_s", "nbytes", "bus_bytes_per_s"} <= set(
        said["ranks"][0]
    )
    assert said["iteration"] == 23


def test_a_run_that_goes_on_is_seen_to(tmp_path: Path):
    long, short = trained(iterations=24), trained(iterations=10)
    directory = written(tmp_path / "a", short)
    one = Watch(directory, last=5)
    assert one.look().iteration == 9
    for path in written(tmp_path / "b", long).iterdir():
        path.replace(directory / path.name)
    assert one.look().iteration == 23


def test_a_run_that_stands_still_is_said_to_with_who_wrote_last(tmp_path, monkeypatch):
    timeline = trained(ranks=2, iterations=9)
    behind = [s for s in timeline.spans if s.rank == 0 or s.iteration < 7]
    directory = written(tmp_path / "a", type(timeline)(**{
        **{f: getattr(timeline, f) for f in ("name", "source", "world_size", "metadata")},
        "spans": tuple(behind),
    }))  # fmt: skip
    one = Watch(directory)
    assert one.look().quiet == ""
    past_s = time.time() - 40.0
    for path in directory.iterdir():
        os.utime(path, (past_s, past_s))
    found = one.look()
    assert found.quiet_s == pytest.approx(40.0, abs=30.0)
    assert found.quiet.startswith("no new iteration for 4")
    assert found.quiet.endswith(
        "rank 0 is the last that wrote, of iteration 8; rank 1 came to iteration 6 alone"
    )


def test_a_cause_is_looked_for_once_for_each_iteration(tmp_path, monkeypatch):
    calls = []
    explained = module.explain
    monkeypatch.setattr(module, "explain", lambda *a, **k: calls.append(1) or explained(*a, **k))
    one = Watch(written(tmp_path / "a", trained()))
    assert one.look().cause == one.look().cause
    assert len(calls) == 1


def test_what_is_not_there_yet_is_said(tmp_path: Path):
    one = Watch(tmp_path / "new")
    assert one.waits_for.startswith(f"{tmp_path / 'new'} does not exist yet")
    assert one.look().remarks == (one.waits_for,)
    (tmp_path / "new").mkdir()
    assert "holds no file of a rank yet" in one.waits_for
    with pytest.raises(ArtifactError, match="holds no file of a rank yet"):
        watch(tmp_path / "new")


def test_no_directory_and_no_iterations_are_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match="no directory"):
        Watch(tmp_path / "file")
    with pytest.raises(InvalidValueError, match="last is 0"):
        Watch(tmp_path, last=0)
