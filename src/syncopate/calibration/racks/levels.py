"""Levels: what groups of hosts behind shared uplinks would do to exchanges at the same time.

[Note: only together] A rack whose uplink is as fast as one host's link looks like no rack at all to
two hosts that exchange data alone: the rate is full and the latency that of any switch. What gives
it away is many pairs at the same time. So hosts are *matched*: in one round every host exchanges
data with one other, both ways. A pair inside a rack gets the full rate; the pairs that leave a rack
share its uplink.

[Note: hypotheses] A slow pair crossed a busy uplink, but a fast pair may have crossed an idle one,
so pairs are not judged one by one. A hypothesis, which hosts make up a group and how much a group's
uplink carries, expects a rate for every pair of every round: the rate of its hosts inside a group,
and a fair share of the busier uplink across groups. The better hypothesis is the one whose
expectations were met. The misfit of a hypothesis is minus its log-likelihood: squared errors of the
logarithm of rates over twice the noise, none counted more than an outlier; what it takes to write
the groups down (hosts times the logarithm of the number of groups), so that no group stands for
noise; and a charge for every uplink as wide as its hosts together, which slows no host down and so
makes no group.

Everything here is arithmetic on rates: it knows neither ranks nor sockets.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from syncopate.costs.model.pieces import FloatArray, IntArray

Matching = tuple[tuple[int, int], ...]
"""Pairs of hosts that exchange data at the same time; no host is in two of them."""

SLOW_SHARE = 0.6
"""A host is slow when the best rate it ever had is below this share of the typical host's."""

_OUTLIER = 4.5  # three standard deviations
_PER_IDLE_UPLINK = 8.0
_NARROWER = 1.1
_LEAST_NOISE, _MOST_NOISE = 0.07, 0.25
_NOISE_OF_MEDIAN = 1.6
_CROWDED = 0.85
_ALIKE = 0.85
_VISIBLE = 2.3  # standard deviations
_FEWEST_SLOW = 0.05
_ELEMENTS_AT_ONCE = 50_000


@dataclass(frozen=True)
class Round:
    """The rates of one matching.

    Attributes:
        pairs: the matching.
        rates_bytes_per_s: per pair one rate for each repetition: what either host received, at
            least one.
    """

    pairs: Matching
    rates_bytes_per_s: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Pairs:
    """The pairs of some rounds as arrays of shape (P,).

    Attributes:
        rounds: number of rounds.
        round: the round of each pair.
        a: one host.
        b: the other.
        able: what the slower of the two can do, in units of the typical host's rate.
    """

    rounds: int
    round: IntArray
    a: IntArray
    b: IntArray
    able: FloatArray


class Observed:
    """Some rounds, relative to what the hosts can do.

    A pair's ratio is its rate over the best rate that the slower of its hosts ever had, so a slow
    host expects little of its pairs and tells nothing about uplinks. Where all pairs together were
    as fast as they ever were, what held them up may have been no link but the processors that
    drive them all (as in a lab): such a round is read relative to its own fastest pairs.

    Attributes:
        hosts: number of hosts.
        best_bytes_per_s: the best rate of each host, shape (hosts,).
        typical_bytes_per_s: the median of those.
        pairs: all pairs.
        log_ratio: logarithm of each pair's ratio, at most 0, shape (P,).
        noise: standard deviation of a logarithm.
    """

    def __init__(self, hosts: int, rounds: Sequence[Round]) -> None:
        self.hosts = hosts
        rates = [np.array([statistics.median(r) for r in one.rates_bytes_per_s]) for one in rounds]
        ends = [np.array(one.pairs, np.int64) for one in rounds]
        best = _best_of_hosts(hosts, ends, rates)
        self.best_bytes_per_s = best
        self.typical_bytes_per_s = float(np.median(best))
        able = [best[end].min(axis=1) for end in ends]
        shares = [rate / most for rate, most in zip(rates, able, strict=True)]
        tops = np.array([middle_of_fast(share) for share in shares])
        busiest = max(rate.sum() for rate in rates)
        fast = [
            max(top, middle_of_fast(tops) if rate.sum() < _CROWDED * busiest else 0.0)
            for top, rate in zip(tops, rates, strict=True)
        ]
        ratio = np.concatenate([s / f for s, f in zip(shares, fast, strict=True)])
        self.log_ratio = np.log(np.minimum(ratio, 1.0))
        numbers = np.repeat(np.arange(len(rounds)), [len(end) for end in ends])
        both = np.concatenate(ends)
        self.pairs = Pairs(
            rounds=len(rounds),
            round=numbers,
            a=both[:, 0],
            b=both[:, 1],
            able=np.concatenate(able) / self.typical_bytes_per_s,
        )
        self.noise = _noise(rounds)

    @property
    def slow_hosts(self) -> tuple[int, ...]:
        """Hosts that are slow with every partner."""
        limit = SLOW_SHARE * self.typical_bytes_per_s
        return tuple(int(host) for host in np.flatnonzero(self.best_bytes_per_s < limit))

    @property
    def slow_pairs(self) -> NDArray[np.bool_]:
        """Which pairs were slower than their hosts can be, beyond noise; shape (P,)."""
        return np.asarray(self.log_ratio < -_VISIBLE * self.noise)

    @property
    def all_alike(self) -> bool:
        """Whether no round shows a shared link: two slow pairs, or slow pairs again and again."""
        slow = self.slow_pairs
        most = np.bincount(self.pairs.round, slow, self.pairs.rounds).max()
        return bool(most < 2 and slow.sum() <= _FEWEST_SLOW * len(slow))


