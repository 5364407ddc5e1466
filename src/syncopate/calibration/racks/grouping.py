"""Grouping: the hypothesis that explains the observed rates best, and those that might be true too.

The search is local and starts from many guesses: hosts in blocks and hosts dealt in turn, as
machine rooms and launchers number them, the groups that fast pairs suggest, and what was best
before. It moves single hosts, exchanges the hosts of a pair, and joins groups while that helps;
then it shakes the best hypothesis and tries again.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from syncopate.calibration.racks.levels import Observed, Pairs, expected, misfit, sizes_of
from syncopate.calibration.racks.neighbours import neighbours
from syncopate.costs.model.pieces import FloatArray, IntArray

ENOUGH = 6.0
"""By how much more misfit a hypothesis is refuted."""

_OPEN = 1e9  # a capacity without limit
_RATIOS = np.geomspace(1.1, 20.0, 20)
_AROUND = np.linspace(0.88, 1.12, 7)
_UNUSUAL = 4.0
_POLISHED = 2
_ORDERS = 4
_NARROWEST = 0.01
_GOOD_FIT = 0.8
_MOST_SPLITS = 4
_MOST_TO_SHAKE = 32
_KEPT = 6
_MOST_RIVALS = 16
_MOST_STEPS = 60
_MOST_FITS = 4


@dataclass(frozen=True)
class Hypothesis:
    """Groups of hosts behind uplinks.

    Attributes:
        labels: the group of each host; groups are numbered by their first hosts.
        uplink: what each uplink carries, in units of the typical host's rate.
        even: whether that is so, and not for each host that the uplink's group has.
        misfit: see :mod:`syncopate.calibration.racks.levels`.
    """

    labels: tuple[int, ...]
    uplink: float
    even: bool
    misfit: float

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The hosts of each group, ascending."""
        members: list[list[int]] = [[] for _ in range(max(self.labels) + 1)]
        for host, group in enumerate(self.labels):
            members[group].append(host)
        return tuple(tuple(group) for group in members)

    def expects(self, pairs: Pairs) -> FloatArray:
        """Return the logarithm of the ratio it expects of every pair, shape (1, P)."""
        labels = np.array([self.labels])
        return expected(labels, self.capacity(labels), pairs)

    def capacity(self, labels: IntArray) -> FloatArray:
        """Return what the uplinks of other groupings would carry, (B, hosts) to (B, groups)."""
        sizes = sizes_of(labels, int(labels.max(initial=0)) + 1)
        return np.asarray(self.uplink * (np.ones(sizes.shape) if self.even else sizes))


@dataclass(frozen=True)
class Judgement:
    """The best grouping, and those that are not refuted.

    Attributes:
        best: the hypothesis with the least misfit.
        rivals: some of those that are less than ``ENOUGH`` worse, the closest first.
        kept: labels to begin with next time.
    """

    best: Hypothesis
    rivals: tuple[Hypothesis, ...]
    kept: tuple[tuple[int, ...], ...]


def judge(observed: Observed, before: Iterable[tuple[int, ...]] = ()) -> Judgement:
    """Return the best hypothesis and its rivals.

    Far rivals are only looked for when there is none near by, or nothing explains the rates well.

    Args:
        observed: what there is to explain.
        before: labels that were good before the last rounds.
    """
    found: dict[tuple[int, ...], Hypothesis] = {}
    guesses = [fitted(labels, observed) for labels in _guesses(observed, before)]
    guesses.sort(key=_misfit)
    if guesses[0].misfit > _GOOD_FIT * len(observed.log_ratio) or not before:
        guesses[_POLISHED:] = _suggested(observed)
    else:
        guesses = guesses[:_POLISHED]
    for fit in guesses:
        better = _improved(fit, observed)
        found[better.labels] = better
    best = min(found.values(), key=_misfit)
    near = _close(best, observed)
    poor = best.misfit > _GOOD_FIT * len(observed.log_ratio)
    if poor or all(one.misfit > best.misfit + ENOUGH for one in near):
        randomness = random.Random(observed.pairs.rounds)
        for one in _far(np.array(best.labels), observed, randomness):
            found[one.labels] = one
    for one in near:
        found.setdefault(one.labels, one)
    ranked = sorted(found.values(), key=_misfit)
    best = ranked[0]
    rivals = (one for one in ranked[1:] if one.misfit < best.misfit + ENOUGH)
    kept = tuple(one.labels for one in ranked[:_KEPT])
    return Judgement(best, tuple(rivals)[:_MOST_RIVALS], kept)


