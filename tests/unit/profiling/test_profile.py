"""profile: order, times, and a model left as it was."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.errors import CalibrationError, InvalidValueError
from syncopate.profiling.profile import profile
from syncopate.profiling.samples import Iteration, slowest, workload
from syncopate.tracing.clocks import clock_for
from syncopate.zoo import Replay, Task, lenet5, replay
from tests.clock import set_clock


@pytest.fixture
def exact_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let time pass in sleeps alone."""
    clock = [0.0]
    set_clock(
        monkeypatch,
        Replay.__module__,
        profile.__module__,
        __name__,
        clock_for.__module__,
        perf_counter=lambda: clock[0],
        sleep=lambda s: clock.__setitem__(0, clock[0] + s),
    )


def replayed(names: str = "abcde", **times: float) -> Workload:
    tensors = tuple(
        GradientTensor(name=f"layer.{n}", numel=10 + i, backward_s=0.004 + 0.002 * i)
        for i, n in enumerate(names)
    )
    return Workload(model="w", tensors=tensors, **{"forward_s": 0.01, "backward_s": 0.06} | times)


class TestWhatIsMeasured:
    @pytest.mark.usefixtures("exact_sleep")
    def test_a_replayed_workload_comes_back(self) -> None:
        given = replayed(update_s=0.005)
        module = replay(given)
        found = profile(module.task(), warmup=1, iterations=3, optimizer=module.optimizer())
        assert [t.name for t in found.tensors] == [t.name for t in given.tensors]
        assert found.fingerprint == given.fingerprint
        assert found.ready_s == pytest.approx(given.ready_s)
        for what in ("forward_s", "backward_s", "update_s"):
            assert getattr(found, what) == pytest.approx(getattr(given, what))

    @pytest.mark.usefixtures("exact_sleep")
    def test_a_replayed_order_of_forward_comes_back(self) -> None:
        tensors = tuple(
            GradientTensor(name=f"{name}.weight", numel=4, backward_s=0.01, forward_s=0.01)
            for name in "abcd"
        )
        given = Workload(
            model="w", tensors=tensors, forward_s=0.05, backward_s=0.04, forward_order=(1, 3, 0, 2)
        )
        module = replay(given)
        assert module.workload == given
        found = profile(module.task(), warmup=0, iterations=2)
        assert [t.name for t in found.tensors] == [t.name for t in tensors]
        assert found.forward_order == given.forward_order
        assert found.ready_s == pytest.approx(given.ready_s)
        assert found.needed_s == pytest.approx(given.needed_s)
        assert found.forward_s == pytest.approx(given.forward_s)

    def test_buffers_that_ride_beside_gradients_are_counted(self) -> None:
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.BatchNorm1d(6))
        model.register_buffer("table", torch.zeros(3_000, 100))
        found = profile(Task(model, torch.ones(2, 4)), warmup=0, iterations=1)
        # Means, variances, and 8 bytes of a counter, each an element; the table is too large.
        assert found.buffers_nbytes == 2 * 4 * (6 + 6 + 8)
        assert (found.metadata["ranks"], found.metadata["ranks_per_host"]) == ("1", "1")

    def test_ready_order_is_not_definition_order(self) -> None:
        class Backwards(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.last = nn.Linear(4, 4)
                self.first = nn.Linear(4, 4)

            def forward(self, x: Tensor) -> Tensor:
                return self.last(self.first(x).relu())

        found = profile(Task(Backwards(), torch.ones(2, 4)), warmup=1, iterations=3)
        names = [t.name.split(".")[0] for t in found.tensors]
        assert names == ["last", "last", "first", "first"]

    def test_forward_order_is_neither_definition_order_nor_the_reverse_of_ready_order(self) -> None:
        class Distilled(nn.Module):
            """The last layer runs without gradients before the others."""

            def __init__(self) -> None:
                super().__init__()
                self.head = nn.Linear(4, 4, bias=False)
                self.second = nn.Linear(4, 4, bias=False)
                self.first = nn.Linear(4, 4, bias=False)

            def forward(self, x: Tensor) -> Tensor:
                with torch.no_grad():
                    target = self.head(x)
                return self.head(self.second(self.first(x))) - target

        found = profile(Task(Distilled(), torch.ones(2, 4)), warmup=0, iterations=2)
        assert [t.name for t in found.tensors] == ["head.weight", "second.weight", "first.weight"]
        assert found.forward_order == (0, 2, 1)
        assert found.needed_s[0] == 0.0 < found.needed_s[2] < found.needed_s[1]

    def test_frozen_unused_and_shared_parameters(self) -> None:
        class Odd(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.used = nn.Linear(4, 4, bias=False)
                self.unused = nn.Linear(4, 3, bias=False)
                self.frozen = nn.Linear(4, 4).requires_grad_(False)
                self.tied = nn.Linear(4, 4, bias=False)
                self.tied.weight = self.used.weight

            def forward(self, x: Tensor) -> Tensor:
                return self.tied(self.frozen(self.used(x)))

        found = profile(Task(Odd(), torch.ones(2, 4)), warmup=0, iterations=2)
        assert [t.name for t in found.tensors] == ["used.weight", "unused.weight"]
        assert found.tensors[1].backward_s == found.tensors[1].forward_s == 0
        assert found.metadata["unused"] == "unused.weight"

    @pytest.mark.usefixtures("exact_sleep")
    def test_forward_time_goes_to_the_module_that_takes_it(self) -> None:
        class Slow(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                time.sleep(0.02)
                return super().forward(x)

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale = nn.Parameter(torch.ones(()))
                self.slow = Slow(4, 4)

            def forward(self, x: Tensor) -> Tensor:
                return self.slow(x) * self.scale

        found = profile(Task(Outer(), torch.ones(2, 4)), warmup=1, iterations=3)
        times = {t.name: t.forward_s for t in found.tensors}
        # 16 weights and 4 biases share the module's time by size.
        assert times == pytest.approx({"slow.weight": 0.016, "slow.bias": 0.004, "scale": 0.0})
        assert found.forward_s == pytest.approx(0.02)

    def test_metadata_and_progress(self) -> None:
        heard: list[tuple[str, float]] = []
        found = profile(
            lenet5(batch_size=8),
            warmup=1,
            iterations=2,
            progress=lambda what, done: heard.append((what, done)),
        )
        assert found.model == "lenet5"
        assert found.metadata["batch"] == "8"
        assert found.metadata["dtype"] == "float32"
        assert found.metadata["clock"] == "time.perf_counter"
        assert {"device", "torch", "threads", "date", "iterations"} <= set(found.metadata)
        assert [done for _, done in heard] == pytest.approx([0, 1 / 3, 2 / 3, 1])
        assert Workload.from_json(found.to_json()) == found


class TestNothingIsChanged:
    def model(self) -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 1))
        model[1].eval()
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 7.0)
        return model

    def snapshot(self, model: nn.Module) -> list[Any]:
        return [
            [t.clone() for t in model.state_dict().values()],
            [None if p.grad is None else p.grad.clone() for p in model.parameters()],
            [m.training for m in model.modules()],
        ]

    def test_after_success(self) -> None:
        model = self.model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        grads = [p.grad for p in model.parameters()]
        before = self.snapshot(model)
        profile(Task(model, torch.randn(8, 4)), warmup=1, iterations=2, optimizer=optimizer)
        after = self.snapshot(model)
        for old, new in zip(before[:2], after[:2], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(old, new, strict=True))
        assert before[2] == after[2]
        assert all(p.grad is g for p, g in zip(model.parameters(), grads, strict=True))
        assert not optimizer.state_dict()["state"]
        assert not model[0]._forward_hooks
        assert not model[0]._forward_pre_hooks

    def test_the_random_state(self) -> None:
        task = Task(self.model(), torch.randn(8, 4))
        state = torch.random.get_rng_state()
        profile(task, warmup=0, iterations=1)
        assert torch.equal(torch.random.get_rng_state(), state)

    def test_after_an_error(self) -> None:
        model = self.model()
        before = self.snapshot(model)

        def loss(output: Tensor) -> Tensor:
            raise RuntimeError("out of ideas")

        with pytest.raises(RuntimeError, match="out of ideas"):
            profile(Task(model, torch.ones(8, 4), loss_fn=loss))
        after = self.snapshot(model)
        assert all(torch.equal(a, b) for a, b in zip(before[0], after[0], strict=True))
        assert before[2] == after[2]
        assert not model[0]._forward_hooks


