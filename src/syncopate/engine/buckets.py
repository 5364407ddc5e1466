"""Buckets: the flat buffers that gradients travel in, and the gradients as views of them.

A bucket has one flat buffer per dtype. A gradient that autograd has just made is copied into its
place there when the bucket is launched, and from then on ``parameter.grad`` *is* that place: the
average arrives where the optimizer reads it, and nothing is copied back. A gradient that
accumulates, because nobody set it to None, accumulates in place and is not even copied in.

[Note: Views are installed at launch, not before backward]
Installing zeroed views before backward would save the copy, but autograd would then read, add and
write instead of handing its fresh gradient over, the buffer would have to be zeroed, and a
parameter that the loss never reaches would show a zero gradient where it must show None: an
optimizer with weight decay or momentum would move it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from syncopate.errors import EngineError
from syncopate.plan import Bucket, Plan, wire_dtype_of


@dataclass(frozen=True)
class Trainable:
    """A parameter whose gradient is exchanged.

    Attributes:
        index: its place in ``model.named_parameters()``, frozen ones not counted.
        name: its name there; a shared parameter has its first name.
        parameter: the parameter.
    """

    index: int
    name: str
    parameter: nn.Parameter


class Place(NamedTuple):
    """Where in its bucket a gradient lies.

    Attributes:
        apart: gradients that differ in it do not share a flat buffer.
        order: those of one flat buffer lie in ascending order of it, equals as in the plan.
    """

    apart: Hashable = ()
    order: int = 0


def _anywhere(_: Trainable) -> Place:
    return Place()


def dtype_name(tensor: Tensor) -> str:
    """Return the dtype as plans and workloads write it, such as ``"float32"``."""
    return str(tensor.dtype).removeprefix("torch.")


class FlatBuffer:
    """The gradients of one dtype of one bucket, end to end, and a tail for whatever rides along.

    Attributes:
        trainables: whose gradients, in the order of the bucket.
        views: per parameter its place, with the parameter's shape and, where dense, its strides.
        grads: per parameter what ``parameter.grad`` becomes: its place, or what stands for it.
        gradients: the part of the buffer that holds gradients.
        tail: the part behind them; what travels there is not averaged. Real elements.
        wire: the whole buffer as the collective sees it, real elements.
        nbytes: bytes of ``wire``.
        wire_dtype: what gradients travel as, ``wire``'s own dtype or a narrower one.
        pushed_nbytes: bytes of ``wire`` as it travels.
        bounds: where each rank's shard begins, and at the end the number of elements; None where
            nobody shards it.
    """

    def __init__(
        self, trainables: Sequence[Trainable], tail_elements: int = 0, wire_dtype: str = ""
    ) -> None:
        self.trainables = tuple(trainables)
        parameters = [trainable.parameter for trainable in trainables]
        numel = sum(parameter.numel() for parameter in parameters)
        flat = torch.zeros(
            numel + tail_elements, dtype=parameters[0].dtype, device=parameters[0].device
        )
        self.views: list[Tensor] = []
        offset = 0
        for parameter in parameters:
            self.views.append(view_like(parameter, flat, offset))
            offset += parameter.numel()
        self.gradients = flat[:numel]
        self.tail = _real(flat[numel:])
        self.wire = _real(flat)
        self.nbytes = self.wire.nbytes
        self.bounds: tuple[int, ...] | None = None
        travels_as = wire_dtype_of(dtype_name(flat), wire_dtype)
        self.wire_dtype = self.wire.dtype if flat.is_complex() else getattr(torch, travels_as)
        self.pushed_nbytes = self.wire.numel() * self.wire_dtype.itemsize
        # Only float16 can overflow in the sum; it is averaged before, at some loss of small values.
        self.averaged_before = self.wire_dtype == torch.float16
        self.grads = list(self.views)

    def gathering(self) -> Callable[[], None] | None:
        """Return what brings every gradient into its place; None where all are there.

        It makes ``parameter.grad`` that place. A parameter without a gradient contributes zeros and
        keeps its None. May be called on another thread.

        Raises:
            EngineError: a gradient is sparse.
        """
        fresh: list[tuple[nn.Parameter, Tensor, Tensor, Tensor]] = []
        absent: list[Tensor] = []
        for trainable, view, grad in zip(self.trainables, self.views, self.grads, strict=True):
            gradient = trainable.parameter.grad
            if gradient is grad:
                continue
            if gradient is None:
                absent.append(view)
                continue
            if gradient.layout != torch.strided:
                raise EngineError(
                    f"the gradient of {trainable.name!r} has layout {gradient.layout}; gradients "
                    "must be dense. Build its layer with sparse=False"
                )
            fresh.append((trainable.parameter, view, gradient, grad))
        if not (fresh or absent):
            return None

        @torch.no_grad()
        def gather() -> None:
            if absent:
                torch._foreach_zero_(absent)
            if fresh:
                torch._foreach_copy_([view for _, view, _, _ in fresh], [g for _, _, g, _ in fresh])
            for parameter, _, _, grad in fresh:
                parameter.grad = grad

        return gather


class BucketBuffers:
    """One bucket of the plan with its memory.

    Attributes:
        index: its place in the plan, which is its place in the launch order.
        parts: one flat buffer per dtype and :attr:`Place.apart`, in order of first appearance; they
            travel back to back.
        push: how its gradients travel.
        pull: how its weights come back; None where every rank updates them.
        size: number of parameters.
    """

    def __init__(
        self,
        index: int,
        bucket: Bucket,
        trainables: Sequence[Trainable],
        tail_elements: int,
        *,
        order: tuple[int, ...] = (),
        wire_dtype: str = "",
        place: Callable[[Trainable], Place] = _anywhere,
    ) -> None:
        self.index = index
        self.push = bucket.push.in_order(order)
        self.pull = None if bucket.pull is None else bucket.pull.in_order(order)
        self.size = len(trainables)
        together: dict[Hashable, list[Trainable]] = {}
        for trainable in sorted(trainables, key=lambda trainable: place(trainable).order):
            key = (trainable.parameter.dtype, place(trainable).apart)
            together.setdefault(key, []).append(trainable)
        groups = list(together.values())
        tails = [0] * (len(groups) - 1) + [tail_elements]
        self.parts = tuple(
            FlatBuffer(group, tail, wire_dtype) for group, tail in zip(groups, tails, strict=True)
        )

    @property
    def nbytes(self) -> int:
        """Bytes on the wire when they are pushed, the tail included."""
        return sum(part.pushed_nbytes for part in self.parts)


def build_buckets(
    plan: Plan,
    trainables: Sequence[Trainable],
    tail_elements: int,
    place: Callable[[Trainable], Place] = _anywhere,
) -> tuple[BucketBuffers, ...]:
    """Allocate every bucket of ``plan``; the last one gets the tail.

    Args:
        plan: fits the parameters (``Plan.require_fit``).
        trainables: every parameter whose gradient is exchanged.
        tail_elements: elements behind the gradients of the last bucket's last flat buffer.
        place: returns where in its bucket a parameter's gradient lies.
    """
    by_name = {trainable.name: trainable for trainable in trainables}
    last = len(plan.buckets) - 1
    return tuple(
        BucketBuffers(
            index,
            bucket,
            [by_name[name] for name in bucket.tensors],
            tail_elements if index == last else 0,
            order=plan.order,
            wire_dtype=plan.wire_dtype,
            place=place,
        )
        for index, bucket in enumerate(plan.buckets)
    )


def _real(flat: Tensor) -> Tensor:
    return torch.view_as_real(flat).view(-1) if flat.is_complex() else flat


def view_like(parameter: Tensor, flat: Tensor, offset: int) -> Tensor:
    """Return a view with the parameter's shape and, where they cover it densely, its strides."""
    # preserve_format keeps the strides exactly when they are dense and do not overlap.
    strides = torch.empty_like(
        parameter, device="meta", memory_format=torch.preserve_format
    ).stride()
    return flat.as_strided(parameter.shape, strides, offset)
