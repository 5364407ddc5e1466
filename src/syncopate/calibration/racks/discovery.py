"""Discovery: racks behind shared uplinks and slow hosts, from what hosts exchange at once.

Where the racks are known, nothing is searched for: what is left to measure is what their uplinks
carry, which takes many pairs at once, and whether a host is slow.

[Note: a second look] A host whose processor was busy with something else exchanges slowly for a
while, and a search may end within that while. No host is named for it: hosts that seem slow
exchange data again, each with a fast one, a few times and with others every time. A disturbance
only ever slows, so the best repetition counts; a slow link stays slow.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from syncopate.calibration.racks.flows import REPETITIONS, Flows
from syncopate.calibration.racks.levels import Matching, Observed, Round, middle_of_fast
from syncopate.calibration.racks.matchings import across, alone_with_two, second_look
from syncopate.calibration.racks.search import Racks, RackSearch
from syncopate.calibration.racks.table import Groups
from syncopate.calibration.timing import Stopwatch
from syncopate.collectives.communicator import Communicator
from syncopate.output import Progress, say
from syncopate.topology import Topology, topology
from syncopate.units import format_rate

FEWEST_HOSTS = 3
"""Of two hosts neither is slow compared with others, and there is nothing to share."""

_CONFIRMING_ROUNDS = 6
_UPLINK_ROUNDS = 3
_SECOND_LOOKS = 4
_LEAST_FLOW_S, _MOST_FLOW_S = 0.04, 0.1
_PATIENCE, _LEAST_PATIENCE_S = 4.0, 8.0
_MOST_NAMED = 8

Run = Callable[[Matching], Round]
"""Runs a matching of hosts; the same on all ranks."""


def discover(
    communicator: Communicator,
    hosts: Sequence[str],
    budget_s: float,
    progress: Progress | None = None,
) -> Topology:
    """Return which rank sits where, alike on all ranks, every one of which must call this.

    Beside what host names tell, it knows racks, how much their uplinks carry, and slow hosts: from
    a number of rounds proportional to log2 of the hosts, in each of which every host exchanges data
    with one other.

    Args:
        communicator: the ranks.
        hosts: host name of every rank.
        budget_s: about how long to take. Some seconds, or several times as long, where rates are
            hard to explain.
        progress: called before every round.

    Raises:
        CollectiveError: a rank was lost.
    """
    names = list(dict.fromkeys(hosts))
    if len(names) < FEWEST_HOSTS:
        return topology(hosts)
    search = RackSearch(len(names))
    flows = _flows(communicator, hosts, len(search.wanted) + _CONFIRMING_ROUNDS, budget_s)
    watch = Stopwatch(progress)
    patience_s = max(_PATIENCE * budget_s, _LEAST_PATIENCE_S)

    def wanted() -> tuple[Matching, ...]:
        """Return what rank 0 wants: in floating point, other ranks might want something else."""
        late = bool(search.rounds) and watch.spent_s > patience_s
        agreed: tuple[Matching, ...] = communicator.broadcast_object(() if late else search.wanted)
        return agreed

    while matchings := wanted():
        done = len(search.rounds) / search.most_rounds
        report = partial(watch, f"racks, round {len(search.rounds) + 1}", done)
        rounds = [flows.run(matching, report) for matching in matchings]
        if communicator.rank == 0:
            search.observe(rounds)
    _look_again(communicator, flows, len(names), search.rounds, watch)
    where = topology_of(hosts, search.found(), search.rounds) if communicator.rank == 0 else None
    agreed: Topology = communicator.broadcast_object(where)
    return agreed


def measure_racks(
    communicator: Communicator,
    hosts: Sequence[str],
    groups: Groups,
    budget_s: float,
    progress: Progress | None = None,
) -> Topology:
    """Return what :func:`discover` does, where the racks are known: no racks are searched for.

    It takes at most 21 rounds, however many hosts there are, and 4 more where some seem slow.

    Args:
        communicator: the ranks.
        hosts: host name of every rank.
        groups: the hosts of each rack, every host in one of them. Racks of one host each are no
            more than hosts.
        budget_s: about how long to take.
        progress: called before every round.

    Raises:
        CollectiveError: a rank was lost.
    """
    names = list(dict.fromkeys(hosts))
    if len(names) < FEWEST_HOSTS:
        return topology(hosts)
    if all(len(group) == 1 for group in groups):
        groups = (tuple(names),)
    label_of = {name: rack for rack, group in enumerate(groups) for name in group}
    labels = [label_of[name] for name in names]
    matchings = alone_with_two(len(names))
    if len(groups) > 1:
        matchings += tuple(across(labels, random.Random(i)) for i in range(_UPLINK_ROUNDS))
    flows = _flows(communicator, hosts, len(matchings), budget_s)
    rounds: list[Round] = []
    for matching in matchings:
        done = len(rounds) / len(matchings)
        report = partial(say, progress, f"links of racks, round {len(rounds) + 1}", done)
        rounds.append(flows.run(matching, report))
    _look_again(communicator, flows, len(names), rounds, progress)
    found = Racks.among(labels, rounds, resolved=True)
    where = topology_of(hosts, found, rounds) if communicator.rank == 0 else None
    agreed: Topology = communicator.broadcast_object(where)
    return agreed


def _flows(communicator: Communicator, hosts: Sequence[str], rounds: int, budget_s: float) -> Flows:
    """Return what runs about so many matchings of the hosts in about that time."""
    flow_s = min(max(budget_s / (REPETITIONS * rounds) / 2, _LEAST_FLOW_S), _MOST_FLOW_S)
    return Flows(communicator, [hosts.index(name) for name in dict.fromkeys(hosts)], flow_s)


def _look_again(
    communicator: Communicator,
    flows: Flows,
    hosts: int,
    rounds: list[Round],
    progress: Progress | None,
) -> None:
    """Add rounds of hosts that seem slow to ``rounds``; see [Note: a second look].

    Args:
        communicator: the ranks; rank 0's rounds say who seems slow.
        flows: runs them.
        hosts: how many.
        rounds: at least one on rank 0.
        progress: called before every repetition.
    """
    for look in range(_SECOND_LOOKS):
        matching: Matching = communicator.broadcast_object(
            second_look(Observed(hosts, rounds), look) if communicator.rank == 0 else ()
        )
        if not matching:
            return
        seen = flows.run(matching, partial(say, progress, "hosts that seem slow", 1.0))
        rounds.append(Round(seen.pairs, tuple((max(rates),) for rates in seen.rates_bytes_per_s)))


def topology_of(hosts: Sequence[str], found: Racks, rounds: Sequence[Round]) -> Topology:
    """Return the topology that a search found.

    Args:
        hosts: host name of every rank; hosts are numbered by their first ranks.
        found: the racks.
        rounds: what they were found by.
    """
    names = list(dict.fromkeys(hosts))
    racks = [[names[host] for host in group] for group in found.groups]
    where = topology(hosts, racks)
    rates = dict.fromkeys(where.names, 0.0)
    if found.slow:
        rates["host"] = min(found.best_bytes_per_s[host] for host in found.slow)
    if len(racks) > 1:
        rates["rack"] = uplink_bytes_per_s(found, rounds)
    return replace(
        where,
        rates_bytes_per_s=tuple(rates.values()) if any(rates.values()) else (),
        warnings=_warnings(names, found),
    )


def uplink_bytes_per_s(found: Racks, rounds: Sequence[Round]) -> float:
    """Return what the narrowest uplink carries in each direction, all of a rack's pairs together.

    Args:
        found: at least two racks.
        rounds: at least one; what an uplink carried in those where it was busiest counts.
    """
    rack_of = {host: rack for rack, group in enumerate(found.groups) for host in group}
    carried: dict[int, list[float]] = {rack: [] for rack in range(len(found.groups))}
    for one in rounds:
        rates = np.array(one.rates_bytes_per_s)
        ends = np.array([[rack_of[host] for host in pair] for pair in one.pairs])
        leaving = ends[:, 0] != ends[:, 1]
        for rack, loads in carried.items():
            passing = leaving & (ends == rack).any(axis=1)
            if passing.any():
                loads.append(float(np.median(rates[passing].sum(axis=0))))
    return min(middle_of_fast(np.array(loads)) for loads in carried.values() if loads)


def _warnings(names: Sequence[str], found: Racks) -> tuple[str, ...]:
    warnings = []
    if found.slow:
        rates = [found.best_bytes_per_s[h] for h in range(len(names)) if h not in found.slow]
        slow = [
            f"{names[host]} exchanges data at {format_rate(found.best_bytes_per_s[host])}"
            for host in found.slow[:_MOST_NAMED]
        ]
        more = len(found.slow) - len(slow)
        warnings.append(
            ", ".join(slow)
            + (f" and {more} more hosts at such rates" if more else "")
            + f", where the others reach {format_rate(statistics.median(rates))}"
        )
    if not found.resolved:
        warnings.append(
            f"which hosts share an uplink could not be told from {found.rounds} rounds of exchanges"
            " at the same time: levels and placement know of hosts alone"
        )
    return tuple(warnings)