class TestRefusals:
    def test_nothing_to_train(self) -> None:
        model = nn.Linear(2, 1).requires_grad_(False)
        with pytest.raises(CalibrationError, match="Linear has no trainable parameter"):
            profile(Task(model, torch.ones(1, 2)))

    def test_layers_without_a_shape(self) -> None:
        model = nn.Sequential(nn.LazyLinear(3))
        with pytest.raises(CalibrationError, match=r"'0.weight' of Sequential has no shape yet"):
            profile(Task(model, torch.ones(1, 2)))

    def test_a_loss_without_gradient(self) -> None:
        task = Task(nn.Linear(2, 1), torch.ones(1, 2), loss_fn=lambda output: output.detach().sum())
        with pytest.raises(InvalidValueError, match="loss of Linear"):
            profile(task)

    @pytest.mark.parametrize(
        ("arguments", "word"),
        [
            ({"warmup": -1}, "warmup"),
            ({"iterations": 0}, "iterations"),
            ({"device": "cuda:77"}, "device"),
            ({"device": "abacus"}, "device"),
        ],
    )
    def test_arguments(self, arguments: dict[str, Any], word: str) -> None:
        with pytest.raises(InvalidValueError, match=word):
            profile(Task(nn.Linear(2, 1), torch.ones(1, 2)), **arguments)


