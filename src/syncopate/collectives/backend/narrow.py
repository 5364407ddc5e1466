"""Narrow: sums that travel in fewer bits than they have, by the backend's own messages.

The backend's own sums of 16 bits would add in 16 bits, so they are not used. Every rank sends each
owner its contribution to what that one owns, and the owner adds them up in the tensor's own dtype:
a contribution is rounded once. The sums travel on rounded once more. An all-reduce sends as many
bytes this way as any other, in half as many rounds as a ring has ranks; over Gloo and many ranks
the schedules are better.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from syncopate.collectives.backend import calls
from syncopate.collectives.backend.native import Native
from syncopate.collectives.shards import Bounds, Form, bounds_of, lengths, lone_owner
from syncopate.recipe import Recipe


class Narrow:
    """The narrow sums of one group's backends.

    Args:
        native: the group's collectives.
    """

    def __init__(self, native: Native) -> None:
        self._native = native
        self._rank = native.rank
        self._world_size = native.world_size

    def run(self, recipe: Recipe, tensor: torch.Tensor, form: Form) -> None:
        """Carry out the sum that ``recipe`` asks for, in place.

        Args:
            recipe: an all-reduce, a reduce-scatter or a reduce.
            tensor: contiguous and with elements.
            form: the shards of a reduce-scatter, and what elements travel as.
        """
        flat, (bounds, dtype, _) = tensor.view(-1), form
        collective, root = recipe.collective, recipe.root
        if bounds is not None and (owner := lone_owner(bounds)) is not None:
            collective, root, bounds = "reduce", owner, None
        cuts = bounds_of(flat, self._world_size, bounds)
        begin, end = cuts[self._rank : self._rank + 2]
        own, wire = flat[begin:end], flat.to(dtype)
        self._sum(own, wire, cuts)
        if collective == "reduce_scatter":
            return
        wire[begin:end].copy_(own)
        if collective == "all_reduce":
            self._native.all_gather(wire)
            flat.copy_(wire)
        else:
            self._collect(flat, wire[begin:end], cuts, root)

    def _collect(self, flat: torch.Tensor, share: torch.Tensor, cuts: Bounds, root: int) -> None:
        """Bring every rank's ``share`` of the sum into ``flat`` of ``root``."""
        counts, nothing = lengths(cuts), [0] * self._world_size
        if self._rank != root:
            nothing[root] = share.numel()
            self._exchange(share, ([0] * self._world_size, nothing))
            return
        counts[root] = 0
        others = self._exchange(share[:0], (counts, nothing))
        begin, end = cuts[root : root + 2]
        flat[:begin].copy_(others[:begin])
        flat[end:].copy_(others[begin:])

    def _sum(self, own: torch.Tensor, wire: torch.Tensor, cuts: Bounds) -> None:
        """Add the others' contributions to this rank's share.

        Args:
            own: this rank's share in its own dtype; shape (k,).
            wire: this rank's contributions to the shards of all ranks; shape (n,).
            cuts: where the shares begin.
        """
        begin, end = cuts[self._rank : self._rank + 2]
        outgoing, incoming = lengths(cuts), [end - begin] * self._world_size
        outgoing[self._rank] = incoming[self._rank] = 0
        others = self._exchange(torch.cat((wire[:begin], wire[end:])), (incoming, outgoing))
        for row in others.view(self._world_size - 1, end - begin):
            own.add_(row)

    def _exchange(
        self, outgoing: torch.Tensor, counts: tuple[Sequence[int], Sequence[int]]
    ) -> torch.Tensor:
        """Return what every rank sends here, end to end.

        Args:
            outgoing: what goes to every rank, end to end.
            counts: elements that come from each rank, and that go to each.
        """
        incoming = outgoing.new_empty(sum(counts[0]))
        raw = incoming.view(torch.uint8), outgoing.view(torch.uint8)
        size = outgoing.element_size()
        sizes = [count * size for count in counts[0]], [count * size for count in counts[1]]
        self._native.wait(calls.all_to_all(self._native.group, *raw, sizes), raw[0])
        return incoming
