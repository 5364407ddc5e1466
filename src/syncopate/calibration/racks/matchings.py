"""Matchings: which pairs of hosts exchange data at the same time, round by round."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from syncopate.calibration.racks.grouping import ENOUGH, Hypothesis, Judgement
from syncopate.calibration.racks.levels import Matching, Observed, errors, matched

_MOST_ALONE_ROUNDS = 8
_RANDOM = 2
_CANDIDATES = 40
_MARGIN = 2.0


def alone(hosts: int) -> tuple[Matching, ...]:
    """Return matchings of few pairs, in which every host is once: what its link can do.

    One pair at a time up to 16 hosts; beyond that as many as make eight rounds, which leaves
    uplinks as good as idle. An odd host has a round of its own.
    """
    if hosts == 3:
        return (((0, 1),), ((1, 2),), ((0, 2),))
    pairs = list(pairwise(range(hosts)))[::2]
    rounds = min(len(pairs), _MOST_ALONE_ROUNDS)
    found = [tuple(pairs[start::rounds]) for start in range(rounds)]
    return (*found, ((0, hosts - 1),)) if hosts % 2 else tuple(found)


def alone_with_two(hosts: int) -> tuple[Matching, ...]:
    """Return matchings of few pairs, in which every host has two partners, one far from it.

    So a slow host is told from a fast one that it was matched with; see :func:`alone`.

    Args:
        hosts: at least 3.
    """
    found = alone(hosts)
    if hosts == 3:
        return found
    half = (hosts + 1) // 2
    order = [host for i in range(half) for host in (i, i + half) if host < hosts]
    return found + tuple(tuple((order[a], order[b]) for a, b in one) for one in found)


def second_look(observed: Observed, look: int) -> Matching:
    """Return the hosts that seem slow, each with a fast one, which differs from look to look.

    Args:
        observed: what was seen.
        look: which look this is, from 0.
    """
    slow = observed.slow_hosts
    order = np.argsort(-observed.best_bytes_per_s, kind="stable").tolist()
    fast = [host for host in order if host not in slow]
    # Below a share of the median are fewer than half: no host is left without a fast one.
    return tuple((host, fast[(i + look) % len(fast)]) for i, host in enumerate(slow))


def opening(hosts: int) -> tuple[Matching, ...]:
    """Return the matchings to begin with: about log2 of the number of hosts.

    Hosts at distance 1, 2, 4, .. and half of all, which are the partners that collectives give
    them, and in which hosts that stand in racks one rack after the other, or in turn, all cross;
    and some at random.

    Args:
        hosts: at least 4.
    """
    distances = [1]
    while distances[-1] * 2 < hosts:
        distances.append(distances[-1] * 2)
    found = [_apart(hosts, distance) for distance in dict.fromkeys([*distances, hosts // 2])]
    randomness = random.Random(hosts)
    for _ in range(_RANDOM):
        order = list(range(hosts))
        randomness.shuffle(order)
        found.append(_paired(order))
    distinct = {frozenset(map(frozenset, one)): one for one in reversed(found)}
    return tuple(reversed(distinct.values()))


def _apart(hosts: int, distance: int) -> Matching:
    """Return hosts matched with those ``distance`` on; the hosts left over are matched in order."""
    partners = [(h, h + distance) for h in range(hosts) if h // distance % 2 == 0]
    pairs = [pair for pair in partners if pair[1] < hosts]
    matched_hosts = {host for pair in pairs for host in pair}
    return (*pairs, *_paired([host for host in range(hosts) if host not in matched_hosts]))


def _paired(hosts: Sequence[int]) -> Matching:
    return tuple(zip(hosts[::2], hosts[1::2], strict=False))


def across(labels: Sequence[int], randomness: random.Random, inside: int = 0) -> Matching:
    """Return a random matching with as many pairs as possible between groups.

    Args:
        labels: the group of each host.
        randomness: decides.
        inside: this many pairs inside groups, where there are any.
    """
    members: dict[int, list[int]] = {}
    for host, group in enumerate(labels):
        members.setdefault(group, []).append(host)
    groups = list(members.values())
    for shuffled in groups:
        randomness.shuffle(shuffled)
    pairs: list[tuple[int, int]] = []
    for _ in range(inside):
        large = [group for group in groups if len(group) > 1]
        if large:
            chosen = randomness.choice(large)
            pairs.append((chosen.pop(), chosen.pop()))
    while len(groups := [group for group in groups if group]) > 1:
        # No host is left alone with its group as long as the largest gives first.
        randomness.shuffle(groups)
        largest = max(groups, key=len)
        others = [group for group in groups if group is not largest]
        pairs.append((largest.pop(), randomness.choice(others).pop()))
    return (*pairs, *_paired(groups[0] if groups else []))


def _facing(labels: Sequence[int], randomness: random.Random) -> Matching:
    """Return a random matching in which two groups exchange with each other as far as they can."""
    groups = sorted(set(labels))
    if len(groups) < 2:
        return across(labels, randomness)
    two = randomness.sample(groups, 2)
    pairs = across([group for group in labels if group in two], randomness)
    hosts = [host for host, group in enumerate(labels) if group in two]
    others = [host for host, group in enumerate(labels) if group not in two]
    rest = across([labels[host] for host in others], randomness)
    return (
        *((hosts[a], hosts[b]) for a, b in pairs),
        *((others[a], others[b]) for a, b in rest),
    )


def _varied(matching: Matching, randomness: random.Random) -> Matching:
    """Return ``matching`` with some pairs paired anew: uplinks that were busy stay busy."""
    pairs = list(matching)
    randomness.shuffle(pairs)
    for _ in range(randomness.randint(1, max(1, len(pairs) // 8))):
        if len(pairs) > 1:
            (a, b), (c, d) = pairs.pop(0), pairs.pop(0)
            pairs += [(a, c), (b, d)]
    return tuple(pairs)


def _candidates(
    hypotheses: Sequence[Hypothesis], observed: Observed, randomness: random.Random
) -> Iterator[Matching]:
    inside = (0, 0, 1, 2, max(1, observed.hosts // 16), max(1, observed.hosts // 8))
    pairs = observed.pairs
    chosen = pairs.round == int(np.argmax(np.bincount(pairs.round, observed.slow_pairs)))
    slowest = tuple(zip(pairs.a[chosen].tolist(), pairs.b[chosen].tolist(), strict=True))
    for turn in range(_CANDIDATES):
        base = hypotheses[0] if turn % 3 else randomness.choice(hypotheses)
        if turn % 4 == 3:
            yield _facing(base.labels, randomness)
        elif turn % 4 == 2:
            yield _varied(slowest, randomness)
        else:
            yield across(base.labels, randomness, inside[turn % len(inside)])


def telling(judgement: Judgement, observed: Observed) -> Matching:
    """Return, of some random matchings, the one that tells the best hypothesis from most rivals."""
    hypotheses = (judgement.best, *judgement.rivals)
    gaps = np.array([one.misfit - judgement.best.misfit for one in judgement.rivals])
    best: tuple[float, Matching] = (-1.0, ())
    for candidate in _candidates(hypotheses, observed, random.Random(observed.pairs.rounds)):
        pairs = matched(candidate, observed)
        expects = np.concatenate([one.expects(pairs) for one in hypotheses])
        told = errors(expects[1:], expects[:1], observed.noise).sum(axis=1)
        score = float(np.minimum(told / (ENOUGH + _MARGIN - gaps), 1.0).sum())
        if score > best[0]:
            best = (score, candidate)
    return best[1]
