"""Durable: names that outlive a loss of power, and what a scheduler keeps on disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec

from syncopate.artifacts.artifact import Artifact
from syncopate.errors import ArtifactError
from syncopate.protocol.membership.incarnation import FIRST_LIFE, Incarnation
from syncopate.protocol.membership.members import Seated

AGAIN_S = 1.0
"""How long to wait for room on a full disk until it is tried again."""


def is_full(error: Exception) -> bool:
    """Say whether a file could not be written because there was no room."""
    cause = error.__context__ if isinstance(error, ArtifactError) else None
    return isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)


def sync_folder(folder: Path) -> None:
    """Let the names in ``folder`` outlive a loss of power, as the files do.

    Raises:
        ArtifactError: they may not.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that has no such thing
            raise ArtifactError(folder, f"cannot sync: {error.strerror or error}") from None


def save_durably(artifact: Artifact, path: Path) -> None:
    """Write an artefact, and the names that lead to it.

    Raises:
        ArtifactError: it cannot be written.
    """
    made = [folder for folder in path.parents if not folder.exists()]
    artifact.save(path)
    for folder in {path.parent, *(folder.parent for folder in made)}:
        sync_folder(folder)


class Run(Artifact, frozen=True, kw_only=True):
    """A run of a job, as its scheduler keeps it.

    Attributes:
        job: the job's name.
        run: a random number of this run.
        servers: how many.
        workers: how many.
        members: all of them; none until all are there.
        over: whether the job is over, and all was well.
        settled: whether all members have heard that, too, or had the time.
        incarnation: how often it went on after all workers were gone, and from which step.
    """

    KIND = "parameter_server_run"

    job: str
    run: str
    servers: int
    workers: int
    members: tuple[Seated, ...] = ()
    over: bool = False
    settled: bool = True
    incarnation: Incarnation = Incarnation()


class RunFile:
    """The file of a scheduler's run.

    Attributes:
        path: where it is.
        run: what is in it.
    """

    def __init__(self, folder: Path, begun: Run) -> None:
        """Read what is there, or begin.

        Args:
            folder: where it is.
            begun: the run, where none is there.

        Raises:
            ArtifactError: what is there is damaged, over, or of another job.
        """
        self.path = folder / "scheduler.json"
        self.run = Run.load(self.path) if self.path.exists() else begun
        if self.run.over and self.run.settled:
            raise ArtifactError(self.path, "this job is over; give an empty folder")
        for name in ("job", "servers", "workers"):
            kept, given = getattr(self.run, name), getattr(begun, name)
            if kept != given:
                reason = f"a run with {kept!r}, not {given!r}; give an empty folder"
                raise ArtifactError(self.path, reason, f"$.{name}")

    def keep(
        self,
        members: tuple[Seated, ...],
        over: bool,
        incarnation: Incarnation = FIRST_LIFE,
        settled: bool = True,
    ) -> None:
        """Write what became of the run.

        Raises:
            ArtifactError: it cannot be written.
        """
        self.run = msgspec.structs.replace(
            self.run, members=members, over=over, settled=settled, incarnation=incarnation
        )
        save_durably(self.run, self.path)
