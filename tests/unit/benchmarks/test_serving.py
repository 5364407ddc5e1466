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
    names = ("anything", "disturbed", "nonsense", "work")
    with scripts("serving", *(f"serving.{name}" for name in names)) as found:
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


def test_any_process_may_be_killed_and_all_of_them(serving):
    anything, victims = serving.anything, set()
    runs = [anything.planned(3, number) for number in range(150)]
    assert runs == [anything.planned(3, number) for number in range(150)]
    for run in runs:
        for kill in run.kills:
            assert len(set(kill.victims)) == len(kill.victims) == len(kill.rests_s)
            workers = all(map(serving.processes.is_worker, kill.victims))
            assert workers or run.case != anything.STATELESS
            victims.add(frozenset(kill.victims))
    assert max(map(len, victims)) == 5
    assert {len(each) for each in victims} == {1, 2, 3, 4, 5}


def anything_said(serving, case, *workers, progress=None, others=(), restarted=()):
    """Return what is wrong with a run in which any process was killed."""
    processes, outcome = serving.processes, serving.processes.Outcome
    found = serving.disturbed.Found(
        workers={f"worker {rank}": outcome(*said) for rank, said in enumerate(workers)},
        others={"scheduler": outcome("result")} | {n: outcome(kind) for n, kind in others},
        progress=progress or (processes.END, processes.END),
        restarted=frozenset(restarted),
    )
    return serving.anything.judged(case, found, "right", [31, 30])


def test_no_kill_may_leave_a_trace_where_workers_are_waited_for(serving):
    case, right = serving.anything.BITS, ("result", "right")
    assert anything_said(serving, case, right, right) == ""
    assert "other weights" in anything_said(serving, case, right, ("result", "wrong"))
    assert "lost" in anything_said(serving, case, right, ("refused", "lost"))
    assert "worker 1: late" in anything_said(serving, case, right, ("late",))
    late = [("server 0", "late")]
    assert "server 0: late" in anything_said(serving, case, right, right, others=late)
    again = {"others": late, "restarted": ["server 0", "worker 1"]}
    assert anything_said(serving, case, right, ("refused", "over"), **again) == ""
    assert "server 0" in anything_said(serving, case, right, right, progress=(9, 9), **again)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([(30, 31), (30, 30)], ""),
        ([(29, 30), (30, 30)], "of worker 0 from 29 to 30 pushes count"),
        ([(30, 30), (30, 31)], "of worker 1 from 30 to 31 pushes count, of 30 that it sent"),
    ],
)
def test_each_acknowledged_push_counts_once(serving, counts, words):
    said = anything_said(serving, serving.anything.TALLY, ("result", counts), ("result", counts))
    assert words in said
    assert bool(words) == bool(said)


def test_recoveries_are_told_by_what_was_killed(serving):
    disturbed = serving.disturbed
    everything = ("scheduler", "server 0", "server 1", "worker 0", "worker 1")
    kills = [
        disturbed.Kill(victims=names, progress=1, watched=0, delay_s=0.0, recovered_s=took_s)
        for names, took_s in ((everything, 5.0), (("worker 1", "server 0"), 2.0))
    ]
    run = disturbed.Run(number=0, case="", kills=tuple(kills))
    found = serving.anything.recoveries([run, run])
    assert found == {"all at once": [5.0, 5.0], "servers and workers": [2.0, 2.0]}
