"""Join: ranks that have run out of inputs take part in the others' exchanges with zeros.

Within the block every rank says before each exchange what it is about to do; a rank that has left
its loop says that, and then does what the others say: it begins a forward with them, where the
model has buffers, or adds zeros to their gradients, bucket by bucket. The block ends when no rank
trains any more, and ranks that stopped early get the parameters of a rank that trained to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from syncopate.collectives import Communicator
from syncopate.collectives.health.blame import name_ranks
from syncopate.engine.checks.agreement import require_same
from syncopate.engine.model.state import Buffers, broadcast_tensors
from syncopate.engine.readiness import Readiness
from syncopate.engine.step import Move
from syncopate.errors import EngineError
from syncopate.schedules.registry import NATIVE


class Join:
    """One block in which ranks may run out of inputs at different times.

    Args:
        readiness: exchanges the gradients.
        buffers: the model's.
        stop_planning: ends self-planning, which measures all ranks.
        divide_by_initial_world_size: divide sums of gradients by the number of all ranks, or of
            those that still train.
        throw_on_early_termination: raise on every rank as soon as one has run out.
    """

    def __init__(
        self,
        readiness: Readiness,
        buffers: Buffers,
        stop_planning: Callable[[], None],
        *,
        divide_by_initial_world_size: bool,
        throw_on_early_termination: bool,
    ) -> None:
        self._readiness = readiness
        self._buffers = buffers
        self._stop_planning = stop_planning
        self._by_all = divide_by_initial_world_size
        self._throw = throw_on_early_termination
        self._active = list(range(readiness.communicator.world_size))

    @property
    def _communicator(self) -> Communicator:
        return self._readiness.communicator

    @contextmanager
    def block(self) -> Iterator[None]:
        """Train in here; the end of the block waits for the ranks that still do.

        Raises:
            EngineError: blocks within each other, ranks whose options differ, or that do different
                things; or a rank ran out, where that is asked for.
        """
        if self._readiness.announce is not None:
            raise EngineError("join() was called within the block of another join() of this model")
        options = (self._by_all, self._throw)
        require_same(self._communicator, [("what join() is told", options)])
        self._readiness.announce = self._announce
        try:
            yield
            self._readiness.settle()
            self._shadow()
        finally:
            self._readiness.announce = None
            self._readiness.set_present(range(self._communicator.world_size))
            self._buffers.source = 0

    def _announce(self, move: Move) -> None:
        """Say what this rank is about to do, and learn which ranks do the same."""
        moves = self._say(move)
        active = [rank for rank, other in enumerate(moves) if other != Move.JOINED]
        if {moves[rank] for rank in active} - {move}:
            named = "; ".join(
                f"{name_ranks([r for r in active if moves[r] == kind])} {kind.describe}"
                for kind in (Move.FORWARD, Move.BACKWARD)
            )
            self._readiness.drop()
            raise EngineError(
                f"the ranks are not at the same step: {named}. An error between forward and "
                "backward, as in the loss, does that: see the error there"
            )
        self._note(active)

    def _shadow(self) -> None:
        """Do what the ranks do that still train, until none does; then become like them."""
        while True:
            moves = self._say(Move.JOINED)
            active = [rank for rank, other in enumerate(moves) if other != Move.JOINED]
            if not active:
                break
            self._note(active)
            kinds = {moves[rank] for rank in active}
            if kinds == {Move.FORWARD}:
                self._readiness.exchange.refresh_buffers()
            elif kinds == {Move.BACKWARD}:
                self._readiness.shadow()
        if len(self._active) < self._communicator.world_size:
            broadcast_tensors(
                self._communicator, self._readiness.parameters, source=self._buffers.source
            )
            self._buffers.refresh(self._communicator)

    def _say(self, move: Move) -> list[Move]:
        """Return what every rank is about to do."""
        communicator = self._communicator
        moves = torch.zeros(
            communicator.world_size, dtype=torch.int64, device=self._readiness.parameters[0].device
        )
        moves[communicator.rank] = move
        algorithm = NATIVE if moves.is_cuda else "recursive_doubling"
        communicator.all_reduce(moves, algorithm=algorithm)
        return [Move(number) for number in moves.tolist()]

    def _note(self, active: list[int]) -> None:
        """Go on with the ranks that still train."""
        joined = [rank for rank in range(self._communicator.world_size) if rank not in active]
        if joined:
            self._stop_planning()
        if joined and self._throw:
            self._readiness.drop()
            raise EngineError(
                f"{name_ranks(joined)} ran out of inputs, and join() was told to raise then "
                "(throw_on_early_termination)"
            )
        self._active = active
        self._buffers.source = active[0]
        self._readiness.set_present(active, alone=not self._by_all)
