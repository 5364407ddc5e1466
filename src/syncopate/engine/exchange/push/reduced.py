"""Reduced: a collective sums up each message, where its owner is, or everywhere.

Which collective that is the plan says: an all-reduce, a reduce-scatter, or a reduce to a root. The
sums that this rank owns become averages once, when they are first needed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

import torch

from syncopate.engine.buckets import BucketBuffers, FlatBuffer, Message, in_turn
from syncopate.engine.checks.agreement import explaining
from syncopate.engine.exchange.layout import Launched, Layout
from syncopate.engine.exchange.parts import Push
from syncopate.engine.exchange.push.gathering import Gathering
from syncopate.engine.trailer import Note, Said


class Averaging:
    """Makes averages of what a collective summed up on this rank, once.

    Args:
        launched: the collective.
        own: first element of this rank's sums in the message, and one past the last.
        scale: sums are multiplied by it; None where gradients were before.
    """

    def __init__(self, launched: Launched, own: tuple[int, int], scale: float | None) -> None:
        self._launched = launched
        self.sums = launched.message.gradients[slice(*own)]
        self._scale = scale
        self._lock = threading.RLock()
        self._done = False

    @torch.no_grad()
    def __call__(self) -> None:
        """Wait for the sums, and scale them; on any thread.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        with self._lock:
            if self._done:
                return
            self._launched.handle.wait()
            if not self._done:  # else a signal handler has looked meanwhile
                self._done = True
                if self._scale is not None:
                    self.sums.mul_(self._scale)


def averagings(layout: Layout) -> dict[int, Averaging]:
    """Return what is to hold, by identity of a message, what makes averages of its sums."""
    return {}


class Reduced(Push):
    """Pushes by the collectives of the plan."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._notes = layout, layout.notes
        self._gathering = layout.shared(Gathering)
        self._averagings = layout.shared(averagings)

    def push(self, bucket: BucketBuffers, note: Note | None = None, *, empty: bool = False) -> None:
        """Launch the gradients of ``bucket``, and behind the last one what this rank says."""
        if note is not None:
            self._notes.write(note)
        for part in bucket.parts:
            self._launch(part, [] if empty else self._gathering.of(part))
        if note is not None:
            self.end()

    def end(self) -> None:
        """Launch the note, behind the last bucket."""
        if not self._notes.rides:
            self._gathering.wait()  # `gathering`, [Note: gathered aside]
        self._notes.send()

    def _launch(self, part: FlatBuffer, gathering: Sequence[Callable[[], None]]) -> None:
        """Launch a flat buffer, whose gradients are gathered meanwhile."""
        aside = self._gathering.lasts(part)
        for place, message in enumerate(part.messages):
            copied = None
            if gathering and aside:
                copied = self._gathering.aside(gathering[place])
            elif gathering:
                gathering[place]()
            self.launch_message(part, message, copied)

    def launch_message(
        self, part: FlatBuffer, message: Message, copied: Callable[[], object] | None = None
    ) -> None:
        """Launch what ``message`` carries, which is there when ``copied()`` returns, or now."""
        first = [] if copied is None else [copied]
        if part.averaged_before:
            first.append(partial(message.gradients.mul_, self._layout.scale))
        handle = self._layout.communicator.run(
            message.push,
            message.wire,
            bounds=message.bounds,
            before=partial(in_turn, *first) if first else None,
            async_op=True,
            wire_dtype=part.wire_dtype,
        )
        launched = Launched(part, message, handle)
        self._layout.traffic.pushes.append(launched)
        own = self._layout.owner.own(message)
        scale = None if part.averaged_before else self._layout.scale
        self._averagings[id(message)] = Averaging(launched, own, scale)

    def wait(self) -> Said:
        """Wait for every message, in launch order, averaging each while later ones travel."""
        said = self.average()
        self._notes.deliver()
        return said

    def average(self) -> Said:
        """Make averages of all that this rank owns, and return what the ranks said."""
        with explaining():
            for averaging in () if self._notes.averages else self._averagings.values():
                averaging()
        return self._notes.hear()
