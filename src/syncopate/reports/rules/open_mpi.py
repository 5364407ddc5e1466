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
    merged,
    rules_and_notes,
)

UNLIMITED = "inf"
"""How Open MPI writes that there is no limit."""

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
                "rules": [
                    {
                        "msg_size_min": low,
                        "msg_size_max": UNLIMITED if high is None else high,
                        **how,
                    }
                    for low, high, how in merged(map(_rule, group))
                ],
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


def _rule(rule: Rule) -> tuple[int, int | None, dict[str, Any]]:
    sizes = rule.range
    found: dict[str, Any] = {"alg": rule.algorithm}
    blocks = sizes.chosen.options.get("blocks")
    if isinstance(blocks, int):
        length = -(-sizes.at_bytes // blocks)
        multiple = _SEGMENT_MULTIPLE_BYTES
        found["seg_size"] = -(-length // multiple) * multiple
    if rule.algorithm == _BRUCK:
        found["faninout"] = 2
    return sizes.min_bytes, sizes.max_bytes, found
