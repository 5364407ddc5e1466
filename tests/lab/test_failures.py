"""Hosts that die, are cut off or become slow while several kinds of work are under way.

One lab and one start of torch serve all rounds: in each, some jobs run at once, a host is lost,
and every job must end on every rank, soon, with an error that names the rank of that host.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from syncopate.lab import Lab, Topology, network
from syncopate.lab.kernel import NAMESPACES, netlink, remove_namespace
from syncopate.lab.names import host_namespace, rack_namespace
from tests.children import environment

HOSTS = 4
SILENCE_S = 3
SOON_S = 60.0
"""Bound on the end of any job after its host was lost, on a machine that others load too; in fact
4 to 8 s on an idle one."""

_AMID_S = 0.5
_SETTLED_S = 1.0

JOBS_PY = str(Path(__file__).with_name("jobs.py"))


def pull_the_cable(lab: Lab, host: int) -> None:
    """Take down the switch's port: nothing reaches the host any more, and nothing says so."""
    with netlink(rack_namespace(lab.run_id, 0)) as switch:
        (port,) = switch.link_lookup(ifname=f"h{host}")
        switch.link("set", index=port, state="down")


def plug_in(lab: Lab, host: int) -> None:
    """Undo :func:`pull_the_cable`."""
    with netlink(rack_namespace(lab.run_id, 0)) as switch:
        (port,) = switch.link_lookup(ifname=f"h{host}")
        switch.link("set", index=port, state="up")


def take_down(lab: Lab, host: int) -> None:
    """Take down the interface of the host itself."""
    with netlink(host_namespace(lab.run_id, host)) as inside:
        (link,) = inside.link_lookup(ifname="eth0")
        inside.link("set", index=link, state="down")


def bring_up(lab: Lab, host: int) -> None:
    """Undo :func:`take_down`."""
    with netlink(host_namespace(lab.run_id, host)) as inside:
        (link,) = inside.link_lookup(ifname="eth0")
        inside.link("set", index=link, state="up")


def processes_on(lab: Lab, host: int) -> set[int]:
    """Return every process of a host."""
    wanted = (NAMESPACES / host_namespace(lab.run_id, host)).stat().st_ino
    found = set()
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdigit() and (process / "ns" / "net").stat().st_ino == wanted:
                found.add(int(process.name))
    return found


def destroy(lab: Lab, host: int) -> None:
    """Kill every process of the host, and remove its network."""
    for process in processes_on(lab, host):
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
    remove_namespace(host_namespace(lab.run_id, host))


def kill_jobs(lab: Lab, host: int) -> None:
    """Kill the jobs of the host, and nothing else: its kernel closes their connections."""
    there = processes_on(lab, host)
    for process in there:
        with suppress(OSError):
            parent = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
            if parent in there:
                os.kill(process, signal.SIGKILL)


def set_rate(lab: Lab, host: int, rate_bytes_per_s: float) -> None:
    """Shape what the host sends."""
    shape = network.shape_of(rate_bytes_per_s)
    with netlink(host_namespace(lab.run_id, host)) as inside:
        (link,) = inside.link_lookup(ifname="eth0")
        inside.tc(
            "change",
            "tbf",
            index=link,
            rate=shape.rate_bytes_per_s,
            burst=shape.burst_bytes,
            limit=shape.queue_bytes,
        )


def slow_down(lab: Lab, host: int) -> None:
    """Leave the host a twentieth of its speed."""
    set_rate(lab, host, lab.topology.rate_of(host) / 20)


def speed_up(lab: Lab, host: int) -> None:
    """Undo :func:`slow_down`."""
    set_rate(lab, host, lab.topology.rate_of(host))


def nothing(lab: Lab, host: int) -> None:
    """There is nothing to undo."""


class Round(NamedTuple):
    """Jobs, and what happens to which host while they run."""

    victim: int
    jobs: str
    lose: Callable[[Lab, int], None]
    restore: Callable[[Lab, int], None] = nothing


ROUNDS = {
    "congested": Round(3, "congested", slow_down, speed_up),
    "pulled": Round(2, "ring,native,barrier,between", pull_the_cable, plug_in),
    "pulled_amid_calls": Round(2, "objects,benching,calibrating,command", pull_the_cable, plug_in),
    "cut_off": Round(0, "ring,native,barrier", take_down, bring_up),
    "killed": Round(0, "ring,native,calibrating,command", kill_jobs),
    "destroyed": Round(1, "ring,between,benching,command", destroy),
}
"""``destroyed`` comes last: that host is gone for good."""


