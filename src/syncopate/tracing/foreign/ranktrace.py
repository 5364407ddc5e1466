"""What another tool tells about one rank: its collectives, its computation, its iterations.

Every reader of this room makes :class:`RankTrace` of a file, and one function makes a timeline of
those of all ranks (:mod:`syncopate.tracing.foreign.assemble`). Times are whole nanoseconds since
1970 on the clock of the rank's host: as floats they would lose tenths of a microsecond.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from syncopate.artifacts.timeline import Group
from syncopate.artifacts.timelines.gradients import Seen

LANE_OF = {
    "all_reduce": "push",
    "reduce_scatter": "push",
    "reduce": "push",
    "all_to_all": "push",
    "gather": "push",
    "send": "push",
    "all_gather": "pull",
    "broadcast": "pull",
    "scatter": "pull",
    "recv": "pull",
    "barrier": "wait",
}
"""Collective -> the lane of its spans. What gradients travel with is a push."""

OF_ALL_RANKS = frozenset({"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier"})
"""Collectives that no rank is done with before every rank has come to them."""

BETWEEN_TWO = frozenset({"send", "recv"})
"""Messages of two stages of a pipeline."""

DTYPE_BYTES = {
    "double": 8,
    "float": 4,
    "bfloat16": 2,
    "half": 2,
    "long": 8,
    "int": 4,
    "short": 2,
    "char": 1,
    "byte": 1,
    "bool": 1,
}
"""Bytes per element by PyTorch's own names of scalar types, in small letters."""

_INTEGERS = ("long", "int", "short", "char", "byte", "bool")
"""Those of them that no gradient has."""


class Launch(NamedTuple):
    """One collective on one rank.

    Attributes:
        key: the same on every rank that takes part, and no other collective's; None: not known.
        collective: such as ``"all_reduce"``.
        group: its process group.
        start_ns: when the rank came to it.
        end_ns: when the rank was done with it; None: not known.
        nbytes: what the rank gives; 0: not known.
        took_ns: how long it ran on the device; None: not known.
        detail: what else the tool says.
        iteration: which; -1: the marks of its rank say it.
        integers: whether it carries whole numbers, which no gradient has.
    """

    key: Hashable
    collective: str
    group: Group
    start_ns: int
    end_ns: int | None = None
    nbytes: int = 0
    took_ns: int | None = None
    detail: str = ""
    iteration: int = -1
    integers: bool = False


class Work(NamedTuple):
    """One stretch of computation on one rank: forward, backward or update.

    Its iteration is -1 where the marks of the rank say it.
    """

    name: str
    lane: str
    start_ns: int
    end_ns: int
    iteration: int = -1


class RankTrace(NamedTuple):
    """One rank, as another tool saw it.

    Attributes:
        rank: which.
        world_size: number of ranks of the training.
        tool: what recorded it, in words.
        launches: in the order in which the rank came to them.
        work: stretches of computation.
        marks: ``(moment, iteration)``: which iteration begins right after a moment, rising; empty:
            not known.
        numbered: whether the tool itself numbered the iterations; else they count from 0.
        host: the name of its host; empty: not known.
        on_device: whether collectives are kernels, which all ranks end together.
        groups: its process groups, also those that it did not use.
        lost: how many collectives were forgotten before the first of ``launches``.
        gradients: of a backward, where the tool tells them one by one; else none.
        notes: what is odd about what the tool wrote.
        sharded: whether it is a training of FSDP2's, which gathers weights.
        process: of the training, as the tool names it; empty: not known.
    """

    rank: int
    world_size: int
    tool: str
    launches: tuple[Launch, ...]
    work: tuple[Work, ...] = ()
    marks: tuple[tuple[int, int], ...] = ()
    numbered: bool = False
    host: str = ""
    on_device: bool = False
    groups: tuple[Group, ...] = ()
    lost: int = 0
    gradients: tuple[Seen, ...] = ()
    notes: tuple[str, ...] = ()
    sharded: bool = False
    process: str = ""


def are_integers(dtypes: Sequence[str]) -> bool:
    """Say whether tensors have whole numbers alone; of none at all they have not."""
    return bool(dtypes) and all(one.rpartition("::")[2].lower() in _INTEGERS for one in dtypes)


def nbytes_of(shape: list[int], dtype: str) -> int:
    """Return the bytes of a tensor; 0 where PyTorch's name of its scalar type is not known."""
    number = 1
    for extent in shape:
        number *= max(extent, 0)
    return number * DTYPE_BYTES.get(dtype.rpartition("::")[2].lower(), 0)
