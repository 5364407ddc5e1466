"""Sharding: how a plan trains weights of which each rank keeps a shard, as ``fully_shard`` does it.

A *unit* is what is gathered at once: a bucket of the plan. Its weights are gathered before its
forward and again before its backward; its gradients are reduce-scattered behind its backward. The
last bucket is the root unit: what ``fully_shard(model)`` takes, which no other unit has. It is
gathered as forward begins, and kept to the end of backward.

[Note: blocks] A unit holds whole blocks of the model. They are read off the names of parameters. A
block is a module with a number in its name, the outermost one, such as ``layers.3``; or else the
largest module with no such block in it, such as ``head``. Parameters that lie beside blocks, in a
module that has some, belong to the root unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate

from syncopate.artifacts.artifact import Record
from syncopate.artifacts.timelines.gradients import ROOT_UNIT
from syncopate.errors import InvalidValueError

ROOT_BLOCK = ""
"""The name of the block of parameters that lie beside blocks."""

_OF_UNIT = re.compile(r"(\S+) gradient ")


class Sharding(Record, frozen=True, kw_only=True):
    """What a plan of units has beside its buckets; see the module.

    Attributes:
        prefetch: of how many units ahead the weights are asked for; >= 1.
        kept: the buckets whose weights stay gathered from forward to backward, ascending.
        ranks: how many ranks share the weights of a unit; 0 for all. With fewer, groups of so many
            hold all weights each, and gradients are all-reduced between the groups (HSDP).
    """

    prefetch: int = 1
    kept: tuple[int, ...] = ()
    ranks: int = 0

    def __post_init__(self) -> None:
        if self.prefetch < 1:
            raise InvalidValueError("prefetch of sharding", self.prefetch, "an integer >= 1")
        if self.ranks < 0 or self.ranks == 1:
            rule = "0 for all ranks, or an integer >= 2"
            raise InvalidValueError("ranks of sharding", self.ranks, rule)

    def require_beside(self, buckets: int, world_size: int) -> None:
        """Refuse a plan with other buckets or ranks.

        Raises:
            InvalidValueError: it keeps a bucket that there is not, or groups of ranks are unequal.
        """
        if self.kept != tuple(sorted(set(self.kept) & set(range(buckets)))):
            rule = f"ascending buckets in 0..{buckets - 1}"
            raise InvalidValueError("kept of sharding", self.kept, rule)
        if self.ranks and world_size % self.ranks:
            rule = f"0, or a divisor of the {world_size} ranks"
            raise InvalidValueError("ranks of sharding", self.ranks, rule)

    def again(self, buckets: int) -> tuple[int, ...]:
        """Return which of so many buckets are gathered again for backward, in that order."""
        return tuple(index for index in range(buckets) if index not in self.kept)

    def held_bytes(self, nbytes: Sequence[int]) -> int:
        """Return the most bytes of weights that are gathered at once on a rank.

        Args:
            nbytes: of the weights of each bucket.

        Example:
            >>> Sharding(prefetch=1, kept=(3,)).held_bytes([4, 5, 6, 1])
            12
        """
        count, kept = len(nbytes), set(self.kept)
        filled = [0, *accumulate(nbytes)]
        stay = [0, *accumulate(n if place in kept else 0 for place, n in enumerate(nbytes))]
        most = 0
        for here in range(count):
            # Forward comes to lower buckets, and backward to higher ones.
            ahead, end = max(here - self.prefetch, 0), min(here + self.prefetch, count - 1) + 1
            forward = filled[here + 1] - filled[ahead] + stay[-1] - stay[here + 1]
            backward = filled[end] - filled[here] + stay[-1] - stay[end]
            most = max(most, forward, backward)
        return most


def blocks(names: Iterable[str]) -> dict[str, str]:
    """Return the block of each parameter; see [Note: blocks].

    What a recording knows of gradients are no names of parameters. Those of a unit of FSDP2 are a
    block; of others each is one, and the parts of a message are.

    Example:
        >>> blocks(["emb.weight", "net.layers.0.a.weight", "net.layers.0.b.bias", "net.scale"])
        {'emb.weight': 'emb', 'net.layers.0.a.weight': 'net.layers.0', \
'net.layers.0.b.bias': 'net.layers.0', 'net.scale': ''}
    """
    found: dict[str, str] = {}
    unnumbered: list[tuple[str, list[str]]] = []
    holding = {ROOT_BLOCK}
    for name in names:
        if " " in name:
            found[name] = _recorded(name)
            continue
        found[name] = ROOT_BLOCK
        parts = name.split(".")[:-1]
        place = next((at for at, part in enumerate(parts) if part.isdecimal()), None)
        if place is None:
            unnumbered.append((name, parts))
            continue
        found[name] = ".".join(parts[: place + 1])
        holding |= {".".join(parts[:length]) for length in range(1, place + 1)}
    for name, parts in unnumbered:
        prefixes = (".".join(parts[: length + 1]) for length in range(len(parts)))
        found[name] = next((one for one in prefixes if one not in holding), ROOT_BLOCK)
    return found


def _recorded(name: str) -> str:
    if unit := _OF_UNIT.match(name):
        return ROOT_BLOCK if unit[1] == ROOT_UNIT else unit[1]
    return name.partition(" part ")[0]
