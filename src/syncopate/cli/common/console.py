"""What the commands print, and where: results on standard output, everything else on the other.

Of several ranks only rank 0 prints. A file written to standard output has it for itself.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

import msgspec
import typer
from rich import progress
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from syncopate.artifacts.artifact import Artifact
from syncopate.cli.common.ending import ended_once
from syncopate.cli.common.launcher import LAUNCHER
from syncopate.errors import InvalidValueError, one_line, visible
from syncopate.output import Progress, is_standard_output, newly_made, require_writable

LINE_S = 10.0
"""How often long work says how far it is, off a terminal."""


class SafeConsole(Console):
    """A console on which nothing in a text is obeyed: names from files may hold escapes."""

    def on_broken_pipe(self) -> None:
        """End where standard output is closed; go on without remarks where standard error is."""
        self.quiet = True
        if not self.stderr:
            super().on_broken_pipe()

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text of a string, as wide as it is shown."""
        return super().render_str(visible(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the pieces of anything; what Rich steers the terminal with stays as it is."""
        for segment in super().render(renderable, options):
            shown = segment.text if segment.control else visible(segment.text)
            yield segment if shown == segment.text else Segment(shown, segment.style)


def is_leader() -> bool:
    """Return whether this process is the one that prints: rank 0, or no rank at all."""
    return (os.environ.get("RANK") or "0") == "0"


def out(beside: Path | None = None) -> Console:
    """Return the console of results: standard output, silent on every rank but 0.

    Piped output is as wide as its tables need, so that nothing is folded away.

    Args:
        beside: the file that the command writes. Where that is standard output, results are printed
            on standard error, so that a program can read the file.
    """
    console = _console(stderr=is_standard_output(beside))
    if not console.is_terminal:
        console.width = max(console.width, 160)
    return console


class Result(Protocol):
    """The result of a command."""

    def report(self) -> RenderableType:
        """Return it for a terminal."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return all its values."""
        ...


def show(found: Result, json: bool, beside: Path | None = None) -> None:
    """Print a result: as text, or all its values as JSON; ``beside`` as :func:`out` has it."""
    if json:
        say_json(msgspec.json.format(msgspec.json.encode(found.to_dict()), indent=1))
        return
    out(beside).print(found.report(), crop=False)  # commands in it are longer than lines


def err() -> Console:
    """Return the console of progress and remarks: standard error, silent on every rank but 0."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    # mpirun lends ranks terminals of their own.
    terminal = False if LAUNCHER in os.environ else None
    return SafeConsole(
        stderr=stderr,
        quiet=not is_leader(),
        highlight=False,
        emoji=False,
        force_terminal=terminal,
    )


def remark(text: str, style: str = "dim") -> None:
    """Print a text on standard error, in one line."""
    err().print(one_line(text), style=style, soft_wrap=True, markup=False)


def note(text: str) -> None:
    """Remark what a result does not know."""
    remark(f"note: {text}", "yellow")


def warn(text: str) -> None:
    """Remark what speaks against a result."""
    remark(f"warning: {text}", "yellow")


def say_json(text: bytes) -> None:
    """Print JSON on standard output, always as UTF-8."""
    line = text if text.endswith(b"\n") else text + b"\n"
    typer.echo(line if hasattr(sys.stdout, "buffer") else line.decode(), nl=False)


def say_written(*paths: Path | None) -> None:
    """Remark which files were written, but for standard output, and which folders were made."""
    files = [path for path in paths if path is not None and not is_standard_output(path)]
    if not files:
        return
    made = newly_made(files)
    told = f"wrote {' and '.join(map(str, files))}"
    if made:
        told += f", in the new folder{'s' * (len(made) > 1)} {' and '.join(map(str, made))}"
    remark(told)


def save_and_show(
    found: Artifact,
    output: Path,
    json: bool,
    report: Callable[[], RenderableType],
    page: Path | None = None,
) -> None:
    """Save a result, print it, and say which files were written.

    Args:
        found: the result.
        output: its file.
        json: whether to print its JSON.
        report: makes its text for a terminal, printed otherwise; called only then.
        page: a file that was written beside it.
    """
    found.save(output)
    if json:
        say_json(found.to_json())
    else:
        out(beside=output).print(report())
    say_written(output, page)


options_given: ContextVar[Mapping[str, Any]] = ContextVar("options_given")
"""The options and arguments of the command that runs, by name."""


def require_outputs(json: bool, *outputs: tuple[str, Path | None]) -> None:
    """Refuse outputs that could not be written once the work is done, before it is.

    Args:
        json: whether the command prints JSON on standard output.
        outputs: options that name files, and the files; rank 0 writes them.

    Raises:
        InvalidValueError: two things are to be written to standard output or to one file, or a
            file that the command reads; names the option and what it may say instead.
        ArtifactError: a file cannot be written.
    """
    taken = "--json" if json else ""
    _require_others(outputs)
    for option, path in outputs:
        if is_standard_output(path):
            if taken:
                rule = f"a file, because {taken} takes standard output already"
                raise InvalidValueError(option, str(path), rule)
            taken = option
        elif path is not None and is_leader():
            require_writable(path)


def _require_others(outputs: Sequence[tuple[str, Path | None]]) -> None:
    """Refuse outputs that are files which the command reads, or the same file twice."""
    read: dict[str, str] = {}
    written = {option.lstrip("-").replace("-", "_"): (option, path) for option, path in outputs}
    for name, value in options_given.get({}).items():
        for path in value if isinstance(value, list | tuple) else (value,):
            if isinstance(path, Path) and name not in written:
                read[os.path.realpath(path)] = name
    for option, path in written.values():
        if path is None or is_standard_output(path):
            continue
        if (other := read.get(os.path.realpath(path))) is not None:
            raise InvalidValueError(option, str(path), f"another file than {other}, which is read")
        read[os.path.realpath(path)] = option


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """Show how far the block is on rank 0: a bar on a terminal, else a line every ten seconds.

    While it runs the first SIGINT or SIGTERM ends it, so that what was done is kept.

    Yields:
        A function ``(what, fraction done)`` that moves the bar.
    """
    console = err()
    shown = _bar if console.is_terminal else _lines
    with ended_once(), shown(title, console) as advance:
        yield advance


@contextmanager
def _lines(title: str, console: Console) -> Iterator[Progress]:
    """Print a line every :data:`LINE_S`, by a thread: work may say nothing for long."""
    last, over = ["", 0.0], threading.Event()

    def advance(what: str, fraction: float) -> None:
        last[:] = [what, fraction]

    def say_on() -> None:
        while not over.wait(LINE_S):
            what, fraction = last
            told = one_line(f"{title}: {fraction:.0%}{f', {what}' if what else ''}")
            console.print(told, style="dim", soft_wrap=True, markup=False)

    thread = threading.Thread(target=say_on, name="syncopate-progress", daemon=True)
    thread.start()
    try:
        yield advance
    finally:
        over.set()
        thread.join()


@contextmanager
def _bar(title: str, console: Console) -> Iterator[Progress]:
    bar = progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.fields[what]}", style="dim", markup=False),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task(one_line(title), total=1.0, what="")

        def advance(what: str, fraction: float) -> None:
            bar.update(task, completed=fraction, what=one_line(what))

        yield advance
