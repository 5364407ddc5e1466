"""Switched: a scheduler and servers on this machine whose capture goes on and off when asked."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from serving import work
from syncopate import trace
from syncopate.paramserver.job import Job
from syncopate.paramserver.scheduler import Scheduler
from syncopate.paramserver.server import ParameterServer

_CONTEXT = multiprocessing.get_context("spawn")
_WAIT_S = 60.0


class Servers:
    """Processes of a job's servers.

    Args:
        job: where the scheduler is, and how many servers there are.
        directory: of the run that they capture.
    """

    def __init__(self, job: Job, directory: Path) -> None:
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for _ in range(job.servers):
            ours, theirs = _CONTEXT.Pipe()
            process = _CONTEXT.Process(target=_serve, args=(job, directory, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def switch(self, captures: bool) -> int:
        """Capture or not, in all of them; return how many events they have dropped."""
        for pipe in self._pipes:
            pipe.send(captures)
        return sum(pipe.recv() for pipe in self._pipes)

    def join(self) -> None:
        """Wait until all have ended; end those that have not."""
        for process in self._processes:
            process.join(_WAIT_S)
            if process.is_alive():
                process.kill()


@contextmanager
def served(job: Job, directory: Path) -> Iterator[Servers]:
    """Start a scheduler in this process and the servers; all end when the workers have left."""
    scheduler = threading.Thread(target=Scheduler(job, work.LIMITS).run, daemon=True)
    scheduler.start()
    servers = Servers(job, directory)
    try:
        yield servers
    finally:
        scheduler.join(_WAIT_S)
        servers.join()


def _serve(job: Job, directory: Path, asked: Connection) -> None:
    torch.set_num_threads(1)
    capture = trace(directory)

    def heed() -> None:
        try:
            while True:
                (capture.start if asked.recv() else capture.stop)()
                asked.send(capture.dropped)
        except (EOFError, OSError):
            capture.stop()

    threading.Thread(target=heed, daemon=True).start()
    ParameterServer(job, limits=work.LIMITS).run()
