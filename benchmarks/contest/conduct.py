"""Conduct: how a benchmark goes on with the results it kept, whatever it measures."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec import Struct, structs

from syncopate.artifacts.artifact import Artifact
from syncopate.errors import ArtifactError, SyncopateError
from syncopate.lab.support import why_not
from syncopate.output import write_output


class Kept(Protocol):
    """Results that say under what they were taken; a struct."""

    metadata: dict[str, str]


Found = TypeVar("Found")
Noted = TypeVar("Noted", bound=Kept)
File = TypeVar("File", bound=Artifact)


def with_command(found: Noted, metadata: dict[str, str]) -> Noted:
    """Return results that are added to: of the new ``metadata`` only a new command is taken."""
    commands = [value for what, value in found.metadata.items() if what.startswith("command")]
    command = metadata.get("command")
    if command is None or command in commands:
        return found
    more = {f"command {len(commands) + 1}": command}
    changed: Noted = structs.replace(found, metadata=found.metadata | more)
    return changed


def reopened(path: Path | None, fresh: File, *asked: str) -> File:
    """Return the results that a file holds, or ``fresh`` where there is no such file yet.

    Args:
        path: where results are kept; None for nowhere.
        fresh: results without a sample, as they are asked for.
        asked: fields that must be as in ``fresh``; of structs, each of their fields.

    Raises:
        ArtifactError: it is no such file, or was measured otherwise.
    """
    if path is None or not path.exists():
        return fresh
    found = type(fresh).load(path)
    for field in asked:
        wanted = _fields(field, getattr(fresh, field))
        for name, there in _fields(field, getattr(found, field)).items():
            if there != wanted[name]:
                reason = f"it was measured with {name} {there!r}, and {wanted[name]!r} is asked for"
                raise ArtifactError(path, f"{reason}; give the same, or another file")
    return found


def _fields(name: str, value: Any) -> dict[str, Any]:
    return structs.asdict(value) if isinstance(value, Struct) else {name: value}


def may_measure(places: Sized) -> bool:
    """Return whether there is something to measure and a lab for it; where not, say why."""
    if not places:
        print("everything is there; --again measures it anew")
        return False
    obstacle = why_not()
    if obstacle:
        print(f"skipped: {obstacle}")
    return not obstacle


def conducted(
    options: argparse.Namespace,
    script: str,
    *,
    resumed: Callable[[dict[str, str]], Found],
    without: Callable[[Found], Found],
    measure: Callable[[argparse.Namespace, Found], tuple[Found, int]],
    report: Callable[[Found, str], str],
) -> int:
    """Measure what is missing and show the tables; return the exit code.

    Args:
        options: ``json``, ``report``, ``again`` and ``no_run`` of the command line.
        script: path of the benchmark.
        resumed: from metadata of this run to the results so far; those are empty with ``no_run``.
        without: takes away what ``again`` measures anew.
        measure: takes the turns that are missing; returns all results and the exit code.
        report: from results and the name of their file to the tables.
    """
    from campaign.session import facts  # noqa: PLC0415 - loads much, and a rank has no need of it

    command = shlex.join(["python", f"benchmarks/{Path(script).name}", *sys.argv[1:]])
    code = 0
    try:
        results = resumed({} if options.no_run else facts() | {"command": command})
        if options.again:
            results = without(results)
        if not options.no_run:
            results, code = measure(options, results)
    except SyncopateError as error:
        print(error, file=sys.stderr)
        return 1
    text = report(results, options.json.name if options.json else "")
    print(text)
    if options.report is not None:
        write_output(options.report, text.encode())
    return code
