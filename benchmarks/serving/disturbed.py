"""Disturbed: one run of a small job in which processes are killed, and what became of it."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from serving import processes
from serving.processes import Child, Outcome, SmallJob
from syncopate.artifacts.artifact import Record
from syncopate.protocol.rules import Rules

SERVER, COUNTED = "server, ssgd", "server, asgd"
ABORT, CONTINUE = "worker, abort", "worker, continue"
CASES = (SERVER, COUNTED, SERVER, ABORT, CONTINUE)
"""Which processes are killed, and under which rules; run n has case n modulo their number."""

SAME_BITS = "all went on, same bits"
WENT_ON = "the others went on, same bits"
NAMED = "all ended, the lost worker named"
SCHEDULER = "the scheduler"
MOOT = "the kill came too late, same bits"

LIMIT_S = 60.0
_END_S = 15.0
_LONGEST_DELAY_S = 0.02
_LONGEST_REST_S = 0.3
_WIRE = "drop=0.02,duplicate=0.05,delay=0.01,seed={}"
_POLL_S = 0.0005


class Kill(Record, frozen=True, kw_only=True):
    """A process that is killed with -9.

    Attributes:
        rank: of the server or worker.
        progress: of the worker ``watched`` that is waited for; 0: none.
        watched: a worker's rank.
        delay_s: how long after that.
        rest_s: how long until a server is started again.
    """

    rank: int
    progress: int
    watched: int
    delay_s: float
    rest_s: float = 0.0


class Run(Record, frozen=True, kw_only=True):
    """One run and what became of it.

    Attributes:
        number: its number, which says with the seed what happened to whom.
        case: one of :data:`CASES`.
        kills: in their order.
        wire: what was lost, doubled and late between workers and servers; empty: nothing.
        outcome: one of the good ones; empty where there is a violation.
        violation: what should not have happened; empty: nothing.
        progress: of each worker when the last kill came.
        duration_s: of the whole run.
    """

    number: int
    case: str
    kills: tuple[Kill, ...]
    wire: str = ""
    outcome: str = ""
    violation: str = ""
    progress: tuple[int, ...] = ()
    duration_s: float = 0.0


class _Found(NamedTuple):
    """What one run is judged by.

    Attributes:
        workers: how those ended that were not killed, by rank.
        moot: whether a victim had ended before.
        progress: of each worker when the last kill came.
        others: how scheduler and servers ended, by name.
        restarted: names of the servers that were started again.
    """

    workers: dict[int, Outcome]
    moot: bool
    progress: tuple[int, ...]
    others: dict[str, Outcome]
    restarted: frozenset[str] = frozenset()


def planned(seed: int, number: int) -> Run:
    """Return what shall happen in a run: the same for the same seed and number."""
    chance = random.Random(f"{seed}/{number}")
    case = CASES[number % len(CASES)]
    at_server = case in (SERVER, COUNTED)
    first = 0 if at_server else processes.JOINED
    moments = sorted(chance.randint(first, processes.END - 1) for _ in range(chance.randint(1, 3)))
    kills = [
        Kill(
            rank=chance.randrange(processes.SERVERS if at_server else processes.WORKERS),
            progress=moment,
            watched=chance.randrange(processes.WORKERS),
            delay_s=chance.uniform(0, _LONGEST_DELAY_S),
            rest_s=chance.uniform(0, _LONGEST_REST_S) if at_server else 0.0,
        )
        for moment in (moments if at_server else moments[:1])
    ]
    if not at_server:  # who is killed is who is watched: the other may wait for it
        kills = [structs.replace(kill, watched=kill.rank) for kill in kills]
    wire = _WIRE.format(number) if chance.random() < 1 / 3 else ""
    return Run(number=number, case=case, kills=tuple(kills), wire=wire)


def rules_of(case: str) -> Rules:
    """Return the rules of a case."""
    if case == COUNTED:
        return processes.ASYNCHRONOUS
    loss = "continue" if case == CONTINUE else "abort"
    return structs.replace(processes.SYNCHRONOUS, on_worker_loss=loss)


def references() -> dict[str, str]:
    """Return for each case the hash of the weights of an undisturbed run.

    Raises:
        RuntimeError: such a run failed.
    """
    found = {COUNTED: processes.counted()}
    for case in (SERVER, CONTINUE, COUNTED):
        run = Run(number=-1, case=case, kills=())
        with tempfile.TemporaryDirectory() as state:
            outcomes = _happened(run, Path(state)).workers.values()
        values = {outcome.value for outcome in outcomes if outcome.kind == "result"}
        expected = found.setdefault(case, next(iter(values), ""))
        if values != {expected} or len(outcomes) != processes.WORKERS:
            raise RuntimeError(f"an undisturbed run ({case}) went wrong: {outcomes}")
    return found | {ABORT: found[CONTINUE]}


def disturbed(run: Run, expected: Mapping[str, str]) -> Run:
    """Let a planned run happen; return it with what became of it."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as state:
        found = _happened(run, Path(state))
    outcome, violation = judged(run, found, expected[run.case])
    return structs.replace(
        run,
        outcome=outcome,
        violation=violation,
        progress=found.progress,
        duration_s=time.monotonic() - began_s,
    )


