"""Agreement: compares, before a collective, what the ranks are about to do.

Ranks that run different collectives at the same time exchange messages of the wrong size and
meaning. The comparison costs a small all-gather per collective, so it is switched on to look for
such a mistake, by ``SYNCOPATE_CHECK=1``.
"""

from __future__ import annotations

import os
import zlib

from syncopate.collectives.health.blame import Call
from syncopate.collectives.messages.objects import Objects
from syncopate.errors import CollectiveError, InvalidValueError

VARIABLE = "SYNCOPATE_CHECK"
"""The environment variable that switches the comparison on or off; off where it is not set."""

_ON, _OFF = ("1", "on", "yes", "true"), ("", "0", "off", "no", "false")

_ROW_BYTES = 160


def wanted() -> bool:
    """Say whether the environment asks for the comparison; must be the same on all ranks.

    Raises:
        InvalidValueError: it says something else than on or off.
    """
    said = os.environ.get(VARIABLE, "")
    if said.lower() not in (*_ON, *_OFF):
        rule = f"{', '.join(_ON)} to compare, or {', '.join(filter(None, _OFF))} not to"
        raise InvalidValueError(VARIABLE, said, rule)
    return said.lower() in _ON


def require_agreement(call: Call, objects: Objects) -> None:
    """Return when every rank of the channel is about to do ``call``.

    Raises:
        CollectiveError: they are about to do different things; raised on every rank alike.
    """
    rows = objects.all_gather_rows(_row(call.title.encode()))
    titles = [row.decode(errors="replace").rstrip() for row in rows]
    if len(set(titles)) > 1:
        listed = "; ".join(f"rank {rank}: {title}" for rank, title in enumerate(titles))
        raise CollectiveError(call.title, f"the ranks disagree about what comes next: {listed}")


def _row(title: bytes) -> bytes:
    """Return a title in as many bytes as all have; what is cut off a long one still counts."""
    if len(title) > _ROW_BYTES:
        mark = f"... (checksum {zlib.crc32(title):08x})".encode()
        title = title[: _ROW_BYTES - len(mark)] + mark
    return title.ljust(_ROW_BYTES)
