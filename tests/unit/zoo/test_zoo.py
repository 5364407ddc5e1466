"""Tasks, models and data of the zoo."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from syncopate.errors import InvalidValueError, SyncopateError
from syncopate.zoo import ResNet50, Task, digits, lenet5, resnet20, resnet50
from syncopate.zoo.task import usual_loss


def parameters(model: nn.Module) -> tuple[int, int]:
    tensors = list(model.parameters())
    return len(tensors), sum(t.numel() for t in tensors)


class TestModels:
    @pytest.mark.parametrize(
        ("build", "expected"), [(lenet5, (10, 61_706)), (resnet20, (59, 269_434))]
    )
    def test_shapes(self, build, expected) -> None:
        task = build(batch_size=4)
        assert parameters(task.model) == expected
        loss = task.loss()
        loss.backward()
        assert loss.shape == ()
        assert all(p.grad is not None for p in task.model.parameters())

    def test_resnet50_has_the_shape_everyone_expects(self) -> None:
        with torch.device("meta"):
            model = ResNet50()
            output = model(torch.empty(2, 3, 224, 224))
        assert parameters(model) == (161, 25_557_032)
        assert output.shape == (2, 1000)

    def test_resnet50_trains(self) -> None:
        task = resnet50(batch_size=2, image_size=32).to("meta")
        task.loss().backward()
        assert all(p.grad is not None for p in task.model.parameters())

    @pytest.mark.parametrize("build", [lenet5, resnet20])
    def test_seeds(self, build) -> None:
        before = torch.random.get_rng_state()
        one, same, other = build(batch_size=2), build(batch_size=2), build(batch_size=2, seed=1)
        assert torch.equal(torch.random.get_rng_state(), before)
        assert torch.equal(one.inputs, same.inputs)
        assert torch.equal(one.loss(), same.loss())
        assert not torch.equal(one.inputs, other.inputs)


class TestTask:
    def test_ways_to_call_a_model(self) -> None:
        class Sum(nn.Module):
            def forward(self, a: Tensor, b: Tensor) -> Tensor:
                return a + b

        a, b = torch.ones(3), torch.ones(3)
        for inputs in ((a, b), {"a": a, "b": b}):
            assert Task(Sum(), inputs).loss() == 2

    def test_losses(self) -> None:
        class Wrap(nn.Module):
            def forward(self, x: Tensor) -> SimpleNamespace:
                return SimpleNamespace(loss=x.sum())

        x = torch.ones(4)
        assert Task(Wrap(), x).loss() == 4
        assert Task(nn.Identity(), x, loss_fn=torch.sum).loss() == 4
        assert Task(nn.Identity(), ({"loss": x.sum(), "logits": x},)).loss() == 4
        assert Task(nn.Identity(), x, torch.zeros(4), functional.mse_loss).loss() == 1

    def test_the_usual_loss_of_targets(self) -> None:
        assert usual_loss(torch.ones(4), torch.zeros(4)) == 1
        classes = torch.tensor([0, 2])
        scores = torch.randn(2, 3)
        expected = functional.cross_entropy(scores, classes)
        assert usual_loss(scores, classes) == expected
        # The classes of a picture stand along dimension 1, those of a text along the last.
        grid, text = scores[:, :, None].expand(2, 3, 5), scores[:, None, :].expand(2, 5, 3)
        many = classes[:, None].expand(2, 5)
        assert usual_loss(grid, many) == pytest.approx(float(expected))
        assert usual_loss(text, many) == pytest.approx(float(expected))
        assert usual_loss({"loss": scores.sum()}, classes) == scores.sum()
        with pytest.raises(InvalidValueError, match="targets is 'list'; it must be a tensor"):
            usual_loss(scores, [0, 2])

    def test_refusals(self) -> None:
        with pytest.raises(InvalidValueError, match="loss of Identity"):
            Task(nn.Identity(), {"input": {"logits": torch.ones(1)}}).loss()
        with pytest.raises(InvalidValueError, match="loss of Identity"):
            Task(nn.Identity(), torch.ones(4), loss_fn=lambda x: x).loss()
        with pytest.raises(InvalidValueError, match="loss of Identity"):
            Task(nn.Identity(), "text").loss()
        with pytest.raises(InvalidValueError, match=r"torch\.nn\.Module"):
            Task("model", torch.ones(4))

    def test_to_moves_everything(self) -> None:
        task = Task(nn.Linear(2, 1), {"input": torch.ones(3, 2)}, [torch.ones(1)]).to("meta")
        assert task.inputs["input"].is_meta
        assert task.targets[0].is_meta
        assert all(p.is_meta for p in task.model.parameters())


class TestDigits:
    def test_split_is_fixed_and_stratified(self) -> None:
        data = digits()
        assert data.train_inputs.shape == (1437, 1, 8, 8)
        assert data.test_inputs.shape == (360, 1, 8, 8)
        assert data.train_inputs.mean().abs() < 1e-5
        assert data.train_inputs.std() == pytest.approx(1.0, abs=1e-3)
        counts = torch.bincount(data.test_targets)
        assert counts.min() >= 34
        assert torch.equal(data.test_inputs, digits().test_inputs)

    def test_ranks_share_an_epoch(self) -> None:
        data = digits()
        whole = list(data.batches(32, epoch=3))
        halves = [list(data.batches(16, epoch=3, rank=r, world_size=2)) for r in range(2)]
        assert len(whole) == len(halves[0]) == len(halves[1]) == 1437 // 32
        for (inputs, targets), first, second in zip(whole, *halves, strict=True):
            assert torch.equal(inputs, torch.cat([first[0], second[0]]))
            assert torch.equal(targets, torch.cat([first[1], second[1]]))
        assert not torch.equal(whole[0][1], next(data.batches(32, epoch=4))[1])

    def test_bad_arguments(self) -> None:
        with pytest.raises(InvalidValueError, match="batch_size"):
            next(digits().batches(0))
        with pytest.raises(InvalidValueError, match="rank"):
            next(digits().batches(8, rank=2, world_size=2))

    def test_scikit_learn_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
        told = r"needs scikit-learn, which is not installed: .* -m pip install 'scikit-learn>=1.4'"
        with pytest.raises(SyncopateError, match=told):
            digits()

    def test_scikit_learn_broken(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "sklearn").mkdir()
        (tmp_path / "sklearn" / "__init__.py").write_text("raise ImportError('no libgomp')")
        for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(
            SyncopateError, match=r"cannot be imported: no libgomp; to .* pip install"
        ):
            digits()

    def test_resnet20_learns_them(self) -> None:
        data, model = digits(), resnet20().model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
        for epoch in range(3):
            for inputs, targets in data.batches(16, epoch=epoch):
                optimizer.zero_grad()
                functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
        assert data.test_accuracy(model) > 0.95
        assert model.training
