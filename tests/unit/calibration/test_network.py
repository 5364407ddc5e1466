"""What a network's measurements are put together from, with measurements that are made up."""

from __future__ import annotations

from typing import Any

import pytest

from syncopate.artifacts.cluster import Cluster, Handling, Level
from syncopate.calibration import calibrate, probing
from syncopate.calibration.calibrate import measure_network
from syncopate.calibration.samples import SIZES
from syncopate.topology import topology
from tests.unit.calibration.test_message_overhead import TRUE, bare, probed


class Peer:
    """A rank; what rank 0 broadcasts is ``said``, where given."""

    def __init__(self, rank: int, world_size: int, said: Any = None) -> None:
        self.rank = rank
        self.world_size = world_size
        self.said = said
        self.sent: list[Any] = []

    def barrier(self) -> None:
        pass

    def broadcast_object(self, value: Any, src: int = 0) -> Any:
        self.sent.append(value)
        return value if self.rank == src else self.said

    def all_gather_object(self, value: Any) -> list[Any]:
        return [value] * self.world_size


@pytest.fixture
def budgets(monkeypatch) -> dict[str, float]:
    """Replace the measurements; return the budget that each was given."""
    given: dict[str, float] = {}

    def links(communicator: Peer, where: Any, *, budget_s: float, progress: Any) -> Any:
        given["links"] = budget_s
        return bare(4).levels, ()

    def samples(communicator: Peer, cluster: Cluster, *, budget_s: float, progress: Any) -> Any:
        given["samples"] = budget_s
        assert (cluster.levels, cluster.reduction_s_per_byte) == (bare(4).levels, 3e-11)
        return tuple(s for _, sizes in SIZES for s in probed(cluster, sizes))

    monkeypatch.setattr(probing, "measure_links", links)
    monkeypatch.setattr(probing, "measure_samples", samples)
    monkeypatch.setattr(probing, "measure_reduction", lambda communicator, progress: 3e-11)
    return given


def test_rank_0_fits_and_tells(budgets):
    communicator = Peer(0, 4)
    found = measure_network(communicator, topology(["a", "b", "c", "d"]), budget_s=10.0)
    assert sum(budgets.values()) == pytest.approx(10.0)
    assert found.cluster.name == "4 ranks on 4 hosts"
    assert found.cluster.hosts == ("a", "b", "c", "d")
    assert len(found.cluster.handling) == len(SIZES)
    assert found.cluster.handling[-1].call_s == pytest.approx(TRUE.call_s, rel=0.1)
    assert communicator.sent == [found.cluster.handling]
    assert len(found.samples) == len(probed(bare(4), [0])) * sum(len(s) for _, s in SIZES)


def test_others_take_what_they_are_told(budgets, monkeypatch):
    def fit_here(*arguments: Any) -> Any:
        raise AssertionError("in floating point, this rank might not agree")

    monkeypatch.setattr(calibrate, "handling_of", fit_here)
    told = (Handling(call_s=1.0),)
    where = topology(["a", "b", "c", "d"])
    found = measure_network(Peer(3, 4, told), where, budget_s=10.0)
    assert found.cluster.handling == told


def test_one_rank_has_no_links_and_nothing_to_handle():
    found = measure_network(Peer(0, 1), topology(["a"]), budget_s=0.1)
    assert found.cluster.name == "1 rank on 1 host"
    assert (found.cluster.handling, found.cluster.probes, found.samples) == ((), (), ())
    assert isinstance(found.cluster.levels[0], Level)
    assert found.cluster.world_size == 1
    assert found.cluster.reduction_s_per_byte > 0
