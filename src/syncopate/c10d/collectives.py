"""Collectives: which schedules, and which messages, a collective of torch's becomes.

Without a cluster the algorithm goes by the size alone: few rounds for what is short, few bytes for
what is long. With one it is what ``algorithm="auto"`` stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from syncopate.c10d.rows import raw
from syncopate.collectives.communicator import Communicator
from syncopate.collectives.request import DTYPES
from syncopate.collectives.runner import Runner
from syncopate.collectives.shards import PLAIN, Form
from syncopate.recipe import Recipe
from syncopate.schedules.registry import AUTO
from syncopate.units import KIB

SHORT_BYTES = 64 * KIB
"""Up to here rounds count, and beyond it bytes."""

_SHORT_LONG = {
    "all_reduce": ("recursive_doubling", "ring"),
    "reduce_scatter": ("recursive", "ring"),
    "all_gather": ("recursive", "ring"),
    "broadcast": ("mst", "lp"),
    "reduce": ("mst", "lp"),
}


class Planned(NamedTuple):
    """A collective of a schedule, to be carried out when its turn has come.

    Attributes:
        recipe: how.
        form: its shards, and its reduction.
    """

    recipe: Recipe
    form: Form = PLAIN

    def run(self, runner: Runner | None, row: Tensor) -> None:
        """Carry it out on ``row``, in place; on the channel's thread."""
        if runner is not None and row.numel():
            form = self.form
            if row.dtype not in DTYPES:
                size, row = row.dtype.itemsize, raw(row)
                if form.bounds is not None:
                    form = form._replace(bounds=tuple(size * bound for bound in form.bounds))
            runner.collective(self.recipe, row, form).work()


class Planner:
    """Chooses how the collectives of one group travel.

    Args:
        communicator: the group's.
        by_cluster: whether it was given a cluster.
    """

    def __init__(self, communicator: Communicator, *, by_cluster: bool) -> None:
        self._communicator = communicator
        self._by_cluster = by_cluster

    def planned(self, collective: str, nbytes: int, root: int = 0, form: Form = PLAIN) -> Planned:
        """Return what carries a collective.

        Args:
            collective: one that has schedules.
            nbytes: of the whole buffer.
            root: of a collective that has one.
            form: its shards, and its reduction.
        """
        if self._by_cluster:
            asked = Recipe(collective, AUTO, root)
            return Planned(self._communicator.choices.resolve(asked, nbytes), form)
        algorithm = _SHORT_LONG[collective][nbytes > SHORT_BYTES]
        return Planned(Recipe(collective, algorithm, root), form)


def swap(
    runner: Runner | None, outgoing: Sequence[Tensor], incoming: Sequence[Tensor], label: str
) -> None:
    """Send every rank a row, and receive one from each; that of this rank itself is copied.

    Args:
        runner: what carries them; None for a rank alone.
        outgoing: the row for each rank; empty where nothing is sent.
        incoming: the row from each rank; empty where nothing comes.
        label: of the collective.
    """
    rank = 0 if runner is None else runner.group.rank()
    if outgoing[rank].numel():
        incoming[rank].copy_(outgoing[rank])
    if runner is None:
        return
    size = len(outgoing)
    others = [(rank + step) % size for step in range(1, size)]
    wait = runner.start(
        {peer: raw(outgoing[peer]) for peer in others if outgoing[peer].numel()},
        {peer: raw(incoming[peer]) for peer in reversed(others) if incoming[peer].numel()},
        label,
    )
    wait()
