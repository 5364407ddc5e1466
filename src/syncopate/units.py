"""Units: the few constants, parsers and formatters for bytes, seconds and rates.

Inside the project everything is SI: seconds, bytes, bytes per second. People see milliseconds,
mebibytes and gigabits only where something is printed, and only through this module.
"""

from __future__ import annotations

import math
import re

from syncopate.errors import InvalidValueError, UnknownNameError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

DTYPE_BYTES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "complex128": 16,
    "complex64": 8,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
}
"""Bytes per element of every dtype a gradient may have, by the name torch gives it."""

_BYTE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "k": KIB,
    "m": MIB,
    "g": GIB,
}
_RATE_UNITS = {"bit": 1 / 8, "kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8}
_TIME_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "y": 365.25 * 86_400,
}
GOODPUT = 0.94
"""Of a link's rate as it is sold, what arrives: TCP over Ethernet with frames of 1500 bytes."""

SOLD_GBIT = (1, 2.5, 5, 10, 25, 40, 50, 100, 200, 400, 800)
"""Rates of links that are sold, in Gbit/s."""

_SOLD = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(g|gbe|m)\s*", re.IGNORECASE)
_NEAR_SOLD = 0.01
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def _parse(text: str, units: dict[str, float], what: str, example: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is not None and match.group(2).lower() in units:
        found = float(match.group(1)) * units[match.group(2).lower()]
        if math.isfinite(found):
            return found
    raise InvalidValueError(
        what, text, f"a number and one of {', '.join(u for u in units if u)}, such as {example}"
    )


def dtype_bytes(dtype: str) -> int:
    """Return the bytes per element of ``dtype``, such as 4 for ``"float32"``.

    Raises:
        UnknownNameError: the dtype is none that a gradient may have.
    """
    try:
        return DTYPE_BYTES[dtype]
    except KeyError:
        raise UnknownNameError("dtype", dtype, DTYPE_BYTES) from None


def dtype_name(dtype: object) -> str:
    """Return the name of one of torch's element types, such as ``"float32"``."""
    return str(dtype).removeprefix("torch.")


def parse_bytes(text: str) -> int:
    """Read a size such as ``"64MiB"``, ``"25MB"``, ``"4k"`` (KiB) or ``"512"`` into bytes."""
    return round(_parse(text, dict(_BYTE_UNITS), "size", "64MiB"))


def parse_rate(text: str) -> float:
    """Read a link rate such as ``"1gbit"`` or ``"100mbit"`` into bytes per second."""
    return _parse(text, _RATE_UNITS, "rate", "1gbit")


def parse_seconds(text: str) -> float:
    """Read a duration such as ``"20us"``, ``"1.5ms"``, ``"6h"`` or ``"5y"``; the unit is needed."""
    return _parse(text, _TIME_UNITS, "duration", "20us")


def parse_link(text: str) -> float:
    """Read the rate of a link into bytes per second of messages.

    ``"25g"`` or ``"25gbe"`` is the rate on its data sheet, of which :data:`GOODPUT` arrives;
    ``"23.5gbit"`` is what arrives.
    """
    sold = _SOLD.fullmatch(text)
    if sold is not None:
        unit = 1e6 if sold[2].lower() == "m" else 1e9
        return float(sold[1]) * unit * GOODPUT / 8
    try:
        return parse_rate(text)
    except InvalidValueError:
        rule = "as sold, such as 25g, or what arrives, such as 23.5gbit"
        raise InvalidValueError("rate of a link", text, rule) from None


def sold_as(bytes_per_s: float) -> str:
    """Return what a link is sold as; empty where none of that rate is.

    Example:
        >>> sold_as(2.9375e9), sold_as(2e9)
        ('25g', '')
    """
    for gbit in SOLD_GBIT:
        if abs(bytes_per_s / parse_link(f"{gbit}g") - 1) < _NEAR_SOLD:
            return f"{gbit:g}g"
    return ""


def format_link(bytes_per_s: float) -> str:
    """Write a link for people: ``"25 Gbit/s"`` as it is sold, else what arrives."""
    sold = sold_as(bytes_per_s)
    return f"{sold[:-1]} Gbit/s" if sold else format_rate(bytes_per_s)


def format_bytes(nbytes: float) -> str:
    """Write a size for people: ``"96 B"``, ``"4.0 KiB"``, ``"25.0 MiB"``."""
    if nbytes < KIB:
        return f"{nbytes:.0f} B"
    for unit, name in ((GIB, "GiB"), (MIB, "MiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes / KIB:.1f} KiB"


def format_seconds(seconds: float) -> str:
    """Write a duration for people: ``"83.1 us"``, ``"4.20 ms"``, ``"1.50 s"``."""
    magnitude = abs(seconds)
    if magnitude >= 1:
        return f"{seconds:.2f} s"
    if magnitude >= 1e-3:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds * 1e6:.1f} us"


def format_duration(seconds: float) -> str:
    """Write a long duration for people: ``"45.00 s"``, ``"50.0 min"``, ``"21.4 h"``."""
    for unit, name, most in ((60, "min", 7200), (3600, "h", 172_800), (86_400, "d", float("inf"))):
        if 120 <= seconds < most:
            return f"{seconds / unit:.1f} {name}"
    return format_seconds(seconds)


def format_count(number: int, noun: str) -> str:
    """Write how many of something there are, for people: ``"1 host"``, ``"8 hosts"``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_rate(bytes_per_s: float) -> str:
    """Write a link rate for people, in bits as links are sold: ``"9.66 Gbit/s"``."""
    bits = bytes_per_s * 8
    for unit, name in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits >= unit:
            return f"{bits / unit:.2f} {name}"
    return f"{bits:.0f} bit/s"
