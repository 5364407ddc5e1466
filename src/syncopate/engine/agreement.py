"""Agreement: a check that fails on one rank fails on all of them, and nobody is left waiting."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from torch import Tensor

from syncopate.collectives import Communicator
from syncopate.collectives.health.blame import DIFFERENT
from syncopate.errors import CollectiveError, EngineError

T = TypeVar("T")

Fact = tuple[str, Hashable]
"""What is compared: what it is, such as ``"parameter 'fc.weight'"``, and its value."""


def together(communicator: Communicator, check: Callable[[], T]) -> T:
    """Run ``check`` on every rank and return its result, or raise on every rank.

    Args:
        communicator: joins the ranks.
        check: must not communicate.

    Raises:
        Exception: the rank's own error where its check failed.
        EngineError: names the first rank whose check failed, on the others.
    """
    failure: Exception | None = None
    result: T
    try:
        result = check()
    except Exception as error:  # the other ranks must learn of any failure
        failure = error
    messages = communicator.all_gather_object(None if failure is None else str(failure))
    if failure is not None:
        raise failure
    for rank, message in enumerate(messages):
        if message is not None:
            raise EngineError(f"rank {rank} refuses: {message}")
    return result


def require_same(communicator: Communicator, facts: Sequence[Fact]) -> None:
    """Refuse ranks that differ.

    Args:
        communicator: joins the ranks.
        facts: what must be the same on every rank; values print well.

    Raises:
        EngineError: names the first difference and its rank, on every rank.
    """
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()
    digests = communicator.all_gather_object(digest)
    if len(set(digests)) == 1:
        return
    everyone: list[Sequence[Fact]] = communicator.all_gather_object(facts)
    rank = next(rank for rank, other in enumerate(digests) if other != digests[0])
    here, there = dict(everyone[0]), dict(everyone[rank])
    raise EngineError(
        f"rank {rank} differs from rank 0: {_first_difference(here, there)}. Every rank must "
        "call distribute with the same model and arguments"
    )


def _first_difference(here: dict[str, Hashable], there: dict[str, Hashable]) -> str:
    for what, value in here.items():
        if what not in there:
            return f"it has no {what}"
        if there[what] != value:
            return f"{what} is {there[what]} there and {value} on rank 0"
    for what in there:
        if what not in here:
            return f"it has {what}, which rank 0 has not"
    return "the same parts stand in another order"


def tensor_facts(kind: str, tensors: Iterable[tuple[str, Tensor]]) -> list[Fact]:
    """Return one fact per tensor: shape, strides, dtype and whether it is trained."""
    return [
        (
            f"{kind} {name!r}",
            (
                f"shape {tuple(tensor.shape)}, strides {tuple(tensor.stride())}, {tensor.dtype}"
                f"{'' if tensor.requires_grad or kind != 'parameter' else ', frozen'}"
            ),
        )
        for name, tensor in tensors
    ]


def explained(error: CollectiveError) -> CollectiveError:
    """Return ``error`` with what it means here, where ranks met in different collectives."""
    reason = str(error).removeprefix(f"{error.collective}: ")
    if DIFFERENT not in reason:
        return error
    return CollectiveError(
        error.collective,
        f"{reason}. A rank in a broadcast begins a forward, one in an all-reduce is in its "
        "backward: after an error between forward and backward, as in the loss, a rank goes on "
        "alone. See the error there. Where ranks own parts of gradients (any exchange but "
        "'allreduce'), all of them have to read a gradient, or none",
        error.ranks,
    )
