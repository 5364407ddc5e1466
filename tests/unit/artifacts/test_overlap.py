"""Overlap: a default where it was not measured, and the measured figures where it was."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster, Interference
from syncopate.artifacts.overlap import ASSUMED, OVERLAP, RDMA, TCP, assuming_overlap
from syncopate.errors import UnknownNameError

BARE = Cluster.preset("10gbe", 8)


@pytest.mark.parametrize(("carrier", "stretch"), [(TCP, 1.3), (RDMA, 1.0)])
def test_a_cluster_that_nobody_measured_has_a_default_that_says_so(carrier, stretch) -> None:
    found = assuming_overlap(BARE, carrier)
    assert found.interference == Interference(compute_rate=1 / 1.189, collective_stretch=stretch)
    assert found.metadata[OVERLAP].startswith("an assumption: ")
    assert found.levels == BARE.levels


def test_what_was_measured_stays() -> None:
    measured = replace(BARE, interference=Interference(compute_rate=0.5))
    assert assuming_overlap(measured, TCP) is measured


def test_computation_slows_down_as_was_published() -> None:
    assert ASSUMED[RDMA].interference.compute_rate == pytest.approx(1 / 1.189, abs=0.005)


def test_another_carrier_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown carrier 'ib'; known: tcp, rdma"):
        assuming_overlap(BARE, "ib")
