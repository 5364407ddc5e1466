"""Disturbed: one run of a small job in which processes are killed, and what became of it."""

from __future__ import annotations

import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from serving import processes
from serving.processes import Outcome, SmallJob
from syncopate.artifacts.artifact import Record
from syncopate.protocol.rules import Rules

SERVER, COUNTED = "a server, ssgd", "a server, asgd"
LEADER = "the scheduler, ssgd"
TOGETHER, TOGETHER_COUNTED = "several at once, ssgd", "several at once, asgd"
STOPPED = "stopped for a while, ssgd"
ABORT, CONTINUE = "a worker, abort", "a worker, continue"
CASES = (SERVER, COUNTED, LEADER, TOGETHER, TOGETHER_COUNTED, STOPPED, ABORT, CONTINUE)
"""What happens to which processes, under which rules; run n has case n modulo their number."""

SAME_BITS = "all went on, same bits"
WENT_ON = "the others went on, same bits"
NAMED = "all ended, the lost worker named"
MOOT = "the kill came too late, same bits"

LIMIT_S = 60.0
_END_S = 15.0
_LONGEST_DELAY_S = 0.02
_LONGEST_REST_S = 0.3
_LONGEST_STOP_S = 1.5 * processes.LIMITS.silence_s
WIRE = "drop=0.02,duplicate=0.05,delay=0.01,seed={}"
"""What happens to messages between workers and servers where the wire is bad, by a seed."""

_POLL_S = 0.0005


class Kill(Record, frozen=True, kw_only=True):
    """Processes that are killed with -9 at one moment, or stopped for a while.

    Attributes:
        victims: their names.
        progress: of the worker ``watched`` that is waited for; 0: none.
        watched: a worker's rank.
        delay_s: how long after that.
        rests_s: for each victim, how long until it is started again, or goes on.
        recovered_s: from then until all workers that were left had done two more steps, or ended.
    """

    victims: tuple[str, ...]
    progress: int
    watched: int
    delay_s: float
    rests_s: tuple[float, ...] = ()
    recovered_s: float = 0.0


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


class Found(NamedTuple):
    """What one run is judged by.

    Attributes:
        workers: how those ended that were not killed, by name.
        others: how scheduler and servers ended, by name.
        moot: whether a victim had ended before.
        progress: of each worker when the last kill came.
        restarted: names of those that were started again.
        kills: with the seconds of each recovery.
    """

    workers: dict[str, Outcome]
    others: dict[str, Outcome]
    moot: bool = False
    progress: tuple[int, ...] = ()
    restarted: frozenset[str] = frozenset()
    kills: tuple[Kill, ...] = ()


def planned(seed: int, number: int) -> Run:
    """Return what shall happen in a run: the same for the same seed and number."""
    chance = random.Random(f"{seed}/{number}")
    case = CASES[number % len(CASES)]
    at_worker = case in (ABORT, CONTINUE)
    first = processes.JOINED if at_worker else 0
    moments = sorted(chance.randint(first, processes.END - 1) for _ in range(chance.randint(1, 3)))
    kills = [_drawn(chance, case, moment) for moment in moments[: 1 if at_worker else None]]
    if at_worker:  # the one that is killed is the one that is watched: the other may wait for it
        kills = [structs.replace(k, watched=processes.rank_of(k.victims[0])) for k in kills]
    wire = WIRE.format(number) if chance.random() < 1 / 3 else ""
    return Run(number=number, case=case, kills=tuple(kills), wire=wire)


def _drawn(chance: random.Random, case: str, moment: int) -> Kill:
    victims = _victims(chance, case)
    longest_s = _LONGEST_STOP_S if case == STOPPED else _LONGEST_REST_S
    return Kill(
        victims=victims,
        progress=moment,
        watched=chance.randrange(processes.WORKERS),
        delay_s=chance.uniform(0, _LONGEST_DELAY_S),
        rests_s=tuple(chance.uniform(0, longest_s) for _ in victims),
    )


def _victims(chance: random.Random, case: str) -> tuple[str, ...]:
    servers = [processes.server(rank) for rank in range(processes.SERVERS)]
    workers = [processes.worker(rank) for rank in range(processes.WORKERS)]
    if case == LEADER:
        return (processes.SCHEDULER,)
    if case in (TOGETHER, TOGETHER_COUNTED):
        some = [processes.SCHEDULER, *servers]
        return tuple(chance.sample(some, chance.randint(2, len(some))))
    if case == STOPPED:
        return (chance.choice([processes.SCHEDULER, *servers, *workers]),)
    return (chance.choice(workers if case in (ABORT, CONTINUE) else servers),)


def rules_of(case: str) -> Rules:
    """Return the rules of a case."""
    if case in (COUNTED, TOGETHER_COUNTED):
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
    alike = dict.fromkeys((LEADER, TOGETHER, STOPPED), found[SERVER])
    return found | alike | {TOGETHER_COUNTED: found[COUNTED], ABORT: found[CONTINUE]}


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
        kills=found.kills,
        progress=found.progress,
        duration_s=time.monotonic() - began_s,
    )


def judged(run: Run, found: Found, expected: str) -> tuple[str, str]:
    """Return the outcome, or else the violation."""
    wrong = _wrong(found, expected)
    if wrong:
        return "", wrong
    finished = all(outcome.kind == "result" for outcome in found.workers.values())
    if run.case not in (ABORT, CONTINUE):
        outcome = SAME_BITS if finished else ""
    else:
        outcome = _without(run, found, finished)
    return (outcome, "") if outcome else ("", _said(found.workers))