def fitted(labels: Sequence[int] | IntArray, observed: Observed) -> Hypothesis:
    """Return the hypothesis of these groups with the uplinks that fit best."""
    row = _renumbered(labels)
    best = Hypothesis(tuple(row.tolist()), _OPEN, True, np.inf)
    if row.max() == 0:
        alone = misfit(row[None], best.capacity(row[None]), observed)
        return replace(best, misfit=float(alone[0]))
    sizes = np.bincount(row)
    for even in (True,) if sizes.min() == sizes.max() else (True, False):
        uplinks = (sizes.max() if even else 1.0) / _RATIOS
        for _ in range(2):
            rows = np.repeat(row[None], len(uplinks), axis=0)
            capacity = uplinks[:, None] * (np.ones(len(sizes)) if even else sizes)
            losses = misfit(rows, capacity, observed) + _UNUSUAL * (not even)
            least = int(np.argmin(losses))
            if losses[least] < best.misfit:
                best = Hypothesis(best.labels, float(uplinks[least]), even, float(losses[least]))
            uplinks = uplinks[least] * _AROUND
    return best


def _misfit(hypothesis: Hypothesis) -> float:
    return hypothesis.misfit


def _renumbered(labels: Sequence[int] | IntArray) -> IntArray:
    """Return ``labels`` with groups numbered by their first hosts."""
    _, firsts, inverse = np.unique(np.asarray(labels), return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(firsts))[inverse], np.int64)


