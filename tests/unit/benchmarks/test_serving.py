"""The parameter server's benchmarks: what is counted, what is kept, and what is a violation."""

from __future__ import annotations

import random

import pytest
import torch
from msgspec import structs

from syncopate.errors import ArtifactError
from syncopate.units import MIB
from tests.scripts import scripts


@pytest.fixture(scope="module")
def serving():
    with scripts("serving", "serving.disturbed", "serving.nonsense", "serving.work") as found:
        yield found[0]


def test_the_busiest_link_is_a_worker_s_or_that_of_the_server_with_most(serving):
    work = serving.work
    sets = {"large": {"large": torch.zeros(16 * MIB // 4)}}
    for workers, servers, mib in ((1, 1, 16), (4, 1, 64), (4, 2, 32), (4, 3, 32), (4, 4, 16)):
        layout = work.layout_of(sets, servers)
        assert work.busiest_bytes(layout, ["large"], workers, servers) == mib * MIB
    assert work.busiest_bytes(work.layout_of(sets, 4), ["large"], 1, 4) == 16 * MIB


def test_the_model_has_102_mb(serving):
    setting = serving.work.setting_of(quick=False, rate="1gbit")
    assert setting.model_bytes == 4 * 25_557_032
    assert setting.large_bytes == 16 * MIB


def test_a_stopped_measurement_goes_on_where_it_was(serving, tmp_path):
    work = serving.work
    path, setting = tmp_path / "it.json", work.setting_of(quick=True, rate="1gbit")
    cell = work.Cell(
        place="lab",
        contender="syncopate",
        workers=1,
        servers=1,
        what="large",
        operation="push",
        samples_s=(1.0,),
    )
    other = structs.replace(cell, operation="pull", samples_s=(5.0,))
    results = work.resumed(path, setting).joined([cell, other])
    results.save(path)
    results = work.resumed(path, setting).joined([structs.replace(cell, samples_s=(3.0,))])
    assert [found.samples_s for found in results.cells] == [(1.0, 3.0), (5.0,)]
    assert results.cells[0].median_s == 2.0
    assert (results.rounds("lab"), results.rounds("loopback")) == (1, 0)
    with pytest.raises(ArtifactError, match=r"with rate .*another file"):
        work.resumed(path, structs.replace(setting, rate="2gbit"))


def test_seed_and_number_say_what_happens(serving):
    disturbed = serving.disturbed
    runs = [disturbed.planned(3, number) for number in range(200)]
    assert runs == [disturbed.planned(3, number) for number in range(200)]
    assert runs[0].kills != disturbed.planned(4, 0).kills
    assert {run.case for run in runs} == set(disturbed.CASES)
    assert 0 < sum(bool(run.wire) for run in runs) < 200
    for run in runs:
        moments = [kill.progress for kill in run.kills]
        assert moments == sorted(moments)
        if run.case in (disturbed.ABORT, disturbed.CONTINUE):
            assert [(f"worker {kill.watched}",) for kill in run.kills] == [run.kills[0].victims]
        if run.case in (disturbed.TOGETHER, disturbed.TOGETHER_COUNTED):
            assert all(len(set(kill.victims)) >= 2 for kill in run.kills)


def verdict(serving, case, *workers, progress=(9, 9), others=(), restarted=()):
    """Return what is said of a run in which worker 1, or a server, was killed."""
    disturbed, outcome = serving.disturbed, serving.processes.Outcome
    kill = disturbed.Kill(victims=("worker 1",), progress=5, watched=0, delay_s=0.0)
    run = disturbed.Run(number=0, case=case, kills=(kill,))
    ends = {"scheduler": outcome("result"), "server 0": outcome("result", {})}
    found = disturbed.Found(
        workers={f"worker {rank}": outcome(*said) for rank, said in enumerate(workers)},
        moot=False,
        progress=progress,
        others=ends | {name: outcome(kind) for name, kind in others},
        restarted=frozenset(restarted),
    )
    return disturbed.judged(run, found, "right")


def test_a_killed_server_must_leave_no_trace(serving):
    case = serving.disturbed.SERVER
    right = ("result", "right")
    assert verdict(serving, case, right, right) == (serving.disturbed.SAME_BITS, "")
    assert "other weights" in verdict(serving, case, right, ("result", "wrong"))[1]
    assert "worker 1 hangs" in verdict(serving, case, right, ("late",))[1]
    assert "refused: lost" in verdict(serving, case, right, ("refused", "lost"))[1]
    late = [("server 0", "late")]
    assert verdict(serving, case, right, right, others=late)[1] == "server 0 goes on"
    last = serving.processes.END - 1
    after = {"others": late, "progress": (last, last), "restarted": ["server 0"]}
    assert verdict(serving, case, right, right, **after)[0] == serving.disturbed.SAME_BITS


def test_a_killed_worker_is_named_or_the_others_go_on(serving):
    disturbed, end = serving.disturbed, serving.processes.END
    right, named = ("result", "right"), ("refused", "worker 1 was lost: silent for 4.0 s")
    assert verdict(serving, disturbed.ABORT, named) == (disturbed.NAMED, "")
    assert verdict(serving, disturbed.CONTINUE, right) == (disturbed.WENT_ON, "")
    assert verdict(serving, disturbed.ABORT, right)[1] == "worker 0: result: right"
    assert verdict(serving, disturbed.ABORT, right, progress=(end, end))[0] == disturbed.MOOT
    assert "worker 1 was lost" in verdict(serving, disturbed.CONTINUE, named)[1]
    assert "something" in verdict(serving, disturbed.ABORT, ("refused", "something"))[1]


def test_nonsense_follows_from_the_seed(serving):
    first, second = (random.Random(1) for _ in range(2))
    found = [serving.nonsense.nonsense(first) for _ in range(100)]
    assert found == [serving.nonsense.nonsense(second) for _ in range(100)]
    assert {len(frames) for frames in found} == {1, 2, 8}
