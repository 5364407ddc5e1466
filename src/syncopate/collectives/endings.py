"""Endings: how a communicator that was not closed ends.

[Note: children]
A forked child has its parent's sockets and none of its threads. What ends there must not say
goodbye to the peers, nor close a group: Gloo would take the parent's sockets from what both wait
for.
"""

from __future__ import annotations

from typing import Any

from syncopate.collectives.channel import Channel
from syncopate.collectives.health.detector import FailureDetector
from syncopate.collectives.runner import Runner

STOP_S = 5.0
"""How long threads may take to end."""

_parents: list[Any] = []
"""What a child keeps of its parent's; see [Note: children]."""


def end_threads(channels: list[Channel], detector: FailureDetector | None) -> None:
    """End the threads, without a goodbye to the peers; see [Note: children]."""
    if detector is not None:
        if not detector.here:
            return
        detector.stop()
    for channel in channels:
        channel.close(0.0)


def give_up(
    channels: list[Channel], detector: FailureDetector | None, runners: list[Runner]
) -> None:
    """Free what a communicator without references has, without a goodbye to the peers.

    A rank that raised drops its communicator, too, and the others are to learn that it failed.
    """
    if detector is not None and not detector.here:
        _parents.append((detector, list(runners)))
        return
    end_threads(channels, detector)
    if all(channel.close(STOP_S) for channel in channels):
        for runner in runners:
            runner.close()
    runners.clear()
