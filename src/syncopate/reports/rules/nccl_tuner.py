"""NCCL tuner: decisions as the configuration of NCCL's example tuner plug-in.

The plug-in (``plugins/tuner/example`` in NCCL's repository, ``ext-tuner/example`` before) reads
lines of ten comma-separated fields; ``#`` begins a comment, no line may have more than 254
characters, names that it does not know count as ``allreduce``, ``ring`` and ``simple``, and the
first line that matches is taken. Sizes are those of the total buffer, as here.

NCCL has ring and tree for all-reduce, ring and PAT (with one rank per host) for reduce-scatter and
all-gather, and nothing but ring for broadcast and reduce. A line names a protocol too, which no
calibration here measures: LL up to 16 KiB, as NCCL itself drew the line before it had a cost model,
and Simple above, which every platform has.
"""

from __future__ import annotations

from collections.abc import Sequence

from syncopate.artifacts.results.decision_table import DecisionTable
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.reports.rules.counterparts import (
    Counterparts,
    Restrict,
    Rule,
    RuleFile,
    merged,
    rules_and_notes,
)
from syncopate.units import format_count

PROTOCOLS = ("ll", "ll128", "simple")
"""Protocols that a line may name."""

LL_BYTES = 16 * 1024
"""Up to this size LL is named, unless a protocol is asked for."""

LARGEST_BYTES = 2**64 - 1
"""The largest size a line can hold, for ranges without limit."""

_FIELDS = (
    "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,"
    "regBuff"
)
_ANY = -1
_ONE_CHANNEL = (
    "channels are left to the plug-in, and NCCL's example plug-in then takes a single one, also "
    "for sizes without a rule: too few for large messages; give --channels"
)
_RING_ALONE = "NCCL has ring alone for it, so there is nothing to choose"

_Line = tuple[int, int, tuple[str, str, str]]
"""Sizes, and what is said of them: collective, algorithm, protocol."""


def nccl_tuner(
    table: DecisionTable, restrict: Restrict, *, protocol: str = "", channels: int | None = None
) -> RuleFile:
    """Return the plug-in's configuration for ``table``.

    Args:
        table: our decisions.
        restrict: how to decide among some algorithms alone.
        protocol: one of :data:`PROTOCOLS` for every size; chosen by size when empty.
        channels: NCCL channels; None leaves them to the plug-in.

    Raises:
        UnknownNameError: no such protocol.
        InvalidValueError: no such number of channels.
    """
    if protocol and protocol not in PROTOCOLS:
        raise UnknownNameError("protocol", protocol, PROTOCOLS)
    if channels is not None and channels < 1:
        rule = "an integer >= 1, or left out for the plug-in's own"
        raise InvalidValueError("channels", channels, rule)
    rules, notes = rules_and_notes("NCCL", table, _counterparts(table), restrict)
    if channels is None:
        notes.append(_ONE_CHANNEL)
    lines = merged(line for rule in rules for line in _lines(rule, protocol))
    tail = (
        f"{_ANY if channels is None else channels},{table.hosts},{table.world_size},{_ANY},{_ANY}"
    )
    rows = [f"{name},{low},{high},{how},{via},{tail}" for low, high, (name, how, via) in lines]
    return RuleFile("\n".join([*_head(table), *rows]) + "\n", tuple(notes))


def _counterparts(table: DecisionTable) -> tuple[Counterparts, ...]:
    shards = {"ring": "ring"}
    if table.hosts == table.world_size:
        shards["recursive"] = "pat"
    trees = {"ring": "ring", "binary_tree": "tree", "mst": "tree"}
    return (
        Counterparts("all_reduce", "allreduce", trees),
        Counterparts("reduce_scatter", "reducescatter", shards),
        Counterparts("all_gather", "allgather", shards),
        Counterparts("broadcast", "broadcast", {}, _RING_ALONE),
        Counterparts("reduce", "reduce", {}, _RING_ALONE),
    )


def _lines(rule: Rule, protocol: str) -> list[_Line]:
    low, high = rule.range.min_bytes, rule.range.max_bytes
    last = LARGEST_BYTES if high is None else high
    if protocol or rule.algorithm == "pat":
        # PAT knows Simple alone.
        chosen = "simple" if rule.algorithm == "pat" else protocol
        return [(low, last, (rule.collective, rule.algorithm, chosen))]
    parts = [(low, min(last, LL_BYTES), "ll"), (max(low, LL_BYTES + 1), last, "simple")]
    return [(a, b, (rule.collective, rule.algorithm, via)) for a, b, via in parts if a <= b]


def _head(table: DecisionTable) -> Sequence[str]:
    basis = ", ".join(f"{each.collective} {each.basis}" for each in table.collectives)
    cluster = "".join(c if c.isprintable() else " " for c in table.cluster)[:80]
    ranks, hosts = format_count(table.world_size, "rank"), format_count(table.hosts, "host")
    return (
        f"# {ranks} on {hosts}: {cluster}",
        f"# by syncopate: {basis}",
        f"# {_FIELDS}",
    )
