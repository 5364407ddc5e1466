"""Part ``failures``: what the user sees when a host dies, vanishes or is slow, and how soon.

Every scene is a lab of its own. The ranks of the first two all-reduce in a loop, as training does,
with nothing set and nothing caught. Then host 2 is lost: its process is killed, or its link goes
down at the switch, so that nothing comes back, not even a refusal. In the last two host 2's link
has a tenth of the others' rate from the beginning: in one the ranks calibrate, in the other they
all-reduce for a while, which ends well.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from syncopate.lab import Lab, Topology
from syncopate.lab.kernel import netlink
from syncopate.lab.names import rack_namespace
from syncopate.lab.ranks import LAB_VARIABLE

from .parts import GBIT
from .results import Saying, Scene

VICTIM = 2
STRUCK = "campaign: now"
"""What a rank prints when it happens; seconds count from there."""

_PREFIX = re.compile(r"^\[rank\d+\]:")
_BEFORE_S = 2.0
_LIMIT_S = 60.0
_GRACE_S = 40.0
_NUMEL = 1 << 18
_SLOW_CALLS = 150


@dataclass(frozen=True)
class Plot:
    """One scene before it is played.

    Attributes:
        title: what is done to the cluster.
        topology: the lab.
        play: what every rank runs.
        by: the ranks that should name the host at fault.
        limit_s: how soon.
    """

    title: str
    topology: Topology
    play: Callable[[], None]
    by: tuple[int, ...]
    limit_s: float


class Witness:
    """Takes the lines that ranks print, with the seconds since it happened."""

    def __init__(self) -> None:
        self._struck_s: float | None = None
        self._lines: dict[int, list[tuple[float, str]]] = {}

    def __call__(self, rank: int, stream: str, line: str) -> None:
        """Take a line of a rank."""
        now_s = time.monotonic()
        text = _PREFIX.sub("", line).strip()
        if text == STRUCK:
            self._struck_s = now_s
        elif self._struck_s is not None and text:
            self._lines.setdefault(rank, []).append((now_s - self._struck_s, text))

    def sayings(self) -> tuple[Saying, ...]:
        """Return the first line in which each rank named the victim, or else its last line.

        Ranks that said the same stand together.
        """
        groups: dict[str, dict[int, float]] = {}
        for rank, lines in sorted(self._lines.items()):
            seconds, text = next((line for line in lines if _names(line[1])), lines[-1])
            groups.setdefault(text, {})[rank] = seconds
        return tuple(
            Saying(ranks=tuple(by), seconds=max(by.values()), text=text, names=_names(text))
            for text, by in groups.items()
        )


def _names(text: str) -> bool:
    return any(name in text for name in (f"rank {VICTIM}", f"host{VICTIM}"))


def play(name: str) -> None:
    """Be a rank of a scene."""
    PLOTS[name].play()


def record(command: list[str]) -> tuple[Scene, ...]:
    """Play every scene in a lab; return what was seen.

    Args:
        command: starts a rank of a scene, whose name is added.

    Raises:
        KeyboardInterrupt: a signal ended a scene.
    """
    found = []
    for name, plot in PLOTS.items():
        print(f"{plot.title}: {plot.topology.describe()}", flush=True)
        witness = Witness()
        with Lab(plot.topology) as lab:
            outcome = lab.run([*command, name], sink=witness, grace_s=_GRACE_S)
        if outcome.received is not None:
            raise KeyboardInterrupt
        scene = Scene(title=plot.title, limit_s=plot.limit_s, by=plot.by, sayings=witness.sayings())
        for saying in scene.sayings:
            print(f"  after {saying.seconds:.1f} s, {saying.ranks}: {saying.text}", flush=True)
        found.append(scene)
    return tuple(found)


def _all_reduce_until(strike: Callable[[], None]) -> None:
    """All-reduce for ever; on the victim ``strike`` after a while."""

    def begin(rank: int) -> None:
        if rank == VICTIM:
            _later(_BEFORE_S, strike)
        _later(_BEFORE_S + _LIMIT_S, _give_up)

    _all_reduce(begin, itertools.count())


def _all_reduce_slowly() -> None:
    """All-reduce some times, in which nothing fails."""

    def begin(rank: int) -> None:
        if rank == 0:
            print(STRUCK, flush=True)

    _all_reduce(begin, range(_SLOW_CALLS))
    print("finished, without a word", flush=True)


def _all_reduce(begin: Callable[[int], None], calls: Iterable[int]) -> None:
    import torch  # noqa: PLC0415 - the process that makes the labs needs none of it
    import torch.distributed as dist  # noqa: PLC0415

    from syncopate.collectives import Communicator  # noqa: PLC0415

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    tensor = torch.zeros(_NUMEL)
    with Communicator() as communicator:
        communicator.all_reduce(tensor, algorithm="ring")
        begin(communicator.rank)
        for _ in calls:
            communicator.all_reduce(tensor, algorithm="ring")


def _later(seconds: float, action: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()


def _give_up() -> None:
    print(f"nothing was said for {_LIMIT_S:g} s", flush=True)
    os._exit(1)


def _kill() -> None:
    print(STRUCK, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def _unplug() -> None:
    print(STRUCK, flush=True)
    with netlink(rack_namespace(os.environ[LAB_VARIABLE], 0)) as switch:
        (index,) = switch.link_lookup(ifname=f"h{VICTIM}")
        switch.link("set", index=index, state="down")


def _calibrate() -> None:
    from syncopate.cli import main  # noqa: PLC0415 - as above

    if os.environ["RANK"] == "0":
        print(STRUCK, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["syncopate", "calibrate", "--budget", "10", "-o", f"{folder}/cluster.json"]
        main()


_FOUR = Topology(hosts=4)
_SLOW = _FOUR.with_host_rates({VICTIM: GBIT / 10})
_OTHERS = tuple(rank for rank in range(4) if rank != VICTIM)

PLOTS: Mapping[str, Plot] = {
    "killed": Plot(
        "The process on host 2 is killed", _FOUR, lambda: _all_reduce_until(_kill), _OTHERS, 5.0
    ),
    "unreachable": Plot(
        "The link of host 2 goes down, without a word",
        _FOUR,
        lambda: _all_reduce_until(_unplug),
        _OTHERS,
        15.0,
    ),
    "slow, calibrating": Plot(
        "The link of host 2 has a tenth of the rate, and the ranks calibrate",
        _SLOW,
        _calibrate,
        (0,),
        30.0,
    ),
    "slow, training": Plot(
        "The link of host 2 has a tenth of the rate, and the ranks all-reduce",
        _SLOW,
        _all_reduce_slowly,
        (0,),
        30.0,
    ),
}
