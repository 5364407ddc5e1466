"""Columns: what a table has to have, and what it may call it.

    column      what it has                                        also called
    rank        a number, or a text that ends in one               worker, gpu, device, process
    iteration   a number; without it steps of optimizers tell      iter, step, batch
    kind        a lane, a pause, or a collective, see below        type, phase, op, category, event
    start       a time                                             begin, start_time, timestamp, ts
    end         a time                                             stop, finish, end_time
    duration    in the place of an end                             dur, elapsed
    bytes       a number                                           nbytes, size, message_size
    group       the name of a group, or its ranks as ``[0, 1]``    process_group, pg, communicator
    name        of the layer or message                            label

Rank, kind, start and end (or duration) are needed. Times are seconds, but where the name of the
column ends in a unit (``start_us``) or the mapping says one (``start=t0:us``). A kind is a lane of
timelines (``forward``, ``backward``, ``push``, ``update``, ``pull``, ``wait``), a pause (``input``,
``checkpoint``), a collective as PyTorch, NCCL or its kernels call it (``allreduce``,
``ReduceScatter``), or what :data:`KINDS` has. Other names are mapped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from syncopate.artifacts.timeline import LANES, PAUSES
from syncopate.errors import ArtifactError, InvalidValueError, UnknownNameError
from syncopate.tracing.foreign.chrome.names import collective_of, collective_of_kernel
from syncopate.tracing.foreign.ranktrace import LANE_OF

UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
"""Unit of time -> nanoseconds."""

COLUMNS: dict[str, tuple[str, ...]] = {
    "rank": ("rank", "worker", "gpu", "device", "process"),
    "iteration": ("iteration", "iter", "step", "batch"),
    "kind": ("kind", "type", "phase", "op", "category", "event"),
    "start": ("start", "begin", "start_time", "timestamp", "ts"),
    "end": ("end", "stop", "finish", "end_time"),
    "duration": ("duration", "dur", "elapsed"),
    "bytes": ("bytes", "nbytes", "size", "message_size"),
    "group": ("group", "process_group", "pg", "communicator"),
    "name": ("name", "label"),
}
"""Column -> what it may be called without being mapped."""

KINDS = {
    "fwd": "forward",
    "fw": "forward",
    "fp": "forward",
    "bwd": "backward",
    "bw": "backward",
    "bp": "backward",
    "compute": "backward",
    "optimizer": "update",
    "optim": "update",
    "opt": "update",
    "data": "input",
    "dataloader": "input",
    "data_loading": "input",
    "idle": "wait",
    "gc": "garbage collection",
}
"""Other names of lanes and pauses."""

TIMES = ("start", "end", "duration")
"""Columns of times."""

_UNIT = re.compile(r"^(.*?)[_ ]?[\[(]?(s|sec|seconds|ms|us|ns)[\])]?$")
_SECONDS = {"sec": "s", "seconds": "s"}


class Mapped(NamedTuple):
    """The names of columns and kinds in a table.

    Attributes:
        columns: column of :data:`COLUMNS` -> what it is called, with ``":us"`` behind a time's name
            for its unit.
        kinds: kind -> what the table calls it.
    """

    columns: Mapping[str, str] = {}
    kinds: Mapping[str, str] = {}


def mapped(columns: str = "", kinds: str = "") -> Mapped:
    """Return a mapping that is written ``rank=gpu,start=t0:us``, and ``forward=FP,push=SYNC``.

    Raises:
        InvalidValueError: it is not written so.
        UnknownNameError: no such column.
    """
    found = []
    for what, text in (("columns", columns), ("kinds", kinds)):
        pairs = {}
        for part in filter(None, text.split(",")):
            own, sign, theirs = (one.strip() for one in part.partition("="))
            if not (own and sign and theirs):
                rule = "pairs such as rank=gpu,start=t0:us, ours before theirs"
                raise InvalidValueError(f"--{what}", text, rule)
            pairs[own] = theirs
        found.append(pairs)
    for own in found[0]:
        if own not in COLUMNS:
            raise UnknownNameError("column", own, tuple(COLUMNS))
    return Mapped(found[0], found[1])


class WrongError(ValueError):
    """Says itself what is wrong."""


def kind_of(text: str, kinds: Mapping[str, str]) -> str:
    """Return the lane, pause or collective that a table means.

    Raises:
        ValueError: it is none that is known.
    """
    own = text.strip().lower()
    own = kinds.get(own, own)
    own = KINDS.get(own, own)
    if own in LANES or own in PAUSES or own in LANE_OF:
        return own
    found = collective_of(own) or collective_of_kernel(text.strip())
    if found is None or found not in LANE_OF:
        known = ", ".join((*LANES, *PAUSES, *LANE_OF))
        raise WrongError(
            f"{text!r} is no kind that is known; map it: forward={text}. Known are {known}"
        )
    return found


def places_of(
    path: str | os.PathLike[str], names: Sequence[str], mapping: Mapped
) -> dict[str, tuple[int, int]]:
    """Return column -> its place, and nanoseconds of its unit.

    Raises:
        ArtifactError: a column that is needed is not there.
    """
    lower = [name.strip().lower() for name in names]
    bare = {_UNIT.sub(r"\1", name): at for at, name in reversed(list(enumerate(lower)))}
    places: dict[str, tuple[int, int]] = {}
    for own, called in COLUMNS.items():
        if own in mapping.columns:
            name, _, unit = mapping.columns[own].partition(":")
            if name.strip().lower() not in lower or (unit and unit not in UNITS):
                reason = (
                    f"it has no column {name!r} in {', '.join(UNITS)}"
                    if unit
                    else (f"it has no column {name!r}; it has {', '.join(names)}")
                )
                raise ArtifactError(path, reason)
            at = lower.index(name.strip().lower())
            places[own] = at, UNITS[unit] if unit else _unit(lower[at])
            continue
        exact = next((lower.index(one) for one in called if one in lower), None)
        if exact is None and own in TIMES:
            exact = next((bare[one] for one in called if one in bare), None)
        if exact is not None:
            places[own] = exact, _unit(lower[exact])
    lacks = [one for one in ("rank", "kind", "start") if one not in places]
    lacks += [] if "end" in places or "duration" in places else ["end"]
    if lacks:
        reason = (
            f"a table needs columns rank, kind, start and end; of {', '.join(names) or 'none'} "
            f"none is known to be {', '.join(lacks)}; say which with --columns {lacks[0]}=NAME"
        )
        raise ArtifactError(path, reason)
    return places


def _unit(name: str) -> int:
    found = _UNIT.match(name)
    if found is None or found[1] not in {one for own in TIMES for one in COLUMNS[own]}:
        return UNITS["s"]
    return UNITS[_SECONDS.get(found[2], found[2])]
