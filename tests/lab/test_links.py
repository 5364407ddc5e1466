"""Calibration over a link whose rate and latency are known: α and β are those of the link.

Many kernels cannot add latency to a link, so each message is held back before it is sent.
"""

from __future__ import annotations

import time
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from syncopate.artifacts.cluster import Level
from syncopate.calibration import links
from syncopate.collectives import Communicator
from syncopate.collectives.messages.wire import Wire
from syncopate.lab import Topology
from syncopate.topology import Topology as Places
from tests.lab.hosts import run_on_hosts

RATE_BYTES_PER_S = 100e6 / 8
LATENCY_S = 0.02
WHERE = Places(
    hosts=("host0", "host1"), names=("host",), sizes=(2,), placement=(), pairs=(((0, 1),),)
)


class FarWire(Wire):
    """Messages that set out late."""

    def send(self, tensor: torch.Tensor, peer: int) -> None:
        """Send ``tensor`` when the latency has passed."""
        time.sleep(LATENCY_S)
        super().send(tensor, peer)


def measured_here() -> Level:
    """Be a rank that measures the link."""
    dist.init_process_group("gloo")
    with mock.patch.object(links, "Wire", FarWire), Communicator(timeout_s=60) as communicator:
        (level,), _ = links.measure_links(communicator, WHERE, budget_s=8.0)
    dist.destroy_process_group()
    return level


def test_alpha_and_beta_of_a_known_link_are_found() -> None:
    found = run_on_hosts(Topology(hosts=2, rate_bytes_per_s=RATE_BYTES_PER_S), measured_here)
    assert found[0] == found[1]
    assert found[0].latency_s == pytest.approx(LATENCY_S, rel=0.2)
    assert found[0].bandwidth_bytes_per_s == pytest.approx(RATE_BYTES_PER_S, rel=0.2)
