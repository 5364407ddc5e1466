"""Open MPI: decisions as a rules file of its ``tuned`` component, in the JSON of Open MPI 6.

``mpirun --mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_dynamic_rules_filename FILE`` reads
it. An unknown collective makes Open MPI refuse the whole file and an unknown algorithm the rule,
both without a word unless ``coll_base_verbose`` is set; the first rule that matches is taken; where
none does its own fixed rules decide. Sizes are those of the total buffer, as here.

=====================  =====================  ====================================================
ours                   Open MPI's             for
=====================  =====================  ====================================================
ring                   ring                   all-reduce, all-gather, reduce-scatter
recursive_doubling     recursive_doubling     all-reduce
halving_doubling, be   rabenseifner           all-reduce
recursive              recursive_doubling     all-gather; bruck-k-fanout of 2 if p is no power of 2
recursive              recursive_halving      reduce-scatter; butterfly if p is no power of two
mst                    binomial               broadcast, reduce
flat_tree              basic_linear           all-reduce, broadcast; linear for reduce
be                     scatter_allgather      broadcast
be                     rabenseifner           reduce
lp                     pipeline               broadcast, reduce, in segments as long as the blocks
=====================  =====================  ====================================================
"""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

from syncopate.artifacts.results.decision_table import DecisionTable
from syncopate.reports.rules.counterparts import (
    Counterparts,
    Restrict,
    Rule,
    RuleFile,
    rules_and_notes,
)

UNLIMITED = "inf"
"""How Open MPI writes that there is no limit."""

_SIZES = ("msg_size_min", "msg_size_max")
_BRUCK = "bruck-k-fanout"
_SEGMENT_MULTIPLE_BYTES = 64


def open_mpi(table: DecisionTable, restrict: Restrict) -> RuleFile:
    """Return the rules file for ``table``.

    Args:
        table: our decisions.
        restrict: how to decide among some algorithms alone.
    """
    rules, notes = rules_and_notes("Open MPI", table, _counterparts(table.world_size), restrict)
    collectives = {
        name: [
            {
                "comm_size_min": table.world_size,
                "comm_size_max": table.world_size,
                "rules": _merged([_rule(rule) for rule in group]),
            }
        ]
        for name, group in groupby(rules, key=lambda rule: rule.collective)
    }
    document = {"rule_file_version": 3, "module": "tuned", "collectives": collectives}
    return RuleFile(json.dumps(document, indent=2) + "\n", tuple(notes))


def _counterparts(world_size: int) -> tuple[Counterparts, ...]:
    even = world_size & (world_size - 1) == 0
    halving = "recursive_halving" if even else "butterfly"
    return (
        Counterparts(
            "all_reduce",
            "allreduce",
            {
                "ring": "ring",
                "recursive_doubling": "recursive_doubling",
                "halving_doubling": "rabenseifner",
                "be": "rabenseifner",
                "flat_tree": "basic_linear",
            },
        ),
        Counterparts("reduce_scatter", "reduce_scatter", {"ring": "ring", "recursive": halving}),
        Counterparts("reduce_scatter", "reduce_scatter_block", {"recursive": halving}),
        Counterparts(
            "all_gather",
            "allgather",
            {"ring": "ring", "recursive": "recursive_doubling" if even else _BRUCK},
        ),
        Counterparts(
            "broadcast",
            "bcast",
            {
                "mst": "binomial",
                "flat_tree": "basic_linear",
                "be": "scatter_allgather",
                "lp": "pipeline",
            },
        ),
        Counterparts(
            "reduce",
            "reduce",
            {"mst": "binomial", "flat_tree": "linear", "be": "rabenseifner", "lp": "pipeline"},
        ),
    )


def _rule(rule: Rule) -> dict[str, Any]:
    sizes, options = rule.range, rule.range.chosen.options
    found: dict[str, Any] = {
        "msg_size_min": sizes.min_bytes,
        "msg_size_max": UNLIMITED if sizes.max_bytes is None else sizes.max_bytes,
        "alg": rule.algorithm,
    }
    blocks = options.get("blocks")
    if isinstance(blocks, int):
        length = -(-sizes.at_bytes // blocks)
        multiple = _SEGMENT_MULTIPLE_BYTES
        found["seg_size"] = -(-length // multiple) * multiple
    if rule.algorithm == _BRUCK:
        found["faninout"] = 2
    return found


def _merged(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join neighbours that differ in their sizes alone, where one begins as the other ends."""
    found: list[dict[str, Any]] = []
    for rule in rules:
        rest = {name: value for name, value in rule.items() if name not in _SIZES}
        if (
            found
            and found[-1]["msg_size_max"] == rule["msg_size_min"] - 1
            and rest == {n: v for n, v in found[-1].items() if n not in _SIZES}
        ):
            found[-1]["msg_size_max"] = rule["msg_size_max"]
        else:
            found.append(rule)
    return found
