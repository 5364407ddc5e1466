"""Replay: names, order, gradients and time of a workload."""

from __future__ import annotations

import time

import pytest
import torch

from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.errors import InvalidValueError
from syncopate.zoo import Replay, replay
from syncopate.zoo import replay as replay_function
from syncopate.zoo.replay import _Sleeper
from tests.clock import set_clock


class Clock:
    """Time that passes in sleeps alone, each of which overshoots as real ones do."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.overshoot_s = 3e-4

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    def sleep(self, seconds: float) -> None:
        self.pass_time(seconds + self.overshoot_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    set_clock(monkeypatch, Replay.__module__, perf_counter=lambda: fake.now_s, sleep=fake.sleep)
    return fake


def workload(*names: str, dtype: str = "float32", part_s: float = 0.0, **times: float) -> Workload:
    tensors = tuple(
        GradientTensor(name=name, numel=3 * i, dtype=dtype, backward_s=part_s, forward_s=part_s)
        for i, name in enumerate(names)
    )
    defaults = {"forward_s": part_s * len(names), "backward_s": part_s * len(names)}
    return Workload(model="w", tensors=tensors, **defaults | times)


def ready_order(module: Replay) -> list[str]:
    order: list[str] = []
    for name, parameter in module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    module().backward()
    return order


class TestNames:
    def test_dotted_names_are_kept(self) -> None:
        given = workload("fc.weight", "layer1.0.conv.weight", "layer1.0.weight", "scale")
        module = replay(given)
        assert module.workload == given
        assert set(dict(module.named_parameters())) == {t.name for t in given.tensors}
        assert ready_order(module) == [t.name for t in given.tensors]

    def test_impossible_names_are_altered(self) -> None:
        given = workload("a.b", "a", "forward", "x..y", "train.z", "a.b.c")
        module = Replay(given)
        names = [t.name for t in module.workload.tensors]
        assert len(set(names)) == len(names)
        assert set(dict(module.named_parameters())) == set(names)
        assert ready_order(module) == names
        assert [t.numel for t in module.workload.tensors] == [t.numel for t in given.tensors]


class TestGradients:
    @pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
    def test_size_dtype_and_value(self, dtype: str) -> None:
        module = replay(workload("a", "b.c", dtype=dtype))
        (module() * 3).backward()
        for tensor in module.workload.tensors:
            parameter = module.get_parameter(tensor.name)
            assert parameter.grad is not None
            assert parameter.grad.shape == (tensor.numel,)
            assert parameter.grad.dtype == getattr(torch, dtype)
            assert (parameter.grad == 3).all()

    def test_they_accumulate(self) -> None:
        module = replay(workload("a", "b"))
        module(torch.ones(5)).backward()
        module(torch.ones(5)).backward()
        assert (module.get_parameter("b").grad == 2).all()

    def test_integers_are_refused(self) -> None:
        with pytest.raises(InvalidValueError, match="int8"):
            replay(workload("a", dtype="int8"))

    def test_the_optimizer_changes_nothing(self) -> None:
        module = replay(workload("a", "b", update_s=0.01))
        optimizer = module.optimizer()
        module().backward()
        start_s = time.perf_counter()
        optimizer.step()
        assert time.perf_counter() - start_s > 0.009
        assert all((p == 0).all() for p in module.parameters())
        assert optimizer.step(module) == 0


class TestTime:
    def test_totals_are_taken(self, clock: Clock) -> None:
        names = [f"layer{i}.weight" for i in range(50)]
        given = workload(*names, part_s=2e-4, forward_s=0.03, backward_s=0.04)
        module = replay_function(given)
        for _ in range(5):
            module().backward()
        # Uncompensated, some 500 sleeps would overshoot by 150 ms.
        assert clock.now_s == pytest.approx(5 * 0.07, abs=2 * clock.overshoot_s)

    def test_time_in_hooks_is_not_absorbed(self, clock: Clock) -> None:
        names = [f"layer{i}.weight" for i in range(10)]
        module = replay(workload(*names, part_s=2e-3))
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: clock.pass_time(5e-3))
        loss = module()
        start_s = clock.now_s
        loss.backward()
        expected_s = 10 * (2e-3 + 5e-3)
        assert clock.now_s - start_s == pytest.approx(expected_s, abs=2 * clock.overshoot_s)

    def test_the_real_clock(self) -> None:
        module = replay(workload(*(f"layer{i}.weight" for i in range(50)), part_s=2e-4))
        start_s = time.perf_counter()
        module().backward()
        # Only the lower bound: a loaded machine makes everything longer.
        assert time.perf_counter() - start_s > 0.019

    def test_parts_larger_than_the_whole_are_scaled(self, clock: Clock) -> None:
        module = replay(workload("a", "b", part_s=0.5, forward_s=0.002, backward_s=1.0))
        module()
        assert clock.now_s == pytest.approx(0.002, abs=2 * clock.overshoot_s)

    def test_debts_are_paid_back(self, clock: Clock) -> None:
        sleeper = _Sleeper()
        for _ in range(10):
            sleeper.spend(1e-3, clock.now_s)
        assert clock.now_s == pytest.approx(10e-3 + clock.overshoot_s)
        clock.pass_time(7.0)
        sleeper.spend(1e-3, clock.now_s)
        assert clock.now_s == pytest.approx(7 + 11e-3 + clock.overshoot_s)

    def test_a_stall_is_forgiven(self, clock: Clock) -> None:
        clock.overshoot_s = 30.0
        sleeper = _Sleeper()
        sleeper.spend(1e-3, clock.now_s)
        assert sleeper.debt_s == pytest.approx(0.05)


class TestModules:
    def test_forward_calls_modules_as_the_model_would(self) -> None:
        """Each module of its own, in the reverse of ready order, its tensors inside its call."""
        given = workload("fc.bias", "fc.weight", "layer.0.conv.weight", "scale", part_s=1e-4)
        module = replay(given)
        events: list[str] = []
        for name, child in module.named_modules():
            child.register_forward_pre_hook(lambda *_, name=name: events.append(f"> {name}"))
            child.register_forward_hook(lambda *_, name=name: events.append(f"< {name}"))
        taken = module._take_forward
        module._take_forward = lambda index: (events.append(str(index)), taken(index))[1]
        module().backward()
        assert events == [
            *("> ", "3", "> layer.0.conv", "2", "< layer.0.conv", "> fc", "1", "0", "< fc"),
            *("4", "< "),
        ]
        assert ready_order(module) == [t.name for t in given.tensors]

    def test_a_layer_looks_at_its_weights_before_it_takes_its_time(self) -> None:
        """What waits for weights notices functions of torch: ``exchange/proxies/weights.py``."""
        module = replay(workload("b.weight", "a.weight", part_s=1e-4))
        events: list[str] = []

        class Watched(torch.nn.Parameter):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                if func is torch.Tensor.detach:
                    events.append(names[id(args[0])])
                return super().__torch_function__(func, types, args, kwargs or {})

        names = {id(parameter): name for name, parameter in module.named_parameters()}
        for parameter in module.parameters():
            parameter.__class__ = Watched
        taken = module._take_forward
        module._take_forward = lambda index: (events.append(str(index)), taken(index))[1]
        module()
        assert events == ["a.weight", "1", "b.weight", "0", "2"]
