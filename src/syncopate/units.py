"""Units: the few constants, parsers and formatters for bytes, seconds and rates.

Inside the project everything is SI: seconds, bytes, bytes per second. People see milliseconds,
mebibytes and gigabits only where something is printed, and only through this module.
"""

from __future__ import annotations

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
_TIME_UNITS = {"s": 1, "ms": 1e-3, "min": 60, "h": 3600, "d": 86_400, "y": 365.25 * 86_400}
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def _parse(text: str, units: dict[str, float], what: str, example: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None or match.group(2).lower() not in units:
        raise InvalidValueError(
            what, text, f"a number and one of {', '.join(u for u in units if u)}, such as {example}"
        )
    return float(match.group(1)) * units[match.group(2).lower()]


def dtype_bytes(dtype: str) -> int:
    """Return the bytes per element of ``dtype``, such as 4 for ``"float32"``.

    Raises:
        UnknownNameError: the dtype is none that a gradient may have.
    """
    try:
        return DTYPE_BYTES[dtype]
    except KeyError:
        raise UnknownNameError("dtype", dtype, DTYPE_BYTES) from None


def parse_bytes(text: str) -> int:
    """Read a size such as ``"64MiB"``, ``"25MB"``, ``"4k"`` (KiB) or ``"512"`` into bytes."""
    return round(_parse(text, dict(_BYTE_UNITS), "size", "64MiB"))


def parse_rate(text: str) -> float:
    """Read a link rate such as ``"1gbit"`` or ``"100mbit"`` into bytes per second."""
    return _parse(text, _RATE_UNITS, "rate", "1gbit")


def parse_seconds(text: str) -> float:
    """Read a duration such as ``"90s"``, ``"10min"``, ``"6h"``, ``"30d"`` or ``"5y"``."""
    return _parse(text, _TIME_UNITS, "duration", "10min")


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
