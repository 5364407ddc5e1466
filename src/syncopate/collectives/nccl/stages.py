"""Stages: BlueConnect and its relatives out of the backend's own collectives on subgroups.

The ranks that differ in one coordinate of a :class:`~syncopate.collectives.nccl.grid.Grid` make a
subgroup. The schedules of :mod:`syncopate.schedules.algorithms.blueconnect` and ``two_level`` spell
every message out; here each stage is one call, and how it is done within its level is the backend's
business, which NCCL knows best.

[Note: nested shares] Stage 0 leaves a rank the c0-th of p0 equal parts of the buffer, stage 1 the
c1-th of p1 parts of that, and so on; so every stage works in place on one range, and the
all-gathers go back the same way. What is left over when p does not divide the buffer, fewer than p
elements, is all-reduced by the whole group meanwhile. A reduce-scatter must end, and an all-gather
start, with shard r at rank r: they pass through a copy whose rows are the shards in the order of
:meth:`~syncopate.collectives.nccl.grid.Grid.places`, all padded to the longest.

[Note: pipelines] Cut into m message chunks, the buffer has its first chunk in stage 1 while the
second is in stage 0. Stages advance together: all that are active are started, each on the
backend's stream of its level, and waited for before the next. Calls come in the same order on all
ranks.

Source: BlueConnect (Cho et al. 2019), Sections 2 and 3; two levels: Section 2.2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from syncopate.collectives.backend import calls
from syncopate.collectives.nccl.grid import Grid
from syncopate.collectives.nccl.subgroup import Subgroup
from syncopate.collectives.shards import (
    Bounds,
    bounds_of,
    empty_rows,
    fill,
    rows,
    summable,
    take_back,
)
from syncopate.errors import InvalidValueError
from syncopate.schedules import registry
from syncopate.schedules.base import chunk_offsets
from syncopate.schedules.options import checked

_Pair = tuple[torch.Tensor, torch.Tensor]
"""A range of the buffer, and this rank's part of it."""

_Run = Callable[["Staged", torch.Tensor], None]


class Stages:
    """The collectives in stages of one channel, and their subgroups.

    A subgroup is made when it is first needed, kept, and shared by the grids that have it in
    common. All ranks run the same collectives in the same order on a channel, and so make its
    subgroups in the same order.

    Args:
        group: the channel's process group.
        rank: this rank within it.
        timeout_s: how long a stage may take.
    """

    def __init__(self, group: dist.ProcessGroup, rank: int, timeout_s: float) -> None:
        self.group = group
        self.rank = rank
        self.world_size = group.size()
        self._timeout_s = timeout_s
        self._subgroups: dict[tuple[str, tuple[int, ...]], Subgroup] = {}
        self._introduced: set[tuple[torch.device, tuple[int, ...]]] = set()

    def staged(
        self,
        collective: str,
        algorithm: str,
        options: Mapping[str, Any] | None = None,
        bounds: Bounds | None = None,
    ) -> Staged | None:
        """Return a collective in stages, or None where its schedule says how to run it.

        The latter holds for other algorithms, for a single level, and when ``stages`` names the
        algorithm of each.

        Args:
            collective: such as ``"all_reduce"``.
            algorithm: a registered one.
            options: what it is told.
            bounds: where the shards begin; None for the balanced cut.

        Raises:
            UnknownNameError: the algorithm does not take such an option.
            InvalidValueError: no such value of an option.
        """
        run = _RUN.get((collective, algorithm))
        if run is None:
            return None
        row = registry.ALGORITHMS[collective, algorithm]
        scope = f"{collective} ({algorithm})"
        known = dict(checked(row.options, self.world_size, options or {}, scope))
        grid = Grid.of(self.world_size, known.get("factors"), known.get("order"))
        pipelines = known.get("pipelines", 1)
        if pipelines < 1:
            raise InvalidValueError("pipelines", pipelines, "an integer >= 1")
        if "stages" in known or len(grid.factors) < 2:
            return None
        if run is two_level and known.get("factors", (0,))[0] == 1:
            return None  # every rank is a node; the levels beyond make one ring
        return Staged(self, run, grid, pipelines, bounds)

    def subgroup(self, members: tuple[int, ...], device: torch.device) -> Subgroup:
        """Return the subgroup of ``members``; the first time, wait for the other ranks."""
        key = device.type, members
        if key not in self._subgroups:
            self._subgroups[key] = Subgroup(self.group, members, device.type, self._timeout_s)
        if not self.knows(members, device):
            self._subgroups[key].introduce(device)
            self._introduced.add((device, members))
        return self._subgroups[key]

    def knows(self, members: tuple[int, ...], device: torch.device) -> bool:
        """Say whether the subgroup of ``members`` is there already."""
        return (device, members) in self._introduced

    def interrupt(self) -> None:
        """Make every stage that is under way fail now instead of hang."""
        for subgroup in list(self._subgroups.values()):
            subgroup.interrupt()

    def close(self) -> None:
        """Give the subgroups up."""
        for subgroup in self._subgroups.values():
            subgroup.close()
        self._subgroups.clear()
        self._introduced.clear()


