"""The command line: one file per command; each parses, calls and prints.

``main`` turns every refusal into one clear line on standard error and the exit code of its class.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from syncopate.errors import ArtifactError, MissingPackageError, SyncopateError

DEBUG = "SYNCOPATE_DEBUG"
"""Environment variable that shows tracebacks when it is set to anything but 0."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_PRINTERS = ("rich", "click", "typer")


def main() -> int:
    """Run the command line on ``sys.argv``; return the exit code.

    0 is success, 2 a wrong value, name or file, 1 any other refusal, 130 an interrupt, 143 SIGTERM
    to long work.
    """
    _show_what_cannot_be_encoded()
    try:
        return _run()
    except KeyboardInterrupt as interrupt:  # while packages are still being imported, too
        return _ended(interrupt)
    except SyncopateError as error:
        refusal = error
        cause: Exception = error
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("", __package__.partition(".")[0]):
            raise
        refusal, cause = _missing(error), error
    except MemoryError as error:
        refusal = SyncopateError("there is no room in memory for this: ask for less of it")
        cause = error
    except OSError as error:
        if error.errno not in _FULL or not _printing(error):
            raise
        sys.stdout = io.StringIO()  # what is still to be flushed would fail again
        refusal = ArtifactError("standard output", f"cannot write: {error.strerror}")
        cause = error
    if os.environ.get(DEBUG, "0") != "0":
        raise cause
    with suppress(OSError):  # standard error may be full, too
        _report(refusal)
    return refusal.exit_code


def _show_what_cannot_be_encoded() -> None:
    """Let terminals that know ASCII alone show other letters as escapes, not raise."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run() -> int:
    from syncopate.cli.app import app
    from syncopate.cli.common import launcher
    from syncopate.cli.common.completion import answer

    launcher.adopt(os.environ)
    answer(os.environ)
    try:
        app(prog_name="syncopate")
    except SystemExit as finished:
        interrupt = getattr(finished.__context__, "__cause__", None)
        if isinstance(interrupt, KeyboardInterrupt):  # of which Typer makes 130, whichever it was
            return _ended(interrupt)
        return finished.code if isinstance(finished.code, int) else int(finished.code is not None)
    return 0


def _ended(interrupt: BaseException) -> int:
    """Return the exit code of what a signal ended; of SIGTERM, say that it was that, once."""
    from syncopate.cli.common.ending import INTERRUPTED, code_of

    code = code_of(interrupt)
    of_several = "SYNCOPATE_RENDEZVOUS" in os.environ or os.environ.get("RANK", "0") != "0"
    if code != INTERRUPTED and not of_several:
        with suppress(OSError):
            print("ended by SIGTERM", file=sys.stderr)
    return code


def _report(refusal: SyncopateError) -> None:
    try:
        from syncopate.cli.common.ranks import report_error
    except ImportError:  # what is missing may be what commands print with
        print(f"error: {refusal}", file=sys.stderr)
    else:
        report_error(refusal)


def _missing(error: ImportError) -> SyncopateError:
    """Return what to say of a package that is missing, or cannot be loaded."""
    name = str(error.name).partition(".")[0]
    if not isinstance(error, ModuleNotFoundError):
        return SyncopateError(f"this needs {name}, which cannot be imported: {error}")
    return MissingPackageError("this", name)


def _printing(error: OSError) -> bool:
    """Say whether it was while something was printed, and not in a file, that ``error`` came."""
    *_, frame = traceback.extract_tb(error.__traceback__)
    return any(part in _PRINTERS for part in Path(frame.filename).parts[-3:])


if __name__ == "__main__":
    sys.exit(main())
