"""Watch: notices that a collective failed, here or elsewhere, and turns it into one clear error.

[Note: why a failure spreads] A rank blocked in Gloo notices only its own neighbour. When rank 2
dies, rank 3 fails at once, but rank 0, which waits for rank 3, would sit out its whole time limit.
So a rank that fails closes all its connections, which fails its neighbours, and theirs. A rank
that the chain does not reach learns it from the board: a thread looks there while a collective
takes long, and closes the connections from this side. The same thread announces the collective
that takes long, and finds there when another rank is in a different one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch.distributed as dist

from syncopate.collectives import transport
from syncopate.collectives.failure import (
    GRACE_S,
    Board,
    Call,
    PeerError,
    Post,
    Verdict,
    blame,
    collect,
    name_ranks,
)
from syncopate.errors import CollectiveError, SyncopateError

_Result = TypeVar("_Result")
_LOOK_S = 0.5
_STORE_LIMIT_S = 3.0


class Watch:
    """The failure state of one communicator; used from all its threads.

    Args:
        groups: the process group of every channel.
        rank: this rank.
        world_size: number of ranks.
        further: what else makes collectives under way fail now instead of hang.
    """

    def __init__(
        self,
        groups: list[dist.ProcessGroup],
        rank: int,
        world_size: int,
        further: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._groups = groups
        self._further = further
        self._rank = rank
        self._world_size = world_size
        self._peers = [peer for peer in range(world_size) if peer != rank]
        store = transport.group_store(groups[0], "syncopate", _STORE_LIMIT_S)
        self._board = Board(store, rank, world_size)
        self._broken: tuple[str, Verdict] | None = None
        self._diagnosing = threading.Lock()
        self._running: dict[int, tuple[float, Call]] = {}
        self._announced: dict[int, Call] = {}
        self._closed = threading.Event()
        thread = threading.Thread(target=self._look, name="syncopate-watch", daemon=True)
        thread.start()

    def require_whole(self, call: Call) -> None:
        """Refuse a collective after an earlier one failed.

        Raises:
            CollectiveError: with the reason and the ranks of the first failure.
        """
        if self._broken is not None:
            first, verdict = self._broken
            raise CollectiveError(
                call.label,
                f"the communicator is broken since {first}: {verdict.reason}; "
                "start again from a checkpoint",
                verdict.ranks,
            )

    def run(self, call: Call, work: Callable[[], _Result]) -> _Result:
        """Run ``work``, the body of ``call``.

        Raises:
            CollectiveError: it failed; names the ranks held responsible.
        """
        self.require_whole(call)
        began_s = time.perf_counter()
        self._running[call.channel] = began_s, call
        try:
            return work()
        except SyncopateError as error:
            self._broken = self._broken or (call.title, Verdict((), str(error)))
            raise
        except RuntimeError as error:
            raise self._failed(call, error, time.perf_counter() - began_s) from error
        except BaseException:
            # Interrupted midway (Ctrl-C): the peers are waiting for messages that never come.
            self._broken = self._broken or (
                call.title,
                Verdict((self._rank,), f"rank {self._rank} was interrupted"),
            )
            raise
        finally:
            self._running.pop(call.channel, None)

    def stop(self) -> None:
        """End the thread; of no consequence for the peers."""
        self._closed.set()

    def close(self) -> None:
        """End the thread, say goodbye on the board, and close the connections.

        A rank that still waits for this one then fails at once, and finds the goodbye.
        """
        self.stop()
        if self._broken is None:
            left = Post(Call("close", 0, 0), "left")
            _bounded(lambda: self._board.put(left), _STORE_LIMIT_S)
        for group in self._groups:
            transport.hang_up(group, self._peers)

    def interrupt(self) -> tuple[int, ...]:
        """Break every connection; return the peers that had closed theirs before."""
        closed: set[int] = set()
        for group in self._groups:
            closed.update(transport.break_connections(group, self._peers))
        for interrupt in self._further:
            interrupt()
        return tuple(sorted(closed))

    def _failed(self, call: Call, error: RuntimeError, waited_s: float) -> CollectiveError:
        # One diagnosis per communicator: threads of other channels fail soon after, and wait here.
        with self._diagnosing:
            if self._broken is None:
                self._broken = (call.title, self._diagnose(call, error, waited_s))
        verdict = self._broken[1]
        return CollectiveError(call.title, verdict.reason, verdict.ranks)

    def _diagnose(self, call: Call, error: RuntimeError, waited_s: float) -> Verdict:
        peers = (error.peer,) if isinstance(error, PeerError) else ()
        kind = transport.failure_kind(error)
        text = _first_line(error) if kind == "error" else ""
        post = Post(call, kind, peers, waited_s, text)
        posted = _bounded(lambda: self._board.put(post), _STORE_LIMIT_S)
        closed = self.interrupt()
        if kind == "closed" and not peers:
            post = Post(call, kind, closed, waited_s)
            posted = posted and _bounded(lambda: self._board.put(post), _STORE_LIMIT_S)
        verdict: list[Verdict] = []
        if posted:
            _bounded(
                lambda: verdict.append(
                    blame(collect(self._board, self._rank, post), self._rank, self._world_size)
                ),
                GRACE_S + _STORE_LIMIT_S,
            )
        return verdict[0] if verdict else _without_store(post, closed, error)

    def _look(self) -> None:
        while not self._closed.wait(_LOOK_S):
            now_s = time.perf_counter()
            slow = [
                call for began_s, call in list(self._running.values()) if now_s - began_s > _LOOK_S
            ]
            if not slow or self._broken is not None:
                continue
            try:
                if self._trouble(slow):
                    self.interrupt()
                    return
            except RuntimeError:
                return  # without a store there is nothing to look at

    def _trouble(self, slow: list[Call]) -> bool:
        """Say whether the collectives ``slow`` cannot finish; tell the others what they are."""
        if self._board.failed():
            return True
        for call in slow:
            if self._announced.get(call.channel) != call:
                self._announced[call.channel] = call
                self._board.announce(call)
        return any(self._board.disagrees(call) for call in slow)


def _without_store(post: Post, closed: tuple[int, ...], error: RuntimeError) -> Verdict:
    """Return what this rank can say alone."""
    ranks = post.waiting_on or closed
    if 0 in closed:
        ranks = (0,)
    whom = f"lost {name_ranks(ranks)}" if ranks else _first_line(error)
    return Verdict(
        ranks,
        f"{whom}, and the rendezvous store that says more is gone too "
        "(it lives on rank 0 unless torchrun hosts it)",
    )


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _bounded(action: Callable[[], None], limit_s: float) -> bool:
    """Run ``action`` on a thread of its own; say whether it succeeded within ``limit_s``.

    A store client blocks without limit when the store's host vanishes; a diagnosis may not hang.
    """
    done: list[bool] = []

    def body() -> None:
        try:
            action()
        except RuntimeError:
            return
        done.append(True)

    thread = threading.Thread(target=body, name="syncopate-store", daemon=True)
    thread.start()
    thread.join(limit_s)
    return bool(done)
