"""Group: what all commands do when their words are wrong, or their output is a closed pipe."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from syncopate.errors import one_line


class Commands(TyperGroup):
    """Commands whose refusals hold nothing to obey, and which end quietly with a closed pipe."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Return the context of the command line; ``--help`` prints here."""
        with _ended_well():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the command line names."""
        with _ended_well():
            found = super().invoke(ctx)
            sys.stdout.flush()
            return found


@contextmanager
def _ended_well() -> Iterator[None]:
    """Show what a terminal would obey in Typer's refusals; a closed pipe is no error."""
    try:
        yield
    except BrokenPipeError:
        if not _closed():
            raise
        raise typer.Exit(0) from None
    except SystemExit as finished:
        if isinstance(finished.__context__, BrokenPipeError):  # Rich ends so
            raise typer.Exit(0) from None
        raise
    except Exception as error:
        if isinstance(told := getattr(error, "message", None), str):
            error.message = one_line(told)  # type: ignore[attr-defined]
        raise


def _closed() -> bool:
    """Say whether standard output is a closed pipe; from then on print nothing there."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = io.StringIO()  # what is still to be flushed would fail again
        return True
    return False
