"""The study of late pulls: each of many trainings does what Algorithms 1 and 2 do."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from benchmarks.contest.diloco import DiLoCo
from torch import Tensor, nn
from torch.nn import functional

import late_pulls
import late_pulls_runs as study
from late_pulls_tasks import TASKS, Task
from syncopate.delay import LocalSGD
from syncopate.errors import ArtifactError
from tests.multiprocess.delay.cases import Reference
from tests.multiprocess.delay.local_sgd_cases import Outer, Workers

STEPS, SEED, SAMPLES = 30, 3, 2


def clouds() -> Task:
    """Two clouds of points, told apart by their coordinates and squares of these."""

    def batch(random: torch.Generator, samples: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(2, (samples,), generator=random)
        points = torch.randn(samples, 3, generator=random, dtype=torch.float64)
        return points + labels[:, None], labels

    class Exact(Task):
        def start(self, seed: int) -> Tensor:
            return super().start(seed).double()

    return Exact(
        title="clouds",
        what="",
        rates=(0.05, 0.2, 1e9),
        shapes=((3, 2), (3, 2)),
        logits=lambda parameters, inputs: inputs @ parameters[0] + inputs.square() @ parameters[1],
        batch=batch,
        tested=batch(torch.Generator().manual_seed(0), 64),
    )


class Squares(nn.Module):
    """What tells them apart, with its weights as the study lays them out."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Parameter(part.unflatten(0, (3, 2)).clone()) for part in weights.chunk(2)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.first + inputs.square() @ self.second


