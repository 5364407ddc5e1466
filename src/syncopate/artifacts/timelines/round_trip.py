"""Round trip: when a slice was pushed to a server, and when its weights came back.

Of a slice in an iteration, the two ends of every message put together:

    sending           from when the push was given to be sent until the server took it in
    other workers     until the server had the pushes of all others, too
    update            until the update was computed
    request           until the worker asked for the weights, where that was later
    answer            until the weights were given to be sent
    receiving         until the worker took them in

The six add up to the whole. Times of two hosts are on one clock, as far as that is known.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

STAGES = ("sending", "other workers", "update", "request", "answer", "receiving")


class RoundTrip(NamedTuple):
    """When what happened to a slice: each moment is not before the one above it but ``pulled_s``.

    Attributes:
        rank: the worker's, in its timeline.
        name: of the messages of that timeline that carried it, such as ``"bucket 3"``.
        server: such as ``"s1"``.
        key: the slice.
        iteration: of the training.
        nbytes: of the message with the weights.
        queued_s: the push was given to be sent.
        sent_s: it was sent.
        came_s: the server took it in.
        complete_s: the server had all pushes that its update waits for.
        updated_s: the update was computed.
        pulled_s: the worker asked for the weights; perhaps before the update.
        asked_s: the request came to the server.
        answered_s: the weights were given to be sent.
        left_s: they were sent.
        back_s: the worker took them in.
    """

    rank: int
    name: str
    server: str
    key: int
    iteration: int
    nbytes: int
    queued_s: float
    sent_s: float
    came_s: float
    complete_s: float
    updated_s: float
    pulled_s: float
    asked_s: float
    answered_s: float
    left_s: float
    back_s: float

    @property
    def stages_s(self) -> tuple[float, ...]:
        """Seconds of each of :data:`STAGES`."""
        ready_s = max(self.updated_s, self.pulled_s)
        marks = (
            self.queued_s, self.came_s, self.complete_s, self.updated_s, ready_s, self.answered_s,
            self.back_s,
        )  # fmt: skip
        return tuple(end - start for start, end in pairwise(marks))
