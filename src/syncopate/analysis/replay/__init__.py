"""Replay: a timeline played again, as it was or with something in it faster."""

from __future__ import annotations

from syncopate.analysis.replay.played import Changed, Durations, Replay

__all__ = ["Changed", "Durations", "Replay"]
