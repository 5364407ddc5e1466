"""Notices: what the ranks of a group tell each other through its store when something is wrong.

Every entry has one writer or is the same from all of them. What a rank reads does not grow with the
number of ranks, except after a failure and on rank 0, which mostly hosts the store, and reads every
rank's entry every few seconds while its mesh is in use: it serves a few requests per rank and
second at most.

[Note: a notice before closing] A rank whose collective fails closes its connections, and a rank
that sees a connection close must not take its peer for the one that was lost. So a rank leaves a
notice before it closes, for any reason, and a rank that is found closed and has left one is not to
blame. As a notice may be late on a busy store, a closed connection alone is no proof either: ranks
that read wait until the keep-alive has confirmed the death, for as long as they wait for notices.
The first rank that has come to a verdict leaves it there, and all others take it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from torch.distributed.distributed_c10d import Store

from syncopate.analysis.evidence.links import Entry
from syncopate.collectives.health.blame import Call, Notice, Verdict, blame
from syncopate.collectives.health.keepalive import Meeting

GRACE_S = 3.0
"""How long a rank that failed waits for the notices of the others, and for the keep-alive."""

_POLL_S = 0.05
_PLACES = 16
_FAILED, _MEETING, _NETWORK, _VERDICT = "failed", "meeting", "network", "verdict"


class Losses(NamedTuple):
    """What the keep-alive knows of the ranks' deaths.

    Attributes:
        hosts: the ranks that died, with their hosts' names.
        complete: whether there would be any other, if it had died a second ago.
    """

    hosts: Mapping[int, str] = {}
    complete: bool = False


class Notices:
    """The notices of a group, in its store.

    Every method raises ``RuntimeError`` when the store is gone, and blocks without limit when the
    store's host is silent.

    Args:
        store: the group's own store, with a short time limit.
        rank: this rank.
        world_size: number of ranks.
    """

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        self._store = store
        self._rank = rank
        self.ranks = frozenset(range(world_size))
        self._entered: set[int] = set()  # ranks whose entry is there

    def put(self, notice: Notice) -> None:
        """Publish this rank's notice."""
        self._store.set(str(self._rank), msgspec.json.encode(notice).decode())
        if notice.kind != "left":
            self._store.set(_FAILED, "")

    def failed(self) -> bool:
        """Say whether any rank has left a notice of failure."""
        return self._store.check([_FAILED])

    def read(self, known: Mapping[int, Notice]) -> dict[int, Notice]:
        """Return the notices there are, asking only for those not in ``known``."""
        found = dict(known)
        for rank in self.ranks:
            if (rank not in found or found[rank].kind == "left") and self._store.check([str(rank)]):
                found[rank] = msgspec.json.decode(self._store.get(str(rank)), type=Notice)
        return found

    def put_entry(self, entry: Entry) -> None:
        """Publish where this rank is."""
        self._store.set(f"at/{self._rank}", msgspec.json.encode(entry).decode())

    def entries(self) -> dict[int, Entry]:
        """Return where the ranks are that have said so; asks for every rank."""
        found = {}
        for rank in sorted(self.ranks):
            key = f"at/{rank}"
            if rank in self._entered or self._store.check([key]):
                self._entered.add(rank)
                found[rank] = msgspec.json.decode(self._store.get(key), type=Entry)
        return found

    def put_network(self, fault: str) -> None:
        """Publish what is wrong with the network."""
        self._store.set(_NETWORK, fault)

    def network(self) -> str:
        """Return what was last found wrong with the network; empty for nothing."""
        return self._store.get(_NETWORK).decode() if self._store.check([_NETWORK]) else ""

    def disagrees(self, call: Call, before: Sequence[Call] = ()) -> bool:
        """Say whether some rank is in another collective in the place of ``call``.

        The first rank to ask leaves its call for the others to compare theirs with. When several
        are first, they find each other's the next time.

        Args:
            call: what this rank is in.
            before: what it was in before. A rank need not notice that another is in a different
                collective: the root of a broadcast sends and goes on.
        """
        there = self._in_place_of(call)
        if there is None or there.number < call.number:
            self._store.set(_place(call), msgspec.json.encode(call).decode())
        elif call.differs(there):
            return True
        others = ((each, self._in_place_of(each)) for each in before)
        return any(other is not None and each.differs(other) for each, other in others)

    def _in_place_of(self, call: Call) -> Call | None:
        """Return the call that a rank left there."""
        key = _place(call)
        if not self._store.check([key]):
            return None
        return msgspec.json.decode(self._store.get(key), type=Call)

    def first(self, what: str) -> bool:
        """Say whether no rank of the group has asked this about ``what`` before."""
        return self._store.add(f"first/{what}", 1) == 1

    def put_meeting(self, meeting: Meeting) -> None:
        """Publish where rank 0 waits for the others' keep-alive connections."""
        self._store.set(_MEETING, msgspec.json.encode(meeting).decode())

    def meeting(self) -> Meeting | None:
        """Return what rank 0 published; None when it has not yet."""
        if not self._store.check([_MEETING]):
            return None
        return msgspec.json.decode(self._store.get(_MEETING), type=Meeting)

    def verdict(self) -> Verdict | None:
        """Return the group's verdict; None when no rank has come to one yet."""
        if not self._store.check([_VERDICT]):
            return None
        return msgspec.json.decode(self._store.get(_VERDICT), type=Verdict)

    def settle(self, verdict: Verdict) -> Verdict:
        """Publish a verdict; return the group's, which is that of the rank that came first."""
        text = msgspec.json.encode(verdict).decode()
        return msgspec.json.decode(self._store.compare_set(_VERDICT, "", text), type=Verdict)


def _place(call: Call) -> str:
    return f"in/{call.channel}/{call.number % _PLACES}"


def judge(
    notices: Notices,
    rank: int,
    own: Notice,
    losses: Callable[[], Losses] = Losses,
    grace_s: float = GRACE_S,
) -> Verdict:
    """Return the group's verdict, or come to one with the notices that appear within ``grace_s``.

    Ends early once no rank is left that could leave one. See [Note: a notice before closing].

    Args:
        notices: the group's.
        rank: this rank.
        own: its notice.
        losses: asks the keep-alive.
        grace_s: how long to wait.

    Raises:
        RuntimeError: the store is gone.
    """
    left = {rank: own}
    deadline_s = time.monotonic() + grace_s
    while (verdict := notices.verdict()) is None:
        left = notices.read(left)
        lost, complete = losses()
        dead = lost.keys() if complete else lost.keys() | _closed(left)
        if notices.ranks - left.keys() <= dead or time.monotonic() >= deadline_s:
            return notices.settle(blame(left, rank, len(notices.ranks), lost))
        time.sleep(_POLL_S)
    return verdict


def _closed(left: Mapping[int, Notice]) -> set[int]:
    return {
        peer for notice in left.values() if notice.kind == "closed" for peer in notice.waiting_on
    }
