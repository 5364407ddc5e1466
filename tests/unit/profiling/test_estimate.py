"""estimate: operations as counted by hand, order and sizes as measured, times by the roofline."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from syncopate.errors import CalibrationError, InvalidValueError, UnknownNameError
from syncopate.profiling.devices import DEVICES, Device, device_named, parse_peak
from syncopate.profiling.estimate import Estimated, estimate, estimated, on_meta
from syncopate.profiling.profile import profile
from syncopate.profiling.roofline import KERNEL_S, Roofline, RooflineClock
from syncopate.zoo import Task, alexnet, char_gpt, googlenet, lenet5, resnet20

B, N, HEADS, WIDTH = 3, 5, 2, 4
"""Batch, positions, heads and width of a head."""

ROUND = Device("round", {"float32": 1e12, "bfloat16": 4e12}, 1e10, "made up")


def at(efficiency: float = 1.0, compute: str = "", kernel_s: float = 0.0) -> Roofline:
    return Roofline(ROUND, efficiency, compute, kernel_s)


def on_round(task: Task) -> Estimated:
    return estimated(on_meta(task), at())


class Attention(nn.Module):
    def __init__(self, groups: int = HEADS, mask: bool = False) -> None:
        super().__init__()
        self.q = nn.Linear(HEADS * WIDTH, HEADS * WIDTH, bias=False)
        self.kv = nn.Linear(HEADS * WIDTH, groups * WIDTH, bias=False)
        self.groups, self.mask = groups, mask

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).view(B, N, HEADS, WIDTH).transpose(1, 2)
        kv = self.kv(x).view(B, N, self.groups, WIDTH).transpose(1, 2)
        mask = torch.ones(N, N).tril() > 0 if self.mask else None
        out = functional.scaled_dot_product_attention(
            q, kv, kv, mask, is_causal=not self.mask, enable_gqa=self.groups < HEADS
        )
        return out.transpose(1, 2).reshape(B, N, HEADS * WIDTH)


class TestOperations:
    def test_of_a_linear_layer(self) -> None:
        model = nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 2))
        found = on_round(Task(model, torch.ones(B, 7)))
        first, last = 2 * B * 7 * 5, 2 * B * 5 * 2
        # The gradient of the first layer's input is not needed.
        assert (found.forward, found.backward) == (first + last, 2 * last + first)
        of_layer: dict[str, list[float]] = {}
        for layer in found.layers:
            both = of_layer.setdefault(layer.name.partition(".")[0], [0.0, 0.0])
            both[0] += layer.forward
            both[1] += layer.backward
        assert of_layer == {
            "2": pytest.approx([last, 2 * last]),
            "0": pytest.approx([first, first]),
        }

    @pytest.mark.parametrize("groups", [1, 2])
    def test_of_a_convolution(self, groups: int) -> None:
        model = nn.Sequential(
            nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=groups),
            nn.ConvTranspose2d(6, 8, 3, groups=groups),
        )
        found = on_round(Task(model, torch.ones(B, 4, 8, 8)))
        first = 2 * B * (4 * 4) * 6 * (4 // groups) * 3 * 3
        second = 2 * B * (4 * 4) * 6 * (8 // groups) * 3 * 3
        assert (found.forward, found.backward) == (first + second, 2 * second + first)

    @pytest.mark.parametrize(
        "model", [Attention(), Attention(groups=1), Attention(mask=True)], ids=str
    )
    def test_of_attention(self, model: Attention) -> None:
        found = on_round(Task(model, torch.ones(B, N, HEADS * WIDTH)))
        linear = 2 * B * N * HEADS * WIDTH * (HEADS + model.groups) * WIDTH
        product = 2 * B * HEADS * N * N * WIDTH
        # Scores and their product with values; backward makes the scores again.
        assert found.forward == linear + 2 * product
        assert found.backward == linear + 5 * product

    def test_attention_keeps_the_table_of_pairs_on_the_chip(self) -> None:
        shape, nbytes = (1, 1, 1024, 8), 4 * 1024 * 8
        query = torch.empty(shape, device="meta")
        with RooflineClock(at()) as clock:
            functional.scaled_dot_product_attention(query, query, query)
        assert clock.stamp().nbytes < 5 * nbytes

    def test_reads_what_is_repeated_once_and_views_not_at_all(self) -> None:
        row = torch.empty(1, 100, device="meta")
        with RooflineClock(at()) as clock:
            wide = row.expand(50, 100).transpose(0, 1)
            assert clock.stamp().nbytes == 0
            _ = wide + wide
        assert clock.stamp().nbytes == 4 * (100 + 50 * 100)


class TestTimes:
    def test_are_the_longer_of_operations_and_bytes(self) -> None:
        roofline = at(0.5)
        assert roofline.seconds(2e9, 10, "float32") == pytest.approx(4e-3)
        assert roofline.seconds(2e9, 10, "bfloat16") == pytest.approx(1e-3)
        assert roofline.seconds(10, 2e7, "float32") == pytest.approx(4e-3)
        assert at(0.5, "bfloat16").seconds(2e9, 10, "float32") == pytest.approx(1e-3)

    def test_of_no_operation_are_shorter_than_a_kernel(self) -> None:
        assert Roofline(ROUND, 1.0).seconds(1, 1, "float32") == KERNEL_S

    def test_of_a_layer_are_those_of_its_operations(self) -> None:
        model = nn.Linear(1000, 1000, bias=False)
        task = Task(model, torch.ones(1000, 1000), loss_fn=torch.sum)
        found = estimate(task, ROUND, efficiency=1.0)
        product_s = 2 * 1000**3 / 1e12
        sum_s = 4 * (1000**2 + 1) / 1e10
        assert found.forward_s == pytest.approx(product_s + sum_s)
        assert found.tensors[0].forward_s == pytest.approx(product_s)
        # The sum's gradient is a 1 that is repeated without a copy.
        assert found.backward_s == pytest.approx(product_s, rel=0.01)
        assert found.update_s == pytest.approx(3 * 4e6 / 1e10)

    def test_follow_the_batch(self) -> None:
        small, large = (estimate(alexnet, ROUND, batch=size) for size in (64, 128))
        assert large.forward_s == pytest.approx(2 * small.forward_s, rel=0.05)
        assert (small.metadata["batch"], large.metadata["batch"]) == ("64", "128")
        assert large.nbytes == small.nbytes

    def test_are_said_to_be_an_assumption(self) -> None:
        said = estimate(lenet5, "a100", compute="tf32").metadata["times"]
        assert said.startswith("an assumption: the roofline of NVIDIA A100 80GB SXM (156 TFLOP/s")
        assert "65% of both reached" in said
        assert "nothing was run" in said


@pytest.mark.parametrize("build", [lenet5, resnet20, googlenet, char_gpt])
def test_order_and_sizes_are_those_that_a_measurement_finds(build) -> None:  # type: ignore[no-untyped-def]
    measured = profile(build(2), warmup=0, iterations=1)
    found = estimate(build, "v100", batch=2)
    assert [t.name for t in found.tensors] == [t.name for t in measured.tensors]
    assert found.fingerprint == measured.fingerprint
    assert found.forward_order == measured.forward_order
    assert found.buffers_nbytes == measured.buffers_nbytes


def test_a_model_without_end_needs_no_memory() -> None:
    def large() -> Task:
        layers = [nn.Linear(1 << 16, 1 << 16, bias=False) for _ in range(16)]
        return Task(nn.Sequential(*layers), torch.ones(8, 1 << 16))

    found = estimate(large, "h100")
    assert found.nbytes == 16 * 4 << 32
    assert found.metadata["flops"] == f"forward {16 * 2 * 8 * 2**32:.4g}, backward " + (
        f"{31 * 2 * 8 * 2**32:.4g}"
    )


def test_a_task_stays_as_it_was() -> None:
    task = lenet5()
    task.model.eval()
    before = {name: p.detach().clone() for name, p in task.model.named_parameters()}
    assert estimate(task, "v100").tensors == estimate(lenet5, "v100").tensors
    assert not task.model.training
    for name, parameter in task.model.named_parameters():
        assert parameter.device.type == "cpu"
        assert parameter.grad is None
        assert torch.equal(parameter, before[name])


class Reads(nn.Linear):
    """Looks at the values of its weights."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.weight.sum().item()


