"""Partitioned: one run of a small job in which a host's cable is pulled for up to a minute.

Scheduler, servers and workers have an emulated host each, and default limits. The host may be that
of any of them. Its switch drops everything to and from it, and no one is told.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import structs

from serving import processes
from serving.disturbed import Kill, Recovery, Run, found_at_end, judged
from serving.processes import SCHEDULER, SERVERS, WORKERS, Host, SmallJob, server, worker
from syncopate.lab import Lab, Topology
from syncopate.lab.kernel import NAMESPACES, netlink
from syncopate.lab.names import host_namespace, rack_namespace
from syncopate.protocol.limits import Limits

PARTITIONED = "cut off, ssgd"
NAMES = (
    SCHEDULER,
    *(server(rank) for rank in range(SERVERS)),
    *(worker(rank) for rank in range(WORKERS)),
)
"""Of the processes; the place of each is its host."""

SHORTEST_S, LONGEST_S = 1.0, 60.0
LIMITS = Limits(slice_bytes=processes.LIMITS.slice_bytes)
_AFTER_S = 120.0
_POLL_S = 0.0005


def planned(seed: int, number: int) -> Run:
    """Return which host is cut off, when and for how long: the same for the same two numbers."""
    chance = random.Random(f"partition {seed}/{number}")
    cut = Kill(
        victims=(chance.choice(NAMES),),
        progress=chance.randint(processes.JOINED, processes.END - 1),
        watched=chance.randrange(WORKERS),
        delay_s=chance.uniform(0, 0.02),
        rests_s=(chance.uniform(SHORTEST_S, LONGEST_S),),
    )
    return Run(number=number, case=PARTITIONED, kills=(cut,))


def partitioned(run: Run, expected: str) -> Run:
    """Let a planned run happen; return it with what became of it.

    Args:
        run: as :func:`planned`.
        expected: the hash of the weights of an undisturbed run.
    """
    began_s = time.monotonic()
    (cut,) = run.kills
    host, lasts_s = NAMES.index(cut.victims[0]), cut.rests_s[0]
    with (
        Lab(Topology(hosts=len(NAMES))) as lab,
        tempfile.TemporaryDirectory() as state,
        SmallJob(processes.SYNCHRONOUS, Path(state), limits=LIMITS, hosts=_hosts(lab)) as job,
    ):
        job.work(processes.train, False)
        until_s = began_s + LIMITS.join_s
        while job.progress[cut.watched] < cut.progress and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        time.sleep(cut.delay_s)
        progress = tuple(job.progress)
        with _cut_off(lab, host):
            time.sleep(lasts_s)
        recovery = Recovery(job, cut)
        until_s = time.monotonic() + _AFTER_S
        found = found_at_end(job, until_s)._replace(progress=progress, kills=(recovery.kill(),))
    outcome, violation = judged(run, found, expected)
    return structs.replace(
        run,
        kills=found.kills,
        outcome=outcome,
        violation=violation,
        progress=progress,
        duration_s=time.monotonic() - began_s,
    )


def _hosts(lab: Lab) -> dict[str, Host]:
    return {
        name: Host(
            namespace=str(NAMESPACES / host_namespace(lab.run_id, host)),
            name=lab.topology.hostname(host),
            address=lab.topology.address(host),
        )
        for host, name in enumerate(NAMES)
    }


@contextmanager
def _cut_off(lab: Lab, host: int) -> Iterator[None]:
    """Take down the switch's port of a host."""
    with netlink(rack_namespace(lab.run_id, 0)) as switch:
        (port,) = switch.link_lookup(ifname=f"h{host}")
        switch.link("set", index=port, state="down")
        yield
        switch.link("set", index=port, state="up")
