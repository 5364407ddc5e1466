"""Monitor: the thread of a communicator that looks around while its collectives run.

Twice a second it takes note of what the keep-alive connections found out
(:mod:`syncopate.collectives.health.keepalive`). While a collective takes long it also reads the
notices: has another rank failed, is another rank in a different collective? It does not act on
silence or death while no collective waits: a network that is back before it is needed did no
harm.

Once per communicator, when a collective has taken half a minute, it logs whom the ranks wait for.

Every few seconds it leaves in the store where this rank is and what its connections have carried.
Rank 0's reads all of that, and logs which links are slow
(:mod:`syncopate.collectives.health.slow_links`).
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from syncopate.analysis.evidence.links import Carried, Entry
from syncopate.artifacts.cluster import Cluster
from syncopate.collectives import transport
from syncopate.collectives.health import keepalive
from syncopate.collectives.health.blame import (
    Call,
    Verdict,
    blame_lost,
    blame_silent,
    describe_slow,
)
from syncopate.collectives.health.notices import Losses, Notices
from syncopate.collectives.health.slow_links import Comparison
from syncopate.collectives.health.store_calls import StoreCall
from syncopate.collectives.mesh import sockets
from syncopate.collectives.mesh.admission import secret_of
from syncopate.collectives.nccl.streams import Completion
from syncopate.units import MIB

LOOK_S = 0.5
"""How often to look; and how long a collective takes at least that takes long."""

STORE_LIMIT_S = 3.0
"""How long a store may take to answer."""

LONG_S = 30.0
"""After how long a collective is worth a warning."""

LIVES_S = 2.0
"""How long a process that is to end by Ctrl-C may take; one that lives longer goes on."""

GiveUp = Callable[[Call, float, Verdict | None], None]
"""Takes a call, the seconds that it has taken, and the verdict where that is known."""

Sent = Callable[[], dict[int, sockets.Sending]]
"""Returns what one channel has sent to each peer, as far as it is known."""

_CONNECT_S = 1.0
_PUBLISH_S = 5.0
_COMPARE_S = 2.5
_MUCH_BYTES = MIB
_RECENT = 4
"""How many collectives of a channel a rank remembers, for others that may still be in one."""
_Answer = TypeVar("_Answer")
_log = logging.getLogger("syncopate")


class InFlight:
    """The collectives that this rank is in."""

    def __init__(self) -> None:
        self.entered: dict[int, int] = {}
        self._blocks = 0
        self._last: Call | None = None
        self._recent: defaultdict[int, deque[Call]] = defaultdict(partial(deque, maxlen=_RECENT))
        self._running: dict[int, tuple[float, Call]] = {}
        self._queued: dict[int, tuple[float, Call, Completion]] = {}

    def enter(self, call: Call, now_s: float) -> None:
        """Note that ``call`` begins, at ``now_s`` by ``time.perf_counter``."""
        self._running[call.channel] = now_s, call
        self._last = call
        if call.number >= 0:
            self.entered[call.channel] = call.number
            self._recent[call.channel].append(call)
        else:
            self._blocks += 1

    def leave(self, call: Call) -> None:
        """Note that its host call returned."""
        self._running.pop(call.channel, None)

    def queue(self, call: Call, completion: Completion) -> None:
        """Note that it goes on on a stream."""
        self._queued[call.channel] = time.perf_counter(), call, completion

    def before(self, call: Call) -> tuple[Call, ...]:
        """Return the last collectives that this rank has been in on the channel of ``call``."""
        recent = tuple(self._recent.get(call.channel, ()))
        return tuple(each for each in recent if each.number < call.number)

    @property
    def blocks(self) -> int:
        """How often a block of messages that are no collective began or ended."""
        amid = any(call.number < 0 for _, call in list(self._running.values()))
        return 2 * self._blocks - amid

    @property
    def place(self) -> tuple[str, bool]:
        """The title of what this rank began last, and whether it is under way."""
        if (last := self._last) is None:
            return "", False
        return last.title, any(call is last for _, call in list(self._running.values()))

    def slow(self) -> list[tuple[float, Call]]:
        """Return the collectives that take long, with the seconds they have taken."""
        for channel, (_, _, completion) in list(self._queued.items()):
            over = True
            with suppress(RuntimeError):  # CUDA may be in a state that answers no question
                over = completion.done()
            if over:
                self._queued.pop(channel, None)
        now_s = time.perf_counter()
        under_way = [
            *list(self._running.values()),
            *((began_s, call) for began_s, call, _ in list(self._queued.values())),
        ]
        return [(now_s - began_s, call) for began_s, call in under_way if now_s - began_s > LOOK_S]


class Monitor:
    """The thread; started when made.

    Args:
        notices: the group's.
        rank: this rank.
        in_flight: what it is in.
        give_up: called once, when a collective cannot finish, with the seconds that it has taken,
            and with the reason if that is known.
        sent: of every channel.

    Raises:
        InvalidValueError: the environment gives no usable time of silence.

    Attributes:
        expected: what links are judged by, if anything but each other.
    """

    def __init__(
        self,
        notices: Notices,
        rank: int,
        in_flight: InFlight,
        give_up: GiveUp,
        sent: Sequence[Sent] = (),
    ) -> None:
        self._notices = notices
        self._rank = rank
        self._in_flight = in_flight
        self._give_up = give_up
        self._sent = list(sent)
        self._host = socket.gethostname()
        self._silence_s = keepalive.silence_s()
        self._store_gone = self._given_up = self._warned = False
        self._store_call: StoreCall[Any] | None = None
        self._keepalive = self._find_keepalive()
        self._looking = threading.Lock()
        self._published: tuple[float, Entry | None] = (0.0, None)
        self._compares = rank == keepalive.HUB
        self._to_compare = False
        self._comparison = Comparison()
        self.expected: Cluster | None = None
        self._due: tuple[float, Callable[[], None]] | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="syncopate-monitor", daemon=True).start()

    @property
    def limit_s(self) -> float:
        """After how long :meth:`known` knows at the latest that a host is silent."""
        return self._silence_s + STORE_LIMIT_S + 2 * LOOK_S

    def add(self, sent: Sent) -> None:
        """Note what a further channel sends, too."""
        self._sent.append(sent)

    def stop(self, *, left: bool) -> None:
        """End the thread and the keep-alive; with ``left`` in good order."""
        if left:
            self._keepalive.tell(keepalive.News(left=True))
        self._closed.set()

    def tell(self, verdict: Verdict) -> None:
        """Tell the other ranks, as far as this one can, why the communicator is at its end."""
        if self._rank == keepalive.HUB:
            self._keepalive.tell(keepalive.News(ranks=verdict.ranks, reason=verdict.reason))

    def say_failed(self) -> None:
        """Tell rank 0 that this rank's connections are about to close because others failed."""
        if self._rank != keepalive.HUB:
            self._keepalive.tell(keepalive.News(failed=True))

    def tell_if_it_lives(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` on the thread, once this process can no longer be about to end."""
        self._due = time.monotonic() + LIVES_S, tell

    @property
    def entry(self) -> Entry:
        """Where this rank is, and what its connections have carried; for any thread."""
        return Entry(
            self._host,
            dict(self._in_flight.entered),
            self._carried(),
            self._in_flight.blocks,
            *self._in_flight.place,
        )

    @property
    def losses(self) -> Losses:
        """The ranks that died, as far as the keep-alive has found out."""
        hosts = {rank: host for rank, (host, _) in self._keepalive.lost.items()}
        return Losses(hosts, self._keepalive.connected)

    @property
    def store_unreachable(self) -> bool:
        """Whether the store is known to be gone, or its host to be silent."""
        return self._store_gone or keepalive.HUB in self._keepalive.silent

    def store_is_gone(self) -> Verdict | None:
        """Return the verdict when rank 0 died and took the store along; asking it would be noisy.

        torchrun hosts the store in a process of its own, which may outlive rank 0.
        """
        address = transport.store_address()
        hub = self._keepalive.lost.get(keepalive.HUB)
        if hub is None or address is None:
            return None
        if not self._store_gone and sockets.answers(address, _CONNECT_S):
            return None
        self._store_gone = True
        return blame_lost({keepalive.HUB: hub[0]})

    def known(self) -> Verdict | None:
        """Return what the keep-alive says about the communicator's end, without the notices."""
        with self._looking:
            self._keepalive.look()
        news = self._keepalive.news
        if self._keepalive.silent:
            here = self._host if self._keepalive.doubtful else ""
            return blame_silent(self._keepalive.silent, self._silence_s, here)
        if news.reason:
            return Verdict(news.ranks, news.reason)
        others = {rank: host for rank, host in news.silent.items() if rank != self._rank}
        return blame_silent(others, self._silence_s) if others else None

    def _run(self) -> None:
        while not self._closed.wait(LOOK_S):
            verdict = self.known()
            slow = self._in_flight.slow()
            if slow and not self._given_up:
                self._judge(verdict, slow)
            if self._due is not None and time.monotonic() >= self._due[0]:
                tell, self._due = self._due[1], None
                tell()
            self._publish_entry()
            self._compare()
        self._keepalive.close()

    def _judge(self, verdict: Verdict | None, slow: list[tuple[float, Call]]) -> None:
        """Give up the collectives that take long, if they cannot finish."""
        verdict = verdict or self._lost()
        self.store_is_gone()
        found = slow[0] if verdict else self._call_store(lambda: self._in_trouble(slow))
        if found:
            taken_s, call = found
            self._given_up = True
            self._give_up(call, taken_s, verdict)
        else:
            collectives = [item for item in slow if item[1].number >= 0]
            if collectives:
                self._warn(*max(collectives, key=lambda item: item[0]))

    def _lost(self) -> Verdict | None:
        """Return the dead ranks, once all others had the time to end what goes on without them."""
        before_s = time.monotonic() - (self._silence_s or keepalive.SILENCE_S)
        dead = {
            rank: host for rank, (host, at_s) in self._keepalive.lost.items() if at_s < before_s
        }
        return blame_lost(dead) if dead else None

    def _in_trouble(self, slow: list[tuple[float, Call]]) -> tuple[float, Call] | None:
        """Return a call in whose place a rank has another one; any, if a rank has failed."""
        for taken_s, call in slow:
            before = self._in_flight.before(call)
            if call.number >= 0 and self._notices.disagrees(call, before):
                return taken_s, call
        return slow[0] if self._notices.failed() else None

    def _warn(self, taken_s: float, call: Call) -> None:
        if self._warned or taken_s < LONG_S:
            return
        self._warned = True
        # One rank reads for all, and for the first collective alone.
        entries = self._call_store(
            lambda: self._notices.entries() if self._notices.first("slow") else {}
        )
        if entries:
            known = self._call_store(self._notices.network) or ""
            _log.warning(describe_slow(call, taken_s, entries, self._notices.ranks, known))

    def _publish_entry(self) -> None:
        published_s, published = self._published
        if time.monotonic() - published_s <= _PUBLISH_S:
            return
        entry = self.entry
        if entry.entered and entry != published:
            self._published = time.monotonic(), entry
            self._to_compare = self._compares and any(sent() for sent in self._sent)
            self._call_store(lambda: self._notices.put_entry(entry))

    def _carried(self) -> tuple[Carried, ...]:
        return tuple(
            Carried(channel, peer, *sent)
            for channel, of_channel in enumerate(self._sent)
            for peer, sent in of_channel().items()
            if sent.nbytes >= _MUCH_BYTES
        )

    def _compare(self) -> None:
        """Compare the links of all ranks, once their entries are as new as this rank's."""
        if not self._to_compare or time.monotonic() - self._published[0] < _COMPARE_S:
            return
        self._to_compare = False
        entries = self._call_store(self._notices.entries) or {}
        if len(entries) == len(self._notices.ranks):
            self._compares = len({entry.host for entry in entries.values()}) > 1
        text = self._comparison.warning(entries, self.expected)
        if text is not None:
            _log.warning(text)
            self._call_store(lambda: self._notices.put_network(text))

    def _call_store(self, action: Callable[[], _Answer]) -> _Answer | None:
        """Return what ``action`` on the notices returns; None when the store does not answer.

        A store that is slow is called again once it has answered; one that refused is gone.
        """
        if self._store_gone or not (self._store_call is None or self._store_call.over):
            return None
        self._store_call = made = StoreCall(action)
        if made.wait(STORE_LIMIT_S) and not made.answered:
            self._store_gone = True
        return made.answer()

    def _find_keepalive(self) -> keepalive.KeepAlive:
        """Return this rank's end; an unconnected one where there is no store to meet by."""
        address = transport.store_address()
        if address is None:
            return keepalive.KeepAlive()
        try:
            secret = secret_of(transport.job_store())
            if self._rank != keepalive.HUB:
                find = partial(self._call_store, self._notices.meeting)
                return keepalive.Spoke(find, self._rank, self._silence_s, secret)
            hub = keepalive.Hub(address, self._silence_s, secret, len(self._notices.ranks))
        except (OSError, RuntimeError):
            return keepalive.KeepAlive()
        try:
            self._notices.put_meeting(hub.meeting)
        except RuntimeError:
            hub.close()
            return keepalive.KeepAlive()
        return hub
