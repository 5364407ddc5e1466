"""Flows between local ranks: all ranks learn the same rates, through the mesh or through Gloo."""

from __future__ import annotations

import math
from unittest import mock

import pytest

from syncopate.calibration.racks.flows import REPETITIONS, Flows
from syncopate.calibration.racks.levels import Matching, Round
from syncopate.collectives import Communicator
from syncopate.collectives.mesh import links
from syncopate.errors import CollectiveError
from tests.multiprocess.harness import run_ranks

ALONE: tuple[Matching, ...] = (((0, 1),), ((1, 2),))


def flows(rank: int, world_size: int, meshed: bool) -> list[Round]:
    """Two hosts of two ranks and one of one, as far as flows know."""
    with mock.patch.object(links, "MOST_RANKS", links.MOST_RANKS if meshed else 1):
        communicator = Communicator(timeout_s=60)
    with communicator:
        assert communicator._runners[0]._executor.meshed == meshed
        running = Flows(communicator, [0, 2, 4], 0.01)
        rounds = [running.run(matching) for matching in ALONE]
        # Messages and collectives go on as before.
        communicator.barrier()
        return rounds


@pytest.mark.parametrize("meshed", [True, False])
def test_all_ranks_learn_the_same_rates(meshed: bool) -> None:
    ranks = run_ranks(flows, 5, meshed)
    assert all(rounds == ranks[0] for rounds in ranks)
    assert [one.pairs for one in ranks[0]] == [*ALONE]
    for one in ranks[0]:
        (rates,) = one.rates_bytes_per_s
        assert len(rates) == REPETITIONS
        assert all(0 < rate < math.inf for rate in rates)


def lost(rank: int, world_size: int) -> str:
    communicator = Communicator(timeout_s=60)
    if rank == 2:
        communicator.close()
        return ""
    try:
        Flows(communicator, [0, 1, 2, 3], 0.5).run(((0, 1), (2, 3)))
    except CollectiveError as error:
        return str(error)
    return "nothing happened"


def test_a_host_that_is_lost_meanwhile_is_named() -> None:
    told = run_ranks(lost, 4)
    assert not told[2]
    assert "rank 2" in told[3]
