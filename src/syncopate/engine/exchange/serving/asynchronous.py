"""Asynchronous: parameter servers that update at every push, so that no rank waits for another.

What a rank sends and when is as with servers that wait. But its step asks for the weights as they
are then, with its own gradients in them and those of the others that have come. Ranks may take
different numbers of steps. They meet only where a script asks for all of them: at the start, in
``global_weights`` and when the model is given back.

[Note: gradients are not announced] No rank says which parameters its backward reached: a rank
sends the gradients that it has, and no zeros for those that others may have.

[Note: a step that failed alone] What a backward sent before it failed is in the weights, as that of
any other step is, and the rank goes on when its gradients are zeroed.

[Note: buffers] Buffers stay each rank's own. In ``global_weights`` they are rank
0's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from syncopate.engine.buckets import BucketBuffers
from syncopate.engine.exchange import parts
from syncopate.engine.exchange.layout import Layout
from syncopate.engine.exchange.model_buffers import agree
from syncopate.engine.exchange.notes import Ranks, unsaid
from syncopate.engine.exchange.serving.served import Sending
from syncopate.engine.exchange.serving.submissions import Submissions
from syncopate.engine.trailer import Note, Said


class UntoldPush(parts.Push):
    """Sends gradients to servers, which update at once."""

    def __init__(self, layout: Layout) -> None:
        self._ranks = layout.communicator.world_size
        self._sending, self._submissions = layout.shared(Sending), layout.shared(Submissions)
        self._told = Note()
        self._failed = False

    def begin(self) -> None:
        """Make ready for a backward."""
        self._submissions.begin()

    def push(self, bucket: BucketBuffers, note: Note | None = None, *, empty: bool = False) -> None:
        """Send the gradients of ``bucket``; nothing where the backward failed."""
        self._failed = self._failed or empty
        if not empty:
            self._sending.launch(bucket)
        if note is not None:
            self._told = note
            self._sending.launched()

    def wait(self) -> Said:
        """Send what was held back and is there; asks no other rank."""
        self._sending.send_rest(lambda index: index not in self._told.unreached)
        if self._failed:  # [Note: a step that failed alone]
            self._failed = self._submissions.open = False
        return unsaid(self._ranks)


class SharedWeights(parts.Local):
    """Each rank has the servers' weights as they were in its last step."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._submissions = layout, layout.shared(Submissions)
        self._ranks = layout.shared(Ranks)

    def _meet(self) -> None:
        """Bring the same weights to all ranks, with every push of every rank in them."""
        self._submissions.receive_all()
        self._ranks.meet()
        self._submissions.receive_all()
        self._ranks.meet()

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """Bring the servers' weights to all ranks; in the block buffers are rank 0's.

        All ranks enter it, and train on from these weights.

        Raises:
            CollectiveError: a rank is lost or late.
            ParameterServerError: a server is.
            EngineError: no step followed a backward.
        """
        self._submissions.require_own_weights()
        self._meet()
        buffers = self._layout.buffers
        own = buffers.copies()
        agree(self._layout)
        try:
            yield
        finally:
            buffers.put_back(own)

    def leave(self) -> None:
        """Give every parameter the servers' weights, the same on all ranks."""
        self._submissions.open = False
        self._meet()
