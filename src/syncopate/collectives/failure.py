"""Failure: which rank is to blame when a collective does not finish.

The rank on which a collective fails first is rarely the one that caused it: it waits for a
neighbour, which waits for another. So every rank that fails *posts* on a board in the group's
store what it was doing and whom it was waiting for, and then reads the posts of the others. Ranks
that are only waiting post too; following the posts from rank to rank ends at those who did not,
because they are dead or never came. See :func:`blame`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from syncopate.units import format_seconds

GRACE_S = 2.0
"""How long a rank that failed waits for the posts of the others."""

_POLL_S = 0.05
_LATE_S = 0.25

Kind = Literal["timeout", "closed", "interrupted", "error", "left"]


class Store(Protocol):
    """What this module needs of a torch.distributed store."""

    def set(self, key: str, value: str) -> None:
        """Store ``value``."""

    def get(self, key: str) -> bytes:
        """Return the value, waiting for it."""

    def check(self, keys: list[str]) -> bool:
        """Say whether all ``keys`` are there."""


class Call(msgspec.Struct, frozen=True):
    """One collective as its callers named it.

    Attributes:
        label: collective and algorithm, such as ``"all_reduce (ring)"``.
        channel: the channel it ran on.
        number: its number on that channel, counted from 0.
        numel: elements of its tensor; 0 when there is none.
        dtype: of its tensor.
    """

    label: str
    channel: int
    number: int
    numel: int = 0
    dtype: str = ""

    def differs(self, other: Call) -> bool:
        """Say whether two ranks' same collective by count is not the same collective."""
        same_place = (self.channel, self.number) == (other.channel, other.number)
        return same_place and self != other

    @property
    def title(self) -> str:
        """For messages: ``"all_reduce (ring) #3 of channel 0, 1024 float32"``."""
        detail = f", {self.numel} {self.dtype}" if self.numel else ""
        return f"{self.label} #{self.number} of channel {self.channel}{detail}"


class Post(msgspec.Struct, frozen=True):
    """What a rank says about its own failure.

    Attributes:
        call: what it was doing.
        kind: it gave up waiting, found a connection closed, stopped because others had failed,
            failed by itself, or closed its communicator in good order.
        waiting_on: the ranks it needed something from, where it knows.
        waited_s: seconds since it entered the collective.
        text: what went wrong, where it failed by itself.
    """

    call: Call
    kind: Kind
    waiting_on: tuple[int, ...] = ()
    waited_s: float = 0.0
    text: str = ""


