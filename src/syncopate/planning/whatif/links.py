"""Links: rates as they are sold, and what arrives of them.

``"25g"`` is a link of 25 Gbit/s on its data sheet, of which 94% arrive as bytes of messages; so
count the typical networks of :data:`~syncopate.artifacts.cluster.NETWORKS` too. ``"23.5gbit"`` is
what arrives.
"""

from __future__ import annotations

import re

from syncopate.errors import InvalidValueError
from syncopate.units import format_rate, parse_rate

GOODPUT = 0.94
"""Of a link's rate, what arrives: TCP over Ethernet with frames of 1500 bytes."""

SOLD = (1, 2.5, 5, 10, 25, 40, 50, 100, 200, 400, 800)
"""Rates of links that are sold, in Gbit/s."""

_SOLD = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(g|gbe|m)\s*", re.IGNORECASE)
_NEAR = 0.01


def link_rate(value: str | float) -> float:
    """Return the bytes per second of a link: of ``"25g"``, ``"23.5gbit"``, or as they are.

    Raises:
        InvalidValueError: it is neither, or not above 0.
    """
    if isinstance(value, str):
        sold = _SOLD.fullmatch(value)
        if sold is not None:
            unit = 1e6 if sold[2].lower() == "m" else 1e9
            rate = float(sold[1]) * unit * GOODPUT / 8
        else:
            try:
                rate = parse_rate(value)
            except InvalidValueError:
                rule = "a rate as sold, such as 25g, or what arrives, such as 23.5gbit"
                raise InvalidValueError("bandwidth", value, rule) from None
    else:
        rate = float(value)
    if not 0 < rate < float("inf"):
        raise InvalidValueError("bandwidth", value, "a finite rate > 0, such as 25g or 23.5gbit")
    return rate


def sold_as(bytes_per_s: float) -> str:
    """Return what a link is sold as, such as ``"25g"``; empty where none is sold that is near.

    Example:
        >>> sold_as(2.9375e9), sold_as(2e9)
        ('25g', '')
    """
    for gbit in SOLD:
        if abs(bytes_per_s / link_rate(f"{gbit}g") - 1) < _NEAR:
            return f"{gbit:g}g"
    return ""


def link_words(bytes_per_s: float) -> str:
    """Return a link's rate for people: ``"25 Gbit/s"`` as sold, else what arrives."""
    sold = sold_as(bytes_per_s)
    return f"{sold[:-1]} Gbit/s" if sold else format_rate(bytes_per_s)
