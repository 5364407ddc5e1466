"""Fig. 4: the pipeline parts as measurements for ``reproduce/linear_pipeline.py``."""

from __future__ import annotations

from typing import Any

from syncopate.calibration.sweep import parse_algorithm
from syncopate.units import format_rate

from .results import Cell, PartResult


def measurement(result: PartResult) -> dict[str, Any]:
    """Return what that script reads: a network of one level, and a duration per collective.

    Args:
        result: of a pipeline part.
    """
    slowest = min(result.levels, key=lambda level: level.bandwidth_bytes_per_s)
    rate = format_rate(result.topology.rate_bytes_per_s)
    facts = ", ".join(
        result.metadata.get(name, "unknown") for name in ("cpu", "cores", "torch", "date")
    )
    return {
        "name": f"{result.topology.hosts} emulated hosts at {rate}",
        "source": f"{result.command}; cpu, cores, torch and date: {facts}",
        "latency_s": slowest.latency_s,
        "bandwidth_bytes_per_s": slowest.bandwidth_bytes_per_s,
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
