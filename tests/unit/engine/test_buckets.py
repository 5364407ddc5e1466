"""Flat buffers: gradients become views, whatever their shape, strides or history."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from syncopate.artifacts.plan import Bucket, Plan
from syncopate.artifacts.workload import fingerprint
from syncopate.engine.buckets import FlatBuffer, Place, Trainable, build_buckets
from syncopate.errors import EngineError
from syncopate.recipe import Recipe
from syncopate.units import dtype_name


def _trainables(*parameters: nn.Parameter) -> list[Trainable]:
    return [Trainable(index, f"p{index}", p) for index, p in enumerate(parameters)]


def gather(flat: FlatBuffer) -> None:
    """Bring every gradient into its place."""
    work = flat.gathering()
    assert work
    for call in work:
        call()
    assert not flat.gathering() or any(t.parameter.grad is None for t in flat.trainables)


def test_views_have_the_parameters_layout_and_tile_the_buffer() -> None:
    parameters = [
        nn.Parameter(torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)),
        nn.Parameter(torch.randn(4, 3).t()),
        nn.Parameter(torch.randn(1, 3).expand(2, 3).contiguous()[:, ::2]),  # not dense
        nn.Parameter(torch.tensor(1.0)),
        nn.Parameter(torch.zeros(0, 3)),
    ]
    flat = FlatBuffer(_trainables(*parameters), trailer_elements=2)
    assert flat.wire.numel() == sum(p.numel() for p in parameters) + 2
    assert flat.nbytes == flat.wire.numel() * 4
    for index, (parameter, view) in enumerate(zip(parameters, flat.views, strict=True)):
        assert view.shape == parameter.shape
        if index in (0, 1):
            assert view.stride() == parameter.stride()
        parameter.grad = torch.full_like(parameter, index + 1.0)
    gather(flat)
    assert flat.wire.tolist() == [1.0] * 120 + [2.0] * 12 + [3.0] * 4 + [4.0] + [0.0] * 2
    assert all(p.grad is grad for p, grad in zip(parameters, flat.grads, strict=True))


def test_gather_copies_the_fresh_and_leaves_the_accumulated() -> None:
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    flat = FlatBuffer(_trainables(*parameters))
    flat.wire.fill_(9.0)
    parameters[0].grad = torch.tensor([1.0, 2.0])
    parameters[1].grad = flat.grads[1]
    gather(flat)
    assert flat.wire.tolist() == [1.0, 2.0, 9.0, 9.0, 0.0, 0.0]
    assert parameters[2].grad is None


@pytest.mark.parametrize("accumulated", [True, False])
def test_a_gradient_that_was_given_other_memory_comes_back_to_its_place(accumulated: bool) -> None:
    parameter = nn.Parameter(torch.ones(2))
    flat = FlatBuffer(_trainables(parameter))
    parameter.grad = flat.grads[0]
    parameter.grad.data = torch.tensor([1.0, 2.0])
    if not accumulated:
        parameter.grad = torch.tensor([3.0, 4.0])
    gather(flat)
    assert flat.wire.tolist() == ([1.0, 2.0] if accumulated else [3.0, 4.0])
    assert parameter.grad is flat.grads[0]
    assert parameter.grad.data_ptr() == flat.wire.data_ptr()


def test_complex_gradients_travel_as_real_numbers() -> None:
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    flat = FlatBuffer(_trainables(parameter), trailer_elements=1)
    parameter.grad = torch.tensor([1 + 2j, 3 - 4j])
    gather(flat)
    assert flat.wire.tolist() == [1.0, 2.0, 3.0, -4.0, 0.0, 0.0]
    assert flat.trailer.numel() == 2


def test_sparse_gradients_are_refused() -> None:
    parameter = nn.Parameter(torch.zeros(3, 2))
    parameter.grad = torch.sparse_coo_tensor([[0]], torch.ones(1, 2), (3, 2))
    with pytest.raises(EngineError, match=r"gradient of 'p0' has layout torch.sparse_coo"):
        gather(FlatBuffer(_trainables(parameter)))


def test_one_buffer_per_dtype_and_the_tail_at_the_end() -> None:
    dtypes = [torch.float32, torch.float64, torch.float32, torch.float16]
    trainables = _trainables(*(nn.Parameter(torch.zeros(2, dtype=dtype)) for dtype in dtypes))
    tensors = [(t.name, 2, dtype_name(t.parameter.dtype)) for t in trainables]
    plan = Plan(
        model="m",
        fingerprint=fingerprint(tensors),
        world_size=1,
        policy="by hand",
        buckets=(
            Bucket(tensors=("p3",), nbytes=4, push=Recipe("all_reduce", "ring")),
            Bucket(tensors=("p2", "p1", "p0"), nbytes=32, push=Recipe("all_reduce", "native")),
        ),
    )
    first, last = build_buckets(plan, trainables, 5, lambda _: Place())
    assert [part.wire.dtype for part in first.parts] == [torch.float16]
    assert first.parts[0].averaged_before
    assert [part.wire.dtype for part in last.parts] == [torch.float32, torch.float64]
    assert [part.trailer.numel() for part in (*first.parts, *last.parts)] == [0, 0, 5]
    assert (last.size, [part.nbytes for part in last.parts]) == (3, [16, 16 + 40])
    assert [part.messages[0].push.algorithm for part in last.parts] == ["native"] * 2


def test_a_bucket_runs_as_the_plan_says() -> None:
    trainables = _trainables(*(nn.Parameter(torch.zeros(1)) for _ in range(3)))
    plan = Plan(
        model="m",
        fingerprint=fingerprint([(t.name, 1, "float32") for t in trainables]),
        world_size=2,
        policy="by hand",
        channels=2,
        order=(1, 0),
        buckets=tuple(
            Bucket(
                tensors=(name,),
                nbytes=4,
                push=Recipe("all_reduce", algorithm, 0, told, channel),
            )
            for name, algorithm, channel, told in (
                ("p2", "ring", 0, {}),
                ("p1", "lp", 1, {"blocks": 2}),
                ("p0", "native", 0, {}),
            )
        ),
    )
    found = build_buckets(plan, trainables, 1, lambda _: Place())
    messages = [one.parts[0].messages[0] for one in found]
    assert [(message.bucket, message.push) for message in messages] == [
        (0, Recipe("all_reduce", "ring", 0, {"order": (1, 0)}, 0)),
        (1, Recipe("all_reduce", "lp", 0, {"order": (1, 0), "blocks": 2}, 1)),
        (2, Recipe("all_reduce", "native", 0, {}, 0)),
    ]
    assert [one.parts[0].nbytes for one in found] == [4, 4, 8]


def test_gradients_lie_apart_and_in_order_as_they_are_told() -> None:
    trainables = _trainables(*(nn.Parameter(torch.zeros(1)) for _ in range(5)))
    names = tuple(trainable.name for trainable in trainables)
    plan = Plan(
        model="m",
        fingerprint=fingerprint([(name, 1, "float32") for name in names]),
        world_size=1,
        policy="by hand",
        buckets=(Bucket(tensors=names, nbytes=20, push=Recipe("all_reduce", "ring")),),
    )
    places = [Place("b", 3), Place("a"), Place("b", 1), Place("a"), Place("b", 1)]
    (bucket,) = build_buckets(plan, trainables, 0, lambda each: places[each.index])
    found = [[each.name for each in part.trainables] for part in bucket.parts]
    assert found == [["p1", "p3"], ["p2", "p4", "p0"]]
    assert bucket.size == 5


def test_the_parts_of_a_tensor_are_messages_of_one_buffer() -> None:
    """Gathered one by one; the last one makes the gradient a view, and takes the trailer along."""
    first = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    table = nn.Parameter(torch.zeros(4, 3).t())
    trainables = _trainables(first, table)
    cuts = {"p0": [(0, 1), (1, 3)], "p1": [(0, 5), (5, 7), (7, 12)]}
    plan = Plan(
        model="m",
        fingerprint=fingerprint([("p0", 3, "complex64"), ("p1", 12, "float32")]),
        world_size=1,
        policy="by hand",
        channels=2,
        buckets=tuple(
            Bucket(
                tensors=(name,),
                nbytes=(8 if name == "p0" else 4) * (stop - start),
                push=Recipe("all_reduce", channel=index % 2),
                elements=(start, stop),
            )
            for name in ("p0", "p1")
            for index, (start, stop) in enumerate(cuts[name])
        ),
    )
    plan.require_fit([("p0", 3, "complex64"), ("p1", 12, "float32")], 1)
    one, other = build_buckets(plan, trainables, 2, lambda _: Place())
    assert [(bucket.index, bucket.size) for bucket in (one, other)] == [(0, 1), (1, 1)]
    assert [message.wire.numel() for message in one.parts[0].messages] == [2, 4]
    (flat,) = other.parts
    messages = flat.messages
    assert [(message.bucket, message.push.channel) for message in messages] == [
        (2, 0),
        (3, 1),
        (4, 0),
    ]
    assert [message.wire.numel() for message in messages] == [5, 2, 7]
    assert [message.gradients.numel() for message in messages] == [5, 2, 5]
    for turned in (False, True):
        values = torch.arange(12.0).view(4, 3).t() + turned
        table.grad = values.contiguous() if turned else values
        calls = flat.gathering()
        assert len(calls) == 3
        for upto, call in zip((12, 12, 12) if turned else (5, 7, 12), calls, strict=True):
            assert table.grad is not flat.grads[0]
            call()
            found = flat.wire[:upto].tolist()
            assert found == [float(value) + turned for value in range(upto)]
        assert table.grad is flat.grads[0]
        assert flat.gathering() == []
        assert flat.wire[12:].tolist() == [0.0, 0.0]
    table.grad = None
    for call in flat.gathering():
        call()
    assert flat.wire.tolist() == [0.0] * 14
    assert table.grad is None
