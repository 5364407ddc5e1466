"""SketchDLC's experiment on this machine: its jobs, their DLC traces, and what is kept of them.

A job is a scheduler, a server and two workers, each a process (``sketchdlc_worker.py`` is what a
worker runs). Every node captures its messages, and ``syncopate convert --to dlc`` makes a DLC trace
of each. All figures are read off these traces, and a file keeps them: sizes of messages, and of
every overhead its distribution over iterations.

The first iteration does not count: its memory is new to all processes.
"""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from msgspec.structs import replace

from sketchdlc_worker import LENET5, RESNET50, Learned
from syncopate.analysis.serving import (
    Distribution,
    Message,
    Overhead,
    bytes_per_iteration,
    distribution,
    overheads,
    served_phases,
)
from syncopate.artifacts.artifact import Artifact, Record
from syncopate.collectives.machine import cpu_name
from syncopate.errors import ArtifactError, SyncopateError
from syncopate.output import write_output
from syncopate.paramserver.job import Job
from syncopate.paramserver.launch import LocalJob
from syncopate.runs.served import computed_of, messages_of
from syncopate.tracing import dlc
from syncopate.tracing.run import read_run
from syncopate.tracing.served.to_dlc import dlc_files

WORKERS, SERVERS = 2, 1
ITERATIONS = {LENET5: 380, RESNET50: 165}
"""Network -> iterations that the paper counts."""

QUICK_ITERATIONS = {LENET5: 10, RESNET50: 3}
FIRST = 1
"""The first iteration that counts."""

OPERATIONS = ("push_sent", "push_received", "pull_sent", "pull_received")
"""What a worker does with a key, in this order: Push_Send, Push_Recv, Pull_Send, Pull_Recv."""

COMPUTED = ", computed"
"""Of an update or a search: as the server noted it, not from one message to another."""

_TRACE = "SYNCOPATE_TRACE"
_NODES = ("worker-", "server-")
_WORKER = Path(__file__).with_name("sketchdlc_worker.py")


class Place(NamedTuple):
    """What is distributed.

    Attributes:
        quantity: ``"phase 1"``, ``"phase 2"``, ``"phase 3"``, ``"computation"``, ``"overlap"``,
            ``"wait"``, ``"synchronization"``, ``"update"`` or ``"search"``; the last two with
            ``COMPUTED`` where the server noted it itself.
        node: the worker that computed, waited or was searched for; empty: the server itself.
        key: of the parameter; -1: of none.
    """

    quantity: str
    node: str = ""
    key: int = -1


class Cell(Record, frozen=True, kw_only=True):
    """A distribution over iterations, in seconds; an overlap is a ratio.

    Attributes:
        quantity: see :class:`Place`, as for the next two.
        node: whose.
        key: of the parameter.
        number: how many values; the others are those of
            :class:`~syncopate.analysis.serving.Distribution`.
    """

    quantity: str
    node: str
    key: int
    number: int
    mean: float
    deviation: float
    least: float
    low: float
    median: float
    high: float
    most: float


class Sizes(Record, frozen=True, kw_only=True):
    """Bytes of a worker's messages of one key, as (least, most) over iterations and workers."""

    key: int
    push_sent: tuple[int, int]
    push_received: tuple[int, int]
    pull_sent: tuple[int, int]
    pull_received: tuple[int, int]


class Trained(Record, frozen=True, kw_only=True):
    """What is kept of a job.

    Attributes:
        iterations: that count.
        messages: of workers in these iterations, by what they did.
        sizes: of the messages of every key that the paper lists.
        bytes_per_iteration: of a worker, by what it did.
        cells: all distributions.
        losses: of worker 0's first batch and last; both 0 where computation is replayed.
    """

    iterations: int
    messages: dict[str, int]
    sizes: tuple[Sizes, ...]
    bytes_per_iteration: dict[str, float]
    cells: tuple[Cell, ...]
    losses: tuple[float, float]

    def found(self) -> dict[Place, Distribution]:
        """Return the distributions."""
        return {
            Place(c.quantity, c.node, c.key): Distribution(
                c.number, c.mean, c.deviation, c.least, c.low, c.median, c.high, c.most
            )
            for c in self.cells
        }


class Study(Artifact, frozen=True, kw_only=True):
    """What is kept of all jobs.

    Attributes:
        quick: whether they were cut to see that they run; then no figure counts.
        networks: by name.
        metadata: command, hardware, versions, date.
    """

    KIND: ClassVar[str] = "sketchdlc study"

    quick: bool
    networks: dict[str, Trained] = {}
    metadata: dict[str, str] = {}

    def __post_init__(self) -> None:
        for name in self.networks:
            if name not in ITERATIONS:
                raise ValueError(f"unknown network {name!r}; known: {', '.join(ITERATIONS)}")

    def joined(self, name: str, result: Trained) -> Study:
        """Return this study with the job of one network more."""
        return replace(self, networks=self.networks | {name: result})


def operation_of(message: Message) -> str:
    """Return what a node did with a message: one of ``OPERATIONS``."""
    return f"{'push' if message.push else 'pull'}_{'sent' if message.sends else 'received'}"