def judged(run: Run, found: _Found, expected: str) -> tuple[str, str]:
    """Return the outcome, or else the violation."""
    wrong = _wrong(found, expected)
    if wrong:
        return "", wrong
    finished = all(outcome.kind == "result" for outcome in found.workers.values())
    if run.case in (SERVER, COUNTED):
        outcome = SAME_BITS if finished else ""
    else:
        outcome = _without(run, found, finished)
    return (outcome, "") if outcome else ("", _said(found.workers))


def _wrong(found: _Found, expected: str) -> str:
    """Return what must never happen, whichever process was killed."""
    for rank, outcome in found.workers.items():
        if outcome.kind == "late":
            return f"worker {rank} hangs"
        if outcome.kind == "result" and outcome.value != expected:
            return f"worker {rank} ended with other weights"
    # A server killed in the last step may come back to a job that is over, and wait for another.
    over = min(found.progress) >= processes.END - 1 and found.others[SCHEDULER].kind == "result"
    for name, outcome in found.others.items():
        if outcome.kind == "late" and not (over and name in found.restarted):
            return f"{name} goes on"
        if outcome.kind in ("bug", "dead"):
            return f"{name}: {outcome.kind}: {outcome.value}"
    return ""


def _without(run: Run, found: _Found, finished: bool) -> str:
    """Return the outcome of a run that lost a worker; empty: none of the good ones."""
    victim = run.kills[0].rank
    if finished:
        # A worker whose pushes were all over is not missed, if its last words were heard.
        moot = found.moot or found.progress[victim] >= processes.END
        went_on = WENT_ON if run.case == CONTINUE else ""
        return MOOT if moot else went_on
    named = all(
        outcome.kind == "refused" and f"worker {victim} was lost" in outcome.value
        for outcome in found.workers.values()
    )
    # The first values are worker 0's: without them there is nothing to go on with.
    early = victim == 0 and found.progress[0] < processes.DECLARED
    return NAMED if named and (run.case == ABORT or early) else ""


def _said(workers: Mapping[int, Outcome]) -> str:
    said = (f"worker {rank}: {o.kind}: {o.value}" for rank, o in workers.items())
    return "; ".join(said)


def _happened(run: Run, state: Path) -> _Found:
    """Start all processes, kill those that the plan names, and wait for the end."""
    until_s = time.monotonic() + LIMIT_S
    with SmallJob(rules_of(run.case), state) as job:
        if run.case == COUNTED:
            job.work(processes.count, wire=run.wire)
        else:
            job.work(processes.train, run.case != SERVER, wire=run.wire)
        at_server = run.case in (SERVER, COUNTED)
        moot, restarted = False, set()
        progress = tuple(job.progress)
        for kill in run.kills:
            while job.progress[kill.watched] < kill.progress and time.monotonic() < until_s:
                time.sleep(_POLL_S)
            time.sleep(kill.delay_s)
            victims = job.servers if at_server else job.workers
            ran = victims[kill.rank].kill()
            moot = moot or not ran
            progress = tuple(job.progress)
            if at_server and ran:
                time.sleep(kill.rest_s)
                job.restart(kill.rank)
                restarted.add(f"server {kill.rank}")
        dead = set() if at_server else {kill.rank for kill in run.kills}
        alive = {rank: child for rank, child in enumerate(job.workers) if rank not in dead}
        workers = {rank: child.outcome(until_s) for rank, child in alive.items()}
        others: dict[str, Child] = {SCHEDULER: job.scheduler}
        others |= {f"server {rank}": child for rank, child in enumerate(job.servers)}
        end_s = time.monotonic() + _END_S
        ends = {name: child.outcome(end_s) for name, child in others.items()}
    return _Found(workers, moot, progress, ends, frozenset(restarted))
