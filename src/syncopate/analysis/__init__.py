"""Analysis: what a timeline or a trace says, whether it was measured or simulated."""

from __future__ import annotations

from syncopate.analysis.arrivals import Arrivals, arrivals
from syncopate.analysis.collectives import Bandwidth, Collective, bandwidths, collectives
from syncopate.analysis.exposure import Exposure, exposures
from syncopate.analysis.path import Segment, critical_path
from syncopate.analysis.phases import Phases, mean, phases
from syncopate.analysis.serving import (
    Distribution,
    Message,
    Messages,
    Overhead,
    bytes_per_iteration,
    distribution,
    overheads,
    served_phases,
)
from syncopate.analysis.stragglers import Straggler, stragglers
from syncopate.analysis.work import Work, works

__all__ = [
    "Arrivals",
    "Bandwidth",
    "Collective",
    "Distribution",
    "Exposure",
    "Message",
    "Messages",
    "Overhead",
    "Phases",
    "Segment",
    "Straggler",
    "Work",
    "arrivals",
    "bandwidths",
    "bytes_per_iteration",
    "collectives",
    "critical_path",
    "distribution",
    "exposures",
    "mean",
    "overheads",
    "phases",
    "served_phases",
    "stragglers",
    "works",
]