class Staged:
    """A collective in stages, to be called with its tensor, contiguous and with elements.

    Args:
        stages: where the subgroups are.
        run: what to do, one of this module's.
        grid: the levels, two or more.
        pipelines: message chunks in different stages at once.
        bounds: where the shards begin; None for the balanced cut.

    Attributes:
        pipelines: as given.
        bounds: as given.
        group: the channel's process group.
        rank: this rank within it.
        place: its row among the shards.
    """

    def __init__(
        self,
        stages: Stages,
        run: _Run,
        grid: Grid,
        pipelines: int,
        bounds: Bounds | None = None,
    ) -> None:
        self.pipelines = pipelines
        self.bounds = bounds
        self.group = stages.group
        self.rank = stages.rank
        self._stages = stages
        self._run = run
        self._places = grid.places()
        self.place = self._places[stages.rank]
        if run is two_level:
            grid = Grid((grid.factors[0], math.prod(grid.factors[1:])), grid.order)
        levels = range(len(grid.factors))
        if run is two_level and grid.coordinates(stages.rank)[0]:
            levels = range(1)
        self._members = [grid.members(stages.rank, level) for level in levels]
        self._places_on: dict[torch.device, torch.Tensor] = {}

    def __call__(self, tensor: torch.Tensor) -> None:
        """Run it in place."""
        self._run(self, tensor)

    def connected(self, device: torch.device) -> bool:
        """Say whether it can begin without the host waiting for another rank."""
        return all(self._stages.knows(members, device) for members in self._members)

    def levels(self, device: torch.device) -> list[Subgroup]:
        """Return this rank's subgroup of every level it takes part in, innermost first."""
        return [self._stages.subgroup(members, device) for members in self._members]

    def places(self, device: torch.device) -> torch.Tensor:
        """Return the row of every rank's shard; see [Note: nested shares]."""
        if device not in self._places_on:
            self._places_on[device] = torch.tensor(self._places, device=device)
        return self._places_on[device]


def all_reduce(staged: Staged, tensor: torch.Tensor) -> None:
    """Sum ``tensor`` over the ranks: a reduce-scatter per level, and the all-gathers back."""
    levels = staged.levels(tensor.device)
    world_size = math.prod(level.size for level in levels)
    sums = summable(tensor)
    flat = sums.view(-1)
    share = flat.numel() // world_size
    left_over = flat[share * world_size :]
    work = None
    if left_over.numel():
        work = calls.all_reduce(staged.group, left_over, later=True)
    cuts = [cut * world_size for cut in chunk_offsets(share, staged.pipelines)]
    chunks = [flat[start:stop] for start, stop in itertools.pairwise(cuts) if start < stop]
    _in_step([_nested(chunk, levels) for chunk in chunks], levels)
    calls.end(work)
    take_back(tensor, sums)


def reduce_scatter(staged: Staged, tensor: torch.Tensor) -> None:
    """Leave the sum of shard r of ``tensor`` at rank r: a reduce-scatter per level."""
    levels = staged.levels(tensor.device)
    world_size = math.prod(level.size for level in levels)
    flat = tensor.view(-1)
    bounds = bounds_of(flat, world_size, staged.bounds)
    matrix = rows(summable(flat), bounds, staged.places(tensor.device))
    for level, (whole, share) in zip(levels, _nested(matrix.view(-1), levels), strict=True):
        calls.end(calls.reduce_scatter(level.backend, share, whole))
    begin, end = bounds[staged.rank : staged.rank + 2]
    take_back(flat[begin:end], matrix[staged.place, : end - begin])


def all_gather(staged: Staged, tensor: torch.Tensor) -> None:
    """Fill ``tensor`` with shard r of every rank r: an all-gather per level, outermost first."""
    levels = staged.levels(tensor.device)
    world_size = math.prod(level.size for level in levels)
    flat = tensor.view(-1)
    bounds = bounds_of(flat, world_size, staged.bounds)
    begin, end = bounds[staged.rank : staged.rank + 2]
    matrix = empty_rows(flat, bounds)
    matrix[staged.place, : end - begin].copy_(flat[begin:end])
    pairs = _nested(matrix.view(-1), levels)
    for level, (whole, share) in reversed(list(zip(levels, pairs, strict=True))):
        calls.end(calls.all_gather(level.backend, whole, share))
    fill(flat, matrix, bounds, staged.places(tensor.device))


def two_level(staged: Staged, tensor: torch.Tensor) -> None:
    """Sum ``tensor`` over the ranks: reduce to the node's first, all-reduce those, broadcast."""
    node, *across = staged.levels(tensor.device)
    sums = summable(tensor)
    calls.end(calls.reduce(node.backend, sums, 0))
    for leaders in across:
        calls.end(calls.all_reduce(leaders.backend, sums))
    calls.end(calls.broadcast(node.backend, sums, 0))
    take_back(tensor, sums)


_RUN: dict[tuple[str, str], _Run] = {
    ("all_reduce", "blueconnect"): all_reduce,
    ("all_reduce", "two_level"): two_level,
    ("reduce_scatter", "hierarchical"): reduce_scatter,
    ("all_gather", "hierarchical"): all_gather,
}


def _nested(flat: torch.Tensor, levels: Sequence[Subgroup]) -> list[_Pair]:
    """Return what every stage works on; see [Note: nested shares]."""
    found = []
    for level in levels:
        width = flat.numel() // level.size
        share = flat[level.rank * width : (level.rank + 1) * width]
        found.append((flat, share))
        flat = share
    return found


def _in_step(chunks: Sequence[Sequence[_Pair]], levels: Sequence[Subgroup]) -> None:
    """All-reduce every chunk, each one stage behind the one before; see [Note: pipelines]."""
    later = len(chunks) > 1
    stages = 2 * len(levels)
    for slot in range(stages + len(chunks) - 1 if chunks else 0):
        works = []
        for position, pairs in enumerate(chunks):
            stage = slot - position
            if not 0 <= stage < stages:
                continue
            index = min(stage, stages - 1 - stage)
            backend, (whole, share) = levels[index].backend, pairs[index]
            if stage < len(levels):
                works.append(calls.reduce_scatter(backend, share, whole, later=later))
            else:
                works.append(calls.all_gather(backend, whole, share, later=later))
        for work in works:
            calls.end(work)
