"""Endings: how a communicator that was not closed ends."""

from __future__ import annotations

from syncopate.collectives.channel import Channel
from syncopate.collectives.health.detector import FailureDetector
from syncopate.collectives.runner import Runner

STOP_S = 5.0
"""How long threads may take to end."""


def end_threads(channels: list[Channel], detector: FailureDetector | None) -> None:
    """End the threads, without a goodbye to the peers."""
    if detector is not None:
        detector.stop()
    for channel in channels:
        channel.close(0.0)


def give_up(
    channels: list[Channel], detector: FailureDetector | None, runners: list[Runner]
) -> None:
    """Free what a communicator without references has, without a goodbye to the peers.

    A rank that raised drops its communicator, too, and the others are to learn that it failed.
    """
    end_threads(channels, detector)
    if all(channel.close(STOP_S) for channel in channels):
        for runner in runners:
            runner.close()
    runners.clear()
