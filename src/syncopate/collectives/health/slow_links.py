"""Slow links: what is said of links that are slow, once, while a training runs.

:mod:`syncopate.analysis.evidence.links` judges them; traces of a run are judged there too.
"""

from __future__ import annotations

from collections.abc import Mapping

from syncopate.analysis.evidence.links import (
    NOWHERE,
    Entry,
    Finding,
    aside,
    conclusive,
    links_between,
    slow_links,
)
from syncopate.artifacts.cluster import Cluster
from syncopate.collectives.health.blame import name_ranks
from syncopate.units import format_rate

_MOST_NAMED = 4

_Suspect = str | tuple[int, int]
"""A host, or the ranks at the ends of a link."""


def describe(finding: Finding, hosts: Mapping[int, str]) -> str:
    """Return a warning about slow links: whose they are, how slow, and what to do.

    Args:
        finding: the links.
        hosts: host name of each rank.
    """
    named = [_host_and_ranks(host, hosts) for host in finding.hosts]
    if named:
        who = f"{', '.join(named)} {'has a slow link' if len(named) == 1 else 'have slow links'}"
    else:
        who = "slow network" if len(finding.links) > 1 else "slow link"
    rates = [
        f"{_end(link.src, hosts, finding)} -> {_end(link.dst, hosts, finding)} at "
        f"{format_rate(link.bytes_per_s)}"
        for link in finding.links[:_MOST_NAMED]
    ]
    more = len(finding.links) - len(rates)
    if more:
        rates.append(f"{more} more such links")
    expected = format_rate(finding.expected_bytes_per_s)
    than = (
        f"where the cluster {finding.cluster!r} has {expected}"
        if finding.cluster
        else f"where the others reach {expected}"
    )
    return (
        f"{who}: rank {', '.join(rates)}, {than}; every collective waits for that. Check cable, "
        "port, shaping and other traffic; if it has to be so, `syncopate calibrate` lets plans know"
    )


def _host_and_ranks(host: str, hosts: Mapping[int, str]) -> str:
    return f"{host} ({name_ranks([rank for rank, name in sorted(hosts.items()) if name == host])})"


def _end(rank: int, hosts: Mapping[int, str], finding: Finding) -> str:
    return str(rank) if finding.hosts else f"{rank} ({hosts[rank]})"


class Comparison:
    """Compares the links of a group again and again, on one rank; warns of each slow one once.

    What was slow in two comparisons in a row is worth a warning, but not what disturbs a network
    for a few seconds.
    """

    def __init__(self) -> None:
        self._before: dict[int, Entry] = {}
        self._suspects: set[_Suspect] = set()
        self._warned: set[_Suspect] = set()

    def warning(self, entries: Mapping[int, Entry], cluster: Cluster | None = None) -> str | None:
        """Return what is to be said, if anything, now that the ranks are where they are.

        Args:
            entries: of all ranks that have said so.
            cluster: of these ranks, if known.
        """
        links = links_between(self._before, entries)
        if not conclusive(links):
            for rank, entry in entries.items():
                if aside(self._before.get(rank, NOWHERE), entry):
                    self._before[rank] = entry
            return None
        self._before = dict(entries)
        hosts = {rank: entry.host for rank, entry in entries.items()}
        finding = slow_links(links, hosts, cluster)
        earlier, self._suspects = self._suspects, set()
        if finding is None:
            return None
        pairs = {(link.src, link.dst) for link in finding.links}
        self._suspects = set(finding.hosts) or {
            *pairs,
            *(hosts[end] for pair in pairs for end in pair),
        }
        faults = (set(finding.hosts) or pairs) & earlier
        if faults <= self._warned:
            return None
        self._warned |= faults
        return describe(finding, hosts)