def test_a_builder_that_reads_values_is_called_where_there_are_some() -> None:
    def builder() -> tuple[nn.Module, Tensor]:
        widths = [int(w) for w in torch.linspace(4, 2, 2).tolist()]
        return nn.Linear(*widths), torch.ones(2, 4)

    assert estimate(builder, "v100").tensors[0].numel in (2, 8)


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        (lambda: estimate(lenet5, "a1"), UnknownNameError, "unknown device 'a1'; known: h200"),
        (lambda: estimate(lenet5, "k80", compute="float1"), UnknownNameError, "known: tf32"),
        (lambda: estimate(lenet5, "k80", efficiency=0), InvalidValueError, "in (0, 1]"),
        (lambda: estimate(lenet5, "k80", batch=0), InvalidValueError, "batch is 0"),
        (
            lambda: estimate(Task(nn.Linear(2, 2), 3), "k80", batch=4),
            InvalidValueError,
            "have no tensor with a batch",
        ),
        (
            lambda: estimate(Task(Reads(2, 2), torch.ones(1, 2)), "k80"),
            CalibrationError,
            "Reads cannot be estimated: RuntimeError",
        ),
        (
            lambda: Device("d", {"float32": 0.0}, 1e9, "s"),
            InvalidValueError,
            "peak of float32 of d is 0.0",
        ),
        (lambda: parse_peak("--device-peak", "fast"), InvalidValueError, "such as 312T"),
    ],
)
def test_refusals(wrong, error, said) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error) as raised:
        wrong()
    assert said in str(raised.value)


def test_peaks_are_read_as_makers_write_them() -> None:
    texts = ("312T", "312 TFLOPS", "0.312P", "3.12e14", "312TFLOP/s")
    assert {parse_peak("peak", text) for text in texts} == {3.12e14}
    assert parse_peak("bandwidth", "616GB/s") == 616e9


def test_names_of_devices_may_be_written_as_people_do() -> None:
    assert device_named("RTX 2080 Ti") is DEVICES["rtx2080ti"]
    assert device_named("A100-40GB") is DEVICES["a100-40gb"]
    # bfloat16 on a device without it is computed in float32.
    assert DEVICES["v100"].peak("bfloat16") == DEVICES["v100"].peak("float32")
