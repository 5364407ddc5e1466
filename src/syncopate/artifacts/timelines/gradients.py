"""Gradients that a recording saw one by one, as the metadata of its timeline carry them.

Most recordings know messages alone. Where a tool tells when autograd had each gradient, and how
large it is, that is more than any message says.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from syncopate.errors import InvalidValueError

GRADIENTS = "gradients"
"""The entry of a timeline's metadata that holds them as text, where there are any."""

BESIDE = "flags and buffers"
"""The name of a push that carries no gradient."""

UNUSED = "unused parameters"
"""The name of what buckets carried of parameters that had no gradient."""

_SCALAR = "scalar"
_NAMED = re.compile(rf"(?:\S+ )?gradient \d+ \((?:({_SCALAR})|(\d+(?:x\d+)*))\)")

ROOT_UNIT = "root"
"""What stands for the modules of the unit that ``fully_shard(model)`` itself made."""


class Seen(NamedTuple):
    """One gradient, in ready order.

    Attributes:
        shape: of the tensor.
        dtype: element type by torch's name, such as ``"float32"``.
        done: which share of backward was over when it was there, in [0, 1].
        unit: the modules that it was reduced with, where FSDP2 says it; without spaces.
    """

    shape: tuple[int, ...]
    dtype: str
    done: float
    unit: str = ""


def usual(backwards: Iterable[Sequence[Seen]]) -> tuple[Seen, ...]:
    """Return the gradients that most backwards had, each ready at its median; none of none."""
    layouts: dict[tuple[tuple[tuple[int, ...], str], ...], list[Sequence[Seen]]] = defaultdict(list)
    for gradients in backwards:
        if gradients:
            layouts[tuple((one.shape, one.dtype) for one in gradients)].append(gradients)
    if not layouts:
        return ()
    most = max(layouts.values(), key=len)
    return tuple(
        same[0]._replace(done=statistics.median(one.done for one in same))
        for same in zip(*most, strict=True)
    )


def to_text(gradients: Sequence[Seen]) -> str:
    """Return gradients as a text of JSON."""
    rows = ((one.shape, one.dtype, round(one.done, 6), one.unit) for one in gradients)
    return msgspec.json.encode([row if row[-1] else row[:-1] for row in rows]).decode()


def of_text(text: str) -> tuple[Seen, ...]:
    """Return the gradients of a text.

    Raises:
        InvalidValueError: it holds something else.
    """
    try:
        found = msgspec.json.decode(text, type=tuple[Seen, ...])
    except (msgspec.DecodeError, RecursionError) as error:
        rule = f"gradients, each with shape, dtype and a share of backward ({error})"
        raise InvalidValueError(f"metadata {GRADIENTS!r}", text, rule) from None
    for one in found:
        if not 0 <= one.done <= 1 or any(extent < 0 for extent in one.shape):
            rule = "gradients with extents >= 0 and a share of backward in [0, 1]"
            raise InvalidValueError(f"metadata {GRADIENTS!r}", one, rule)
    return found


def name_of(number: int, shape: Sequence[int], unit: str = "") -> str:
    """Return what a gradient is called whose parameter's name no recording tells.

    Example:
        >>> name_of(17, (512, 512)), name_of(18, (), "blocks.0")
        ('gradient 17 (512x512)', 'blocks.0 gradient 18 (scalar)')
    """
    named = f"gradient {number} ({'x'.join(map(str, shape)) or _SCALAR})"
    return f"{unit} {named}" if unit else named


def is_recorded(name: str) -> bool:
    """Say whether a recording made this name: it has a space, which no parameter's has."""
    return " " in name


def shape_in(name: str) -> tuple[int, ...] | None:
    """Return the shape that :func:`name_of` has written into ``name``; None of other names.

    Example:
        >>> shape_in("gradient 17 (512x512)"), shape_in("bucket 3 part 1")
        ((512, 512), None)
    """
    found = _NAMED.fullmatch(name)
    if found is None:
        return None
    return () if found[1] else tuple(map(int, found[2].split("x")))