def matched(matching: Matching, observed: Observed) -> Pairs:
    """Return a matching that has not been run, for :func:`expected`."""
    ends = np.array(matching, np.int64)
    able = observed.best_bytes_per_s[ends].min(axis=1) / observed.typical_bytes_per_s
    return Pairs(1, np.zeros(len(ends), np.int64), ends[:, 0], ends[:, 1], able)


def expected(labels: IntArray, capacity: FloatArray, pairs: Pairs) -> FloatArray:
    """Return the logarithm of the ratio that hypotheses expect of every pair.

    Args:
        labels: the group of each host, shape (B, hosts).
        capacity: of each group's uplink in units of the typical host's rate, shape (B, groups).
        pairs: P of them.

    Returns:
        Shape (B, P): 0 inside a group; across, the share of the busier uplink.
    """
    rows, groups = capacity.shape
    a, b = labels[:, pairs.a], labels[:, pairs.b]
    across = (a != b).astype(np.float64)
    offset = (np.arange(rows)[:, None] * pairs.rounds + pairs.round) * groups
    links = (offset + a, offset + b)
    carried = np.repeat(capacity[:, None, :], pairs.rounds, axis=1).ravel()

    def sums(first: FloatArray, second: FloatArray) -> FloatArray:
        total = np.bincount(links[0].ravel(), first.ravel(), len(carried))
        return np.asarray(total + np.bincount(links[1].ravel(), second.ravel(), len(carried)))

    count = sums(across, across)
    share = carried / np.maximum(count, 1.0)
    rate = np.minimum(pairs.able, np.minimum(share[links[0]], share[links[1]]))
    # What pairs that are held up elsewhere leave of a link goes to the others on it.
    below = [across * (rate < share[link] * (1 - 1e-9)) for link in links]
    if any(held.any() for held in below):
        left = count - sums(*below)
        spare = carried - sums(*(rate * held for held in below))
        share = np.where(left > 0.5, spare / np.maximum(left, 1.0), np.maximum(share, spare))
        rate = np.minimum(pairs.able, np.minimum(share[links[0]], share[links[1]]))
    return np.asarray(np.where(across > 0, np.log(np.maximum(rate, 1e-3) / pairs.able), 0.0))


def errors(one: FloatArray, other: FloatArray, noise: float) -> FloatArray:
    """Return the misfit between logarithms of ratios, elementwise."""
    error = (one - other) / noise
    return np.asarray(np.minimum(error * error / 2, _OUTLIER))


def misfit(labels: IntArray, capacity: FloatArray, observed: Observed) -> FloatArray:
    """Return the misfit of hypotheses, shape (B,); arguments as for :func:`expected`."""
    at_once = max(_ELEMENTS_AT_ONCE // max(len(observed.log_ratio), 1), 1)
    found = [
        errors(
            expected(labels[i : i + at_once], capacity[i : i + at_once], observed.pairs),
            observed.log_ratio,
            observed.noise,
        ).sum(axis=1)
        for i in range(0, len(labels), at_once)
    ]
    sizes = sizes_of(labels, capacity.shape[1])
    idle = np.count_nonzero((sizes > 0) & (capacity * _NARROWER > sizes), axis=1)
    groups = np.count_nonzero(sizes, axis=1)
    charge = observed.hosts * np.log(groups) + _PER_IDLE_UPLINK * idle * (groups > 1)
    return np.asarray(np.concatenate([*found, np.zeros(0)]) + charge)


def sizes_of(labels: IntArray, groups: int) -> IntArray:
    """Return the number of hosts in each group, (B, hosts) to (B, groups)."""
    flat = np.arange(len(labels))[:, None] * groups + labels
    return np.bincount(flat.ravel(), minlength=len(labels) * groups).reshape(-1, groups)


def middle_of_fast(rates: FloatArray) -> float:
    """Return the middle of the rates that are as fast as any, but for noise; shape (n,), n >= 1."""
    return float(np.median(rates[rates >= _ALIKE * rates.max()]))


def _best_of_hosts(hosts: int, ends: Sequence[IntArray], rates: Sequence[FloatArray]) -> FloatArray:
    """Return the best rate of each host, shape (hosts,); 0 for one that was in no pair."""
    host, rate = np.concatenate(ends).T, np.concatenate(rates)
    both, twice = np.concatenate(list(host)), np.concatenate([rate, rate])
    return np.array(
        [middle_of_fast(twice[both == one]) if one in both else 0.0 for one in range(hosts)]
    )


def _noise(rounds: Sequence[Round]) -> float:
    """Return the standard deviation of a median of repetitions, as they spread."""
    spreads = []
    for one in rounds:
        for rates in one.rates_bytes_per_s:
            if len(rates) > 2:
                middle = statistics.median(rates)
                spreads.append(statistics.fmean(abs(r - middle) for r in rates) / middle)
    spread = _NOISE_OF_MEDIAN * statistics.median(spreads) if spreads else 0.0
    return min(max(spread, _LEAST_NOISE), _MOST_NOISE)
