"""Gradients that a recording saw one by one, as the metadata of its timeline carry them.

Most recordings know messages alone. Where a tool tells when autograd had each gradient, and how
large it is, that is more than any message says.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from syncopate.errors import InvalidValueError

GRADIENTS = "gradients"
"""The entry of a timeline's metadata that holds them as text, where there are any."""


class Seen(NamedTuple):
    """One gradient, in ready order.

    Attributes:
        shape: of the tensor.
        dtype: element type by torch's name, such as ``"float32"``.
        done: which share of backward was over when it was there, in [0, 1].
    """

    shape: tuple[int, ...]
    dtype: str
    done: float


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
    return msgspec.json.encode(
        [one._replace(done=round(one.done, 6)) for one in gradients]
    ).decode()


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
