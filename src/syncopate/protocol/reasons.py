"""Reasons: the sentences about what ends a job."""

from __future__ import annotations


def lost(worker: int, silent_s: float) -> str:
    """Say that a worker was lost, after so much silence."""
    silent = f" (silent for {silent_s:.1f} s)" if silent_s else ""
    return f"worker {worker} was lost{silent}; on_worker_loss='continue' goes on without"


def out_of_reach(worker: int, server: int, address: str, silent_s: float) -> str:
    """Say that a worker hears nothing of a server that lives."""
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
