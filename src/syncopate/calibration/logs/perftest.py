"""perftest: tables of ``ib_write_bw``, ``ib_write_lat`` and their siblings.

Latencies of writes and sends are half of a round trip; a read is a whole one, and is halved here.
MB are 2^20 bytes, Gb 1e9 bits. A bidirectional test prints the sum of both directions. A test of
bandwidth keeps many messages under way, so that even its small ones say nothing of latency.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from syncopate.artifacts.overlap import RDMA
from syncopate.calibration.logs.measured import LinkLog
from syncopate.errors import ArtifactError
from syncopate.units import MIB

_HEADER = re.compile(r"\s*#bytes\s+#iterations\s+(.*)")
_TITLE = re.compile(r"\s*(RDMA_Write|RDMA_Read|Send|Atomic)\s+(.*?)(?:BW|Latency) Test")
_COMMAND = re.compile(r"\b(ib_(?:write|read|send|atomic)_(?:bw|lat))\b")
_COLUMNS = re.compile(r"tps average|[^\s\[\]][^\[\]]*\[[^\]]+\]|\S+")
_UNITS = {
    "MB/sec": float(MIB),
    "Gb/sec": 1e9 / 8,
    "GB/sec": float(MIB) * 1024,
    "MiB/sec": float(MIB),
}


def is_perftest(text: str) -> bool:
    """Say whether a text is, or begins, a log of perftest."""
    return any(_HEADER.match(line) or _TITLE.match(line) for line in text.splitlines()) or bool(
        _COMMAND.search(text) and "local address:" in text
    )


def read_perftest(path: str, lines: Sequence[tuple[str, str]]) -> tuple[LinkLog, ...]:
    """Return what a log of perftest measured, all its tests together.

    Args:
        path: of the file, for errors.
        lines: prefix and rest of each.

    Raises:
        ArtifactError: no row is whole, or a unit that is not known.
    """
    columns: tuple[str, ...] = ()
    title = _Title()
    rates: list[float] = []
    one_way: list[tuple[int, float]] = []
    for _, line in lines:
        header, named, command = _HEADER.match(line), _TITLE.match(line), _COMMAND.search(line)
        if header is not None:
            columns = tuple(_COLUMNS.findall(header.group(1)))
        elif named is not None:
            title = _Title(named.group(1).lower(), "Bidirectional" in named.group(2))
        elif command is not None and not title.verb:
            title = _Title(command.group(1).split("_")[1])
        values = line.split()
        if not columns or len(values) < len(columns) + 2 or not all(map(_is_number, values)):
            continue  # a warning among the rows, or a last one that was cut off
        found = dict(zip(columns, map(float, values[2:]), strict=False))
        rate, seconds = _rate(path, found, title), _one_way_s(found, title)
        if rate is not None:
            rates.append(rate)
        if seconds is not None:
            one_way.append((int(float(values[0])), seconds))
    if not rates and not one_way:
        raise ArtifactError(path, "a log of perftest, of which no row can be read")
    verb = title.verb.removeprefix("rdma_") or "write"
    both = [name for name, there in (("bw", rates), ("lat", one_way)) if there]
    tool = " and ".join(f"ib_{verb}_{name}" for name in both)
    return (LinkLog(path, tool, RDMA, max(rates, default=None), tuple(sorted(one_way))),)


class _Title(NamedTuple):
    """The header of a test: its operation, and whether it runs in both directions."""

    verb: str = ""
    both_ways: bool = False


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _rate(path: str, found: dict[str, float], title: _Title) -> float | None:
    """Return the average rate of a row in one direction; None where it has none."""
    for name, value in found.items():
        unit = re.fullmatch(r"BW[ _]average\s?\[(.+)\]", name)
        if unit is None:
            continue
        if unit.group(1) not in _UNITS:
            raise ArtifactError(path, f"a rate in {unit.group(1)}; known: {', '.join(_UNITS)}")
        rate = value * _UNITS[unit.group(1)] / (2 if title.both_ways else 1)
        return rate if rate > 0 else None
    return None


def _one_way_s(found: dict[str, float], title: _Title) -> float | None:
    """Return the typical time of a row's message one way; None where it has none."""
    for name in ("t_typical[usec]", "t_avg[usec]"):
        if found.get(name, 0.0) > 0:
            return found[name] * 1e-6 / (2 if "read" in title.verb else 1)
    return None
