"""Ranks that only run collectives find out whose link is slow, and accuse nobody where none is."""

from __future__ import annotations

import sys
from pathlib import Path

from syncopate.lab import Lab, Topology
from tests.children import environment
from tests.lab.training import ENDED, WARNED

TRAINING_PY = str(Path(__file__).with_name("training.py"))
FOUR = Topology(hosts=4)


def said_in(topology: Topology, seconds: float) -> dict[int, list[str]]:
    """Train in a lab; return what each rank printed."""
    said: dict[int, list[str]] = {rank: [] for rank in range(topology.world_size)}
    with Lab(topology) as lab:
        outcome = lab.run(
            [sys.executable, TRAINING_PY, str(seconds)],
            environment=environment(),
            sink=lambda rank, stream, line: said[rank].append(line),
        )
    assert outcome.exit_code == 0, said
    return said


def warnings(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith(WARNED)]


def test_the_slow_host_is_named_once_by_rank_0() -> None:
    said = said_in(FOUR.with_host_rates({2: FOUR.rate_bytes_per_s / 10}), 90.0)
    (warning,) = warnings(said[0])
    assert warning.startswith(f"{WARNED}host2 (rank 2) has a slow link: rank 1 -> 2 at ")
    assert ", 2 -> 3 at " in warning
    assert [warnings(lines) for rank, lines in said.items() if rank] == [[], [], []]


def test_where_all_links_are_equal_nobody_is_accused() -> None:
    said = said_in(FOUR, 6.0)
    assert [warnings(lines) for lines in said.values()] == [[], [], [], []]
    (ended,) = [line for line in said[0] if line.startswith(ENDED)]
    assert int(ended.removeprefix(ENDED)) > 20, "too little was carried to judge by"