class Driver:
    """Takes what the ranks print, and loses hosts when all jobs of a round are ready."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.results: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
        self.others: list[str] = []
        self._ready: dict[str, int] = dict.fromkeys(ROUNDS, 0)
        self._over: dict[str, int] = dict.fromkeys(ROUNDS, 0)
        self._left = list(ROUNDS)
        self._begin()

    def __call__(self, rank: int, stream: str, line: str) -> None:
        word, _, rest = line.partition(" ")
        if line.startswith('{"round"'):
            found = json.loads(line)
            self.results.setdefault((found["round"], found["job"]), {})[rank] = found
        elif word == "ready":
            title = rest.split()[0]
            self._ready[title] += 1
            if self._ready[title] == HOSTS * len(ROUNDS[title].jobs.split(",")):
                threading.Thread(target=self._lose, args=(title,)).start()
        elif word == "over":
            self._over[rest] += 1
            if self._over[rest] == HOSTS - (ROUNDS[rest].lose is destroy):
                threading.Thread(target=self._restore, args=(rest,)).start()
        else:
            self.others.append(f"[{rank}] {line}")

    def _begin(self) -> None:
        if self._left:
            (self.folder / self._left.pop(0)).touch()

    def _lose(self, title: str) -> None:
        time.sleep(_AMID_S)
        ROUNDS[title].lose(self.lab, ROUNDS[title].victim)
        (self.folder / f"{title}.cut").touch()

    def _restore(self, title: str) -> None:
        ROUNDS[title].restore(self.lab, ROUNDS[title].victim)
        time.sleep(_SETTLED_S)  # until the hosts find each other again
        self._begin()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    folder = tmp_path_factory.mktemp("rounds")
    rounds = [f"{title}={found.victim}:{found.jobs}" for title, found in ROUNDS.items()]
    with Lab(Topology(hosts=HOSTS)) as lab:
        driver = Driver(lab, folder)
        lab.run(
            [sys.executable, JOBS_PY, str(folder), *rounds],
            environment=environment(SYNCOPATE_HEARTBEAT_S=str(SILENCE_S), COLUMNS="300"),
            sink=driver,
            grace_s=SOON_S,
        )
    return driver


def test_a_slow_host_is_not_lost(driver: Driver) -> None:
    """A link is congested for longer than a host may be silent."""
    found = driver.results["congested", "congested"]
    assert [result["text"] for result in found.values()] == ["None"] * HOSTS, found
    assert max(result["took_s"] for result in found.values()) > SILENCE_S


LOST = [(title, job) for title in ROUNDS for job in ROUNDS[title].jobs.split(",")][1:]


@pytest.mark.parametrize(("title", "job"), LOST)
def test_every_survivor_names_the_lost_rank(driver: Driver, title: str, job: str) -> None:
    found, victim = driver.results.get((title, job), {}), ROUNDS[title].victim
    survivors = set(range(HOSTS)) - {victim}
    assert survivors <= found.keys(), (found, driver.others)
    for rank in survivors:
        if job == "command":
            require_one_error(found[rank], f"rank {victim}")
        else:
            result = found[rank]
            assert (result["error"], result["ranks"]) == ("CollectiveError", [victim]), found
            assert f"rank {victim}" in result["text"]
            assert result["took_s"] < SOON_S
            assert result["closing_s"] < SOON_S


@pytest.mark.parametrize("title", ["pulled", "pulled_amid_calls", "cut_off"])
def test_a_rank_that_was_cut_off_ends_too(driver: Driver, title: str) -> None:
    victim = ROUNDS[title].victim
    for job in ROUNDS[title].jobs.split(","):
        result = driver.results[title, job][victim]
        if job == "command":
            require_one_error(result, f"or host{victim} is cut off")
        else:
            assert result["error"] == "CollectiveError"
            assert f"or host{victim} is cut off" in result["text"]
            assert result["took_s"] < SOON_S


def require_one_error(result: dict[str, Any], what: str) -> None:
    """Ask of a command that it ended by itself and said once, clearly, why."""
    assert result["code"] == 1, result
    (error,) = result["errors"]
    assert what in error
