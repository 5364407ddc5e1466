"""``syncopate validate``: how far predictions are off, by measurements that no calibration saw."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from syncopate.cli.common.console import (
    err,
    out,
    progress_bar,
    remark,
    require_outputs,
    say_written,
)
from syncopate.cli.common.ending import ended_once
from syncopate.output import is_standard_output, write_output
from syncopate.validation.grid import POINTS

if TYPE_CHECKING:
    from syncopate.validation.point import Validation


def validate(
    *,
    points: Annotated[
        int,
        typer.Option(help="Trainings of the lab, in all; 0: the published ones of GPUs alone."),
    ] = POINTS,
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure shortly, to see that it works.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Measure anew what the file holds of the lab.")
    ] = False,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Every prediction and measurement; goes on from there."
        ),
    ] = Path("validation.json"),
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the page in Markdown; - prints it.")
    ] = None,
) -> None:
    """Hold predictions against measurements that no calibration saw, and say how far they are off.

    27 published trainings on GPUs are predicted at once. Trainings on emulated hosts of this
    machine are measured with real processes, each predicted from a calibration at another rate;
    they take about two minutes each, need root on Linux and the machine for themselves. Ctrl-C
    keeps what was done, and the next call goes on from there.

    For example:

      syncopate validate --points 0

      syncopate validate --points 48 -o validation.json --page validation.md
    """
    require_outputs(False, ("--output", output), ("--page", page))
    with ended_once():
        try:
            found = _validated(output, points, quick=quick, again=again)
        except KeyboardInterrupt:
            from syncopate.validation.point import Validation

            if output.exists():
                _tell(Validation.load(output), output, page)
                err().print("stopped; the same command goes on from here", style="dim")
            raise
        _tell(found, output, page)


def _validated(output: Path, points: int, *, quick: bool, again: bool) -> Validation:
    from syncopate.lab.support import why_not
    from syncopate.validation.validate import validate as hold

    obstacle = why_not() if points else None
    if obstacle is not None:
        err().print(f"published trainings alone: {obstacle}", style="yellow")
        points = 0
    where = None if is_standard_output(output) else output
    with progress_bar("validating") as advance:
        found = hold(where, points=points, quick=quick, again=again, progress=advance)
    if where is None:
        found.save(output)
    return found


def _tell(found: Validation, output: Path, page: Path | None) -> None:
    from syncopate.validation.page import page as document
    from syncopate.validation.table import validation_table

    piped = page if is_standard_output(page) else output
    out(beside=piped).print(validation_table(found))
    for name, why in found.missing.items():
        remark(f"{name}: not measured: {why}", "yellow")
    if page is not None:
        write_output(page, document(found).encode())
    say_written(output, page)
