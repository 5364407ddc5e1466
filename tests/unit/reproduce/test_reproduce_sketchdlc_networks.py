"""SketchDLC's traces on other networks, with aggregation in the switch, and its rows."""

from __future__ import annotations

import json

import pytest

import sketchdlc_networks as networks
from figures import sketchdlc as rows
from sketchdlc_paper import paper
from sketchdlc_runs import Place
from sketchdlc_worker import LENET5, RESNET50
from syncopate.artifacts.workload import GradientTensor, Workload

TWO = Workload(
    model="two",
    tensors=(
        GradientTensor(name="b", numel=250, backward_s=1.0),  # 1000 bytes, ready first
        GradientTensor(name="a", numel=500, backward_s=2.0),
    ),
    forward_s=1.0,
    backward_s=3.0,
)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "workload", lambda _: TWO)
    monkeypatch.setattr(networks, "LATENCY_S", 0.0)


def test_by_hand(two: None) -> None:
    # 8000 bits/s: 1 and 2 s a message. With one worker: b is there at 2 and back at 3; a is ready
    # at 3, there at 5 and back at 7. Phase 3 begins at 1.
    assert networks.wire_s("two", 1, 8000) == pytest.approx(6.0)
    # With two: b is there at 3, back at 5; a there at 7, back at 11.
    assert networks.wire_s("two", 2, 8000) == pytest.approx(10.0)


def test_aggregation_leaves_as_much_as_one_worker_sends(two: None) -> None:
    for workers in (1, 2, 9):
        found = networks.wire_s("two", workers, 8000, aggregated=True)
        assert found == pytest.approx(networks.wire_s("two", 1, 8000))


def test_an_idle_wire_leaves_computation() -> None:
    for network in networks.TITLES:
        phases = paper(network).points
        phase_s = networks.wire_s(network, 1, 1e15)
        assert phase_s == pytest.approx(phases[Place("phase 2", "w0")].mean, rel=0.15)


@pytest.mark.parametrize("network", [LENET5, RESNET50])
def test_its_own_network_is_as_it_was_measured(network: str) -> None:
    own = networks.played(network, networks.WORKERS, networks.OWN_BITS_PER_S)
    points = paper(network).points
    measured_s = points[Place("phase 1", "w0")].mean + points[Place("phase 3", "w0")].mean
    assert own.plain_s == pytest.approx(measured_s)
    assert networks.held_s(network) > 0


@pytest.mark.parametrize("network", [LENET5, RESNET50])
def test_more_workers_and_slower_links_gain_more(network: str) -> None:
    gains = [networks.played(network, workers, 10e9).gain for workers in (2, 8, 32)]
    assert gains == sorted(gains)
    slower = [networks.played(network, 8, rate).gain for rate in (100e9, 10e9, 1e9)]
    assert slower == sorted(slower)
    assert networks.played(network, 8, 1e9).server_bytes[0] == pytest.approx(
        8 * networks.played(network, 8, 1e9).server_bytes[1]
    )


def test_prints_tables_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    networks.main(["--quick"])
    assert "ResNet-50: an iteration" in capsys.readouterr().out
    networks.main(["--json"])
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 2 * 3 * 5
    own = [one for one in found if (one["workers"], one["bits_per_s"]) == (2, 56e9)]
    assert [round(one["gain"], 3) for one in own] == [0.02, 0.0]


def test_the_rows_of_the_tables() -> None:
    found = {(one.where, one.what): one for one in rows.paper().figures}
    for where, what, count in (("Table 6", "LeNet-5", 32), ("Table 7", "ResNet-50", 88)):
        (lengths,) = (one for (at, _), one in found.items() if at == where)
        assert lengths.what.startswith(what)
        assert (lengths.paper, lengths.simulated) == (count, count)
    data = found["Table 5", "ResNet-50, Pull_Send: data of an iteration"]
    assert (data.paper, data.simulated) == (0.00471, pytest.approx(157 * 30 / 1e6))
    assert "printed under Pull_Recv" in data.why
    drawn = found["Figs. 15, 16", "LeNet-5: computation of Fig. 15 over the mean that Fig. 16 draws of it"]  # fmt: skip  # noqa: E501
    assert drawn.simulated == pytest.approx(1.51, abs=0.01)
    ratio = found["Section 5.3", "ResNet-50's computation over LeNet-5's"]
    assert (ratio.paper, ratio.simulated) == (143, pytest.approx(676.1 / 4.74))
