"""Blame: which rank is to blame when a collective does not finish.

The rank on which a collective fails first is rarely the one that caused it: it waits for a
neighbour, which waits for another. So every rank that fails leaves a *notice* in the group's
store: what it was doing and whom it was waiting for. Then it reads those of the others. Ranks that
are only waiting leave one too; following the notices from rank to rank ends at those who left none,
because they are dead or never came. A rank that the keep-alive knows dead and that has left no
notice needs no following. See :func:`blame`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import msgspec

from syncopate.analysis.evidence.links import Entry
from syncopate.units import format_seconds

_LATE_S = 0.25

DIFFERENT = "the ranks were in different collectives"
"""How the reason begins when ranks met that were not doing the same."""

Kind = Literal["timeout", "closed", "interrupted", "error", "left"]


class Call(msgspec.Struct, frozen=True):
    """One collective as its callers named it.

    Attributes:
        label: collective and algorithm, such as ``"all_reduce (ring)"``.
        channel: the channel it ran on.
        number: its number on that channel, counted from 0; negative for messages between some
            of the ranks, which are no collective.
        numel: elements of its tensor; 0 when there is none.
        dtype: of its tensor.
    """

    label: str
    channel: int
    number: int
    numel: int = 0
    dtype: str = ""

    def differs(self, other: Call) -> bool:
        """Say whether two ranks' same collective by count is not the same collective.

        Messages between some of the ranks are no collective, and differ from nothing.
        """
        same_place = (self.channel, self.number) == (other.channel, other.number)
        return self.number >= 0 and same_place and self != other

    @property
    def title(self) -> str:
        """For messages: ``"all_reduce (ring) #3 of channel 0, 1024 float32"``."""
        if self.number < 0:
            return self.label
        detail = f", {self.numel} {self.dtype}" if self.numel else ""
        return f"{self.label} #{self.number} of channel {self.channel}{detail}"


class Notice(msgspec.Struct, frozen=True):
    """What a rank says about its own failure.

    Attributes:
        call: what it was doing.
        kind: it gave up waiting, found a connection closed, stopped because others had failed,
            failed by itself, or closed its communicator in good order.
        waiting_on: the ranks it needed something from, where it knows.
        waited_s: seconds since it entered the collective.
        text: what went wrong, where it failed by itself.
        before: what it was in before on that channel; others may still be there.
    """

    call: Call
    kind: Kind
    waiting_on: tuple[int, ...] = ()
    waited_s: float = 0.0
    text: str = ""
    before: tuple[Call, ...] = ()

    def differs(self, other: Notice) -> bool:
        """Say whether two ranks are, or were, in different collectives in the same place."""
        here, there = (self.call, *self.before), (other.call, *other.before)
        return any(one.differs(another) for one in here for another in there)


class PeerError(RuntimeError):
    """An operation with one known peer failed; raised inside the package only.

    Args:
        peer: the rank that it was with. A cause that knows its peer knows better: a rank that
            waits for one also sends to others meanwhile, and may find those gone.
        cause: what happened.
    """

    def __init__(self, peer: int, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.peer: int = cause.peer if isinstance(cause, PeerError) else peer


@dataclass(frozen=True)
class Verdict:
    """The ranks held responsible.

    Attributes:
        ranks: group ranks, ascending; empty when it could not be found out.
        reason: a sentence for people.
    """

    ranks: tuple[int, ...]
    reason: str


def blame(
    notices: Mapping[int, Notice], rank: int, world_size: int, lost: Mapping[int, str] | None = None
) -> Verdict:
    """Return who kept the collective from finishing, as ``rank`` sees it.

    Follows *waiting on* from ``rank`` to the ranks that did not fail themselves. A native
    collective does not say whom it waits for; then every rank without a notice is meant. A rank
    that died without a notice comes first, unless a rank sat out a whole time limit: whom that
    one waited for was late long before.

    Args:
        notices: what each rank said, ``rank``'s own among them.
        rank: the rank that asks.
        world_size: number of ranks in the group.
        lost: ranks that died as far as the keep-alive knows, with their hosts' names.
    """
    failed = {peer: notice for peer, notice in notices.items() if notice.kind != "left"}
    faulty = tuple(sorted(peer for peer, notice in failed.items() if notice.kind == "error"))
    if faulty:
        listed = "; ".join(f"rank {peer} failed by itself: {failed[peer].text}" for peer in faulty)
        return Verdict(faulty, listed)
    different = _blame_different(failed)
    if different is not None:
        return different
    silent = {peer: host for peer, host in (lost or {}).items() if peer not in notices}
    if silent and all(notice.kind != "timeout" for notice in failed.values()):
        return blame_lost(silent)
    ends = _chain_ends(failed, rank)
    if not ends:
        ends = set(range(world_size)) - failed.keys()
    if ends:
        return _blame_absent(failed, notices, tuple(sorted(ends)))
    return _blame_present(failed, rank)


def _chain_ends(failed: Mapping[int, Notice], rank: int) -> set[int]:
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
    failed: Mapping[int, Notice], notices: Mapping[int, Notice], ends: tuple[int, ...]
) -> Verdict:
    closed = {
        peer for notice in failed.values() if notice.kind == "closed" for peer in notice.waiting_on
    }
    waited_s = max(notice.waited_s for notice in failed.values())
    sentences = []
    for kind, ranks in (
        ("left", [peer for peer in ends if peer in notices]),
        ("lost", [peer for peer in ends if peer not in notices and peer in closed]),
        ("late", [peer for peer in ends if peer not in notices and peer not in closed]),
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


def _blame_different(failed: Mapping[int, Notice]) -> Verdict | None:
    notices = sorted(failed.items())
    if not any(one.differs(other) for one, other in combinations(failed.values(), 2)):
        return None
    groups: dict[str, list[int]] = {}
    for peer, notice in notices:
        groups.setdefault(notice.call.title, []).append(peer)
    listed = "; ".join(f"{name_ranks(ranks)} in {title}" for title, ranks in groups.items())
    return Verdict((), f"{DIFFERENT}: {listed}")


def _blame_present(failed: Mapping[int, Notice], rank: int) -> Verdict:
    """Return the verdict when every rank failed: one came too late, or a network broke."""
    patient = [peer for peer, notice in failed.items() if notice.kind == "timeout"]
    others = {peer: notice.waited_s for peer, notice in failed.items() if notice.kind != "timeout"}
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


def blame_silent(silent: Mapping[int, str], limit_s: float, here: str = "") -> Verdict:
    """Return the verdict on ranks whose hosts do not answer.

    Args:
        silent: the ranks, and the names of their hosts.
        limit_s: how long they have been silent at least.
        here: this host, where it may as well be this one that is cut off.
    """
    ranks = tuple(sorted(silent))
    hosts = list(dict.fromkeys(silent[rank] for rank in ranks))
    verb = "are" if len(hosts) > 1 else "is"
    cause = f"{', '.join(hosts)} {verb} down or cut off from the network"
    if here:
        cause = f"either {cause}, or {here} is cut off"
    return Verdict(
        ranks,
        f"{name_placed(silent)} {'are' if len(ranks) > 1 else 'is'} unreachable: no answer for "
        f"{format_seconds(limit_s)}; {cause}",
    )


def blame_lost(lost: Mapping[int, str]) -> Verdict:
    """Return the verdict on ranks that died while others need them, with their hosts' names."""
    were = "were" if len(lost) > 1 else "was"
    reason = f"{name_placed(lost)} {were} lost: the connection closed, probably a dead process"
    return Verdict(tuple(sorted(lost)), reason)


