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

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from syncopate.errors import EngineError
from syncopate.plan import Bucket, Plan


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


def dtype_name(tensor: Tensor) -> str:
    """Return the dtype as plans and workloads write it, such as ``"float32"``."""
    return str(tensor.dtype).removeprefix("torch.")


class FlatBuffer:
    """The gradients of one dtype of one bucket, end to end, and a tail for whatever rides along.

    Attributes:
        trainables: whose gradients, in the order of the bucket.
        views: per parameter its place, with the parameter's shape and, where dense, its strides.
        gradients: the part of the buffer that holds gradients.
        tail: the part behind them; what travels there is not averaged. Real elements.
        wire: the whole buffer as the collective sees it, real elements.
        nbytes: bytes of ``wire``.
    """

    def __init__(self, trainables: Sequence[Trainable], tail_elements: int = 0) -> None:
        self.trainables = tuple(trainables)
        parameters = [trainable.parameter for trainable in trainables]
        numel = sum(parameter.numel() for parameter in parameters)
        flat = torch.zeros(
            numel + tail_elements, dtype=parameters[0].dtype, device=parameters[0].device
        )
        self.views: list[Tensor] = []
        offset = 0
        for parameter in parameters:
            self.views.append(_view_like(parameter, flat, offset))
            offset += parameter.numel()
        self.gradients = flat[:numel]
        self.tail = _real(flat[numel:])
        self.wire = _real(flat)
        self.nbytes = self.wire.nbytes
        # Only float16 can overflow in the sum; it is averaged before, at some loss of small values.
        self.averaged_before = flat.dtype == torch.float16
        self._pairs = tuple(zip(parameters, self.views, strict=True))

    def gather(self) -> None:
        """Bring every gradient into its place and make ``parameter.grad`` that place.

        A parameter without a gradient contributes zeros and keeps its None.

        Raises:
            EngineError: a gradient is sparse.
        """
        places, fresh, owners = [], [], []
        for parameter, view in self._pairs:
            gradient = parameter.grad
            if gradient is view:
                continue
            if gradient is None:
                view.zero_()
                continue
            places.append(view)
            fresh.append(gradient)
            owners.append(parameter)
        if fresh:
            try:
                torch._foreach_copy_(places, fresh)
            except RuntimeError:
                self._refuse_sparse()
                raise
            for parameter, view in zip(owners, places, strict=True):
                parameter.grad = view

    def _refuse_sparse(self) -> None:
        for trainable in self.trainables:
            gradient = trainable.parameter.grad
            if gradient is not None and gradient.layout != torch.strided:
                raise EngineError(
                    f"the gradient of {trainable.name!r} has layout {gradient.layout}; gradients "
                    "must be dense. Build its layer with sparse=False"
                ) from None


class BucketBuffers:
    """One bucket of the plan with its memory.

    Attributes:
        index: its place in the plan, which is its place in the launch order.
        parts: one flat buffer per dtype, in order of first appearance; they travel back to back.
        algorithm: the all-reduce algorithm.
        options: what it is told.
        channel: the channel it travels on.
        size: number of parameters.
    """

    def __init__(
        self,
        index: int,
        bucket: Bucket,
        trainables: Sequence[Trainable],
        tail_elements: int,
        order: tuple[int, ...] = (),
    ) -> None:
        self.index = index
        self.algorithm = bucket.algorithm
        self.options = bucket.all_options(order)
        self.channel = bucket.channel
        self.size = len(trainables)
        by_dtype: dict[torch.dtype, list[Trainable]] = {}
        for trainable in trainables:
            by_dtype.setdefault(trainable.parameter.dtype, []).append(trainable)
        groups = list(by_dtype.values())
        tails = [0] * (len(groups) - 1) + [tail_elements]
        self.parts = tuple(
            FlatBuffer(group, tail) for group, tail in zip(groups, tails, strict=True)
        )

    @property
    def nbytes(self) -> int:
        """Bytes on the wire, the tail included."""
        return sum(part.nbytes for part in self.parts)


def build_buckets(
    plan: Plan, trainables: Sequence[Trainable], tail_elements: int
) -> tuple[BucketBuffers, ...]:
    """Allocate every bucket of ``plan``; the last one gets the tail.

    Args:
        plan: fits the parameters (``Plan.require_fit``).
        trainables: every parameter whose gradient is exchanged.
        tail_elements: elements behind the gradients of the last bucket's last dtype.
    """
    by_name = {trainable.name: trainable for trainable in trainables}
    last = len(plan.buckets) - 1
    return tuple(
        BucketBuffers(
            index,
            bucket,
            [by_name[name] for name in bucket.tensors],
            tail_elements if index == last else 0,
            plan.order,
        )
        for index, bucket in enumerate(plan.buckets)
    )


def _real(flat: Tensor) -> Tensor:
    return torch.view_as_real(flat).view(-1) if flat.is_complex() else flat


def _view_like(parameter: Tensor, flat: Tensor, offset: int) -> Tensor:
    """Return a view with the parameter's shape and, where they cover it densely, its strides."""
    # preserve_format keeps the strides exactly when they are dense and do not overlap.
    strides = torch.empty_like(
        parameter, device="meta", memory_format=torch.preserve_format
    ).stride()
    return flat.as_strided(parameter.shape, strides, offset)
