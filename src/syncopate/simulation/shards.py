"""Shards: what unequal ones cost, where an optimizer looks at whole tensors.

There the shards of the ``sharded`` exchange follow the borders of tensors, and what may be cut
makes up for the differences (:mod:`syncopate.schedules.shards`). So a bucket's shards are unequal,
and its collectives take longer than those of equal ones. The engine keeps what is cut and what is
not in flat buffers of their own, each with a collective of its own; so does the price.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.collective import unequal_factor
from syncopate.costs.model.functions import CostFunction
from syncopate.recipe import NATIVE, Recipe
from syncopate.schedules.shards import cut_between, cut_by, levelling, whole_owners
from syncopate.units import dtype_bytes


@dataclass(frozen=True)
class Part:
    """One collective: the tensors of a bucket that share a flat buffer.

    Attributes:
        nbytes: of all of them.
        itemsize: bytes per element.
        bounds: rank r's shard is the elements ``bounds[r]:bounds[r + 1]``; empty for equal shards.
    """

    nbytes: int
    itemsize: int
    bounds: tuple[int, ...] = ()

    def seconds(self, recipe: Recipe, cost: CostFunction, cluster: Cluster | None) -> float:
        """Return what the part takes.

        Args:
            recipe: how it travels.
            cost: of equal shards, with the recipe's options.
            cluster: the machines; None where all shards count as equal.
        """
        even_s = float(cost(self.nbytes))
        if cluster is None or not self.bounds or not self.nbytes:
            return even_s
        if recipe.algorithm == NATIVE:
            # The backend's own pads every shard to the longest; where one rank has all of them
            # it does not, and this is more than it takes.
            longest = max(stop - start for start, stop in pairwise(self.bounds))
            return float(cost(cluster.world_size * longest * self.itemsize))
        return even_s * unequal_factor(cluster, recipe, self.bounds, self.itemsize)


class Shards:
    """Which rank owns what of a plan's buckets, as the engine spreads them.

    That depends on the order in which tensors are launched, and not on where buckets end.

    Args:
        workload: whose ``whole`` tensors are not cut.
        launched: the names of the tensors that are spread over the ranks, in launch order; those of
            parts may come again. Every rank owns the others.
        world_size: number of ranks.

    Attributes:
        largest_part: the part of all bytes that the rank with the most of them owns.
    """

    def __init__(self, workload: Workload, launched: Iterable[str], world_size: int) -> None:
        self._tensors = {tensor.name: tensor for tensor in workload.tensors}
        self._world_size = world_size
        kept_whole = {workload.tensors[index].name for index in workload.whole}
        names = list(dict.fromkeys(launched))
        whole = [name for name in names if name in kept_whole]
        nbytes = [self._tensors[name].nbytes for name in whole]
        self._owners = dict(zip(whole, whole_owners(nbytes, world_size), strict=True))
        loads = [0] * world_size
        for name, size in zip(whole, nbytes, strict=True):
            loads[self._owners[name]] += size
        rest = sum(self._tensors[name].nbytes for name in names) - sum(loads)
        self._proportions = levelling(loads, rest)
        level, total = sum(self._proportions), sum(each.nbytes for each in workload.tensors)
        shares = zip(loads, self._proportions, strict=True)
        most = max(load + (rest * share / level if level else 0) for load, share in shares)
        replicated = total - sum(loads) - rest
        self.largest_part = (most + replicated) / total if total else 1 / world_size

    def parts(self, names: Sequence[str], elements: tuple[int, int] | None = None) -> list[Part]:
        """Return what travels of a bucket, one collective each.

        Args:
            names: of its tensors.
            elements: of its only tensor the first that it holds, and one past the last; None where
                it holds whole tensors.
        """
        groups: dict[tuple[str, bool], list[str]] = {}
        for name in names:
            key = (self._tensors[name].dtype, name in self._owners)
            groups.setdefault(key, []).append(name)
        return [self._part(group, elements) for group in groups.values()]

    def _part(self, names: Sequence[str], elements: tuple[int, int] | None) -> Part:
        numels = [self._tensors[name].numel for name in names]
        if elements is not None:
            numels = [elements[1] - elements[0]]
        itemsize = dtype_bytes(self._tensors[names[0]].dtype)
        if names[0] not in self._owners:
            bounds = cut_by(sum(numels), self._proportions)
            return Part(sum(numels) * itemsize, itemsize, bounds)
        # What stays whole lies in the order of its owners.
        lie = sorted(zip((self._owners[name] for name in names), numels, strict=True))
        bounds = cut_between([n for _, n in lie], [owner for owner, _ in lie], self._world_size)
        return Part(sum(numels) * itemsize, itemsize, bounds)
