"""Buckets: the flat buffers that gradients travel in, and the gradients as views of them.

A bucket has one flat buffer per dtype. A gradient that autograd has just made is copied into its
place there when the bucket is launched, and from then on ``parameter.grad`` *is* that place: the
average arrives where the optimizer reads it, and nothing is copied back. A gradient that
accumulates, because it was not set to None, accumulates in place and is not even copied in.

[Note: Views are installed at launch, not before backward]
Installing zeroed views before backward would save the copy, but autograd would then read, add and
write instead of handing its fresh gradient over, the buffer would have to be zeroed, and a
parameter that the loss never reaches would show a zero gradient where it must show None: an
optimizer with weight decay or momentum would move it.

[Note: parts share a buffer]
The parts of a tensor are several buckets of the plan and one here: its gradient is one tensor, is
ready once, and has one place. What is several are the messages, each a range of the flat buffer.
They are gathered one by one, so that the first is on its way while the others are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from syncopate.artifacts.plan import Plan, joined
from syncopate.errors import EngineError
from syncopate.recipe import Recipe, wire_dtype_of
from syncopate.units import dtype_name


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


@dataclass(eq=False)
class Message:
    """What one collective carries: a flat buffer, or a range of it ([Note: parts share a buffer]).

    Attributes:
        bucket: the place of its bucket in the plan.
        push: how gradients travel.
        pull: how weights come back; None where every rank updates them.
        start: its first element in the flat buffer.
        stop: one past its last, the trailer not counted.
        wire: what is pushed, a trailer included, real elements.
        gradients: the part of it that holds gradients.
        bounds: where each rank's shard begins, and at the end the number of elements; None where
            it is not sharded. From :attr:`start`.
    """

    bucket: int
    push: Recipe
    pull: Recipe | None
    start: int
    stop: int
    wire: Tensor
    gradients: Tensor
    bounds: tuple[int, ...] | None = None


class FlatBuffer:
    """The gradients of one dtype of one bucket, end to end, and a trailer.

    Attributes:
        trainables: whose gradients, in the order of the bucket.
        parameters: their parameters.
        views: per parameter its place, with the parameter's shape and, where dense, its strides.
        grads: per parameter what ``parameter.grad`` becomes: its place, or what stands for it.
        gradients: the part of the buffer that holds gradients.
        trailer: the part behind them; what travels there is not averaged. Real elements.
        wire: the whole buffer as the collective sees it, real elements.
        nbytes: bytes of ``wire``.
        wire_dtype: what gradients travel as, ``wire``'s own dtype or a narrower one.
        messages: what carries it, in launch order.
    """

    def __init__(
        self,
        trainables: Sequence[Trainable],
        trailer_elements: int = 0,
        wire_dtype: str = "",
        cuts: Sequence[int] = (),
    ) -> None:
        """Allocate it; ``cuts`` are the elements at which the second message begins, and so on."""
        self.trainables = tuple(trainables)
        self.parameters = parameters = [trainable.parameter for trainable in trainables]
        numel = sum(parameter.numel() for parameter in parameters)
        flat = torch.zeros(
            numel + trailer_elements, dtype=parameters[0].dtype, device=parameters[0].device
        )
        self.views: list[Tensor] = []
        offset = 0
        for parameter in parameters:
            self.views.append(view_like(parameter, flat, offset))
            offset += parameter.numel()
        self.gradients = flat[:numel]
        self.trailer = _real(flat[numel:])
        self.wire = _real(flat)
        self.nbytes = self.wire.nbytes
        self.messages: tuple[Message, ...] = ()
        self._stops = (0, *cuts, numel)
        travels_as = wire_dtype_of(dtype_name(flat.dtype), wire_dtype)
        self.wire_dtype = self.wire.dtype if flat.is_complex() else getattr(torch, travels_as)
        # Only float16 can overflow in the sum; it is averaged before, at some loss of small values.
        self.averaged_before = self.wire_dtype == torch.float16
        self.grads = [view.detach() for view in self.views]

    def offsets(self) -> Iterator[tuple[Trainable, int]]:
        """Yield the parameters whose gradients lie here, each with its first element."""
        offset = 0
        for trainable in self.trainables:
            yield trainable, offset
            offset += trainable.parameter.numel()

    @property
    def replicated(self) -> bool:
        """Whether every rank updates its weights, and nothing is pulled."""
        return self.messages[0].pull is None

    def travel(self, recipes: Sequence[tuple[int, Recipe, Recipe | None]]) -> None:
        """Divide it into messages at its cuts.

        Args:
            recipes: of each message the bucket in the plan, how it is pushed, and how pulled.
        """
        found = []
        for (start, stop), recipe in zip(pairwise(self._stops), recipes, strict=True):
            gradients = _real(self.gradients[start:stop])
            first, pushed = gradients.storage_offset(), gradients
            if stop == self._stops[-1]:
                pushed = self.wire[first:]
            found.append(Message(*recipe, start, stop, pushed, gradients))
        self.messages = tuple(found)

    def gathering(self) -> list[Callable[[], None]]:
        """Return the functions that copy gradients into their places; none where all are there.

        It is one call for each message, in their order, on any thread. The last one makes
        ``parameter.grad`` that place. A parameter without a gradient contributes zeros and keeps
        its None.

        Raises:
            EngineError: a gradient is sparse.
        """
        fresh: list[tuple[nn.Parameter, Tensor, Tensor, Tensor]] = []
        absent: list[Tensor] = []
        for trainable, view, grad in zip(self.trainables, self.views, self.grads, strict=True):
            gradient = trainable.parameter.grad
            if type(grad) is Tensor and grad.data_ptr() != view.data_ptr():
                # The script gave what was handed out other memory, by ``grad.data = ...``.
                held, grad.data = grad.detach(), view
                gradient = held if gradient is grad else gradient
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
            return []
        gathered = (absent, [view for _, view, _, _ in fresh], [grad for _, _, grad, _ in fresh])

        def hand_out() -> None:
            for parameter, _, gradient, grad in fresh:
                if parameter.grad is gradient:  # else a backward raised, and it was zeroed
                    parameter.grad = grad

        *before, last = [partial(_gather, *tensors) for tensors in self._cut(*gathered)]
        return [*before, partial(in_turn, last, hand_out)]

    def _cut(
        self, absent: list[Tensor], views: list[Tensor], gradients: list[Tensor]
    ) -> list[tuple[list[Tensor], ...]]:
        """Return the part of these tensors that belongs to each message."""
        tensors = (absent, views, gradients)
        ranges = list(pairwise(self._stops))
        if len(ranges) == 1:
            return [tensors]
        if any(v.stride() != g.stride() for v, g in zip(views, gradients, strict=True)):
            # It does not lie in the order of memory: all of it goes with the first message.
            return [tensors, *[([], [], [])] * (len(ranges) - 1)]
        flat = [[_in_memory(tensor) for tensor in several] for several in tensors]
        return [tuple([t[a:b] for t in several] for several in flat) for a, b in ranges]


@torch.no_grad()
def _gather(absent: list[Tensor], views: list[Tensor], gradients: list[Tensor]) -> None:
    if absent:
        torch._foreach_zero_(absent)
    if views:
        torch._foreach_copy_(views, gradients)


def in_turn(*calls: Callable[[], object]) -> None:
    """Do one after the other."""
    for call in calls:
        call()


def _in_memory(dense: Tensor) -> Tensor:
    """Return the elements of ``dense`` in the order of memory; shares it."""
    return dense.as_strided((dense.numel(),), (1,))


class BucketBuffers:
    """Gradients that are pushed together, with their memory.

    That is a bucket of the plan, or all that hold parts of one tensor.

    Attributes:
        index: its place in the launch order.
        parts: one flat buffer per dtype and :attr:`Place.apart`, in order of first appearance; they
            travel back to back.
        size: number of parameters.
    """

    def __init__(
        self,
        index: int,
        trainables: Sequence[Trainable],
        trailer_elements: int,
        *,
        cuts: Sequence[int],
        wire_dtype: str,
        place: Callable[[Trainable], Place],
    ) -> None:
        self.index = index
        self.size = len(trainables)
        together: dict[Hashable, list[Trainable]] = {}
        for trainable in sorted(trainables, key=lambda trainable: place(trainable).order):
            key = (trainable.parameter.dtype, place(trainable).apart)
            together.setdefault(key, []).append(trainable)
        groups = list(together.values())
        trailers = [0] * (len(groups) - 1) + [trailer_elements]
        self.parts = tuple(
            FlatBuffer(group, trailer, wire_dtype, cuts)
            for group, trailer in zip(groups, trailers, strict=True)
        )


def build_buckets(
    plan: Plan,
    trainables: Sequence[Trainable],
    trailer_elements: int,
    place: Callable[[Trainable], Place],
) -> tuple[BucketBuffers, ...]:
    """Allocate every bucket of ``plan``; the last one gets the trailer.

    Args:
        plan: fits the parameters (``Plan.require_fit``).
        trainables: every parameter whose gradient is exchanged.
        trailer_elements: elements behind the gradients of the last bucket's last flat buffer.
        place: returns where in its bucket a parameter's gradient lies.
    """
    by_name = {trainable.name: trainable for trainable in trainables}
    groups = joined(plan.buckets)
    found = []
    for index, places in enumerate(groups):
        planned = [plan.buckets[each] for each in places]
        bucket = BucketBuffers(
            index,
            [by_name[name] for name in planned[0].tensors],
            trailer_elements if index == len(groups) - 1 else 0,
            cuts=[one.elements[0] for one in planned[1:] if one.elements is not None],
            wire_dtype=plan.wire_dtype,
            place=place,
        )
        recipes = [
            (each, one.push.in_order(plan.order), one.pull and one.pull.in_order(plan.order))
            for each, one in zip(places, planned, strict=True)
        ]
        for part in bucket.parts:
            part.travel(recipes)
        found.append(bucket)
    return tuple(found)


def _real(flat: Tensor) -> Tensor:
    return torch.view_as_real(flat).view(-1) if flat.is_complex() else flat


def view_like(parameter: Tensor, flat: Tensor, offset: int) -> Tensor:
    """Return a view with the parameter's shape and, where they cover it densely, its strides."""
    # preserve_format keeps the strides exactly when they are dense and do not overlap.
    strides = torch.empty_like(
        parameter, device="meta", memory_format=torch.preserve_format
    ).stride()
    return flat.as_strided(parameter.shape, strides, offset)
