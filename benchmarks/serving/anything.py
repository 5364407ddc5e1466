"""Anything: runs in which any process is killed, workers too, and started again.

The rules are ``on_worker_loss="wait"``. So a run always ends as if nothing had happened: with the
bits of an undisturbed one where updates are synchronous. Where they are asynchronous, every push
that was acknowledged is in the weights, and none twice: each worker adds ones in a place of its
own, and what it was told and what it sent bound the sum.
"""

from __future__ import annotations

import math
import random
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from serving import disturbed, processes
from serving.disturbed import Found, Kill, Run
from serving.processes import SmallJob

BITS, TALLY, STATELESS = "any, ssgd", "any, asgd", "workers, no state, ssgd"
CASES = (BITS, TALLY, STATELESS)
"""Which processes are killed, under which rules; run n has case n modulo their number."""

RIGHT = {
    BITS: "all went on, same bits",
    STATELESS: "all went on, same bits",
    TALLY: "all went on, each push once",
}

LIMIT_S = 180.0
_MOST_KILLS = 5
_ALL = 0.2
"""How often all are killed at once."""

_LATE, _LONGEST_LATE_S = 0.3, 2.0
"""How often a kill comes some time after its moment, perhaps amid the recovery from the last."""

_LONGEST_DELAY_S, _LONGEST_REST_S = 0.02, 1.0
_POLL_S = 0.0005
_NONE_S = 0.01
"""All steps were done when the kill came: it takes longer to begin again."""

_PAUSE_S = 0.03
"""After each step, so that it does not end before the kills come."""

_SPARE_S = 45.0
"""How long a process may wait that came when the job was over."""


def planned(seed: int, number: int) -> Run:
    """Return what shall happen in a run: the same for the same seed and number."""
    chance = random.Random(f"any {seed}/{number}")
    case = CASES[number % len(CASES)]
    count = chance.randint(2, _MOST_KILLS)
    moments = sorted(chance.randint(0, processes.END - 1) for _ in range(count))
    wire = disturbed.WIRE.format(number) if chance.random() < 1 / 3 else ""
    kills = [_drawn(chance, case, moment, first=not at) for at, moment in enumerate(moments)]
    return Run(number=number, case=case, kills=tuple(kills), wire=wire)


def _drawn(chance: random.Random, case: str, moment: int, *, first: bool) -> Kill:
    workers = [processes.worker(rank) for rank in range(processes.WORKERS)]
    some = list(workers)
    if case != STATELESS:
        servers = [processes.server(rank) for rank in range(processes.SERVERS)]
        some = [processes.SCHEDULER, *servers, *workers]
    count = len(some) if chance.random() < _ALL else chance.randint(1, len(some) - 1)
    late = chance.random() < _LATE and not first
    longest_s = _LONGEST_LATE_S if late else _LONGEST_DELAY_S
    return Kill(
        victims=tuple(chance.sample(some, count)),
        progress=moment,
        watched=chance.randrange(processes.WORKERS),
        delay_s=chance.uniform(0, longest_s),
        rests_s=tuple(chance.uniform(0, _LONGEST_REST_S) for _ in range(count)),
    )


def happened(run: Run, expected: str) -> Run:
    """Let a planned run happen; return it with what became of it.

    Args:
        run: the plan.
        expected: the hash of the weights of an undisturbed synchronous run.
    """
    began_s = time.monotonic()
    sent = processes.shared_flags(processes.WORKERS)
    with tempfile.TemporaryDirectory() as folder:
        found = _happened(run, None if run.case == STATELESS else Path(folder), sent)
    wrong = judged(run.case, found, expected, list(sent))
    return structs.replace(
        run,
        outcome="" if wrong else RIGHT[run.case],
        violation=wrong,
        kills=found.kills,
        progress=found.progress,
        duration_s=time.monotonic() - began_s,
    )