def iteration(forward: float, backward: float, update: float, **ready: float) -> Iteration:
    return Iteration(forward, backward, update, ready, dict.fromkeys(ready, forward / 4))


class TestSamples:
    SIZES = {"a": (1, "float32"), "b": (2, "float32"), "c": (3, "float32")}

    def test_medians_and_order(self) -> None:
        runs = [
            iteration(1.0, 3.0, 0.5, a=2.0, b=1.0, c=2.5),
            iteration(1.2, 3.2, 0.5, a=2.1, b=1.1, c=2.4),
            iteration(9.0, 9.0, 9.0, b=8.0, a=7.0, c=8.5),
        ]
        found = workload("m", self.SIZES, runs, {})
        assert [t.name for t in found.tensors] == ["b", "a", "c"]
        assert found.forward_s == 1.2
        assert found.backward_s == 3.2
        assert found.ready_s[-1] == pytest.approx(1.2 + 2.5)

    def test_never_ready_stands_last(self) -> None:
        found = workload("m", self.SIZES, [iteration(1.0, 3.0, 0.5, c=1.0, b=2.0)], {"x": "y"})
        assert [t.name for t in found.tensors] == ["c", "b", "a"]
        assert found.metadata == {"x": "y", "unused": "a"}

    def test_the_slowest_rank_counts_at_every_moment(self) -> None:
        fast_then_slow = iteration(1.0, 5.0, 1.0, a=2.0, b=4.5)
        slow_then_fast = iteration(3.0, 2.0, 1.0, a=0.5, b=1.0)
        found = slowest([fast_then_slow, slow_then_fast])
        assert found.forward_s == 3.0
        assert found.ready_s == {"a": 0.5, "b": 2.5}
        assert found.backward_s == 3.0
        assert found.update_s == 1.0

    def test_one_rank_is_itself(self) -> None:
        one = iteration(1.0, 3.0, 0.5, a=2.0, b=1.0)
        assert slowest([one]) == one
