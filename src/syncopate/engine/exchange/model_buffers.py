"""Model buffers: when every rank gets the buffers of one, such as normalisation's statistics.

``InForward``: as in DDP, a training forward begins with rank 0's buffers, as they are then, and
until then every rank has its own. Where gradients accumulate, the first forward begins so.
``InStep``: the ranks agree at the end of a step, and forwards meet no other rank. ``ModelBuffers``
itself: every rank keeps its own.
"""

from __future__ import annotations

from syncopate.engine.checks.agreement import explaining
from syncopate.engine.exchange.layout import Layout
from syncopate.engine.exchange.parts import ModelBuffers, Stepped


def agree(layout: Layout, channel: int = 0, *, leave_own: bool = False) -> None:
    """Let all ranks have rank 0's buffers; all ranks call it.

    Args:
        layout: of the exchange.
        channel: where they agree.
        leave_own: leave a rank its own where it has accumulated gradients with them.

    Raises:
        CollectiveError: a rank is lost or late.
    """
    with explaining():
        layout.buffers.refresh(layout.communicator, channel, leave_own=leave_own)


class InForward(ModelBuffers):
    """Ranks meet as a training forward begins, where the model has buffers.

    Args:
        layout: of the exchange.
        aside: whether they meet on a channel of its own: on the others gathers are under way.
    """

    def __init__(self, layout: Layout, *, aside: bool = False) -> None:
        self._layout = layout
        self._channel = layout.plan.channels if aside and layout.buffers.exchanged else 0
        self._met = False
        layout.communicator.widen(self._channel + 1)
        layout.lend(layout.notes, "puts", self._puts)

    @property
    def meets_in_forward(self) -> bool:
        """Whether the model has buffers to exchange."""
        return self._layout.buffers.exchanged

    def forward_begins(self) -> None:
        """Exchange buffers with all ranks, which begin a forward too.

        The second time since a backward the ranks meet where gradients are pushed. A rank goes on
        alone after an error in its loss, and there it is found in another collective than the
        others; on a channel of its own it would wait until the time limit.
        """
        channel, self._met = 0 if self._met else self._channel, True
        agree(self._layout, channel, leave_own=True)

    def pushed(self) -> None:
        """Note that a backward followed."""
        self._met = False

    def _puts(self) -> bool:
        """Let the next forward put the buffers that came in place; until then they stay."""
        buffers = self._layout.buffers
        buffers.late = self._layout.communicator.rank != buffers.source
        return False


class InStep(ModelBuffers):
    """Ranks meet as a step ends."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def forward_begins(self) -> None:
        """Put back what the ranks agreed on in the last step; meets no other rank."""
        if self._layout.communicator.rank != self._layout.buffers.source:
            self._layout.buffers.restore()

    def step_ends(self, stepped: Stepped) -> None:
        """Agree on the buffers with all ranks, which end the same step."""
        agree(self._layout)
