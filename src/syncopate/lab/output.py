"""Output: what ranks print, line by line, each line with the rank that wrote it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

_COLOURS = (36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91)
"""ANSI foreground colours, taken in turn by rank; grey and black read badly on some terminals."""

_LINE = re.compile(rb"(?P<line>[^\r\n]*)(?P<end>\r\n|\n|\r)")


LineSink = Callable[[int, str, str], None]
"""Takes a line: the rank that wrote it, ``"stdout"`` or ``"stderr"``, and the line without end."""


class PrefixedOutput:
    """Prints each line as ``[host1 rank 3] line``, standard output and error kept apart.

    Prefixes have colours where the stream is a terminal.

    Args:
        prefixes: what stands before the lines of each rank.
    """

    def __init__(self, prefixes: list[str]) -> None:
        width = max((len(prefix) for prefix in prefixes), default=0)
        self._prefixes = [prefix.ljust(width) for prefix in prefixes]

    def __call__(self, rank: int, stream: str, line: str) -> None:
        """Print one line; see :data:`LineSink`."""
        target = sys.stderr if stream == "stderr" else sys.stdout
        prefix = f"[{self._prefixes[rank]}]"
        if target.isatty():
            prefix = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{prefix}\x1b[0m"
        target.write(f"{prefix} {line}\n")
        target.flush()


class LineBuffer:
    """Cuts a stream of bytes into lines; a carriage return, as progress bars use it, ends one too.

    Bytes that are not UTF-8 appear as replacement characters: output is shown, never a reason to
    fail.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that ``data`` completes."""
        text = self._rest + data
        # A carriage return at the very end may be the first half of a line end.
        end = len(text) - text.endswith(b"\r")
        lines, start = [], 0
        for match in _LINE.finditer(text, 0, end):
            if match["line"] or match["end"] != b"\r":
                lines.append(match["line"].decode(errors="replace"))
            start = match.end()
        self._rest = text[start:]
        return lines

    def flush(self) -> list[str]:
        """Return what is left at the end of the stream: a line without its end, or nothing."""
        rest, self._rest = self._rest.rstrip(b"\r"), b""
        return [rest.decode(errors="replace")] if rest else []