def describe_slow(
    call: Call,
    taken_s: float,
    entries: Mapping[int, Entry],
    ranks: Iterable[int],
    known: str = "",
) -> str:
    """Return a warning about a collective that takes long: whom it waits for.

    Args:
        call: the collective.
        taken_s: how long it has taken.
        entries: where the ranks are, as far as they have said so.
        ranks: all ranks of the group.
        known: what was found wrong with the network; empty for nothing.
    """
    late = {
        rank: entries[rank].host if rank in entries else ""
        for rank in sorted(ranks)
        if rank not in entries or entries[rank].entered.get(call.channel, -1) < call.number
    }
    what = f"{call.title} has taken {format_seconds(taken_s)}"
    if late:
        verb = "have" if len(late) > 1 else "has"
        told = f"{what}; waiting for {name_placed(late)}, which {verb} not come to it yet"
        return told + _places({rank: entries[rank] for rank in late if rank in entries})
    cause = known or "`syncopate calibrate` measures every link and names a slow one"
    return f"{what}; every rank is in it, so it waits for the network: {cause}"


def _places(entries: Mapping[int, Entry]) -> str:
    """Say in which collective each rank is, or was last; ranks at the same place together."""
    ranks_at: dict[tuple[str, bool], list[int]] = {}
    for rank, entry in sorted(entries.items()):
        if entry.call:
            ranks_at.setdefault((entry.call, entry.inside), []).append(rank)
    found = ""
    for (call, inside), ranks in ranks_at.items():
        many = len(ranks) > 1
        verb = ("are in" if many else "is in") if inside else f"{'were' if many else 'was'} last in"
        found += f"; {name_ranks(ranks)} {verb} {call}"
    return found


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ``"rank 2"`` or ``"ranks 2, 3"``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def name_placed(hosts: Mapping[int, str]) -> str:
    """Return ranks with their hosts: ``"rank 2 (host1)"``, ``"ranks 2, 3 (host1), rank 4"``."""
    ranks_on: dict[str, list[int]] = {}
    for rank, host in sorted(hosts.items()):
        ranks_on.setdefault(host, []).append(rank)
    return ", ".join(
        f"{name_ranks(ranks)} ({host})" if host else name_ranks(ranks)
        for host, ranks in ranks_on.items()
    )
