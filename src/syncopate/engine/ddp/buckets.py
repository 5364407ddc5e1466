"""Buckets: those of a plan, as DistributedDataParallel can have them.

[Note: how DDP fills buckets]
DDP puts gradients into a bucket until it holds as many bytes as its limit says, and begins the next
one. ``bucket_cap_mb_list`` has a limit for each bucket. In the first iteration it goes through the
parameters in order of definition, and reverses the buckets that it gets. After it DDP cuts them
anew, by the same limits, in the order in which rank 0's gradients became ready; with
``find_unused_parameters`` and without ``static_graph`` it never does. So limits that are the bytes
of a plan's buckets give these buckets, where gradients become ready in the plan's order. Each dtype
has buckets of its own, and begins with the first limit again.

[Note: plans of recordings]
A recording may tell the shape of every gradient in ready order, without its name. Then the order of
the buckets and their bytes are all that a plan says, and DDP's own order does the rest. Where a
recording tells messages alone, a plan's buckets end where no gradient does: DDP gets the nearest
ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from torch import Tensor

from syncopate.artifacts.plan import Bucket, Plan, joined
from syncopate.artifacts.timelines.gradients import is_recorded, shape_in
from syncopate.engine.buckets import Trainable
from syncopate.errors import PlanError
from syncopate.recipe import Recipe
from syncopate.units import format_bytes, format_count

_PADDING = 0.01
"""Messages may carry so much more than gradients, as a share."""

_SHOWN = 8
"""So many sizes of buckets are shown."""


@dataclass(frozen=True)
class Group:
    """What a plan sends together: a bucket, or all buckets that hold parts of one tensor."""

    planned: tuple[Bucket, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its gradients."""
        return sum(one.nbytes for one in self.planned)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of its gradients."""
        return self.planned[0].tensors


class Message(NamedTuple):
    """What one collective carries of a bucket of DDP.

    Attributes:
        recipe: how.
        start: its first element in the bucket.
        stop: one past its last.
    """

    recipe: Recipe
    start: int
    stop: int


class PlannedBuckets:
    """The buckets of a plan for the gradients of one model.

    Args:
        plan: of buckets that are all-reduced.
        trainables: every parameter whose gradient DDP exchanges, in order of definition.

    Raises:
        PlanError: the plan is for another model.

    Attributes:
        plan: as given.
        named: whether the plan says which gradient is where; see [Note: plans of recordings].
        exact: whether its buckets end where gradients do.
    """

    def __init__(self, plan: Plan, trainables: Sequence[Trainable]) -> None:
        self.plan = plan
        self._trainables = tuple(trainables)
        self._names = {id(one.parameter): one.name for one in trainables}
        self.groups = tuple(
            Group(tuple(plan.buckets[place] for place in places)) for places in joined(plan.buckets)
        )
        self._ends = list(accumulate(group.nbytes for group in self.groups))
        named = [name for group in self.groups for name in group.tensors]
        self.named = not all(map(is_recorded, named))
        shapes = [shape_in(name) for name in named]
        self.exact = self.named or None not in shapes
        if not self.named:
            self._require_recorded(named)

    def _require_recorded(self, names: Sequence[str]) -> None:
        """Refuse a recording of other gradients.

        Raises:
            PlanError: their shapes are others, or their bytes.
        """
        shapes = Counter(tuple(one.parameter.shape) for one in self._trainables)
        for name in names if self.exact else ():
            shape = shape_in(name)
            assert shape is not None
            if not shapes[shape]:
                raise PlanError(
                    f"this plan is for another model ({self.plan.model}): of the shape of its "
                    f"{name!r} the model has fewer parameters than the plan has gradients. Record "
                    "this model and plan again"
                )
            shapes[shape] -= 1
        here = sum(one.parameter.nbytes for one in self._trainables)
        slack = 0 if self.exact else _PADDING * here
        if abs(self._ends[-1] - here) > slack:
            raise PlanError(
                f"this plan is for another model ({self.plan.model}): its gradients have "
                f"{self._ends[-1]} bytes, and the model's have {here}. Record this model and plan "
                "again"
            )

    def limits(self, *, rebuilt: bool) -> list[int]:
        """Return the bytes at which DDP is to close its buckets; see [Note: how DDP fills buckets].

        Args:
            rebuilt: whether DDP cuts them anew in ready order.
        """
        wanted = [group.nbytes for group in self.groups]
        if not (rebuilt and self.exact):
            wanted = nearest([one.parameter.nbytes for one in reversed(self._trainables)], wanted)
        limits = [limit for limit in wanted if limit] or [1]
        return limits if rebuilt else limits[::-1]

    def messages(self, start: int, bucket: Tensor) -> list[Message]:
        """Return what carries a bucket of DDP.

        It is what carries the plan's gradients of the same bytes, counted from the first one to be
        ready; where they are in several buckets of the plan, in that which has most of them.

        Args:
            start: bytes of the buckets before it.
            bucket: its gradients, flat.
        """
        stop = start + bucket.nbytes
        shared = [min(stop, end) - max(start, begin) for begin, end in pairwise((0, *self._ends))]
        group = self.groups[shared.index(max(shared))]
        order, numel = self.plan.order, bucket.numel()
        whole = group.planned[-1].elements
        if whole is None or whole[1] != numel:
            return [Message(group.planned[0].push.in_order(order), 0, numel)]
        return [
            Message(one.push.in_order(order), *one.elements)
            for one in group.planned
            if one.elements is not None
        ]

    def difference(self, found: Sequence[Sequence[Tensor]], *, rebuilt: bool) -> str:
        """Return in words how the buckets of DDP differ from the plan's; empty where they do not.

        Args:
            found: the parameters of each bucket of DDP, in launch order.
            rebuilt: whether DDP has cut them anew in ready order.
        """
        here: list[object] = [sum(one.nbytes for one in bucket) for bucket in found]
        wanted: list[object] = [group.nbytes for group in self.groups]
        sizes = [", ".join(_sizes(each)) for each in (here, wanted)]
        if self.named:
            here = [{self._names[id(one)] for one in bucket} for bucket in found]
            wanted = [set(group.tensors) for group in self.groups]
        if here == wanted:
            return ""
        same = sum(one in wanted for one in here)
        if same == len(here) == len(wanted):
            return f"its buckets are the plan's in another order; {self._why(rebuilt)}"
        return (
            f"{same} of its {format_count(len(here), 'bucket')} are the plan's: it has "
            f"{sizes[0]} where the plan has {sizes[1]}; {self._why(rebuilt)}"
        )

    def _why(self, rebuilt: bool) -> str:
        if len({one.parameter.dtype for one in self._trainables}) > 1:
            return "gradients of several dtypes are never in one bucket of DDP"
        if not rebuilt:
            return "with find_unused_parameters=True DDP goes by the order of definition"
        if not self.exact:
            return "a recording of messages does not tell where gradients end"
        return "gradients became ready in another order than the plan's"


def nearest(sizes: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Return sizes of buckets of whole gradients that end as near as can be to wanted ones.

    Args:
        sizes: bytes of the gradients, in order; at least one.
        wanted: bytes of the buckets.

    Example:
        >>> nearest([10, 10, 30, 10], [24, 20, 16])
        [20, 30, 10]
    """
    ends = list(accumulate(sizes))
    cuts = {0, ends[-1]}
    for end in list(accumulate(wanted))[:-1]:
        place = bisect_left(ends, end)
        near = ends[max(place - 1, 0) : place + 1]
        cuts.add(min(near, key=lambda cut: abs(cut - end)) if near else ends[-1])
    return [stop - start for start, stop in pairwise(sorted(cuts))]


def _sizes(nbytes: Sequence[object]) -> list[str]:
    shown = [format_bytes(one) for one in nbytes[:_SHOWN] if isinstance(one, int)]
    return shown if len(nbytes) <= _SHOWN else [*shown, ".."]
