"""Ports: which of them listeners take, where a firewall lets some in alone.

The kernel chooses otherwise. ``SYNCOPATE_PORTS=29600-29699`` names a range: every listener of ranks
and of parameter servers that is given no port of its own takes a free one of these.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TypeVar

from syncopate.errors import InvalidValueError

VARIABLE = "SYNCOPATE_PORTS"
"""The environment variable that names the range."""

_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_RULE = "a range of ports from 1 to 65535, such as 29600-29699"

T = TypeVar("T")


def ports_of(text: str, what: str = VARIABLE) -> range:
    """Return the ports that a text names: one, or from the first to the last.

    Raises:
        InvalidValueError: it names none.

    Example:
        >>> ports_of("29600-29602")
        range(29600, 29603)
    """
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        raise InvalidValueError(what, text, _RULE)
    first, last = int(found[1]), int(found[2] or found[1])
    if not 1 <= first <= last < 1 << 16:
        raise InvalidValueError(what, text, _RULE)
    return range(first, last + 1)


def bound(bind: Callable[[int], T]) -> T:
    """Return what ``bind`` makes of the first port of the range that is free; of 0 without a range.

    Args:
        bind: listens on a port; 0 is any free one.

    Raises:
        OSError: it cannot listen; where no port of the range is free, that is said.
        InvalidValueError: the range is none.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return bind(0)
    ports, refused = ports_of(text), None
    for port in ports:
        try:
            return bind(port)
        except OSError as error:
            refused = error
    assert refused is not None
    why = f"{refused.strerror or refused}: none of the {len(ports)} ports {text} ({VARIABLE})"
    raise OSError(refused.errno, why) from None
