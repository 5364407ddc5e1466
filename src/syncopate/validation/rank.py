"""Rank: a program that each host of a lab runs: a worker, a server or the scheduler.

``python -m syncopate.validation.rank JOB`` reads its number from ``RANK``, as torchrun sets it.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback

from syncopate.validation.job import Job, Told


def main() -> int:
    """Do this host's part of a job; return the exit code."""
    job, rank = Job.load(sys.argv[1]), int(os.environ["RANK"])
    if rank >= job.workers:
        _serve(job, rank)
    faulthandler.dump_traceback_later(job.effort.limit_s, exit=True)
    os.environ["WORLD_SIZE"] = str(job.workers)
    try:
        from syncopate.validation.worker import perform  # noqa: PLC0415 - servers need no torch

        told = perform(job)
    except Exception as error:  # what cannot be trained is told, and the others go on
        traceback.print_exc()
        Told(error=f"{type(error).__name__}: {error}").save(job.told(rank))
        return 1
    told.save(job.told(rank))
    return 0


def _serve(job: Job, rank: int) -> None:
    """Become a node of the parameter server."""
    command = [sys.executable, "-m", "syncopate", "ps"]
    if rank == job.workers + job.servers:
        own = ["scheduler", *job.place]
    else:
        own = ["server", *job.place, "--own-host", job.addresses[rank]]
    os.execv(command[0], [*command, *own])


if __name__ == "__main__":
    sys.exit(main())
