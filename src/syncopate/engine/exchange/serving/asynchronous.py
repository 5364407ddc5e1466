"""Asynchronous: parameter servers that update at every push, so that no rank waits for another.

What a rank sends and when is the ``served`` exchange. But its step asks for the weights as they are
then, with its own gradients in them and whatever the others' have come to. Ranks may take different
numbers of steps. They meet only where a script asks for all of them: at the start, in
``global_weights`` and when the model is given back.

[Note: a gradient that nobody told of] Nobody says which parameters its backward reached: a rank
sends the gradients that it has, and no zeros for those that others may have.

[Note: a step that failed alone] What a backward sent before it failed is in the weights, as that of
any other step is, and the rank goes on when its gradients are zeroed.

[Note: everybody's own buffers] Buffers stay each rank's own. In ``global_weights`` they are rank
0's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from syncopate.engine.buckets import BucketBuffers, FlatBuffer, Message
from syncopate.engine.exchange.base import Missing, Note
from syncopate.engine.exchange.serving.served import Served
from syncopate.engine.tail import Said


class Asynchronous(Served):
    """The ``served`` exchange with servers that wait for no one."""

    def _take_over(self) -> None:
        super()._take_over()
        self._told = Note()
        self._failed = False

    # -- forward --------------------------------------------------------------------------------

    def refresh_buffers(self) -> None:
        """See [Note: everybody's own buffers]."""
        self._make_up_for_step()

    # -- backward -------------------------------------------------------------------------------

    def push(self, bucket: BucketBuffers, note: Note | None = None, *, empty: bool = False) -> None:
        """Send the gradients of ``bucket``; nothing where the backward failed."""
        self._failed = self._failed or empty
        if not empty:
            self._launch(bucket, empty=False)
        if note is not None:
            self._told = note
            for copied in self._copies:
                copied()

    def missing(self, indices: Sequence[int]) -> Missing:
        """Return them, and hold back what may have accumulated of their gradients."""
        self._absent = set(indices)
        return [(index, None) for index in indices]

    def restore(self, missing: Missing) -> None:
        """Leave them as they are: see [Note: a gradient that nobody told of]."""

    def wait(self) -> Said:
        """Send what was held back and is there; asks nobody."""
        self._hand_out()
        for index, transfer in self._held_back:
            if index not in self._told.unreached:
                self._send_one(index, transfer)
        self._held_back = []
        if self._failed:  # [Note: a step that failed alone]
            self._failed = self._open = False
        return Said([], [0] * self.communicator.world_size, appeared=False)

    # -- the optimizer's step -------------------------------------------------------------------

    def _share_buffers(self) -> None:
        """See [Note: everybody's own buffers]."""

    def _pull(self, part: FlatBuffer, message: Message) -> None:
        flat = self._weights[id(part)]
        self._expect(part, self._receive(part, message, flat, self._trained))

    # -- where all ranks meet -------------------------------------------------------------------

    def _meet(self) -> None:
        """Bring the same weights to all ranks, with all in them that anybody pushed."""
        self._receive_all()
        self.everyone(self._notes.new_zeros(1))
        self._receive_all()
        self.everyone(self._notes.new_zeros(1))

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """Bring the servers' weights to all ranks; in the block buffers are rank 0's.

        All ranks enter it, and train on from these weights.

        Raises:
            CollectiveError: a rank is lost or late.
            ParameterServerError: a server is.
            EngineError: no step followed a backward.
        """
        self._make_up_for_step()
        self._require_own_weights()
        self._meet()
        buffers = self._module_buffers
        own = [tensor.clone() for tensor in buffers.tensors]
        super()._share_buffers()
        try:
            yield
        finally:
            for tensor, values in zip(buffers.tensors, own, strict=False):
                tensor.copy_(values)

    def leave(self) -> None:
        """Give every parameter the servers' weights, the same on all ranks, in its own memory."""
        self._make_up_for_step()
        self._open = False
        self._meet()
        super().leave()
