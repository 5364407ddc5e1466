"""Place: where the metrics of a process are to be had: at a port, or in a file.

``9464`` is a port of this machine alone, ``0.0.0.0:9464`` one of all its addresses, and anything
else a directory, in which each process has a file (``rank-0.prom``), as the textfile collector of
Prometheus' node exporter reads them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from syncopate.errors import InvalidValueError

VARIABLE = "SYNCOPATE_METRICS"
"""The environment variable that says where; nothing is published where it is not set."""

LOCAL = "127.0.0.1"

_PORT = re.compile(r"(?:(.*):)?(\d+)")
_MOST = 65535


class Port(NamedTuple):
    """A port that is listened on.

    Attributes:
        host: an address of this machine.
        port: 0: any free one.
    """

    host: str
    port: int


Place = Port | Path
"""A port, or a directory."""


def place_of(given: str | int | os.PathLike[str], what: str = "metrics", shift: int = 0) -> Place:
    """Return the place that a text or number names.

    Args:
        given: a port, ``host:port``, or a directory.
        what: how the user calls it.
        shift: added to a port: of several processes on a host each has one of its own.

    Raises:
        InvalidValueError: a port that there is not, or nothing at all.
    """
    rule = f"a port up to {_MOST}, host:port, or a directory"
    text = str(given) if isinstance(given, int) else os.fspath(given)
    if not text or isinstance(given, bool):
        raise InvalidValueError(what, given, rule)
    found = None if isinstance(given, os.PathLike) else _PORT.fullmatch(text)
    if found is None:
        if text.startswith("-"):
            raise InvalidValueError(what, given, rule)
        return Path(text)
    port = int(found[2])
    if port > _MOST or (port and port + shift > _MOST):
        raise InvalidValueError(what, given, rule)
    host = (found[1] or LOCAL).removeprefix("[").removesuffix("]")
    return Port(host, port + shift if port else 0)
