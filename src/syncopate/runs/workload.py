"""Recorded: a workload from the recording of a training that ran without our engine.

Plain DDP or FSDP, on CPUs or GPUs: traces of torch.profiler, files of ``syncopate record`` or of
:func:`syncopate.trace`, and all other files that are read as timelines. What such a workload knows
and what it does not is said in :mod:`syncopate.analysis.workload`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from msgspec.structs import replace

from syncopate.analysis import workload as recorded
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.workload import Workload
from syncopate.errors import InvalidValueError
from syncopate.runs.reading import Recorded, Source, read


@runtime_checkable
class Profiler(Protocol):
    """The part of torch.profiler's ``profile`` that is needed here."""

    def export_chrome_trace(self, path: str) -> Any:
        """Write what was recorded."""


def recorded_workload(
    source: Source | Sequence[Source] | Profiler, *, trace: str | os.PathLike[str] | None = None
) -> Workload:
    """Return what a recorded training computes and sends in an iteration.

    Forward, backward and update are medians over ranks and iterations. Gradients are those that
    autograd had, where the recording tells them: torch.profiler with ``record_shapes=True``. Else a
    bucket of DDP, or a unit of FSDP, is as large as what was sent, and ready when it was, and taken
    for pieces of up to a mebibyte that become ready evenly.

    Args:
        source: a timeline; a file of one, the directory of a run, or a file of each rank; or a
            ``torch.profiler.profile`` after its block, with ``record_shapes=True`` on CPUs, whose
            rank then stands for all.
        trace: where to keep the profiler's trace, which torch writes but once; thrown away
            otherwise.

    Raises:
        ArtifactError: a file that holds no timeline, and no part of one.
        InvalidValueError: no forward, backward or push with its bytes to learn from; or a
            profiler whose trace was written before.

    Example:
        >>> with torch.profiler.profile(record_shapes=True) as profiler:  # doctest: +SKIP
        ...     train(model, batches)
        >>> syncopate.recorded_workload(profiler).save("workload.json")  # doctest: +SKIP
    """
    if isinstance(source, Profiler):
        with _exported(source, trace) as path:
            found = read(path).of_ranks().timeline
            if found.name == path.parent.name:  # which tells nothing of the training
                found = replace(found, name=Path(sys.argv[0]).stem or "recorded")
            return recorded.recorded_workload(found)
    if trace is not None:
        raise InvalidValueError("trace", os.fspath(trace), "left out but with a profiler")
    if isinstance(source, str | os.PathLike | Timeline | Recorded):
        return _of(source)
    if not isinstance(source, Sequence):
        rule = "a timeline, files of one, or a torch.profiler.profile"
        raise InvalidValueError("source", source, rule)
    return _of(*source)


def _of(*sources: Source) -> Workload:
    return recorded.recorded_workload(read(*sources).of_ranks().timeline)


@contextmanager
def _exported(profiler: Profiler, kept: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Write what a profiler recorded, to be kept or for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="syncopate-") as folder:
        path = Path(folder, "profile.json") if kept is None else Path(kept)
        try:
            profiler.export_chrome_trace(str(path))
        except RuntimeError as error:
            rule = f"a profiler after its block, whose trace was not written before ({error}): "
            rule += "give that file, or let trace= name where to keep it"
            raise InvalidValueError("source", profiler, rule) from None
        yield path