def by_the_reference(
    task: Task, row: study.Row, rate: float, conditions: study.Conditions
) -> Tensor:
    """Train one row by what the engine's ranks, or torchft's, are tested against."""
    workers, schedule, steps, seed = conditions
    random = torch.Generator().manual_seed(seed)
    batches = [task.batch(random, workers * study.BATCH) for _ in range(steps)]

    def loss(model: nn.Module, rank: int, num: int) -> Tensor:
        inputs, targets = (part.chunk(workers)[rank] for part in batches[num])
        return functional.cross_entropy(model(inputs), targets)

    def made(model: nn.Module) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(model.parameters(), lr=rate, momentum=study.MOMENTUM)]

    model: nn.Module = Squares(task.start(seed))
    reference: Reference | Workers
    if row.contender in study.CONTENDERS:
        optimizers = made(model)
        reference = Reference(model, optimizers, row.delay(steps), workers, loss)
        weights = reference.weights
    else:
        method = study.AVERAGED[row.contender]
        if method.outer_momentum:
            how = DiLoCo(method.period, steps // 5, None, *method[3:])
            reference = Outer(model, made, how, workers, loss)
            weights = reference.whole.parameters
        else:
            local = LocalSGD(period=method.period, warm_up=steps // 5)
            reference = Workers(model, made, local, workers, loss)
            weights = reference.means
        optimizers = [one for several in reference.optimizers for one in several]
    for num in range(steps):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate * study.SCHEDULES[schedule](num / steps)
        reference.iterate()
    return torch.cat([each.detach().flatten() for each in weights()])


@pytest.mark.parametrize("schedule", study.SCHEDULES)
def test_each_row_is_trained_as_its_reference_trains(schedule: str) -> None:
    task, conditions = clouds(), study.Conditions(3, schedule, 40, SEED)
    rows = study.ROWS[1:]
    rates = [0.05 + 0.01 * place for place in range(len(rows))]
    found = study.train(task, rows, rates, conditions)
    for row, rate, weights in zip(rows, rates, found, strict=True):
        theirs = by_the_reference(task, row, rate, conditions)
        torch.testing.assert_close(weights, theirs, rtol=1e-10, atol=1e-12)
    assert len({tuple(weights.tolist()) for weights in found}) == len(rows)


def test_without_a_delay_it_is_momentum_sgd() -> None:
    task, conditions = clouds(), study.Conditions(2, "cosine", STEPS, SEED)
    (found,) = study.train(task, [study.SYNCHRONOUS], [0.1], conditions)
    weights = task.start(SEED).requires_grad_()
    optimizer = torch.optim.SGD([weights], lr=0.1, momentum=study.MOMENTUM)
    random = torch.Generator().manual_seed(SEED)
    for num in range(STEPS):
        optimizer.param_groups[0]["lr"] = 0.1 * study.SCHEDULES["cosine"](num / STEPS)
        inputs, targets = task.batch(random, 2 * study.BATCH)
        weights.grad = task.gradient(weights.detach()[None], inputs[None], targets[None])[0]
        optimizer.step()
    torch.testing.assert_close(found, weights.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", TASKS)
def test_models_that_are_computed_at_once_are_those_computed_alone(name: str) -> None:
    task = TASKS[name]()
    weights = torch.stack([task.start(seed) for seed in range(3)])
    assert weights.shape == (3, task.size)
    random = torch.Generator().manual_seed(0)
    inputs, targets = (part.unflatten(0, (3, SAMPLES)) for part in task.batch(random, 3 * SAMPLES))
    together = task.gradient(weights, inputs, targets)
    for place in range(3):
        alone = slice(place, place + 1)
        found = task.gradient(weights[alone], inputs[alone], targets[alone])
        torch.testing.assert_close(together[alone], found)
    weights[1, 0] = float("nan")
    first, broken, _ = task.accuracies(weights)
    assert broken == 0.0 < first < 1.0


def test_the_best_rate_of_the_search_counts() -> None:
    cells = study.compared(("clouds", 2, "constant"), clouds(), 40)
    assert [(cell.contender, cell.k) for cell in cells] == list(study.ROWS)
    for cell in cells:
        assert {*clouds().rates} <= {*cell.rates}
        assert cell.rate == cell.rates[cell.searched.index(max(cell.searched))]
        assert len(cell.accuracies) == len(study.COUNTED)
    assert cells[0].rate < 1e9
    assert min(cells[0].accuracies) > 0.6


def test_the_search_goes_on_where_the_best_is_at_the_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracy falls with the distance to 0.4 at first, and to 0.003 at second."""
    first, second = study.ROWS[:2]
    task, asked = clouds(), []

    def train(_: Task, rows: list[study.Row], rates: list[float], __: study.Conditions) -> Tensor:
        asked.append(dict(zip(rows, rates, strict=True)))
        best = [0.4 if row == first else 0.003 for row in rows]
        return torch.tensor([-abs(math.log(a / b)) for a, b in zip(rates, best, strict=True)])

    class Told(Task):
        def accuracies(self, weights: Tensor) -> list[float]:
            return weights.tolist()

    monkeypatch.setattr(study, "train", train)
    told = Told(**vars(task))
    found = {row: {0.1: -abs(math.log(0.1 / at)), 0.05: -abs(math.log(0.05 / at))}
             for row, at in ((first, 0.4), (second, 0.003))}  # fmt: skip
    study.search(told, found, study.Conditions(2, "constant", 40, 0))
    assert study.best_of(found[first]) == 0.4
    assert sorted(found[first]) == [0.05, 0.1, 0.2, 0.4, 0.8]
    assert study.best_of(found[second]) == 0.05 / 16
    assert asked[0] == {first: 0.2, second: 0.025}
    assert len(asked) == 5


def cell(row: study.Row, workers: int, *accuracies: float) -> study.Cell:
    return study.Cell(
        task="digits",
        workers=workers,
        schedule="step",
        contender=row.contender,
        k=row.k,
        rates=(0.1,),
        searched=(),
        rate=0.1,
        accuracies=accuracies,
    )


def test_a_row_is_compared_with_another_of_the_same_seed() -> None:
    glu, other = study.Row("GLU", 4), study.Row("GLU, alpha 1, beta 1.5", 4)
    found = study.LatePulls(
        steps=1,
        quick=False,
        cells=(
            cell(study.SYNCHRONOUS, 2, 0.9, 0.5),
            cell(glu, 2, 0.8, 0.5),
            cell(other, 2, 0.9, 0.6),
            cell(study.SYNCHRONOUS, 4, 0.7, 0.7),
            cell(glu, 4, 0.7, 0.4),
            cell(other, 4, 0.6, 0.5),
        ),
    )
    above = late_pulls.above(found, glu)
    assert above is not None
    assert (above.mean, above.count) == (pytest.approx(-10), 4)
    assert above.error == pytest.approx(7.0710678)
    least = late_pulls.above(found, other, "GLU", workers=2)
    assert least is not None
    assert str(least) == "+10.0 ± 0.0"
    assert late_pulls.above(found, glu, task="text") is None


def test_what_is_there_is_not_trained_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_pulls, "QUICK_STEPS", 20)
    path = tmp_path / "study.json"
    words = ["--train", str(path), "--quick", "--task", "generated"]
    assert late_pulls.main(words) == 0
    first = capsys.readouterr()
    assert first.err.count("generated, 2 workers") == len(study.SCHEDULES)
    assert "no figure counts" in first.out
    held = path.read_bytes()
    assert late_pulls.main([*words, "--json"]) == 0
    again = capsys.readouterr()
    assert again.err == ""
    assert path.read_bytes() == held
    found = json.loads(again.out)
    assert set(found) == {"above SSGD", "above GLU"}
    assert "generated, cosine, 2 workers, k = 4, SGD" in found["above SSGD"]


def test_the_page_has_the_study_s_table() -> None:
    held = study.LatePulls.load(late_pulls.STUDIED)
    assert not held.quick
    assert held.steps == study.STEPS
    page = Path(__file__).parents[3] / "docs" / "ssd_sgd.md"
    assert late_pulls.on_the_page(held) in page.read_text()


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert late_pulls.main(["--results", str(tmp_path / "none.json")]) == ArtifactError.exit_code
    assert "none.json" in capsys.readouterr().err
