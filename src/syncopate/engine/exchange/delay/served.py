"""Served: parameter servers whose weights are pulled every k-th step: SSD-SGD as the paper has it.

Gradients are sent to servers in every step, as they become ready, and servers update the global
weights. Every k-th step asks for these, and goes on. What else a delay is: ``late``.

[Note: the gradient stays] Servers get a copy of what is sent, so that a rank's own gradient lies in
its bucket until the next backward puts another one there, and nothing is kept beside.

[Note: what ranks said is heard later] Between pulls no rank waits at the end of a backward for what
the others say of theirs: it hears that in the next one. So a rank may be an iteration ahead, and
learns an iteration late that another's backward failed. It does wait where weights are pulled, for
buffers come along, and where a parameter has no gradient here and others may have one.

[Note: whose weights are global] Servers have them for good. So nobody writes to them, not even in
``global_weights``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from syncopate.engine.buckets import BucketBuffers, FlatBuffer, Message
from syncopate.engine.exchange.base import Note, Work, arrived
from syncopate.engine.exchange.delay.late import Late
from syncopate.engine.exchange.delay.local import Local
from syncopate.engine.exchange.serving.served import Served
from syncopate.engine.tail import Said
from syncopate.errors import EngineError


class DelayedServed(Late, Served):
    """The ``served`` exchange of a plan with a delay."""

    def _take_over(self) -> None:
        super()._take_over()
        self._unheard = self._failing = False
        self._heard = self._nothing = Said([], [0] * self.communicator.world_size, appeared=False)

    def _begin_local(self, part: FlatBuffer) -> Local:
        weights = self._weights[id(part)]
        # [Note: the gradient stays]
        gradient = part.gradients if self._delay.runs_ahead else weights[:0]
        return Local(part, weights, gradient, self._delay)

    def _end_local(self, local: Local) -> None:
        pass

    def _give_own(self, local: Local, flat: Tensor) -> None:
        pass

    def _launch_pull(self, part: FlatBuffer, message: Message, flat: Tensor) -> Work:
        return self._receive(part, message, flat, self._flat_of)

    def _launch(self, bucket: BucketBuffers, *, empty: bool) -> None:
        for part in bucket.parts if not empty else ():
            self._local_of(part)
        super()._launch(bucket, empty=empty)

    def push(self, bucket: BucketBuffers, note: Note | None = None, *, empty: bool = False) -> None:
        """Send the gradients of ``bucket``, and hear with the last what was said with those before.

        See [Note: what ranks said is heard later].
        """
        if note is not None:
            self._hear()
            self._failing = note.failed
        super().push(bucket, note, empty=empty)

    def _hear(self) -> None:
        """Wait for what the ranks said last, unless it was heard."""
        if self._unheard:
            self._unheard = False
            arrived(self._note)
            self._deliver()
            self._heard = self._tail.said()

    def wait(self) -> Said:
        """Go on with what the ranks said before, where what they say now may be heard later."""
        if not (self._failing or self._hears_at_once()):
            self._hand_out()
            heard = self._take_heard()
            self._unheard = heard.is_sound  # else nobody goes on
            return heard
        said = super().wait()
        before = self._take_heard()
        return said if before.is_sound else before

    def _take_heard(self) -> Said:
        heard, self._heard = self._heard, self._nothing
        self._broken = self._broken or not heard.is_sound
        return heard

    def _settle(self, part: FlatBuffer) -> None:
        super()._settle(part)
        if (local := self._locals.get(id(part))) is not None:
            local.settle()  # its update looks at the gradients

    # -- the global weights in their places -----------------------------------------------------

    def _gather_global(self) -> None:
        self._hear()
        for local in self._locals.values():
            local.settle()
        self._receive_all()

    def _written(self) -> bool:
        # [Note: whose weights are global]
        if self._versions != self._seen():
            raise EngineError(
                "weights were written to in global_weights(), and servers have others, which would "
                "come back. Load and change weights before distribute()"
            )
        return False

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """Let the parameters hold the servers' weights in the block, and buffers be rank 0's.

        All ranks enter and leave it.

        Raises:
            CollectiveError: a rank is lost or late.
            ParameterServerError: a server is.
            EngineError: weights were written to, or no step followed a backward.
        """
        self._require_own_weights()
        try:
            with super().global_weights():
                yield
        finally:
            self._versions = self._seen()
