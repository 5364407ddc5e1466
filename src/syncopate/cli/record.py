"""``syncopate record``: a training script as it is, and what its ranks did."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from syncopate.cli.common.console import say_written
from syncopate.errors import InvalidValueError

_PYTHON = re.compile(r"python[\d.]*")


def _without_python(script: list[str], module: bool) -> tuple[list[str], bool]:
    """Return what ``python`` was to run, and whether that is a module."""
    if len(script) > 1 and _PYTHON.fullmatch(Path(script[0]).name):
        if script[1] == "-m" and len(script) > 2:
            return script[2:], True
        script = script[1:]
    if not module and not os.path.isfile(script[0]):
        raise InvalidValueError("SCRIPT", script[0], "a Python file")
    return script, module


def record(
    *,
    script: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT",
            help="A Python file and its arguments; `python` before it changes nothing.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for a file of each rank.")
    ] = Path("traces"),
    module: Annotated[
        bool, typer.Option("--module", "-m", help="SCRIPT is a module, as with python -m.")
    ] = False,
    entries: Annotated[
        int | None,
        typer.Option(help="How many collectives torch holds from one writing to the next; 2000."),
    ] = None,
) -> None:
    """Run a training script of plain torch, and note when each rank comes to each collective.

    The script stays as it is, DDP or anything else, and runs on every rank under this command. What
    torch's flight recorder holds is written to DIR every two seconds, and when it ends. Forwards,
    backwards and steps of optimizers are noted beside it. A rank that is killed loses the last two
    seconds. Processes that the script itself starts write nothing.

    `SYNCOPATE_TRACE=runs/a` does the same for any script without a command, and for these too
    (docs/other_tools.md); this is for Pythons that read no .pth files.

    For example:

      torchrun --nproc-per-node 4 --no-python syncopate record train.py --lr 0.1

      syncopate analyze traces/rank-*.json
    """
    from syncopate.tracing.foreign.recording.automatic import AutomaticRecording, leave
    from syncopate.tracing.foreign.recording.record import reserve, run_script
    from syncopate.tracing.foreign.recording.recorded_file import LIMIT_BYTES
    from syncopate.tracing.retention import retention

    (name, *arguments), module = _without_python(script, module)
    rank, world_size = _number("RANK", 0), _number("WORLD_SIZE", 1)
    leave()
    held, keep = reserve(os.environ, entries), retention(limit_bytes_default=LIMIT_BYTES)
    (output / f"rank-{rank}.json").unlink(missing_ok=True)  # of a run before
    recording = AutomaticRecording(str(output), held, keep, (rank, world_size))
    process = os.getpid()
    try:
        run_script(name, arguments, module=module)
    except SystemExit as finished:
        if isinstance(finished.code, str):
            print(finished.code, file=sys.stderr)
        raise
    finally:
        if os.getpid() == process:  # and not a copy that the script made of it
            recording.finish()
            if recording.path is not None:
                say_written(recording.path)


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default))
    if not text.isdecimal():
        raise InvalidValueError(variable, text, "a number, as torchrun sets it")
    return int(text)
