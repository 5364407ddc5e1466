"""Messages: tensors from one rank to another, beside the collectives of a group.

They may be under way in any number, in any order, by tag, and from any rank, while collectives run.
A group has Gloo's connections anyway, by which its ranks meet, and Gloo carries them. What waits
for one is supervised as collectives are, and names who is lost.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from syncopate.c10d.rows import Rows, raw, require_writable
from syncopate.c10d.torch_compat import Work, follow, uncompiled
from syncopate.c10d.works import GroupError, Named, naming
from syncopate.collectives import transport
from syncopate.collectives.health.detector import FailureDetector
from syncopate.collectives.runner import Runner
from syncopate.errors import CollectiveError, InvalidValueError

_MOST_TAG = (1 << 30) - 1
"""Tags beyond it are the communicator's own."""


@uncompiled
class Message(Work):  # type: ignore[misc]
    """A message under way.

    Args:
        wait: waits for it, and lets what came be seen; raises ``CollectiveError``.
        work: Gloo's.
        results: where it lands.
        named: makes the error that is raised where it failed.
    """

    def __init__(
        self, wait: Callable[[], None], work: Any, results: list[Tensor], named: Named
    ) -> None:
        super().__init__()
        self._wait = wait
        self._work = work
        self._results = results
        self._named = named
        self._waiting = threading.Lock()
        self._over = False
        self._error: GroupError | None = None
        self._future: Any = None

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Return True when the message is over.

        Args:
            timeout: of no consequence: the group's own limit counts.

        Raises:
            GroupError: it failed.
        """
        with self._waiting:
            if not self._over:
                try:
                    self._wait()
                except CollectiveError as error:
                    self._error = self._named(error)
                self._over = True
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Say whether it is over, well or badly."""
        return self._over or bool(self._work.is_completed())

    def is_success(self) -> bool:
        """Say whether it is over and did not fail."""
        return self.is_completed() and self._error is None

    def result(self) -> list[Tensor]:
        """Return where it lands."""
        return self._results

    def _source_rank(self) -> int:
        return int(self._work._source_rank())

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Return a future of where it lands; a thread waits for it."""
        if self._future is None:
            source: torch.futures.Future[list[Tensor]] = torch.futures.Future()
            self._future = follow(source)
            threading.Thread(target=self._settle, args=(source,), daemon=True).start()
        return self._future  # type: ignore[no-any-return]

    def _settle(self, source: torch.futures.Future[list[Tensor]]) -> None:
        try:
            self.wait()
        except GroupError as error:
            source.set_exception(error)  # type: ignore[arg-type]
        else:
            source.set_result(self._results)


class Messages:
    """The messages of one group.

    Args:
        runner: what carries the group's collectives, whose Gloo group this uses.
        detector: notices that ranks are lost.
        named: makes the errors.
    """

    def __init__(self, runner: Runner, detector: FailureDetector, named: Named) -> None:
        self._runner = runner
        self._detector = detector
        self._named = named
        self._gloo = transport.gloo_backend(runner.group)

    def send(self, tensor: Tensor, peer: int, tag: int) -> Message:
        """Start to send ``tensor``; it must not change until the message was waited for.

        Raises:
            InvalidValueError: a tensor, rank or tag that cannot be.
            GroupError: a rank was lost.
        """
        row = self._checked("send", tensor, peer, tag)
        label = f"message to rank {peer}"
        return self._start(label, lambda: self._gloo.send([raw(row.take())], peer, tag), tensor)

    def receive(self, tensor: Tensor, peer: int | None, tag: int) -> Message:
        """Start to receive into ``tensor``, from any rank where ``peer`` is None.

        Raises: as :meth:`send`.
        """
        row = self._checked("recv", tensor, peer, tag)
        require_writable("recv", [tensor])
        label = "message from any rank" if peer is None else f"message from rank {peer}"
        room = row.room()

        def begin() -> Any:
            if peer is None:
                return self._gloo.recv_anysource([raw(room)], tag)
            return self._gloo.recv([raw(room)], peer, tag)

        return self._start(label, begin, tensor, lambda: row.put(room))

    def monitored_barrier(self, limit: datetime.timedelta, *, all_ranks: bool) -> None:
        """Return when every rank has come here; rank 0 names who has not within ``limit``.

        Args:
            limit: how long to wait.
            all_ranks: whether rank 0 names all that have not come, rather than the first.

        Raises:
            RuntimeError: a rank did not come; torch's error.
        """
        self._gloo.monitored_barrier(limit, all_ranks)

    def _start(
        self, label: str, begin: Callable[[], Any], tensor: Tensor, end: Callable[[], object] = int
    ) -> Message:
        with naming(self._named), self._detector.beside(label):
            work = begin()

        def wait() -> None:
            with self._detector.beside(label):
                self._runner.wait(work)
            end()

        return Message(wait, work, [tensor], self._named)

    def _checked(self, what: str, tensor: Tensor, peer: int | None, tag: int) -> Rows:
        size, rank = self._runner.group.size(), self._runner.group.rank()
        if peer is not None and (peer == rank or not 0 <= peer < size):
            rule = f"another rank of the group, in 0..{size - 1}; this one is {rank}"
            raise InvalidValueError(f"rank of {what}", peer, rule)
        if not 0 <= tag <= _MOST_TAG:
            raise InvalidValueError(f"tag of {what}", tag, f"in 0..{_MOST_TAG}")
        return Rows(what, [tensor])
