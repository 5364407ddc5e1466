"""Analysis: what a timeline or a trace says, whether it was measured or simulated."""

from __future__ import annotations

from syncopate.analysis.phases import Phases, mean, phases
from syncopate.analysis.serving import Message, Overhead, distribution, overheads, served_phases

__all__ = [
    "Message",
    "Overhead",
    "Phases",
    "distribution",
    "mean",
    "overheads",
    "phases",
    "served_phases",
]