def judged(case: str, found: Found, expected: str, sent: Sequence[int]) -> str:
    """Return what should not have happened; empty: nothing.

    Args:
        case: one of :data:`CASES`.
        found: how all processes ended, and the progress of each worker in the end.
        expected: the hash of the weights, where updates are synchronous.
        sent: how many pushes each worker began, where they are not.
    """
    # One that was started again when the job was over finds none, or one that others have left.
    over = min(found.progress) >= processes.END
    for name, outcome in (*found.workers.items(), *found.others.items()):
        spare = over and name in found.restarted and outcome.kind in ("late", "refused")
        if outcome.kind != "result" and not spare:
            return f"{name}: {outcome.kind}: {outcome.value or 'it goes on'}"
    values = [each.value for each in found.workers.values() if each.kind == "result"]
    if not over or not values:
        return f"the workers came to {found.progress}"
    if case != TALLY:
        wrong = any(value != expected for value in values)
        return "a worker ended with other weights" if wrong else ""
    for value in values:
        for rank, (least, most) in enumerate(value):
            if not processes.STEPS <= least <= most <= sent[rank]:
                return (
                    f"of worker {rank} from {least} to {most} pushes count, of {sent[rank]} that "
                    f"it sent and {processes.STEPS} that were acknowledged"
                )
    return ""


def _happened(run: Run, state: Path | None, sent: Any) -> Found:
    """Start all processes, kill those that the plan says, and wait for the end."""
    until_s = time.monotonic() + LIMIT_S
    counts = run.case == TALLY
    rules = processes.ASYNCHRONOUS if counts else processes.SYNCHRONOUS
    rules = structs.replace(rules, on_worker_loss="wait")
    over = threading.Event()
    restarted: set[str] = set()
    with SmallJob(rules, state) as job:
        call = (processes.tally, sent, _PAUSE_S) if counts else (processes.train, False, _PAUSE_S)
        job.work(*call, wire=run.wire)
        watches = []
        for kill in run.kills:
            while job.progress[kill.watched] < kill.progress and _goes_on(job, until_s):
                time.sleep(_POLL_S)
            time.sleep(kill.delay_s)
            watch = disturbed.Recovery(job, kill, over.is_set)
            if ran := _strike(job, kill):
                watches.append((watch, ran))
                restarted.update(ran)
        found = _ends(job, restarted, until_s)
        over.set()
        kills = tuple(structs.replace(w.kill(), victims=ran) for w, ran in watches)
        progress = tuple(job.progress)
    return found._replace(progress=progress, restarted=frozenset(restarted), kills=kills)


def _ends(job: SmallJob, restarted: set[str], until_s: float) -> Found:
    """Wait for the end; not for long for those that came again when the job was over."""
    while min(job.progress) < processes.END and _goes_on(job, until_s):
        time.sleep(_POLL_S)
    if restarted:
        until_s = min(until_s, time.monotonic() + _SPARE_S)
    return disturbed.found_at_end(job, until_s)


def _goes_on(job: SmallJob, until_s: float) -> bool:
    """Say whether all workers run; else some ended well, or there is nothing to wait for."""
    workers = (job.processes[processes.worker(rank)] for rank in range(processes.WORKERS))
    return time.monotonic() < until_s and all(each.runs() for each in workers)


def _strike(job: SmallJob, kill: Kill) -> tuple[str, ...]:
    """Kill, and start again; return which ran before. None does where the workers had ended."""
    if not _goes_on(job, math.inf):
        return ()
    ran = tuple(name for name in kill.victims if job.processes[name].kill())
    began_s, rests_s = time.monotonic(), dict(zip(kill.victims, kill.rests_s, strict=True))
    for name in sorted(ran, key=rests_s.__getitem__):
        time.sleep(max(0.0, began_s + rests_s[name] - time.monotonic()))
        job.start(name)
    return ran


def recoveries(runs: Sequence[Run]) -> Mapping[str, list[float]]:
    """Return how long recoveries took, by what was killed; where steps were left to be done."""
    everything = 1 + processes.SERVERS + processes.WORKERS
    found: dict[str, list[float]] = {}
    for run in runs:
        for kill in run.kills:
            if kill.recovered_s < _NONE_S:
                continue
            roles = {name.partition(" ")[0] for name in kill.victims}
            what = (
                "all at once"
                if len(kill.victims) == everything
                else " and ".join(
                    {"scheduler": "scheduler", "server": "servers", "worker": "workers"}[role]
                    for role in sorted(roles)
                )
            )
            found.setdefault(what, []).append(kill.recovered_s)
    return found
