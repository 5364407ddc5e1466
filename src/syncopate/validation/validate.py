"""Validate: predictions held against measurements, as a function."""

from __future__ import annotations

import datetime
import os
import platform
import tempfile
from pathlib import Path

from msgspec import structs

from syncopate.errors import InvalidValueError
from syncopate.lab import support
from syncopate.output import Progress
from syncopate.validation.grid import Cell, cells
from syncopate.validation.job import QUICK, Effort
from syncopate.validation.point import LAB, Validation
from syncopate.validation.published import gpu_points


def validate(
    path: str | os.PathLike[str] | None = None,
    *,
    points: int = 0,
    quick: bool = False,
    again: bool = False,
    progress: Progress | None = None,
) -> Validation:
    """Hold predictions against measurements that no calibration saw.

    The public measurements of GPUs are predicted at once. ``points`` trainings are measured in
    emulated clusters of this machine, with real processes, each predicted from a calibration at
    another rate; that takes about two minutes each, and the machine for itself.

    Args:
        path: a JSON file: what it holds already is not measured again, and what is found is written
            to it after each training. None keeps nothing.
        points: how many trainings of the lab there are to be in all, those of the file among them.
        quick: measure shortly, to see that it works; what comes of it is no validation.
        again: measure anew what the file holds of the lab.
        progress: called before each training.

    Returns:
        Every prediction with its measurement.

    Raises:
        InvalidValueError: more trainings than the grid has.
        SyncopateError: the lab is asked for and this machine cannot make one; its hosts cannot be
            calibrated.
        ArtifactError: the file is damaged, or cannot be written.
        KeyboardInterrupt: the user stopped; the file has what was done.
    """
    known = Validation()
    if path is not None and Path(path).exists() and not again:
        known = Validation.load(path)
    known = structs.replace(known, points=(*gpu_points(), *known.of(LAB)))
    left = left_of(points, known)
    if left:
        support.require()
        known = structs.replace(known, metadata=known.metadata | _facts(quick))

    def keep(found: Validation) -> None:
        if path is not None:
            found.save(path)

    keep(known)
    if not left:
        return known
    # The labs' processes need torch; the GPUs' points do not.
    from syncopate.validation.session import Session  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="syncopate-validate-") as folder:
        session = Session(QUICK if quick else Effort(), keep, Path(folder))
        return session.measure(left, known, progress)


def left_of(points: int, known: Validation) -> tuple[Cell, ...]:
    """Return those of the first cells of the grid that were not measured.

    Raises:
        InvalidValueError: more than the grid has, or fewer than none.
    """
    every = cells()
    if not 0 <= points <= len(every):
        raise InvalidValueError("points", points, f"0 to {len(every)}, which the grid has")
    names = {point.name for point in known.of(LAB)}
    return tuple(cell for cell in every[:points] if cell.name not in names)


def _facts(quick: bool) -> dict[str, str]:
    facts = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cores": str(os.cpu_count()),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    return facts | ({"quick": "measured shortly, to see that it works"} if quick else {})
