"""Agreement: a check that fails on one rank fails on all of them, and no rank is left waiting.

[Note: one exchange for many checks]
Ranks meet once for a whole row of checks. Each goes through the row by itself, up to its first
failure, and tells the others how far it came. What all of them raise is what they would raise had
they met after every check: the earliest check in the row that failed anywhere decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from syncopate.collectives import Communicator
from syncopate.collectives.health.blame import DIFFERENT
from syncopate.errors import CollectiveError, EngineError

T = TypeVar("T")

Fact = tuple[str, Hashable]
"""What is compared: what it is, such as ``"parameter 'fc.weight'"``, and its value."""

Checks = Generator[Sequence[Fact], None, T]
"""A row of checks: each ends with a ``yield`` of what must be the same on every rank, if anything,
the last with its result. None of them communicates."""


class _Told(NamedTuple):
    """What a rank tells the others of a row of checks.

    Attributes:
        digests: of the facts of each check that passed; empty where there are none.
        refusal: why the next one failed; None where all passed.
        beside: what else it says.
    """

    digests: tuple[str, ...]
    refusal: str | None
    beside: Any


def agree(
    communicator: Communicator, checks: Checks[T], beside: object = None
) -> tuple[T, list[Any]]:
    """Go through ``checks`` on every rank; see [Note: one exchange for many checks].

    Args:
        communicator: joins the ranks.
        checks: the row; values of facts print well.
        beside: what this rank tells the others along with it.

    Returns:
        The result of this rank's checks, and what every rank told beside.

    Raises:
        Exception: the rank's own error where its check failed.
        EngineError: names the first rank whose check failed, on the others; or the first
            difference and its rank, on every rank.
    """
    facts: list[Sequence[Fact]] = []
    failure: Exception | None = None
    result: T
    try:
        while True:
            facts.append(next(checks))
    except StopIteration as end:
        result = end.value
    except Exception as error:  # the other ranks must learn of any failure
        failure = error
    refusal = None if failure is None else str(failure)
    own = _Told(tuple(map(_digest, facts)), refusal, beside)
    everyone: list[_Told] = communicator.all_gather_object(own)
    for place in range(1 + max(len(told.digests) for told in everyone)):
        for rank, told in enumerate(everyone):
            if told.refusal is not None and len(told.digests) == place:
                if failure is not None and len(facts) == place:
                    raise failure
                raise EngineError(f"rank {rank} refuses: {told.refusal}")
        digests = [told.digests[place : place + 1] for told in everyone]
        if len(set(digests)) > 1:
            raise _different(communicator, facts[place], digests)
    return result, [told.beside for told in everyone]


def require_same(communicator: Communicator, facts: Sequence[Fact]) -> None:
    """Refuse ranks that differ.

    Args:
        communicator: joins the ranks.
        facts: what must be the same on every rank; values print well.

    Raises:
        EngineError: names the first difference and its rank, on every rank.
    """

    def known() -> Checks[None]:
        yield facts

    agree(communicator, known())


def _digest(facts: Sequence[Fact]) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest() if facts else ""


def _different(
    communicator: Communicator, facts: Sequence[Fact], digests: Sequence[object]
) -> EngineError:
    """Return the error that names the first difference; every rank calls it."""
    everyone: list[Sequence[Fact]] = communicator.all_gather_object(facts)
    rank = next(rank for rank, other in enumerate(digests) if other != digests[0])
    here, there = dict(everyone[0]), dict(everyone[rank])
    return EngineError(
        f"rank {rank} differs from rank 0: {_first_difference(here, there)}. Give every "
        "rank the same model and arguments"
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


@contextmanager
def explaining() -> Iterator[None]:
    """Explain a collective that fails in the block: what it means for the training.

    Once, where one block is inside another.

    Raises:
        CollectiveError: a rank is lost or late, or ranks met in different collectives.
    """
    try:
        yield
    except CollectiveError as error:
        reason = error.reason
        if DIFFERENT not in reason or reason.endswith((_IN_STEPS, _IN_FORWARDS)):
            raise
        # All-gathers bring weights, after a step, or gradients that the script reads.
        said = _IN_STEPS if "all_gather (" in reason else _IN_FORWARDS
        raise CollectiveError(error.collective, f"{reason}. {said}", error.ranks) from error


_IN_STEPS = (
    "A rank in an all-gather ends an optimizer's step(), or reads a gradient; one in a "
    "reduce-scatter or an all-reduce is in its backward. Where ranks own parts (any exchange but "
    "'allreduce'), all of them run a step(), or none, and all read a gradient, or none: some rank "
    "left one out"
)
_IN_FORWARDS = (
    "A rank in a broadcast begins a forward, one in an all-reduce or a reduce-scatter is in its "
    "backward: after an error between forward and backward, as in the loss, a rank goes on alone. "
    "See the error there; or some rank left a forward, a backward or a step() out. Where ranks own "
    "parts of gradients (any exchange but 'allreduce'), all of them have to read a gradient, or "
    "none"
)
