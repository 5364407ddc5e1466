"""Ranks: joining those that torchrun or mpirun started, or starting local ones.

``--local N`` starts N copies of the same command on this machine, as ``torchrun --standalone``
would, without its port (the ranks meet through a file) and with one error line for all of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from syncopate import ports
from syncopate.cli.common import launcher
from syncopate.cli.common.console import is_leader
from syncopate.cli.common.ending import INTERRUPTED, EndedError, code_of, ended_once
from syncopate.errors import (
    CollectiveError,
    InvalidValueError,
    SyncopateError,
    UnknownNameError,
    one_line,
)
from syncopate.output import write_output
from syncopate.ranks import MOST_LOCAL, require_sound

if TYPE_CHECKING:
    from syncopate.collectives.communicator import Communicator

DEVICES = ("cpu", "cuda")
"""Where buffers of collectives live: in the host's memory, over Gloo, or on GPUs, over NCCL."""

RENDEZVOUS = "SYNCOPATE_RENDEZVOUS"
"""Environment variable: the folder in which ranks that ``start_local`` started meet and report."""

_GRACE_S = 5.0
_INTERRUPTED_GRACE_S = 1.0
_KEEPING_S = 20.0
"""How long a rank that was asked to end may take to write what it has."""

_KILLED_S = 30.0
"""How long a killed rank may take to be gone: on a busy machine some seconds."""

_POLL_S = 0.05


_Local = Annotated[
    int | None, typer.Option(help="Start this many ranks on this machine; no torchrun needed.")
]
_Ports = Annotated[
    str | None,
    typer.Option(
        "--ports",
        metavar="FIRST-LAST",
        help=f"Listen on these ports alone, for firewalls; {ports.VARIABLE} says the same.",
    ),
]


class Where(NamedTuple):
    """Which ranks to start, and where their buffers live.

    Attributes:
        local: how many ranks to start on this machine; None: a launcher started them.
        device: one of :data:`DEVICES`.
    """

    local: int | None
    device: str


def where_option(
    *,
    local: _Local = None,
    given: _Ports = None,
    device: Annotated[
        str, typer.Option(help="cpu: host memory and Gloo; cuda: one GPU for each rank and NCCL.")
    ] = "cpu",
) -> Where:
    """Return where to measure, and take note of the ports that ranks may take.

    Raises:
        UnknownNameError: no such device.
        InvalidValueError: this machine has not as many GPUs.
    """
    if device not in DEVICES:
        raise UnknownNameError("device", device, DEVICES)
    if device == "cuda":
        _require_gpus(local)
    take_ports(given)
    return Where(local, device)


def _require_gpus(local: int | None) -> None:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        rule = f"cpu, as torch {torch.__version__} finds no GPU on this machine"
        raise InvalidValueError("--device", "cuda", rule)
    wanted = local if local is not None else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if wanted > count:
        rule = f"at most {count} with --device cuda, for NCCL takes one GPU for each rank"
        raise InvalidValueError("ranks on this machine", wanted, rule)


def take_ports(text: str | None) -> None:
    """Let this process and those that it starts listen on a range of ports; None: as before.

    Raises:
        InvalidValueError: it is no range.
    """
    if text is not None:
        ports.ports_of(text, "--ports")
        os.environ[ports.VARIABLE] = text


