"""Text: the lines of a log, without what launchers and terminals put around them."""

from __future__ import annotations

import os
import re

from syncopate.errors import ArtifactError
from syncopate.reading import opened
from syncopate.units import MIB, format_bytes

MOST_BYTES = 256 * MIB
"""Longer is no log of a benchmark, and would not fit into memory many times over."""

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STAMP = r"\[?\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?\]?"
_PREFIXES = re.compile(
    rf"""\s*(?:
        \[[^\]\s]*\d+,\s?\d+\]<std\w+>:?   # mpirun --tag-output
      | {_STAMP}                           # kubectl logs --timestamps
      | \d+:(?=\s)                         # srun --label
      | \[\d+\](?=\s+(?:\#|\d|[\w.-]+:))   # mpiexec -prepend-rank
      | [A-Za-z][\w.-]*:(?=\s+[\#\d])      # pdsh, a host
    )\s?""",
    re.VERBOSE,
)
_MOST_PREFIXES = 3


def read_text(path: str | os.PathLike[str], most_bytes: int | None = None) -> str:
    """Return the text of a log, compressed or not.

    Args:
        path: the file.
        most_bytes: how much of its beginning; all of it when left out.

    Raises:
        ArtifactError: it cannot be read, is empty, longer than any log, or no text.
    """
    try:
        with opened(path) as file:
            data = file.read(MOST_BYTES + 1 if most_bytes is None else most_bytes)
    except OSError as error:
        reason = error.strerror or error
        raise ArtifactError(path, f"cannot be read: {reason}") from None
    if len(data) > MOST_BYTES:
        reason = f"longer than {format_bytes(MOST_BYTES)}, and so no log of a benchmark"
        raise ArtifactError(path, reason)
    if not data.strip():
        raise ArtifactError(path, "it is empty")
    if b"\0" in data:
        raise ArtifactError(path, "no text, and so no log")
    return data.decode("utf-8", errors="replace")


def lines_of(text: str) -> list[tuple[str, str]]:
    """Return each line as the launcher's prefix, which may be empty, and the rest.

    Example:
        >>> lines_of("[1,0]<stdout>:# Rank 0")
        [('[1,0]<stdout>:', '# Rank 0')]
    """
    found = []
    for raw in _COLOURS.sub("", text).replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        line, prefix = raw, ""
        for _ in range(_MOST_PREFIXES):
            match = _PREFIXES.match(line)
            if match is None or not match.group().strip():
                break
            prefix += match.group().strip()
            line = line[match.end() :]
        found.append((prefix, line))
    return found
