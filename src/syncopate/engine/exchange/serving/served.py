"""Served: parameter servers hold the weights and update them; this rank sends and receives.

[Note: gradients of parameters that no rank reached]
A parameter that this rank's backward did not reach holds back only its own gradient, which becomes
zeros if another rank reached it. Where none did, none sends, and its weights stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import partial

import torch
from torch.optim import Optimizer

from syncopate.engine.buckets import BucketBuffers, FlatBuffer, Message
from syncopate.engine.exchange.flat_weights import FlatWeights
from syncopate.engine.exchange.layout import Layout
from syncopate.engine.exchange.parts import Push
from syncopate.engine.exchange.proxies.gradients import Partial
from syncopate.engine.exchange.pull.weights import Source
from syncopate.engine.exchange.push.gathering import Gathering
from syncopate.engine.exchange.serving.submissions import Submissions, Transfer
from syncopate.engine.exchange.update.sharded_update import Beside
from syncopate.engine.trailer import Note, Said
from syncopate.errors import EngineError


class Sending:
    """Sends gradients of a backward as they are there, and holds back what may not be there."""

    def __init__(self, layout: Layout) -> None:
        self._submissions, self._gradients = layout.shared(Submissions), layout.shared(Partial)
        self._gathering = layout.shared(Gathering)
        self._held_back: list[tuple[FlatBuffer, Transfer, int]] = []

    def launch(self, bucket: BucketBuffers, *, empty: bool = False) -> None:
        """Send the gradients of ``bucket`` once they are gathered; zeros where it is ``empty``."""
        if not bucket.index:
            self._submissions.open_step()
            self._held_back = []
        for part in bucket.parts:
            self._submissions.settle(part)
            if empty:
                part.gradients.zero_()
            gathering = [] if empty else self._gathering.of(part)
            send = partial(self._send, part, self._submissions.leave(part), gathering)
            if gathering and self._gathering.lasts(part):
                self._gathering.aside(send)
            else:
                send()

    @torch.no_grad()
    def _send(
        self, part: FlatBuffer, transfer: Transfer, gathering: Sequence[Callable[[], None]]
    ) -> None:
        """Bring the gradients of one flat buffer into their places, and send those there are."""
        for gather in gathering:
            gather()
        absent = self._gradients.absent
        indices = [trainable.index for trainable in part.trainables]
        # [Note: gradients of parameters that no rank reached]
        self._held_back += [(part, transfer, index) for index in indices if index in absent]
        there = (index for index in indices if index not in absent)
        self._submissions.send(part, transfer, there)

    def launched(self) -> None:
        """Wait for what is gathered aside: all buckets are launched."""
        self._gathering.wait()

    def send_rest(self, wanted: Callable[[int], bool]) -> None:
        """Send what was held back of the parameters that are ``wanted``, by index."""
        held_back, self._held_back = self._held_back, []
        for part, transfer, index in held_back:
            if wanted(index):
                self._submissions.send(part, transfer, [index])


class SentPush(Push):
    """Sends gradients to servers, which update when they have those of all ranks."""

    def __init__(self, layout: Layout) -> None:
        self._notes = layout.notes
        self._sending, self._submissions = layout.shared(Sending), layout.shared(Submissions)

    def begin(self) -> None:
        """Make ready for a backward."""
        self._submissions.begin()

    def push(self, bucket: BucketBuffers, note: Note | None = None, *, empty: bool = False) -> None:
        """Send the gradients of ``bucket``, and tell the ranks with the last what there is."""
        self._sending.launch(bucket, empty=empty)
        if note is not None:
            self._notes.write(note)
            self._sending.launched()
            self._notes.send()

    def wait(self) -> Said:
        """Learn what the ranks said, and send what was held back where one of them has it."""
        said = self._notes.hear()
        self._notes.deliver()
        self._submissions.broken = not said.is_sound
        self._sending.send_rest(self._notes.reached().__getitem__)
        self._submissions.skip_rest()
        return said


class ServedSteps(Beside):
    """Steps that servers take: refuses what they cannot do."""

    def __init__(self, layout: Layout) -> None:
        self._submissions, self._gradients = layout.shared(Submissions), layout.shared(Partial)

    def begins(self, optimizer: Optimizer) -> None:
        """Refuse a step that servers do not take, or have taken."""
        self._submissions.require_sound()
        self._require_sent()
        self._submissions.require_rate()

    def _require_sent(self) -> None:
        """Refuse gradients that servers do not have, or have used already."""
        for trainable, view in self._gradients.all():
            gradient = trainable.parameter.grad
            if gradient is None or trainable.index not in self._submissions.trained:
                continue
            zero = id(view.whole) in self._gradients.zeroed
            if view.is_place_of(gradient) and (self._submissions.open or zero):
                continue
            raise EngineError(
                f"the gradient of {trainable.name!r} was not sent to the servers since "
                "the last step: it was replaced, made under no_sync(), or is an old one. Step "
                "after a backward outside no_sync(), and call zero_grad() after each step"
            )


class FromServers(Source):
    """Servers bring the weights whose gradients they have."""

    def __init__(self, layout: Layout) -> None:
        self._submissions, self._weights = layout.shared(Submissions), layout.shared(FlatWeights)
        rules = layout.servers.store.rules
        # Workers that tell each other nothing do not know whose gradients servers have.
        self._all_trained = not rules.synchronous or rules.keeps_before

    def bring(self, part: FlatBuffer, message: Message) -> None:
        """Ask for the weights that ``message`` carries."""
        submissions = self._submissions
        wanted: Container[int] = submissions.trained if self._all_trained else submissions.sent
        if any(trainable.index in wanted for trainable in part.trainables):
            asked = submissions.ask(part, message, self._weights.of(part), wanted)
            self._weights.expect(part, asked)

    def launched(self) -> None:
        """End the step."""
        self._submissions.close_step()