def analysed(
    messages: Iterable[Message], keys: Sequence[int] = (), computed: Iterable[Overhead] = ()
) -> dict[Place, Distribution]:
    """Return all distributions of a trace.

    Args:
        messages: of all nodes.
        keys: whose overheads are told apart.
        computed: what the server noted of its own updates and searches.
    """
    counted = [message for message in messages if message.iteration >= FIRST - 1]
    values: dict[Place, list[float]] = defaultdict(list)
    for phase in served_phases(counted):
        node = f"w{phase.rank}"
        values[Place("phase 1", node)].append(phase.computation_only_s)
        values[Place("phase 2", node)].append(phase.overlapped_s)
        values[Place("phase 3", node)].append(phase.communication_s)
        values[Place("computation", node)].append(phase.computation_s)
        values[Place("overlap", node)].append(phase.phase_overlap_ratio)
    for one in overheads(m for m in counted if m.iteration >= FIRST):
        if one.key < 0:
            values[Place(one.kind, one.node)].append(one.seconds)
        elif one.key in keys:
            values[Place(one.kind, one.peer, one.key)].append(one.seconds)
    for one in computed:
        if one.iteration >= FIRST and one.key in keys:
            values[Place(f"{one.kind}{COMPUTED}", one.peer, one.key)].append(one.seconds)
    return {place: distribution(found) for place, found in sorted(values.items())}


def kept(
    messages: Sequence[Message],
    keys: Sequence[int],
    learned: Learned,
    computed: Iterable[Overhead] = (),
) -> Trained:
    """Return what is kept of a job.

    Args:
        messages: of all nodes.
        keys: that the paper lists.
        learned: what worker 0 told.
        computed: what the server noted of its own updates and searches.
    """
    mine = [m for m in messages if m.iteration >= FIRST and m.node.startswith("w")]
    sizes: dict[int, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for message in mine:
        sizes[message.key][operation_of(message)].add(message.nbytes)
    return Trained(
        iterations=len({message.iteration for message in mine}),
        messages=dict(sorted(Counter(map(operation_of, mine)).items())),
        sizes=tuple(
            Sizes(key=key, **{name: _range(sizes[key][name]) for name in OPERATIONS})
            for key in keys
        ),
        bytes_per_iteration=bytes_per_iteration(mine)["w0"],
        cells=tuple(_cell(*found) for found in analysed(messages, keys, computed).items()),
        losses=(learned.first_loss, learned.last_loss),
    )


def _range(values: Iterable[int]) -> tuple[int, int]:
    ordered = sorted(values)
    return ordered[0], ordered[-1]


def _cell(place: Place, found: Distribution) -> Cell:
    rounded = {
        name: round(value, 9) if isinstance(value, float) else value
        for name, value in found._asdict().items()
    }
    return Cell(**place._asdict(), **rounded)


# -- jobs ---------------------------------------------------------------------------------------


def resumed(path: Path, quick: bool, iterations: Mapping[str, int]) -> Study:
    """Return what a file already holds, or a study without a job.

    Raises:
        ArtifactError: it is no such file, or its jobs were of other lengths.
    """
    if not path.exists():
        return Study(quick=quick, metadata=_metadata())
    study = Study.load(path)
    if study.quick != quick:
        raise ArtifactError(path, f"made with quick {study.quick}; give another folder", "$.quick")
    for name, wanted in iterations.items():
        had = study.networks[name].iterations if name in study.networks else wanted
        if had != wanted:
            reason = f"{had} iterations, not {wanted}; give another folder"
            raise ArtifactError(path, reason, f"$.networks.{name}.iterations")
    return study


def _metadata() -> dict[str, str]:
    return {
        "command": shlex.join(["python", "reproduce/sketchdlc.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "cores": str(os.cpu_count()),
        "machine": platform.platform(),
        "torch": str(torch.__version__),
    }


def run_job(network: str, iterations: int, folder: Path, keys: Sequence[int]) -> Trained:
    """Train a network on local processes, write DLC traces, and return what is kept of them.

    Args:
        network: which.
        iterations: that count; one more is trained before them.
        folder: gets the captured run, in ``run``, and the DLC traces, in ``dlc``.
        keys: that the paper lists.

    Raises:
        ArtifactError: the folder cannot be made.
        SyncopateError: a process failed; the message has its last lines.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtifactError(folder, f"cannot be made: {error.strerror}") from None
    print(f"{network}: {iterations} iterations, {folder}", file=sys.stderr, flush=True)
    told = folder / "learned.json"
    command = [sys.executable, str(_WORKER), network, "--told", str(told)]
    command += ["--iterations", str(FIRST + iterations)]
    job = LocalJob(Job(servers=SERVERS, workers=WORKERS), command, state=None, restarts=0)
    with _captured(folder / "run"):
        ended = job.run(lambda remark: print(remark, file=sys.stderr))
    if ended.exit_code:
        raise SyncopateError("\n".join([f"{network}: {ended.who} failed", *ended.last_lines]))
    run = read_run(folder / "run", sys.maxsize)
    for remark in run.remarks:
        print(f"note: {remark}", file=sys.stderr)
    served = run.served
    assert served is not None
    files, _ = dlc_files(served)
    traces = {}
    for name, content in files.items():
        path = write_output(folder / "dlc" / name, content)
        if name.startswith(_NODES):
            trace = dlc.read(path)
            traces[name] = (trace.header, trace.records)
    return kept(messages_of(traces), keys, Learned.load(told), computed_of(served))


@contextmanager
def _captured(run: Path) -> Iterator[None]:
    """Let the processes that begin inside capture what they send and receive."""
    before = os.environ.get(_TRACE)
    os.environ[_TRACE] = str(run)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_TRACE]
        else:
            os.environ[_TRACE] = before
