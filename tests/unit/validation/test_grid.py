"""Grid: which trainings there are, and that the first of them are an even sample."""

from __future__ import annotations

import pytest

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.units import parse_rate
from syncopate.validation.grid import (
    HOME_RATE,
    HOSTS,
    POINTS,
    RACKS,
    RATES,
    WAYS,
    WORKS,
    Cell,
    cells,
    home_of,
)


def cell(**changes: object) -> Cell:
    given = {"hosts": 4, "rate": "1gbit", "racks": 1, "exchange": "sharded", "work": "replayed"}
    return Cell(**(given | changes))


def test_every_combination_is_there_once_but_for_servers_and_racks_of_one_host():
    every = cells()
    assert len({one.name for one in every}) == len(every)
    flat = len(HOSTS) * len(RATES) * len(WAYS) * len(WORKS)
    racked = 2 * len(RATES) * (len(WAYS) - 1) * len(WORKS)
    assert len(every) == flat + racked


def test_the_first_cells_have_every_value_of_everything():
    first = cells()[:POINTS]
    for name, values in (
        ("hosts", HOSTS),
        ("rate", RATES),
        ("racks", RACKS),
        ("exchange", WAYS),
        ("work", WORKS),
    ):
        counts = [sum(getattr(one, name) == value for one in first) for value in values]
        assert min(counts) >= 3, (name, counts)


def test_no_cell_has_the_rate_of_the_calibration():
    assert HOME_RATE not in RATES
    assert home_of(8).rate_bytes_per_s == parse_rate(HOME_RATE)
    assert home_of(8).racks == 1


def test_racks_have_an_uplink_of_half_their_hosts():
    topology = cell(hosts=8, racks=2).topology
    assert topology.uplink_bytes_per_s == pytest.approx(4 * parse_rate("1gbit") / 2)


def test_servers_and_the_scheduler_have_hosts_of_their_own():
    served = cell(hosts=8, exchange="served")
    assert (served.servers, served.topology.hosts, served.workers.hosts) == (4, 13, 8)
    assert cell().topology == cell().workers
    with pytest.raises(InvalidValueError, match="1 with the served exchange"):
        cell(racks=2, exchange="served")


def test_what_the_grid_does_not_know_is_refused():
    with pytest.raises(UnknownNameError, match="averaged"):
        cell(exchange="gossip")
    with pytest.raises(UnknownNameError, match="replayed, computing"):
        cell(work="vgg")
