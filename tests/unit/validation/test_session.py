"""Session: cells in turn, without a lab: what is kept, told, and left out."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import syncopate
from syncopate.artifacts.timeline import Span, Timeline
from syncopate.errors import ArtifactError, InvalidValueError, SyncopateError
from syncopate.validation import session, validate
from syncopate.validation.expected import plan_of, predicted_s
from syncopate.validation.grid import POINTS, cells
from syncopate.validation.job import QUICK, Job, Told
from syncopate.validation.point import GPU, LAB, Validation
from syncopate.validation.session import Session
from tests.unit.validation.test_expected import calibrated, home
from tests.unit.validation.test_grid import cell

ONE, TWO = cell(rate="1gbit"), cell(rate="2gbit")
Answer = Callable[[Job], Any]


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], list[Job]]:
    """Make labs whose ranks answer a job as told; return the jobs so far."""

    def install(answer: Answer) -> list[Job]:
        jobs: list[Job] = []

        def run(command: list[str], **_: object) -> SimpleNamespace:
            job = Job.load(command[-1])
            jobs.append(job)
            return answer(job)

        monkeypatch.setattr(session, "Lab", lambda _: nullcontext(SimpleNamespace(run=run)))
        return jobs

    monkeypatch.setattr(session, "read_run", lambda _: SimpleNamespace(timeline=captured()))
    return install


def captured() -> Timeline:
    """Two iterations of one rank: 2 s of backward, a push of 2 s of which 1 s is exposed."""
    spans = [
        Span(name=name, lane=lane, rank=0, iteration=i, start_s=10.0 * i + a, end_s=10.0 * i + b)
        for i in range(2)
        for name, lane, a, b in (("backward", "backward", 0, 2), ("bucket 0", "push", 1, 3))
    ]
    return Timeline(name="captured", world_size=1, source="measured", spans=tuple(spans))


def ended(**changes: object) -> SimpleNamespace:
    usual = {"received": None, "exit_code": 0, "summary": lambda: "4 ranks finished"}
    return SimpleNamespace(**(usual | changes))


def trained(job: Job) -> SimpleNamespace:
    """Answer as ranks that take 1 s, and rank 3 half a second longer."""
    for rank in range(job.workers):
        mine = (1.5, 1.0) if rank == 3 else (1.0, 1.2)
        Told(samples_s=mine).save(job.told(rank))
    return ended()


def in_turn(*answers: Answer) -> Answer:
    """Answer the first job by the first, and so on."""
    left = iter(answers)

    def answer(job: Job) -> Any:
        return next(left)(job)

    return answer


def measured(answer: Answer) -> Answer:
    """Answer a calibration too."""

    def both(job: Job) -> Any:
        if job.plan is not None:
            return answer(job)
        for rank in range(job.workers):
            told = Told(cluster=calibrated(4), workloads=home().workloads)
            told.save(job.told(rank))
        return ended()

    return both


def test_hosts_are_calibrated_once_and_each_turn_is_the_slowest_ranks(lab, tmp_path):
    jobs = lab(measured(trained))
    kept: list[Validation] = []
    told: list[str] = []
    found = Session(QUICK, kept.append, tmp_path).measure(
        [ONE, TWO], Validation(), lambda what, _: told.append(what)
    )
    # Each cell without limits too, and again.
    assert [job.work for job in jobs] == ["", *["replayed"] * 8]
    assert [point.name for point in found.points] == [ONE.name, TWO.name]
    assert found.points[0].samples_s == found.points[0].again_s == (1.5, 1.2)
    assert found.points[0].calibrated == "4 hosts x 1 rank at 700.00 Mbit/s"
    assert [len(one.points) for one in kept] == [0, 1, 2]
    assert told == ["calibrating 4 hosts", ONE.name, TWO.name, ""]
    assert list(tmp_path.iterdir()) == []


def test_phases_are_of_what_was_captured_and_of_what_was_played(lab, tmp_path):
    lab(measured(trained))
    point = Session(QUICK, print, tmp_path).point(ONE, home())
    found = {phase.name: phase for phase in point.phases}
    assert [phase.measured_s for phase in found.values()] == [2.0, 2.0, 1.0]
    assert point.unlimited is not None
    assert point.unlimited.measured_s == statistics.median(point.samples_s)
    plan = plan_of(ONE, home())
    assert point.unlimited.predicted_s == predicted_s(ONE.unlimited, plan, home())
    assert found["computation"].predicted_s == pytest.approx(point.prediction.compute_s, rel=0.01)


def test_a_stop_keeps_what_was_done(lab, tmp_path):
    """The second cell is interrupted."""
    lab(measured(in_turn(*[trained] * 4, lambda _: ended(received=2, exit_code=130))))
    kept: list[Validation] = []
    with pytest.raises(KeyboardInterrupt):
        Session(QUICK, kept.append, tmp_path).measure([ONE, TWO], Validation())
    assert [point.name for point in kept[-1].points] == [ONE.name]


def test_a_cell_that_cannot_be_measured_says_why_and_the_others_go_on(lab, tmp_path):
    def failed(job: Job) -> SimpleNamespace:
        for rank in range(job.workers):
            Told(error="EngineError: no" if rank == 1 else "").save(job.told(rank))
        return ended(exit_code=1)

    lab(measured(in_turn(failed, *[trained] * 4)))
    found = Session(QUICK, print, tmp_path).measure([ONE, TWO], Validation())
    assert found.missing == {ONE.name: "EngineError: no"}
    assert [point.name for point in found.points] == [TWO.name]
    lab(measured(trained))
    assert Session(QUICK, print, tmp_path).measure([ONE], found).missing == {}


def test_ranks_that_tell_nothing_are_summed_up(lab, tmp_path):
    lab(measured(lambda _: ended(exit_code=3, summary=lambda: "rank 1 exited with code 3")))
    with pytest.raises(SyncopateError, match="rank 1 exited with code 3"):
        Session(QUICK, print, tmp_path).point(ONE, home())


def test_published_points_need_no_lab_and_what_a_file_holds_stays(tmp_path):
    path = tmp_path / "v.json"
    found = syncopate.validate(path)
    assert (len(found.of(GPU)), found.of(LAB)) == (27, ())
    assert Validation.load(path) == found
    with pytest.raises(InvalidValueError, match="0 to 280"):
        syncopate.validate(points=281)


def test_only_what_is_missing_is_measured(monkeypatch, lab, tmp_path):
    """All cells but the first have four hosts' home: only their number and names count here."""
    path = tmp_path / "v.json"
    monkeypatch.setattr(validate.support, "require", lambda: None)
    monkeypatch.setattr(validate, "cells", lambda: (ONE, TWO))
    jobs = lab(measured(trained))
    first = syncopate.validate(path, points=1)
    assert [point.name for point in first.of(LAB)] == [ONE.name]
    both = syncopate.validate(path, points=2)
    assert [point.name for point in both.of(LAB)] == [ONE.name, TWO.name]
    assert len(jobs) == 1 + 2 * 4
    assert json.loads(path.read_text())["metadata"]["cores"] == str(os.cpu_count())
    # Anew: the calibration and both cells.
    path.write_text('{"kind":"validation","schema_version":1}')  # of an earlier version
    with pytest.raises(ArtifactError, match="version 1 is not readable"):
        syncopate.validate(path, points=2)
    assert len(syncopate.validate(path, points=2, again=True).of(LAB)) == 2
    assert len(jobs) == 2 * (1 + 2 * 4)


def test_a_machine_without_labs_is_told_so(monkeypatch):
    def refuse() -> None:
        raise SyncopateError("a lab needs Linux")

    monkeypatch.setattr(validate.support, "require", refuse)
    with pytest.raises(SyncopateError, match="a lab needs Linux"):
        syncopate.validate(points=POINTS)
    assert len(cells()) > POINTS


def test_a_job_places_servers_behind_workers_and_the_scheduler_last(tmp_path: Path):
    topology = cell(exchange="served").topology
    addresses = tuple(topology.address(host) for host in range(topology.hosts))
    job = Job(
        folder=str(tmp_path),
        effort=QUICK,
        workers=4,
        servers=2,
        workload=home().workloads["replayed"],
        addresses=addresses,
    )
    assert job.place == [
        *("--host", "10.0.0.7", "--port", "9097", "--servers", "2", "--workers", "4", "--insecure")
    ]