def _wrong(found: Found, expected: str) -> str:
    """Return what must never happen, whichever process was killed."""
    for name, outcome in found.workers.items():
        if outcome.kind == "late":
            return f"{name} hangs"
        if outcome.kind == "result" and outcome.value != expected:
            return f"{name} ended with other weights"
    # One killed in the last step may come back to a job that is over, and wait for another.
    over = min(found.progress) >= processes.END - 1
    for name, outcome in found.others.items():
        if outcome.kind == "late" and not (over and name in found.restarted):
            return f"{name} goes on"
        if outcome.kind in ("bug", "dead"):
            return f"{name}: {outcome.kind}: {outcome.value}"
    return ""


def _without(run: Run, found: Found, finished: bool) -> str:
    """Return the outcome of a run that lost a worker; empty: none of the good ones."""
    victim = run.kills[0].victims[0]
    progress = found.progress[processes.rank_of(victim)]
    if finished:
        # A worker whose pushes were all over is not missed, if its last words were heard.
        moot = found.moot or progress >= processes.END
        went_on = WENT_ON if run.case == CONTINUE else ""
        return MOOT if moot else went_on
    named = all(
        outcome.kind == "refused" and f"{victim} was lost" in outcome.value
        for outcome in found.workers.values()
    )
    # The first values are worker 0's: without them there is nothing to go on with.
    early = victim == processes.worker(0) and progress < processes.DECLARED
    return NAMED if named and (run.case == ABORT or early) else ""


def _said(workers: Mapping[str, Outcome]) -> str:
    said = (f"{name}: {o.kind}: {o.value}" for name, o in workers.items())
    return "; ".join(said)


def _happened(run: Run, state: Path) -> Found:
    """Start all processes, do to them what the plan says, and wait for the end."""
    until_s = time.monotonic() + LIMIT_S
    with SmallJob(rules_of(run.case), state) as job:
        if run.case in (COUNTED, TOGETHER_COUNTED):
            job.work(processes.count, wire=run.wire)
        else:
            job.work(processes.train, run.case in (ABORT, CONTINUE), wire=run.wire)
        moot, watches = False, []
        progress = tuple(job.progress)
        for kill in run.kills:
            while job.progress[kill.watched] < kill.progress and time.monotonic() < until_s:
                time.sleep(_POLL_S)
            time.sleep(kill.delay_s)
            progress = tuple(job.progress)
            watches.append(Recovery(job, kill))
            moot = not _struck(job, kill, run.case) or moot
        dead = run.kills[0].victims if run.case in (ABORT, CONTINUE) and run.kills else ()
        found = found_at_end(job, until_s, dead)
        kills = tuple(watch.kill() for watch in watches)
    again = () if dead or run.case == STOPPED else [name for k in run.kills for name in k.victims]
    return found._replace(moot=moot, progress=progress, restarted=frozenset(again), kills=kills)


def found_at_end(job: SmallJob, until_s: float, dead: Sequence[str] = ()) -> Found:
    """Wait for the workers until a time of the monotonic clock, then a little for the others."""
    workers = [n for n in job.processes if processes.is_worker(n) and n not in dead]
    ended = {name: job.processes[name].outcome(until_s) for name in workers}
    end_s = time.monotonic() + _END_S
    others = [name for name in job.processes if not processes.is_worker(name)]
    return Found(ended, {name: job.processes[name].outcome(end_s) for name in others})


def _struck(job: SmallJob, kill: Kill, case: str) -> bool:
    """Kill or stop, and let those go on that shall; return whether all ran before."""
    stopped = case == STOPPED
    ran = [
        job.processes[name].send(signal.SIGSTOP) if stopped else job.processes[name].kill()
        for name in kill.victims
    ]
    if case in (ABORT, CONTINUE):
        return all(ran)
    began_s = time.monotonic()
    for rest_s, name, did in sorted(zip(kill.rests_s, kill.victims, ran, strict=True)):
        time.sleep(max(0.0, began_s + rest_s - time.monotonic()))
        if stopped:
            job.processes[name].send(signal.SIGCONT)
        elif did:
            job.start(name)
    return all(ran)


class Recovery:
    """How long the workers that are left take until they have done two more steps, or ended."""

    def __init__(self, job: SmallJob, kill: Kill, over: Callable[[], bool] | None = None) -> None:
        """Begin before the kill.

        Args:
            job: all processes.
            kill: what is to happen.
            over: says whether no worker goes on, where killed ones come back; else each is waited
                for while it runs.
        """
        self._over = over
        self._job, self._kill = job, kill
        self._began_s = time.monotonic()
        self._goals = [min(done + 2, processes.END) for done in job.progress]
        self._recovered_s = 0.0
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def kill(self) -> Kill:
        """Return the kill with its recovery; the workers have ended."""
        self._thread.join()
        return structs.replace(self._kill, recovered_s=self._recovered_s)

    def _wait(self) -> None:
        last_s = self._began_s + LIMIT_S
        for rank, goal in enumerate(self._goals):
            while self._job.progress[rank] < goal and self._runs(rank):
                if time.monotonic() > last_s:
                    break
                time.sleep(_POLL_S)
        self._recovered_s = time.monotonic() - self._began_s

    def _runs(self, rank: int) -> bool:
        if self._over is not None:
            return not self._over()
        return self._job.processes[processes.worker(rank)].runs()
