"""The flow kernel: messages on their way share every link max-min fairly, from event to event.

Between two events every message flows at a constant rate. The rates are max-min fair (Bertsekas
and Gallager, Data Networks, Section 6.5.2): no message could be faster without making one slower
that is no faster than it. At an event a message begins to flow or is through; then rates are worked
out anew.

Several buffers are played side by side, each with a clock of its own. Every time is kept with its
slope, by how much it grows for a byte more of the buffer: as long as events keep their order, the
time is a line in the size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from syncopate.costs.flows.traffic import ADDED, Traffic, joined
from syncopate.costs.model.pieces import FloatArray, IntArray

_SAME = 1e-12
"""Times and rates that differ by less, as a share of them, are the same."""

_BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Played:
    """The times of messages and the work of links.

    Attributes:
        seconds: when all is done, one for each buffer.
        slopes: seconds that each takes longer for a byte more of its buffer.
        begins_s: when the bytes of each message began to flow, one array for each buffer.
        sent_s: when they had left, likewise.
        added_s: when they had been added, likewise.
        peak: the most that any link carried at any time, as a share of its rate; 0.0 unwatched.
        carried: bytes that flowed over each link, one array for each buffer; zeros unwatched.
    """

    seconds: FloatArray
    slopes: FloatArray
    begins_s: tuple[FloatArray, ...]
    sent_s: tuple[FloatArray, ...]
    added_s: tuple[FloatArray, ...]
    peak: float
    carried: tuple[FloatArray, ...]


def play(several: Sequence[Traffic], nbytes: Sequence[float], *, watched: bool = False) -> Played:
    """Play each traffic with a buffer of so many bytes, all of them side by side.

    Args:
        several: at least one, each with at least one message.
        nbytes: sizes of their buffers, > 0.
        watched: whether to look at the load of links, which takes a third longer.
    """
    machine = _Machine(several, np.asarray(nbytes, float), watched=watched)
    while machine.step():
        pass
    return machine.played()


def fair_rates(links: IntArray, weight: FloatArray, rate: FloatArray) -> FloatArray:
    """Return the max-min fair rate of every flow, by progressive filling.

    A link that is a bottleneck of all its flows is full; its flows have their rates, which are
    taken off all other links that they pass.

    Args:
        links: those that each flow passes, shape (f, k); ``len(rate)`` stands for none.
        weight: how many equal flows each is, shape (f,).
        rate: of every link, shape (l,).

    Returns:
        The rate of one of the equal flows, shape (f,).
    """
    count = len(rate) + 1
    left = np.append(rate, np.inf)
    found = np.empty(len(links))
    rest = np.arange(len(links))
    # A row for each link of a flow: to look along flows is faster than along a few columns.
    passed = np.ascontiguousarray(links.T)
    while True:
        flat = passed.ravel()
        flows = np.bincount(flat, np.tile(weight, len(passed)), count)
        flows[-1] = 1.0
        each = left / np.where(flows > 0, flows, 1.0)
        offered = each[passed]
        least = offered.min(axis=0)
        tight = offered <= least * (1 + _SAME)
        full = np.bincount(flat, (weight * tight).ravel(), count) == flows
        full[-1] = False
        fixed = (full[passed] & tight).any(axis=0)
        found[rest[fixed]] = least[fixed]
        if fixed.all():
            return found
        taken = np.tile(weight[fixed] * least[fixed], len(passed))
        left -= np.bincount(passed[:, fixed].ravel(), taken, count)
        np.maximum(left, 0.0, out=left)
        left[-1] = np.inf
        rest, passed, weight = rest[~fixed], passed[:, ~fixed], weight[~fixed]


class _Machine:
    """The state of all buffers between two events; times are rows of value and slope."""

    def __init__(self, several: Sequence[Traffic], nbytes: FloatArray, *, watched: bool) -> None:
        self.watched = watched
        whole, self.of = joined(several)
        self.counts = [len(traffic) for traffic in several]
        self.link_counts = [len(traffic.rate) for traffic in several]
        self.latency = whole.latency_s
        self.weight = whole.weight
        self.links = whole.links
        self.rate = whole.rate
        size = nbytes[self.of]
        self.left = np.stack([whole.share * size, whole.share])
        self.addition = np.stack([whole.addition_s * size, whole.addition_s])
        count = len(whole)
        edges = whole.edges
        order = np.argsort(edges.before, kind="stable")
        self.after, self.kind = edges.after[order], edges.kind[order]
        ends = np.searchsorted(edges.before[order], np.arange(count + 1))
        self.first, self.many = ends[:-1], np.diff(ends)
        self.waits = np.bincount(edges.after, minlength=count)
        self.ready = np.zeros((2, count))
        self.begins = np.full((2, count), np.nan)
        self.ends = np.full((2, count), np.nan)
        self.since = np.zeros((2, count))
        self.pace = np.zeros(count)
        self.now = np.zeros((2, len(several)))
        self.active = np.empty(0, np.int64)
        self.pending = np.empty(0, np.int64)
        self.peak = 0.0
        self._carried = np.zeros(len(self.rate) + 1)
        self._open(np.flatnonzero(self.waits == 0))

    def step(self) -> bool:
        """Play every buffer until its next event; return whether there was one."""
        times = np.concatenate((self.begins[0, self.pending], self.ends[0, self.active]))
        if not len(times):
            return False
        who = np.concatenate((self.pending, self.active))
        of = self.of[who]
        event = np.full(self.now.shape[1], np.inf)
        np.minimum.at(event, of, times)
        earliest = times <= event[of]
        slopes = np.concatenate((self.begins[1, self.pending], self.ends[1, self.active]))
        self.now[0] = np.where(np.isfinite(event), event, self.now[0])
        self.now[1, of[earliest]] = slopes[earliest]
        due = times <= event[of] * (1 + _SAME)
        begun, through = due[: len(self.pending)], due[len(self.pending) :]
        done = self.active[through]
        self.active = np.concatenate((self.active[~through], self.pending[begun]))
        new = self.pending[begun]
        self.since[:, new] = self.now[:, self.of[new]]
        self.pending = self.pending[~begun]
        self._finish(done)
        self._share()
        return True

    def _open(self, messages: IntArray) -> None:
        """Start the messages that no longer wait for anything."""
        self.begins[:, messages] = self.ready[:, messages]
        self.begins[0, messages] += self.latency[messages]
        self.pending = np.concatenate((self.pending, messages))

    def _finish(self, done: IntArray) -> None:
        """Release what waited for messages that are done."""
        if not len(done):
            return
        many = self.many[done]
        offset = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        edge = np.repeat(self.first[done], many) + offset
        after, before = self.after[edge], np.repeat(done, many)
        times = self.ends[:, before] + np.where(
            self.kind[edge] == ADDED, self.addition[:, before], 0.0
        )
        np.maximum.at(self.ready[0], after, times[0])
        latest = times[0] >= self.ready[0, after]
        self.ready[1, after[latest]] = times[1, latest]
        np.subtract.at(self.waits, after, 1)
        self._open(np.unique(after[self.waits[after] == 0]))

    def _share(self) -> None:
        """Set the rates of all that flow."""
        active = self.active
        if not len(active):
            return
        links, weight = self.links[active], self.weight[active]
        rate = fair_rates(links, weight, self.rate)
        if self.watched:
            heavy = np.repeat(rate * weight, links.shape[1])
            used = np.bincount(links.ravel(), heavy, len(self.rate) + 1)[:-1]
            self.peak = max(self.peak, float((used / self.rate).max()))
        changed = np.abs(rate - self.pace[active]) > _SAME * rate
        moved, rate = active[changed], rate[changed]
        now = self.now[:, self.of[moved]]
        flowed = (now - self.since[:, moved]) * self.pace[moved]
        if self.watched:
            self._carry(moved, flowed[0])
        flowed = self.left[:, moved] - flowed
        np.maximum(flowed[0], 0.0, out=flowed[0])
        self.left[:, moved] = flowed
        self.since[:, moved] = now
        self.pace[moved] = rate
        self.ends[:, moved] = now + flowed / rate

    def _carry(self, messages: IntArray, nbytes: FloatArray) -> None:
        links = self.links[messages]
        heavy = np.repeat(nbytes * self.weight[messages], links.shape[1])
        self._carried += np.bincount(links.ravel(), heavy, len(self._carried))

    def played(self) -> Played:
        """Return what happened, when there are no more events."""
        if self.watched:
            everything = np.arange(len(self.of))
            self._carry(everything, (self.ends[0] - self.since[0]) * self.pace)
        added = self.ends + self.addition
        seconds = np.full(self.now.shape[1], -np.inf)
        np.maximum.at(seconds, self.of, added[0])
        slopes = np.zeros(len(seconds))
        latest = added[0] >= seconds[self.of]
        slopes[self.of[latest]] = added[1, latest]
        cuts, link_cuts = np.cumsum(self.counts)[:-1], np.cumsum(self.link_counts)[:-1]
        return Played(
            seconds=seconds,
            slopes=slopes,
            begins_s=tuple(np.split(self.begins[0], cuts)),
            sent_s=tuple(np.split(self.ends[0], cuts)),
            added_s=tuple(np.split(added[0], cuts)),
            peak=self.peak,
            carried=tuple(np.split(self._carried[:-1], link_cuts)),
        )
