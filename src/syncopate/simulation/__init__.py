"""Simulation: training iterations played on a model of the machine, to a timeline."""

from __future__ import annotations

from syncopate.simulation.failures import Failures, play_failures
from syncopate.simulation.network import Aggregation, aggregated_costs, busy
from syncopate.simulation.ranks import Variation
from syncopate.simulation.timeline import simulate

__all__ = [
    "Aggregation",
    "Failures",
    "Variation",
    "aggregated_costs",
    "busy",
    "play_failures",
    "simulate",
]
