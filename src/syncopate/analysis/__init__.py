"""Analysis: what a timeline says, whether it was measured or simulated."""

from __future__ import annotations

from syncopate.analysis.phases import Phases, mean, phases

__all__ = ["Phases", "mean", "phases"]
