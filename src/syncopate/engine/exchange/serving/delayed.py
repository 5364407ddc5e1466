"""Delayed: parameter servers whose weights are pulled every k-th step: SSD-SGD as the paper has it.

Gradients are sent to servers in every step, as they become ready, and servers update the global
weights. Every k-th step asks for these, and goes on.

[Note: the gradient stays] Servers get a copy of what is sent, so that a rank's own gradient lies in
its bucket until the next backward puts another one there, and nothing is kept beside.

[Note: what ranks said is heard later] Between pulls no rank waits at the end of a backward for what
the others say of theirs: it hears that in the next one. So a rank may be an iteration ahead, and
learns an iteration late that another's backward failed. It does wait where weights are pulled, for
buffers come along, and where a parameter has no gradient here and others may have one.

[Note: whose weights are global] Servers have them for good. So no rank writes to them, not even in
``global_weights``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from syncopate.engine.buckets import BucketBuffers, FlatBuffer, Message
from syncopate.engine.exchange.delay.local import Local
from syncopate.engine.exchange.delay.stages import Masters, Stages
from syncopate.engine.exchange.flat_weights import FlatWeights
from syncopate.engine.exchange.layout import Layout, Work
from syncopate.engine.exchange.notes import unsaid
from syncopate.engine.exchange.parts import Push
from syncopate.engine.exchange.proxies.gradients import Partial
from syncopate.engine.exchange.push.gathering import Gathering
from syncopate.engine.exchange.serving.served import SentPush
from syncopate.engine.exchange.serving.submissions import Submissions
from syncopate.engine.trailer import Note, Said
from syncopate.errors import EngineError


class Hearing:
    """What the ranks said, heard when it is needed; [Note: what ranks said is heard later].

    Attributes:
        later: whether it is to be heard that was said last.
    """

    def __init__(self, layout: Layout) -> None:
        self._notes = layout.notes
        self._submissions = layout.shared(Submissions)
        self.later = False
        self._heard = self._nothing = unsaid(layout.communicator.world_size)

    def hear(self) -> None:
        """Wait for what the ranks said last, unless it was heard."""
        if self.later:
            self.later = False
            self._heard = self._notes.hear()
            self._notes.deliver()

    def take(self) -> Said:
        """Return what was heard, and note if it ends the training."""
        heard, self._heard = self._heard, self._nothing
        self._submissions.broken = self._submissions.broken or not heard.is_sound
        return heard


class LateSentPush(Push):
    """Sends gradients to servers, and hears of the others in the next iteration."""

    def __init__(self, layout: Layout) -> None:
        self._sent, self._hearing = SentPush(layout), layout.shared(Hearing)
        self._stages, self._gradients = layout.shared(Stages), layout.shared(Partial)
        self._failing = False

    def begin(self) -> None:
        """Make ready for a backward."""
        self._sent.begin()

    def push(self, bucket: BucketBuffers, note: Note | None = None, *, empty: bool = False) -> None:
        """Send the gradients of ``bucket``, and hear with the last what was said with those before.

        See [Note: what ranks said is heard later].
        """
        if note is not None:
            self._hearing.hear()
            self._failing = note.failed
        self._sent.push(bucket, note, empty=empty)

    def wait(self) -> Said:
        """Go on with what the ranks said before, where what they say now may be heard later."""
        if not (self._failing or self._hears_at_once()):
            heard = self._hearing.take()
            self._hearing.later = heard.is_sound  # else no rank goes on
            return heard
        said = self._sent.wait()
        before = self._hearing.take()
        return said if before.is_sound else before

    def _hears_at_once(self) -> bool:
        stages = self._stages
        return not stages.here or bool(self._gradients.absent) or stages.any_will_pull()


class ServersMasters(Masters):
    """Servers have the global weights; see :class:`Masters`."""

    def __init__(self, layout: Layout) -> None:
        self._stages, self._weights = layout.shared(Stages), layout.shared(FlatWeights)
        self._submissions, self._hearing = layout.shared(Submissions), layout.shared(Hearing)
        layout.lend(layout.shared(Gathering), "keeping", self._enter)
        layout.lend(self._submissions, "settled", self._settle)

    def _enter(self, part: FlatBuffer) -> Sequence[Callable[[], None]]:
        """Begin the delay where it begins; keep nothing."""
        self._stages.of(part)
        return ()

    def _settle(self, part: FlatBuffer) -> None:
        """Wait until no local update looks at the gradients of a flat buffer."""
        if (local := self._stages.here.get(id(part))) is not None:
            local.settle()

    def begin(self, part: FlatBuffer) -> Local:
        """Keep nothing of the gradient; see [Note: the gradient stays]."""
        weights, delay = self._weights.of(part), self._stages.delay
        gradient = part.gradients if delay.runs_ahead else weights[:0]
        return Local(part, weights, gradient, delay)

    def pull(self, part: FlatBuffer, message: Message, flat: Tensor) -> Work:
        """Ask for the global weights."""
        return self._submissions.ask_all(part, message, flat)

    # -- the global weights in their places -----------------------------------------------------

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Refuse weights that the script wrote to, and note those that come back afterwards."""
        self._submissions.require_own_weights()
        try:
            yield
        finally:
            self._submissions.note_weights()

    def gather(self) -> None:
        """Bring the global weights of all flat buffers into their places; all ranks call it."""
        self._hearing.hear()
        for local in self._stages.here.values():
            local.settle()
        self._submissions.receive_all()

    def written(self) -> bool:
        """Refuse weights that were written to; see [Note: whose weights are global]."""
        if self._submissions.written:
            raise EngineError(
                "weights were written to in global_weights(), and the servers' weights would "
                "overwrite that. Load and change weights before distribute()"
            )
        return False
