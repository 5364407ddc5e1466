"""Recorded: a workload from the recording of a training that ran without our engine.

Plain DDP or FSDP, on CPUs or GPUs: traces of torch.profiler, files of ``syncopate record`` or of
:func:`syncopate.trace`, and all other files that are read as timelines. What such a workload knows
and what it does not is said in :mod:`syncopate.analysis.workload`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from syncopate.analysis import workload as recorded
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.workload import Workload
from syncopate.errors import InvalidValueError
from syncopate.tracing import foreign
from syncopate.tracing.run import read_run

_LAST = 200
"""Iterations of a recorded run that are read, the last ones."""

Source = Timeline | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A timeline, or the files that hold one."""


@runtime_checkable
class Profiler(Protocol):
    """What torch.profiler's ``profile`` has."""

    def export_chrome_trace(self, path: str) -> Any:
        """Write what was recorded."""


def recorded_workload(
    source: Source | Profiler, *, trace: str | os.PathLike[str] | None = None
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
    if isinstance(source, Timeline):
        return recorded.recorded_workload(source)
    if trace is not None and not isinstance(source, Profiler):
        raise InvalidValueError("trace", os.fspath(trace), "left out but with a profiler")
    if isinstance(source, Profiler):
        with _exported(source, trace) as path:
            return recorded.recorded_workload(foreign.read_timeline([path]))
    if isinstance(source, str | os.PathLike):
        return recorded.recorded_workload(_read(Path(source)))
    if not isinstance(source, Sequence):
        rule = "a timeline, files of one, or a torch.profiler.profile"
        raise InvalidValueError("source", source, rule)
    return recorded.recorded_workload(foreign.read_timeline(source))


def _read(path: Path) -> Timeline:
    if not path.is_dir():
        return foreign.read_timeline([path])
    if foreign.recorded_paths(path):
        return foreign.read_directory(path, _LAST)
    return read_run(path, _LAST).timeline


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
