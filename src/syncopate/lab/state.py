"""State: which labs exist on this machine, who owns them, and what the dead left behind.

Each lab has a file ``<run id>.json`` in ``FOLDER``, written before the first namespace and removed
after the last. Its owner holds a lock on that file for as long as it lives. The kernel drops the
lock when the owner dies, however it dies, so a lab is dead exactly when its file can be locked:
no process number that was given out again, or that counts in another container, can mislead.
A standing lab has no owner and stays until it is taken down.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from syncopate.artifacts.artifact import Artifact
from syncopate.errors import ArtifactError, SyncopateError, UnknownNameError
from syncopate.lab.kernel import NAMESPACES, remove_namespace
from syncopate.lab.names import owner_of, require_run_id
from syncopate.lab.topology import Topology
from syncopate.output import write_output

FOLDER = Path("/run/syncopate-lab")
"""Where labs are recorded: gone after a restart of the machine, as namespaces are."""

_KILL_S = 5.0


class LabState(Artifact, frozen=True, kw_only=True):
    """The record of one lab.

    Attributes:
        run_id: six hexadecimal digits, part of the name of every namespace.
        topology: what it emulates.
        owner_pid: process that made it.
        owner_started: when that process started, in clock ticks since the machine did.
        standing: whether it outlives its maker.
    """

    KIND: ClassVar[str] = "lab-state"

    run_id: str
    topology: Topology
    owner_pid: int
    owner_started: int
    standing: bool = False


def state_file(run_id: str) -> Path:
    """Return the file that records a lab."""
    return FOLDER / f"{require_run_id(run_id)}.json"


def hosts_file(run_id: str) -> Path:
    """Return the file that stands in for ``/etc/hosts`` on the lab's hosts."""
    return FOLDER / f"{require_run_id(run_id)}.hosts"


def record(run_id: str, topology: Topology, *, standing: bool = False) -> int:
    """Record a lab that this process is about to make.

    Args:
        run_id: its fresh id.
        topology: what it will emulate.
        standing: whether it shall outlive this process.

    Returns:
        The descriptor that holds the owner's lock; closing it declares the lab dead.

    Raises:
        SyncopateError: the record cannot be written.
    """
    state = LabState(
        run_id=run_id,
        topology=topology,
        owner_pid=os.getpid(),
        owner_started=_started(os.getpid()),
        standing=standing,
    )
    temporary = FOLDER / f".{run_id}"
    try:
        FOLDER.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        # Locked before it has its name: it is never unlocked while the owner lives.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, state.to_json())
        temporary.rename(state_file(run_id))
        write_output(hosts_file(run_id), _hosts(topology).encode())
    except OSError as error:
        reason = error.strerror or str(error)
        raise SyncopateError(f"cannot record the lab in {FOLDER}: {reason}") from error
    return descriptor


def _hosts(topology: Topology) -> str:
    lines = ["127.0.0.1 localhost"]
    for host in range(topology.hosts):
        address, name = topology.address(host), topology.hostname(host)
        # torch's store listens on IPv6 and asks for the name of each client's mapped address;
        # under a name of its own, so that the plain one has no IPv6 address.
        lines += [f"{address} {name}", f"::ffff:{address} {name}.lab"]
    return "\n".join([*lines, ""])


def recorded() -> list[tuple[LabState, str]]:
    """Return the labs here by run id, each ``"running"``, ``"standing"`` or ``"dead"``."""
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        try:
            state = LabState.load(path)
        except ArtifactError:
            if path.exists():
                raise
            continue  # its owner finished in this very moment
        with _locked(path) as dead:
            status = "standing" if state.standing else "dead" if dead else "running"
        found.append((state, status))
    return found


def standing(run_id: str | None) -> LabState:
    """Return a standing lab: the one named, or the only one there is.

    Raises:
        UnknownNameError: no such standing lab.
        SyncopateError: none is named, and there is none or more than one.
    """
    labs = {state.run_id: state for state, status in recorded() if status == "standing"}
    if run_id is not None:
        if run_id not in labs:
            raise UnknownNameError("lab", run_id, labs or ["none; make one with `lab up`"])
        return labs[run_id]
    if not labs:
        raise SyncopateError("there is no standing lab; make one with `syncopate lab up`")
    if len(labs) > 1:
        raise SyncopateError(f"there are several standing labs; name one of {', '.join(labs)}")
    return next(iter(labs.values()))


def remove(run_id: str, names: Iterable[str]) -> None:
    """Remove a lab: processes on its hosts, its namespaces, then its record.

    Args:
        run_id: the lab.
        names: its namespaces; those that do not exist are passed over.
    """
    present = [name for name in names if (NAMESPACES / name).exists()]
    _kill_inside(present)
    for name in present:
        remove_namespace(name)
    with suppress(FileNotFoundError):
        hosts_file(run_id).unlink()
    with suppress(FileNotFoundError):
        state_file(run_id).unlink()


def clean() -> list[str]:
    """Remove what dead labs left behind; leave running and standing ones alone.

    Returns:
        The run ids that were removed.
    """
    # Namespaces first, records second: a record is older than its namespaces, so one without any
    # record has no owner.
    orphans = _lab_namespaces()
    removed = set()
    for path in FOLDER.glob("[0-9a-f]" * 6 + ".json"):
        orphans.pop(path.stem, None)
        with _locked(path) as dead:
            if dead and not _is_standing(path):
                remove(path.stem, _lab_namespaces().get(path.stem, ()))
                removed.add(path.stem)
    for run_id, names in orphans.items():
        remove(run_id, names)
        removed.add(run_id)
    return sorted(removed)


def _is_standing(path: Path) -> bool:
    try:
        return LabState.load(path).standing
    except ArtifactError:
        return False  # a damaged record, or one of another version, is of no use


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Try to lock a record for the block; yield whether it could be: whether its owner is dead."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _lab_namespaces() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    if NAMESPACES.is_dir():
        for path in sorted(NAMESPACES.iterdir()):
            owner = owner_of(path.name)
            if owner is not None:
                found.setdefault(owner, []).append(path.name)
    return found


def _kill_inside(names: Iterable[str]) -> None:
    """Kill every process in these namespaces, and wait until they are gone."""
    wanted = set()
    for name in names:
        with suppress(OSError):
            wanted.add(_identity(NAMESPACES / name))
    deadline_s = time.monotonic() + _KILL_S
    while wanted and (pids := _inside(wanted)) and time.monotonic() < deadline_s:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _identity(namespace: Path) -> tuple[int, int]:
    status = namespace.stat()
    return status.st_dev, status.st_ino


def _inside(wanted: set[tuple[int, int]]) -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            # A process may end while it is looked at; a zombie has no namespaces any more.
            with suppress(OSError):
                if _identity(process / "ns" / "net") in wanted:
                    found.append(int(process.name))
    return found


def _started(pid: int) -> int:
    """Return when a process started, in clock ticks since the machine did (proc(5), field 22)."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    return int(after_name.split()[19])
