"""Works: what torch waits for, and the errors that it raises."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from syncopate.c10d.torch_compat import Work, follow, uncompiled
from syncopate.collectives.handle import Handle
from syncopate.errors import CollectiveError
from syncopate.units import format_seconds


class GroupError(CollectiveError, RuntimeError):
    """A collective of a process group that did not finish; a ``RuntimeError``, as torch's are."""


Named = Callable[[CollectiveError], GroupError]
"""Turns an error of a communicator into one of its process group."""


@contextmanager
def naming(named: Named) -> Iterator[None]:
    """Raise what a communicator raises in the block as an error of its process group.

    Raises:
        GroupError: a collective failed.
    """
    try:
        yield
    except GroupError:  # of a collective that a callback started
        raise
    except CollectiveError as error:
        raise named(error) from error


@uncompiled
class Submitted(Work):  # type: ignore[misc]
    """A collective that was submitted, or is over.

    Args:
        handle: the communicator's.
        results: the tensors that have the result once it is over.
        named: makes the error that is raised where it failed.
    """

    def __init__(self, handle: Handle, results: Sequence[Tensor], named: Named) -> None:
        super().__init__()
        self._handle = handle
        self._results = list(results)
        self._named = named
        self._future: Any = None

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Return True when the collective is over.

        Args:
            timeout: how long to wait; 0 and None for as long as the group's own limit.

        Raises:
            GroupError: it failed, or is not over yet; then it goes on.
        """
        limit_s = 0.0 if timeout is None else timeout.total_seconds()
        if limit_s > 0 and not self._handle.wait_for(limit_s):
            reason = f"not over after {format_seconds(limit_s)}; it goes on, and can be waited for"
            raise GroupError("wait", reason)
        with naming(self._named):
            self._handle.wait()
        return True

    def synchronize(self) -> None:
        """Do what :meth:`wait` does."""
        self.wait()

    def is_completed(self) -> bool:
        """Say whether it is over, well or badly."""
        return self._handle.done()

    def is_success(self) -> bool:
        """Say whether it is over and did not fail."""
        return self._handle.done() and self._handle.error is None

    def exception(self) -> BaseException | None:
        """Return what it failed with."""
        return self._handle.error

    def result(self) -> list[Tensor]:
        """Return the tensors that have the result."""
        return self._results

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Return a future of the result.

        Its callbacks run on the thread that carries the group's collectives, before the next of
        them. Collectives that a callback starts run at once, within it.
        """
        if self._future is None:
            source: torch.futures.Future[list[Tensor]] = torch.futures.Future()
            self._future = follow(source)
            self._handle.when_over(lambda: self._settle(source))
        return self._future  # type: ignore[no-any-return]

    def _settle(self, source: torch.futures.Future[list[Tensor]]) -> None:
        error = self._handle.error
        if error is None:
            source.set_result(self._results)
        else:
            named = self._named(error) if isinstance(error, CollectiveError) else error
            source.set_exception(named)  # type: ignore[arg-type]


@uncompiled
class Together(Work):  # type: ignore[misc]
    """Several collectives that torch waits for as one.

    Args:
        works: of each of them.
    """

    def __init__(self, works: Sequence[Any]) -> None:
        super().__init__()
        self._works = list(works)

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Return True when all of them are over; raises as they do."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Say whether all of them are over."""
        return all(work.is_completed() for work in self._works)
