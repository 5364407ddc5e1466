"""Output: what ranks print, line by line, each line with the rank that wrote it."""

from __future__ import annotations

import re
import sys
from typing import Protocol, TextIO

_COLOURS = (36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91)
"""ANSI foreground colours, taken in turn by rank; grey and black read badly on some terminals."""

_LINE = re.compile(rb"(?P<line>[^\r\n]*)(?P<end>\r\n|\n|\r)")


class LineSink(Protocol):
    """Takes the lines of all ranks."""

    def __call__(self, rank: int, stream: str, line: str) -> None:
        """Take one line.

        Args:
            rank: the one that wrote it.
            stream: ``"stdout"`` or ``"stderr"``.
            line: without its end.
        """


class PrefixedOutput:
    """Prints each line as ``[host1 rank 3] line``, standard output and error kept apart.

    Args:
        prefixes: what stands before the lines of each rank.
        colour: colour prefixes; ``None`` for where the stream is a terminal.
    """

    def __init__(self, prefixes: list[str], *, colour: bool | None = None) -> None:
        width = max((len(prefix) for prefix in prefixes), default=0)
        self._prefixes = [prefix.ljust(width) for prefix in prefixes]
        self._colour = colour

    def __call__(self, rank: int, stream: str, line: str) -> None:
        """Print one line; see :class:`LineSink`."""
        target = sys.stderr if stream == "stderr" else sys.stdout
        prefix = f"[{self._prefixes[rank]}]"
        if self._wants_colour(target):
            prefix = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{prefix}\x1b[0m"
        target.write(f"{prefix} {line}\n")
        target.flush()

    def _wants_colour(self, target: TextIO) -> bool:
        return target.isatty() if self._colour is None else self._colour


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
