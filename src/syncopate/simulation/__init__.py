"""Simulation: training iterations played on a model of the machine, to a timeline."""

from __future__ import annotations

from syncopate.simulation.iteration import Iteration, play
from syncopate.simulation.timeline import simulate

__all__ = ["Iteration", "play", "simulate"]
