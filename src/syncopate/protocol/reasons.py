"""Reasons: the sentences about what ends a job."""

from __future__ import annotations

from syncopate.protocol.rules import Rules


def lost(worker: int, silent_s: float) -> str:
    """Say that a worker was lost, after so much silence."""
    return f"{_was_lost(worker, silent_s)}; on_worker_loss='continue' goes on without"


def lost_at_first(worker: int, silent_s: float) -> str:
    """Say that the worker was lost that gives the first weights, before it had given them."""
    return (
        f"{_was_lost(worker, silent_s)} before it gave the servers the first weights, and no other "
        "worker gives them; start everything again"
    )


def _was_lost(worker: int, silent_s: float) -> str:
    silent = f" (silent for {silent_s:.1f} s)" if silent_s else ""
    return f"worker {worker} was lost{silent}"


def out_of_reach(worker: int, server: int, address: str, silent_s: float) -> str:
    """Say that a worker gets no answer from a server that is alive."""
    return (
        f"worker {worker} had no answer of server {server} for {silent_s:.0f} s, though the "
        f"scheduler hears it: can it reach {address}? A firewall may be between them; on one "
        "machine without a key (--key) both are to be of one user"
    )


def older(worker: int, server: int, name: str, received: int, acknowledged: int) -> str:
    """Say that a server has fewer pushes of the slice ``name`` than it acknowledged."""
    return (
        f"server {server} has {max(received, 0)} pushes of {name!r} by worker {worker}, and had "
        f"acknowledged {max(acknowledged, 0)}: its state is older than what it said was safe. Was "
        "a snapshot of its folder put back? Begin with empty folders, from a checkpoint"
    )


def not_there_before(what: str) -> str:
    """Say that a job that goes on has no place for ``what``."""
    return (
        f"{what}, which servers did not have before all workers were gone; the job goes on "
        "from what they have, with the same tensors and tables"
    )


def declared_otherwise(worker: int, ours: Rules, theirs: Rules) -> str:
    """Say what a worker declared that another worker had declared otherwise."""
    for name in ours.__struct_fields__:
        one, other = getattr(ours, name), getattr(theirs, name)
        if one != other:
            return (
                f"worker {worker} declared {name} {other!r}, and another worker {one!r}; "
                "all workers declare the same"
            )
    return (
        f"worker {worker} declared other tensors than another worker; names, element types, "
        "sizes and slice_bytes are the same on all"
    )


def not_there_any_more(worker: int, name: str, step: int) -> str:
    """Say that a worker goes on from a step of which the weights of the slice ``name`` are gone."""
    return (
        f"worker {worker} goes on from step {max(step, 0)}, and of {name!r} there only are newer "
        "weights. Start everything again, with the same state or from a checkpoint"
    )
