"""SSD-SGD's search: workers in one process do what Algorithms 1 and 2 do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import glu_stability
import ssd_sgd_runs as runs
import ssd_sgd_search as search
from syncopate.delay import Delay
from syncopate.errors import ArtifactError

CURVATURES = (0.4, 0.9, 1.3, 0.2)
"""Of each worker's quadratic."""


def trained(delay: Delay | None, steps: int) -> Tensor:
    """Global weights after training on one quadratic a worker, from 1."""
    workers = [search.Local(torch.ones(1)) for _ in CURVATURES]
    weights = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.05, momentum=0.9)
    for num in range(steps):
        gradients = [
            c * worker.weights.clone() for c, worker in zip(CURVATURES, workers, strict=True)
        ]
        search.stepped(workers, gradients, optimizer, delay, num)
    return weights.detach()


@pytest.mark.parametrize("period", [None, 1, 2, 5])
def test_workers_do_what_the_page_of_numpy_does(period: int | None) -> None:
    steps, warm_up = 40, 9
    delay = None if period is None else Delay(k=period, warm_up=warm_up, local_update="glu")

    def gradient(worker: int, _: int, weights: np.ndarray) -> np.ndarray:
        return CURVATURES[worker] * weights

    theirs = glu_stability.train(gradient, np.ones(1), 0.05, period, warm_up=warm_up, steps=steps)
    assert theirs is not None
    assert trained(delay, steps).numpy() == pytest.approx(theirs, rel=1e-4)


def test_a_local_rule_is_followed() -> None:
    ways = [
        trained(Delay(k=5, warm_up=9, local_update=rule, loc_lr=rate), 30)
        for rule, rate in (("glu", 0.2), ("sgd", 0.0125), ("dc-asgd-a", 0.05))
    ]
    synchronous = trained(None, 30)
    values = [float(way) for way in (*ways, synchronous)]
    assert len({round(value, 6) for value in values}) == 4


def tiny() -> runs.Workload:
    """Two clouds of points, told apart by one layer."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(64) % 2
    points = torch.randn(64, 3, generator=random) + 2 * labels[:, None]

    def batches(size: int, epoch: int, rank: int, ranks: int):
        for start in range(0, 64, size * ranks):
            part = slice(start + rank * size, start + (rank + 1) * size)
            yield points[part], labels[part]

    def accuracy(model: nn.Module) -> float:
        with torch.no_grad():
            return float((model(points).argmax(1) == labels).double().mean())

    return runs.Workload(
        title="clouds",
        smaller="",
        seeds=1,
        rows=search.SEARCH_ROWS,
        build=lambda: nn.Linear(3, 2),
        loss=nn.functional.cross_entropy,
        batches=batches,
        accuracy=accuracy,
    )


@pytest.fixture
def clouds(monkeypatch: pytest.MonkeyPatch) -> Callable[[], runs.Workload]:
    monkeypatch.setattr(search, "WORKLOADS", {search.NAME: tiny})
    setting = runs.Setting(batch_size=4, epochs=8, iterations=4, lr=0.1, warm_up_scale=50)
    monkeypatch.setattr(search, "setting_of", lambda *_: setting)
    return tiny


def test_a_training_learns_and_keeps_its_curve(clouds: Callable[[], runs.Workload]) -> None:
    setting = search.setting_of(search.NAME, tiny(), 4, False)
    for row in ("ssgd", "glu-5"):
        run = search.train(runs.Place(search.at(1), row, 0), tiny(), setting)
        assert len(run.curve) == 8
        assert run.accuracy == run.curve[-1] > 0.9
        assert run.warm_up == (0 if row == "ssgd" else 14)


def test_what_is_there_is_not_trained_again(
    clouds: Callable[[], runs.Workload], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "search.json"
    assert search.main(["--train", str(path), "--quick"]) == 0
    first = capsys.readouterr()
    assert first.err.count("Place(") == len(search.SEARCH_ROWS)
    assert "no figure counts" in first.out
    study = runs.Study.load(path)
    assert [one.row for one in study.runs] == list(search.SEARCH_ROWS)
    assert study.settings[search.at(4)].lr == pytest.approx(0.1 / 4)
    assert search.main(["--train", str(path), "--quick", "--json"]) == 0
    again = capsys.readouterr()
    assert again.err == ""
    assert set(json.loads(again.out)) == set(search.SEARCH_ROWS)


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        search.main(["--seeds", "0"])
    assert search.main(["--results", str(tmp_path / "none.json")]) == ArtifactError.exit_code
    assert "none.json" in capsys.readouterr().err
