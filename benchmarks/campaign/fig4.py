"""Fig. 4: the pipeline parts as measurements for ``reproduce/linear_pipeline.py``."""

from __future__ import annotations

from typing import Any

from syncopate.benchmarking.sweep import parse_algorithm
from syncopate.lab.topology import TCP_GOODPUT
from syncopate.units import format_rate

from .results import Cell, PartResult


def measurement(result: PartResult) -> dict[str, Any]:
    """Return what that script reads: a network of one level, and a duration per collective.

    The latency is as calibrated, the bandwidth as emulated.

    Args:
        result: of a pipeline part.
    """
    rate = format_rate(result.topology.rate_bytes_per_s)
    facts = ", ".join(
        result.metadata.get(name, "unknown") for name in ("cpu", "cores", "torch", "date")
    )
    return {
        "name": f"{result.topology.hosts} emulated hosts at {rate}",
        "source": f"{result.command}; cpu, cores, torch and date: {facts}",
        "latency_s": max(level.latency_s for level in result.levels),
        "bandwidth_bytes_per_s": result.topology.rate_bytes_per_s * TCP_GOODPUT,
        "reduction_s_per_byte": result.reduction_s_per_byte,
        "points": [
            point for cell in result.cells if "lp" in cell.contenders for point in _points(cell)
        ],
    }


def _points(cell: Cell) -> list[dict[str, Any]]:
    found = []
    for name, sampled in cell.contenders.items():
        _, options = parse_algorithm(cell.collective, sampled.ran or name)
        point = {
            "collective": cell.collective,
            "algorithm": name,
            "world_size": cell.world_size,
            "nbytes": cell.nbytes,
            "seconds": sampled.median_s,
        }
        found.append(point | options)
    return found
