"""Read: files of nccl-tests, iperf3 and perftest, known by their content, as one cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence

from syncopate.artifacts.cluster import Cluster
from syncopate.calibration.logs.assemble import Given, assemble
from syncopate.calibration.logs.iperf import is_iperf, read_iperf
from syncopate.calibration.logs.measured import Log
from syncopate.calibration.logs.nccl_json import as_lines, is_nccl_json
from syncopate.calibration.logs.nccl_tests import COLLECTIVES, is_nccl_tests, read_nccl_tests
from syncopate.calibration.logs.perftest import is_perftest, read_perftest
from syncopate.calibration.logs.text import lines_of, read_text
from syncopate.errors import ArtifactError, InvalidValueError, UnknownNameError
from syncopate.units import KIB

READABLE = (
    "a log of nccl-tests (all_reduce_perf and the like) or iperf3, as text or JSON, or of "
    "ib_write_bw or ib_write_lat"
)

_BEGIN_BYTES = 256 * KIB
"""A log says what it is before; what launchers and libraries print first may be long."""


def is_log(path: str | os.PathLike[str]) -> bool:
    """Say whether a file is :data:`READABLE`, by how it begins; what cannot be read is not."""
    if not os.path.isfile(path):
        return False
    try:
        text = read_text(path, _BEGIN_BYTES)
    except ArtifactError:
        return False
    return _tool(text) is not None


def read_logs(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    nodes: int | None = None,
    ranks_per_host: int | None = None,
    latency_s: float | None = None,
    network: str | None = None,
    collective: str = "",
) -> Cluster:
    """Return what logs of other tools measured as a cluster.

    Args:
        paths: the file or files, of several tools together where they measured one cluster.
        nodes: number of hosts, where the logs do not tell, or of a larger cluster like theirs.
        ranks_per_host: where the logs do not tell.
        latency_s: α between hosts, instead of what is fitted to the logs.
        network: a typical network, one of :data:`~syncopate.artifacts.cluster.NETWORKS`, whose α
            counts where no log tells it.
        collective: which collective nccl-tests measured, where its log does not say.

    Raises:
        ArtifactError: a file that cannot be read, is none of :data:`READABLE`, or has no result.
        CalibrationError: logs that do not tell enough, or do not belong together.
        InvalidValueError: no file, or a number out of range.
        UnknownNameError: no such collective or network.
    """
    if collective and collective not in COLLECTIVES:
        raise UnknownNameError("collective", collective, COLLECTIVES)
    paths = [paths] if isinstance(paths, str | os.PathLike) else paths
    if not paths:
        raise InvalidValueError("FILE", [], f"at least one: {READABLE}")
    given = Given(nodes, ranks_per_host, latency_s, network)
    return assemble([log for path in paths for log in _read(path, collective)], given)


def _read(path: str | os.PathLike[str], collective: str) -> tuple[Log, ...]:
    text = read_text(path)
    tool = _tool(text)
    if tool is None:
        first = next((line.strip() for line in text.splitlines() if line.strip()), "")
        raise ArtifactError(path, f"begins with {first[:60]!r}; expected {READABLE}")
    name = os.fspath(path)
    lines = as_lines(name, text) if is_nccl_json(text) else lines_of(text)
    if tool == "perftest":
        return read_perftest(name, lines)
    if tool == "iperf3":
        return read_iperf(name, text, lines)
    return read_nccl_tests(name, lines, collective)


def _tool(text: str) -> str | None:
    """Return which tool wrote a text; None is not known."""
    if is_perftest(text):
        return "perftest"
    if is_nccl_json(text) or is_nccl_tests(text):
        return "nccl-tests"
    return "iperf3" if is_iperf(text) else None
