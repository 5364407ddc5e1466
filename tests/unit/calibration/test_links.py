"""Links: α and β of a link whose time is known, out of messages that go there and back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from syncopate.calibration import links, timing
from syncopate.topology import Topology
from syncopate.units import MIB

ALPHA_S, BYTES_PER_S = 2e-4, 125e6
WHERE = Topology(hosts=("a", "b"), names=("host",), sizes=(2,), placement=(), pairs=(((0, 1),),))


class Link:
    """A wire whose messages take α and β, by a clock that goes on with them alone."""

    rank, device = 0, torch.device("cpu")

    def __init__(self) -> None:
        self.now_s = 100.0
        self.order = torch.zeros(2)

    def perf_counter(self) -> float:
        return self.now_s

    def send(self, tensor: torch.Tensor, peer: int) -> None:
        self.now_s += ALPHA_S + tensor.numel() * tensor.element_size() / BYTES_PER_S

    def receive(self, tensor: torch.Tensor, peer: int) -> None:
        self.send(tensor, peer)


def test_one_way_takes_half_of_there_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    wire: Any = Link()
    clock = SimpleNamespace(perf_counter=wire.perf_counter)
    for module in (links, timing):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(links, "Wire", lambda _: wire)
    communicator: Any = None
    *pauses, probe = links._End(communicator, 1).turns(timing.Stopwatch(), budget_s=5.0)
    assert probe is not None
    # Behind the first messages of every size, then behind each that is large.
    assert len(pauses) == len(links.PROBE_SIZES) + 3 * (len(probe.points[0].samples_s) // 3)
    for point in probe.points:
        expected_s = ALPHA_S + point.nbytes / BYTES_PER_S
        assert point.samples_s == pytest.approx([expected_s] * len(point.samples_s))
    assert probe.points[-1].nbytes == 4 * MIB
    (level,) = links.levels_of(WHERE, [probe])
    assert level.latency_s == pytest.approx(ALPHA_S, rel=1e-3)
    assert level.bandwidth_bytes_per_s == pytest.approx(BYTES_PER_S)
    assert level.burst_bytes == 0