def started() -> bool:
    """Return whether this process is a rank, of torchrun, mpirun, srun or ``start_local``."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def start_if_asked(local: int | None) -> None:
    """Start this very command on ``local`` ranks, unless this process is one of them.

    Args:
        local: the value of ``--local``.

    Raises:
        typer.Exit: the ranks have ended; its code is theirs.
        InvalidValueError: not a positive number, or torchrun has already started the ranks.
    """
    if local is None or RENDEZVOUS in os.environ:
        return
    if started():
        raise InvalidValueError(
            "--local", local, "left out under torchrun or mpirun, which start the ranks"
        )
    if not 1 <= local <= MOST_LOCAL:
        rule = f"an integer from 1 to {MOST_LOCAL}; `syncopate simulate` needs no ranks"
        raise InvalidValueError("--local", local, rule)
    raise typer.Exit(start_local(local, sys.argv[1:]))


def require_ranks(command: str) -> None:
    """Refuse to run ``command`` outside ranks, and say how to start some.

    Raises:
        SyncopateError: this process is no rank.
    """
    if not started():
        raise SyncopateError(
            f"`syncopate {command}` runs on several ranks and this process is alone. On this "
            f"machine: `syncopate {command} --local 4`; on a cluster, on every host: "
            f"`torchrun --nnodes ... --nproc-per-node 4 --no-python syncopate {command}`, or "
            f"`mpirun -n 8 --host ... syncopate {command}`"
        )


def start_local(world_size: int, arguments: Sequence[str]) -> int:
    """Run ``syncopate`` with ``arguments`` on local ranks and wait for all of them.

    When a rank fails, the others are given a moment and then ended; one error is printed, that of
    the rank that failed first.

    Args:
        world_size: number of ranks.
        arguments: the command line after ``syncopate``.

    Returns:
        0, or the exit code of the rank that failed first; 130 after Ctrl-C, 143 after SIGTERM.
    """
    with tempfile.TemporaryDirectory(prefix="syncopate-") as folder, ended_once():
        ranks: list[subprocess.Popen[bytes]] = []
        graces_s = (_INTERRUPTED_GRACE_S, _KEEPING_S)
        try:
            for rank in range(world_size):
                ranks.append(_start(rank, world_size, arguments, folder))
            failed = _wait(ranks)
            graces_s = (_GRACE_S, _GRACE_S)
        except KeyboardInterrupt as interrupt:
            return code_of(interrupt)
        finally:
            _end(ranks, *graces_s)
        if failed is None:
            return 0
        code = ranks[failed].returncode
        report = Path(folder, f"error.{failed}")
        if report.exists():
            print(report.read_text(), file=sys.stderr)
        elif code not in (INTERRUPTED, EndedError.exit_code):
            print(f"error: rank {failed} ended {_ending(code)}", file=sys.stderr)
        return code if code > 0 else 128 - code


@contextmanager
def joined(*, timeout_s: float = 300.0, device: str = "cpu") -> Iterator[Communicator]:
    """Join this process's ranks; leave them when the block ends, however it ends.

    Args:
        timeout_s: how long the ranks wait for each other before they give up.
        device: one of :data:`DEVICES`.

    Yields:
        A communicator over all ranks.

    Raises:
        CollectiveError: the ranks did not find each other, or the launcher's variables say what no
            job can be.
    """
    folder = os.environ.get(RENDEZVOUS)
    by_mpi = launcher.LAUNCHER in os.environ and "MASTER_ADDR" not in os.environ
    require_sound(os.environ, meet=folder is None and not by_mpi)
    import torch.distributed as dist

    from syncopate.collectives.communicator import Communicator

    method = f"file://{folder}/store" if folder else "env://"
    try:
        store = launcher.meeting_store(timeout_s)
        dist.init_process_group(
            _backend(device),
            init_method=method if store is None else None,
            store=store,
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            timeout=timedelta(seconds=timeout_s),
        )
    except (RuntimeError, ValueError, KeyError) as error:
        reason = f"the ranks did not find each other within {timeout_s:.0f} s: {error}"
        raise CollectiveError("rendezvous", reason) from error
    try:
        communicator = Communicator(timeout_s=timeout_s)
        try:
            yield communicator
        finally:
            communicator.close()
    finally:
        dist.destroy_process_group()
    launcher.leave()


def _backend(device: str) -> str:
    """Return the backends of a job on ``device``, after this rank took its GPU."""
    if device == "cpu":
        return "gloo"
    import torch

    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return "cpu:gloo,cuda:nccl"


def report_error(error: SyncopateError) -> None:
    """Print one clear line, or leave it for ``start_local`` to print once for all ranks.

    Under torchrun each failing rank prints its own, except for mistakes on the command line, which
    all ranks share and rank 0 alone prints.
    """
    rank = os.environ.get("RANK") or "0"
    line = f"error: {error}" if is_leader() else f"error: rank {one_line(rank)}: {error}"
    folder = os.environ.get(RENDEZVOUS)
    if folder:
        write_output(Path(folder, f"error.{rank}"), line.encode())
    elif is_leader() or not isinstance(error, InvalidValueError | UnknownNameError):
        print(line, file=sys.stderr)


def _start(
    rank: int, world_size: int, arguments: Sequence[str], folder: str
) -> subprocess.Popen[bytes]:
    threads = max(1, (os.cpu_count() or 1) // world_size)
    environment = {
        # Ranks share the cores: with torch's default each would start a thread per core.
        "OMP_NUM_THREADS": str(threads),
        # Gloo would otherwise look the host name up, which on many laptops leads nowhere.
        "GLOO_SOCKET_IFNAME": launcher.LOOPBACK,
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        RENDEZVOUS: folder,
    }
    return subprocess.Popen([sys.executable, "-m", "syncopate", *arguments], env=environment)


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Wait until all ranks succeeded or one failed; return the one that failed first."""
    while True:
        codes = [rank.poll() for rank in ranks]
        for rank, code in enumerate(codes):
            if code not in (None, 0):
                return rank
        if all(code == 0 for code in codes):
            return None
        time.sleep(_POLL_S)


def _end(ranks: Sequence[subprocess.Popen[bytes]], notice_s: float, asked_s: float) -> None:
    """End what still runs: wait a little for it to notice, then ask, then kill it and wait.

    Who presses Ctrl-C once more does not want to wait: then what still runs is killed.
    """
    if all(rank.poll() == 0 for rank in ranks):
        return
    try:
        for ask, wait_s in (
            (lambda rank: None, notice_s),
            (lambda rank: rank.terminate(), asked_s),
            (lambda rank: rank.kill(), _KILLED_S),
        ):
            alive = [rank for rank in ranks if rank.poll() is None]
            for rank in alive:
                ask(rank)
            deadline = time.monotonic() + wait_s
            for rank in alive:
                try:
                    rank.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    break
    except KeyboardInterrupt:
        for rank in ranks:
            rank.kill()
        for rank in ranks:
            rank.wait(_KILLED_S)
        raise


def _ending(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"by signal {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"
