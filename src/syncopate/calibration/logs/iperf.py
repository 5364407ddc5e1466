"""iperf3: its reports as text, and as JSON with ``--json`` or ``--json-stream``.

What the receiver got counts, the sum of parallel streams; of a test in both directions the better
one. A text that was cut off before its summary has its longest rows. Rates in bits count in
thousands, those in bytes in 1024s. A round trip that iperf3 reports is one on a busy link, most of
it waiting in queues, and says nothing of the latency of small messages.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from syncopate.artifacts.artifact import TOO_DEEP
from syncopate.artifacts.overlap import TCP
from syncopate.calibration.logs.measured import LinkLog
from syncopate.errors import ArtifactError

_ROW = re.compile(
    r"\[\s*(SUM|\d+)\]\s*(?:\[([TR]X-[CS])\])?\s*(\d+\.?\d*)\s*-\s*(\d+\.?\d*)\s+s(?:ec)?\s+"
    r"[\d.]+\s+\w*Bytes\s+(\d+\.?\d*)\s+([KMGT]?)(bits|Bytes)/s(?:ec)?\s*(.*)"
)
_BEGINS = re.compile(r"Connecting to host \S+, port|Server listening on \d+|iperf 3\.|iperf Done")
_DECIMAL = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY = {"": 1.0, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40}
_UDP = (
    "a test of UDP, which sends as fast as it is told (-b), not as fast as the network can; run "
    "iperf3 without -u"
)
TOOL = "iperf3"


def is_iperf(text: str) -> bool:
    """Say whether a text is, or begins, a report of iperf3."""
    if text.lstrip().startswith("{"):
        return '"start"' in text and bool(
            re.search(r'"(?:test_start|connecting_to|connected)"', text)
        )
    return bool(_BEGINS.search(text) or _ROW.search(text))


def read_iperf(path: str, text: str, lines: Sequence[tuple[str, str]]) -> tuple[LinkLog, ...]:
    """Return what a report of iperf3 measured.

    Args:
        path: of the file, for errors.
        text: the whole.
        lines: prefix and rest of each.

    Raises:
        ArtifactError: iperf3 failed, measured UDP, or no rate is whole.
    """
    if text.lstrip().startswith("{"):
        return (_of_json(path, _document(path, text)),)
    error = re.search(r"iperf3: error - (.*)", text)
    rate = _rate(path, [line for _, line in lines])
    if rate is None:
        why = f"iperf3 says: {error.group(1).strip()}" if error else "it has no row of a rate"
        raise ArtifactError(path, f"a report of iperf3 without a result: {why}")
    remarks = (f"{path}: iperf3 says: {error.group(1).strip()}",) if error else ()
    return (LinkLog(path, TOOL, TCP, rate, remarks=remarks),)


def _rate(path: str, lines: Sequence[str]) -> float | None:
    """Return the bytes per second of a text; None where no row has any."""
    # By how much a row says (what was received, what was sent, an interval), then direction.
    found: list[dict[str, dict[str, list[tuple[float, float]]]]] = [
        defaultdict(lambda: defaultdict(list)) for _ in range(3)
    ]
    for line in lines:
        row = _ROW.search(line)
        if row is None or "(omitted)" in line:
            continue
        if re.search(r"\d+/\d+ \([\d.e+-]+%\)", row.group(8)):
            raise ArtifactError(path, _UDP)
        units = _DECIMAL if row.group(7) == "bits" else _BINARY
        rate = float(row.group(5)) * units[row.group(6)] / (8 if row.group(7) == "bits" else 1)
        lasted_s = float(row.group(4)) - float(row.group(3))
        rank = 0 if "receiver" in row.group(8) else 1 if "sender" in row.group(8) else 2
        direction = row.group(2) or ""
        found[rank][direction][row.group(1)].append((lasted_s, rate))
    for rows in found:
        rates = [_of_streams(streams) for streams in rows.values()]
        if any(rates):
            return max(rates)
    return None


def _of_streams(streams: dict[str, list[tuple[float, float]]]) -> float:
    """Return the rate of all streams of a direction together, by their longest rows."""
    streams = {"SUM": streams["SUM"]} if "SUM" in streams else streams
    total = 0.0
    for rows in streams.values():
        longest_s = max(lasted_s for lasted_s, _ in rows)
        rates = [rate for lasted_s, rate in rows if lasted_s >= 0.9 * longest_s]
        total += sum(rates) / len(rates)
    return total


def _document(path: str, text: str) -> dict[str, Any]:
    """Return the report of ``--json``, or that of the last line of ``--json-stream``."""
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        if '"event"' not in lines[0]:
            reason = f"not valid JSON (damaged or truncated): {error}"
            raise ArtifactError(path, reason) from None
        return _of_stream(path, lines)
    except RecursionError:
        raise ArtifactError(path, TOO_DEEP) from None
    if not isinstance(found, dict):
        raise ArtifactError(path, f"expected an object of iperf3, found a {type(found).__name__}")
    return found


def _of_stream(path: str, lines: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in lines:
        try:
            event = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            continue  # damaged; the last line may be cut off
        if isinstance(event, dict) and event.get("event") in ("start", "end", "error"):
            found[event["event"]] = event.get("data")
    if not found:
        raise ArtifactError(path, "a stream of iperf3's events without its end")
    return found


def _of_json(path: str, document: dict[str, Any]) -> LinkLog:
    error = document.get("error")
    start, end = (_object(document.get(name)) for name in ("start", "end"))
    test = _object(start.get("test_start"))
    if str(test.get("protocol", "TCP")).upper() == "UDP":
        raise ArtifactError(path, _UDP)
    names = ("sum_received", "sum_received_bidir_reverse", "sum_sent", "sum_sent_bidir_reverse")
    bits = [_object(end.get(name)).get("bits_per_second") for name in names]
    rates = [b / 8 if isinstance(b, int | float) and b > 0 else 0.0 for b in bits]
    rate = max(rates[:2]) or max(rates[2:])
    if not rate:
        why = f"iperf3 says: {error}" if error else "it has no end with a sum of the received bytes"
        raise ArtifactError(path, f"a report of iperf3 without a result: {why}")
    target = test.get("target_bitrate")
    remarks = []
    if isinstance(target, int | float) and target > 0:
        remarks.append(
            f"{path}: iperf3 was told to send {target / 1e9:.4g} Gbit/s (-b), so that the network "
            "may carry more"
        )
    return LinkLog(path, TOOL, TCP, rate, remarks=tuple(remarks))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