def _guesses(observed: Observed, before: Iterable[tuple[int, ...]]) -> list[Sequence[int]]:
    """Return what was good before; the first time, hosts in blocks and hosts dealt in turn."""
    hosts = observed.hosts
    found: list[Sequence[int]] = [[0] * hosts, *before]
    for count in range(2, hosts // 2 + 1) if len(found) == 1 else ():
        if hosts % count == 0:
            found.append([host * count // hosts for host in range(hosts)])
            found.append([host % count for host in range(hosts)])
    return found


def _suggested(observed: Observed) -> list[Hypothesis]:
    """Return what pairs suggest: groups joined on evidence, or on the lack of any against it.

    The latter is in which order one likes, so there are some of them. Groups that are far from
    right fit best with uplinks that slow no host down, from where no search leads anywhere; so
    uplinks are guessed from the round in which slow pairs carried most: each passed two of them.
    """
    evidence = _evidence(observed)
    found = [_agglomerated(evidence, least) for least in (0.3, 1.5)]
    randomness = np.random.default_rng(observed.pairs.rounds)
    for _ in range(_ORDERS):
        # So little that all of it together outweighs no slow pair.
        jitter = randomness.uniform(0.0, 1.0 / evidence.size, evidence.shape)
        found.append(_agglomerated(evidence + jitter + jitter.T, 0.0))
    pairs = observed.pairs
    rates = np.exp(observed.log_ratio) * pairs.able * observed.slow_pairs
    carried = float(np.bincount(pairs.round, rates, pairs.rounds).max())
    guesses = []
    for labels in dict.fromkeys(tuple(labels.tolist()) for labels in found):
        for groups in dict.fromkeys((2, max(labels) + 1)):
            uplink = 2 * carried / groups
            guess = Hypothesis(labels, max(uplink, _NARROWEST), True, np.inf)
            row = np.array([labels])
            guesses.append(
                replace(guess, misfit=float(misfit(row, guess.capacity(row), observed)[0]))
            )
    return guesses


def _evidence(observed: Observed) -> FloatArray:
    """Return how much speaks for each two hosts being in one group, shape (hosts, hosts).

    A slow pair is apart. A fast one counts the more, the more of its round was slow: then uplinks
    were busy.
    """
    pairs, slow = observed.pairs, observed.slow_pairs
    count = np.bincount(pairs.round, slow, pairs.rounds)
    share = count / np.bincount(pairs.round, minlength=pairs.rounds)
    busy = (count >= 2) | (share >= 0.3)
    value = np.where(slow, -4.0, np.where(busy[pairs.round], 2 * share[pairs.round], 0.0))
    evidence = np.zeros((observed.hosts, observed.hosts))
    np.add.at(evidence, (pairs.a, pairs.b), value)
    np.add.at(evidence, (pairs.b, pairs.a), value)
    return evidence


def _agglomerated(evidence: FloatArray, least: float) -> IntArray:
    """Return labels after joining the two groups with the most evidence while it is ``least``."""
    hosts = len(evidence)
    between = evidence.copy()
    np.fill_diagonal(between, -np.inf)
    labels = np.arange(hosts)
    while True:
        one, other = divmod(int(np.argmax(between)), hosts)
        if between[one, other] < least:
            return _renumbered(labels)
        between[one] += between[other]
        between[:, one] += between[:, other]
        between[other] = between[:, other] = -np.inf
        between[one, one] = -np.inf
        labels[labels == other] = one


def _improved(hypothesis: Hypothesis, observed: Observed) -> Hypothesis:
    """Return where the search ends that begins with ``hypothesis``."""
    best = hypothesis
    for _ in range(_MOST_FITS):
        labels = _descended(best, observed)
        if tuple(labels.tolist()) == best.labels:
            break
        better = fitted(labels, observed)
        if better.misfit >= best.misfit:
            break
        best = better
    return best


def _descended(start: Hypothesis, observed: Observed, *, joining: bool = True) -> IntArray:
    """Return the labels that no single step improves, at the capacity of ``start``.

    Args:
        start: where to begin.
        observed: what there is to explain.
        joining: whether joining two groups is a step.
    """

    def losses_of(rows: IntArray) -> FloatArray:
        losses = misfit(rows, start.capacity(rows), observed) + _UNUSUAL * (not start.even)
        # Next to no groups at all everything looks poor that is not quite right yet.
        losses[(rows == rows[:, :1]).all(axis=1)] = np.inf
        return losses

    labels, loss = np.array(start.labels), start.misfit
    for _ in range(_MOST_STEPS):
        near = neighbours(labels, start.capacity, observed)
        steps = np.concatenate([near.moves, near.joins]) if joining else near.moves
        for others in (steps, near.exchanges):
            losses = losses_of(others)
            better = np.flatnonzero(losses < loss - 1e-6)
            if len(better):
                break
        else:
            break
        rows = _together(labels, others[better[np.argsort(losses[better])]])
        losses = losses_of(rows)
        labels, loss = rows[np.argmin(losses)], float(losses.min())
        # Labels that no host has any more would make the arrays wider than need be.
        labels = _renumbered(labels)
    return labels


def _together(labels: IntArray, changed: IntArray) -> IntArray:
    """Return ``labels`` with the first 1, 2, 4, .. changes at once, shape (B, hosts).

    A change of a host that an earlier one has touched is left out.
    """
    row, touched, found = labels.copy(), np.zeros(len(labels), bool), []
    done = 0
    for other in changed:
        where = other != labels
        if not (where & touched).any():
            row[where] = other[where]
            touched |= where
            done += 1
            if done & (done - 1) == 0:
                found.append(row.copy())
    return np.array([*found, row])


def _far(labels: IntArray, observed: Observed, randomness: random.Random) -> Iterator[Hypothesis]:
    """Yield good hypotheses some way off: with large groups split, and what shaking leads to."""
    hosts, groups = len(labels), int(labels.max()) + 1
    for group in np.argsort(-np.bincount(labels), kind="stable")[:_MOST_SPLITS]:
        members = np.flatnonzero(labels == group).tolist()
        if len(members) >= 4:
            row = labels.copy()
            row[randomness.sample(members, len(members) // 2)] = groups
            # Joining would undo it before the halves have sorted themselves out.
            halves = _descended(fitted(row, observed), observed, joining=False)
            yield fitted(halves, observed)
    if groups > 1 and hosts <= _MOST_TO_SHAKE:
        one, other = randomness.sample(range(groups), 2)
        yield _improved(fitted(np.where(labels == one, other, labels), observed), observed)
        row = labels.copy()
        for _ in range(max(2, hosts // 6)):
            one, other = randomness.sample(range(hosts), 2)
            row[one], row[other] = row[other], row[one]
        yield _improved(fitted(row, observed), observed)
        row = labels.copy()
        for host in randomness.sample(range(hosts), max(2, hosts // 4)):
            row[host] = randomness.randrange(groups)
        yield _improved(fitted(row, observed), observed)


def _close(best: Hypothesis, observed: Observed) -> list[Hypothesis]:
    """Return the hypotheses one step from ``best`` that are not refuted."""
    labels = np.array(best.labels)
    near = np.concatenate(neighbours(labels, best.capacity, observed))
    # Where a slow host belongs shows in no rate, so moving one is no other hypothesis.
    slow = list(observed.slow_hosts)
    if slow:
        near = near[np.delete(near != labels, slow, axis=1).any(axis=1)]
    losses = misfit(near, best.capacity(near), observed) + _UNUSUAL * (not best.even)
    order = np.argsort(losses, kind="stable")[:_MOST_RIVALS]
    return [fitted(near[i], observed) for i in order if losses[i] < best.misfit + ENOUGH]