class PeerError(RuntimeError):
    """An operation with one known peer failed; raised inside the package only."""

    def __init__(self, peer: int, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.peer = peer


@dataclass(frozen=True)
class Verdict:
    """Who is held responsible.

    Attributes:
        ranks: group ranks, ascending; empty when it could not be found out.
        reason: a sentence for people.
    """

    ranks: tuple[int, ...]
    reason: str


class Board:
    """The posts of a group, in its store.

    Args:
        store: the group's own store, with a short time limit.
        rank: this rank.
        world_size: number of ranks.
    """

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        self._store = store
        self._rank = rank
        self.ranks = frozenset(range(world_size))

    def put(self, post: Post) -> None:
        """Publish this rank's post.

        Raises:
            RuntimeError: the store is gone.
        """
        self._store.set(str(self._rank), msgspec.json.encode(post).decode())
        if post.kind != "left":
            self._store.set("failed", "")

    def announce(self, call: Call) -> None:
        """Publish what this rank has been doing for a while.

        Raises:
            RuntimeError: the store is gone.
        """
        key = f"at/{call.channel}/{self._rank}"
        self._store.set(key, msgspec.json.encode(call).decode())

    def disagrees(self, call: Call) -> bool:
        """Say whether some rank has announced another collective in the place of ``call``.

        Raises:
            RuntimeError: the store is gone.
        """
        keys = [f"at/{call.channel}/{rank}" for rank in self.ranks if rank != self._rank]
        return any(
            call.differs(msgspec.json.decode(self._store.get(key), type=Call))
            for key in keys
            if self._store.check([key])
        )

    def failed(self) -> bool:
        """Say whether any rank has posted a failure.

        Raises:
            RuntimeError: the store is gone.
        """
        return self._store.check(["failed"])

    def read(self, known: Mapping[int, Post]) -> dict[int, Post]:
        """Return the posts there are, asking only for those not in ``known``.

        Raises:
            RuntimeError: the store is gone.
        """
        posts = dict(known)
        for rank in self.ranks:
            if (rank not in posts or posts[rank].kind == "left") and self._store.check([str(rank)]):
                posts[rank] = msgspec.json.decode(self._store.get(str(rank)), type=Post)
        return posts


def collect(board: Board, rank: int, own: Post, grace_s: float = GRACE_S) -> dict[int, Post]:
    """Return every post that appears within ``grace_s``, this rank's ``own`` among them.

    Ends early once nobody is left who could still post: a rank posts before it closes a
    connection, so one that closed a connection without a post is dead.

    Raises:
        RuntimeError: the store is gone.
    """
    posts = {rank: own}
    deadline_s = time.monotonic() + grace_s
    while True:
        posts = board.read(posts)
        dead = {
            peer
            for post in posts.values()
            if post.kind == "closed"
            for peer in post.waiting_on
            if peer not in posts
        }
        silent = board.ranks - posts.keys() - dead
        if not silent or time.monotonic() >= deadline_s:
            return posts
        time.sleep(_POLL_S)


def blame(posts: Mapping[int, Post], rank: int, world_size: int) -> Verdict:
    """Return who kept the collective from finishing, as ``rank`` sees it.

    Follows *waiting on* from ``rank`` to the ranks that did not fail themselves. A native
    collective does not say whom it waits for; then every rank without a post is meant.

    Args:
        posts: what each rank said, ``rank``'s own among them.
        rank: the rank that asks.
        world_size: number of ranks in the group.
    """
    failed = {peer: post for peer, post in posts.items() if post.kind != "left"}
    faulty = tuple(sorted(peer for peer, post in failed.items() if post.kind == "error"))
    if faulty:
        listed = "; ".join(f"rank {peer} failed by itself: {failed[peer].text}" for peer in faulty)
        return Verdict(faulty, listed)
    different = _blame_different(failed)
    if different is not None:
        return different
    ends = _chain_ends(failed, rank)
    if not ends:
        ends = set(range(world_size)) - failed.keys()
    if ends:
        return _blame_absent(failed, posts, tuple(sorted(ends)))
    return _blame_present(failed, rank)


def _chain_ends(failed: Mapping[int, Post], rank: int) -> set[int]:
    ends: set[int] = set()
    seen = {rank}
    todo = [rank]
    while todo:
        for peer in failed[todo.pop()].waiting_on:
            if peer in seen:
                continue
            seen.add(peer)
            if peer in failed:
                todo.append(peer)
            else:
                ends.add(peer)
    return ends


def _blame_absent(
    failed: Mapping[int, Post], posts: Mapping[int, Post], ends: tuple[int, ...]
) -> Verdict:
    closed = {peer for post in failed.values() if post.kind == "closed" for peer in post.waiting_on}
    waited_s = max(post.waited_s for post in failed.values())
    sentences = []
    for kind, ranks in (
        ("left", [peer for peer in ends if peer in posts]),
        ("lost", [peer for peer in ends if peer not in posts and peer in closed]),
        ("late", [peer for peer in ends if peer not in posts and peer not in closed]),
    ):
        if not ranks:
            continue
        who = name_ranks(ranks)
        if kind == "left":
            sentences.append(f"{who} had closed the communicator")
        elif kind == "lost":
            verb = "were" if len(ranks) > 1 else "was"
            sentences.append(f"{who} {verb} lost: the connection closed, probably a dead process")
        else:
            sentences.append(f"{who} did not arrive within {format_seconds(waited_s)}")
    return Verdict(ends, "; ".join(sentences))


def _blame_different(failed: Mapping[int, Post]) -> Verdict | None:
    posts = sorted(failed.items())
    if not any(post.call.differs(other.call) for _, post in posts for _, other in posts):
        return None
    groups: dict[str, list[int]] = {}
    for peer, post in posts:
        groups.setdefault(post.call.title, []).append(peer)
    listed = "; ".join(f"{name_ranks(ranks)} in {title}" for title, ranks in groups.items())
    return Verdict((), f"the ranks were in different collectives: {listed}")


def _blame_present(failed: Mapping[int, Post], rank: int) -> Verdict:
    """Return the verdict when every rank failed: one came too late, or a network broke."""
    patient = [peer for peer, post in failed.items() if post.kind == "timeout"]
    others = {peer: post.waited_s for peer, post in failed.items() if post.kind != "timeout"}
    if patient and others:
        limit_s = max(failed[peer].waited_s for peer in patient)
        late = tuple(
            sorted(
                peer
                for peer, waited_s in others.items()
                if waited_s <= min(others.values()) + _LATE_S
            )
        )
        return Verdict(
            late,
            f"{name_ranks(late)} did not arrive within {format_seconds(limit_s)}, "
            "only after the others had given up",
        )
    peers = tuple(sorted(failed[rank].waiting_on))
    whom = f" with {name_ranks(peers)}" if peers else ""
    return Verdict(peers, f"the connection{whom} broke although every rank is alive")


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ``"rank 2"`` or ``"ranks 2, 3"``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
