"""Hosts that die, are cut off or become slow while eight kinds of work are under way.

One lab and one start of torch serve all rounds: in each, every job runs at once, a host is lost,
and every job must end on every rank, soon, with an error that names the ranks of that host.
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

HOSTS = 4
SILENCE_S = 2
SOON_S = 25.0
"""Bound on the end of any job after its host was lost; in fact 3 to 6 s, on an idle machine."""

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


def destroy(lab: Lab, host: int) -> None:
    """Kill every process of the host, and remove its network."""
    name = host_namespace(lab.run_id, host)
    wanted = (NAMESPACES / name).stat().st_ino
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                if (process / "ns" / "net").stat().st_ino == wanted:
                    os.kill(int(process.name), signal.SIGKILL)
    remove_namespace(name)


def slow_down(lab: Lab, host: int) -> None:
    """Leave the host a twentieth of its speed."""
    shape = network.shape_of(50e6 / 8)
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


def nothing(lab: Lab, host: int) -> None:
    """There is nothing to undo."""


class Round(NamedTuple):
    """Jobs, and what happens to which host while they run."""

    victim: int
    jobs: str
    lose: Callable[[Lab, int], None]
    restore: Callable[[Lab, int], None] = nothing


ROUNDS = {
    "congested": Round(3, "congested", slow_down),
    "pulled": Round(
        2,
        "ring,native,barrier,between,objects,benching",
        pull_the_cable,
        plug_in,
    ),
    "cut_off": Round(0, "ring,native,barrier", take_down, bring_up),
    "destroyed": Round(1, "ring,native,between,benching", destroy),
}


class Driver:
    """Takes what the ranks print, and loses hosts when all jobs of a round are ready."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.results: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
        self.errors: dict[int, list[str]] = {}
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
                ROUNDS[rest].restore(self.lab, ROUNDS[rest].victim)
                self._begin()
        elif line.startswith("error: "):
            self.errors.setdefault(rank, []).append(line)
        else:
            self.others.append(f"[{rank}] {line}")

    def _begin(self) -> None:
        if self._left:
            (self.folder / self._left.pop(0)).touch()

    def _lose(self, title: str) -> None:
        time.sleep(0.5)  # until all are amid their work
        ROUNDS[title].lose(self.lab, ROUNDS[title].victim)
        (self.folder / f"{title}.cut").touch()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    folder = tmp_path_factory.mktemp("rounds")
    source = Path(__file__).parents[2] / "src"
    environment = {
        **os.environ,
        "PYTHONPATH": str(source),
        "SYNCOPATE_HEARTBEAT_S": str(SILENCE_S),
        "COLUMNS": "300",
    }
    rounds = [f"{title}={found.victim}:{found.jobs}" for title, found in ROUNDS.items()]
    with Lab(Topology(hosts=HOSTS)) as lab:
        driver = Driver(lab, folder)
        lab.run(
            [sys.executable, JOBS_PY, str(folder), *rounds],
            environment=environment,
            sink=driver,
            grace_s=SOON_S,
        )
    return driver


def test_a_slow_host_is_not_lost(driver: Driver) -> None:
    """Five seconds of a congested link, with hosts given up after two seconds of silence."""
    found = driver.results["congested", "congested"]
    assert [result["text"] for result in found.values()] == ["None"] * HOSTS, found
    assert min(result["took_s"] for result in found.values()) > 2 * SILENCE_S


LOST = [
    (title, job)
    for title in ("pulled", "cut_off", "destroyed")
    for job in ROUNDS[title].jobs.split(",")
]


@pytest.mark.parametrize(("title", "job"), LOST)
def test_every_survivor_names_the_lost_rank(driver: Driver, title: str, job: str) -> None:
    found, victim = driver.results.get((title, job), {}), ROUNDS[title].victim
    survivors = set(range(HOSTS)) - {victim}
    assert survivors <= found.keys(), driver.others
    if job == "command":
        assert {rank: found[rank]["code"] for rank in survivors} == dict.fromkeys(survivors, 1)
        return
    for rank in survivors:
        result = found[rank]
        assert (result["error"], result["ranks"]) == ("CollectiveError", [victim]), found
        assert f"rank {victim}" in result["text"]
        assert result["took_s"] < SOON_S
        assert result["closing_s"] < SOON_S


@pytest.mark.parametrize("title", ["pulled", "cut_off"])
def test_a_rank_that_was_cut_off_ends_too(driver: Driver, title: str) -> None:
    victim = ROUNDS[title].victim
    for job in ROUNDS[title].jobs.split(","):
        result = driver.results[title, job][victim]
        if job == "command":
            assert result["code"] == 1
            continue
        assert result["error"] == "CollectiveError"
        assert f"or host{victim} is cut off" in result["text"]
        assert result["took_s"] < SOON_S
