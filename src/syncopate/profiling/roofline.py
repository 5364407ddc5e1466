"""Roofline: a clock that is driven by what a model computes, not by time that passes.

[Note: what an operation takes] Every operation that torch dispatches, forward, backward and the
optimizer's, takes the longer of its floating-point operations at the device's peak and of the bytes
of its tensors at the bandwidth of its memory, both at an efficiency (Williams, Waterman and
Patterson 2009); MG-WFBP's Eq. 18, by operation instead of by layer. It never takes less than the
start of a kernel. Operations are those of torch's own table (``torch.utils.flop_counter``): matrix
products, convolutions, attention, a multiply-add counted as two. All others take their bytes: what
they read, each tensor once, and what they write. Views, and memory without values, take nothing.

[Note: attention] On torch's meta device attention falls apart into products and a softmax whose
tables, a number for each pair of positions, pass through memory. No device that trains does that.
So ``scaled_dot_product_attention`` is dispatched as one fused kernel, with masks and without.

[Note: nothing is computed] Tensors on the meta device have shapes and no values, so a model of any
size takes no memory, and an operation the time that torch takes to find the shape of its result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.profiling.devices import TF32, Device
from syncopate.units import dtype_name

KERNEL_S = 3.8e-6
"""What the shortest kernel takes from launch to launch, on a V100: NVIDIA, Getting Started with
CUDA Graphs, 2019."""

_WITHOUT_WORK = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_FULL = "float32"

COMPUTED = (TF32, "bfloat16", "float16", _FULL)
"""Types in which products of float32 may be computed."""


class Work(NamedTuple):
    """The work done up to a moment.

    Attributes:
        seconds: at the roofline.
        flops: floating-point operations, a multiply-add counted as two.
        nbytes: read and written.
    """

    seconds: float = 0.0
    flops: float = 0.0
    nbytes: float = 0.0


@dataclass(frozen=True)
class Roofline:
    """How long operations take on a device; see [Note: what an operation takes].

    Attributes:
        device: whose peaks.
        efficiency: share of peak and of bandwidth that is reached, in (0, 1].
        compute: type in which products of float32 are computed, such as ``"tf32"`` or, under
            autocast, ``"bfloat16"``; empty for that of their tensors.
        kernel_s: what the shortest operation takes.
    """

    device: Device
    efficiency: float
    compute: str = ""
    kernel_s: float = KERNEL_S

    def __post_init__(self) -> None:
        if not 0 < self.efficiency <= 1:
            raise InvalidValueError("efficiency", self.efficiency, "a number in (0, 1]")
        if self.compute and self.compute not in COMPUTED:
            raise UnknownNameError("type to compute in", self.compute, COMPUTED)
        self.device.peak(self.compute or _FULL)

    def seconds(self, flops: float, nbytes: float, dtype: str) -> float:
        """Return what one operation takes.

        Args:
            flops: floating-point operations.
            nbytes: read and written.
            dtype: in which it computes, by torch's name.
        """
        if flops and self.compute and dtype == _FULL:
            dtype = self.compute
        computed_s = flops / self.device.peak(dtype) if flops else 0.0
        moved_s = nbytes / self.device.memory_bytes_per_s
        return max(max(computed_s, moved_s) / self.efficiency, self.kernel_s)


class RooflineClock(TorchDispatchMode):
    """Counts the work of every operation in a ``with`` block, and stamps how much there was.

    A clock (:class:`syncopate.tracing.clocks.Clock`) whose time passes in operations alone.

    Args:
        roofline: how long operations take.
    """

    name = "roofline"

    def __init__(self, roofline: Roofline) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._roofline = roofline
        self._done = Work()
        self._attention = _FusedAttention()
        self._counted = "seconds"

    @contextmanager
    def counting(self, what: str) -> Iterator[None]:
        """Let :meth:`between_s` return another of the figures of :class:`Work` within the block."""
        self._counted = what
        try:
            yield
        finally:
            self._counted = "seconds"

    def __enter__(self) -> RooflineClock:
        self._attention.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *reason: Any) -> None:
        super().__exit__(*reason)  # type: ignore[no-untyped-call]
        self._attention.__exit__(*reason)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation and count it."""
        told = dict(kwargs or {})
        out = func(*args, **told)
        if func.namespace == "aten" and not func.is_view:
            self._count(func, args, told, out)
        return out

    def _count(self, func: Any, args: Any, told: Mapping[str, Any], out: Any) -> None:
        packet = func._overloadpacket
        if packet.__name__ in _WITHOUT_WORK:
            return
        read, written = list(_tensors((args, told))), list(_tensors(out))
        if not written:
            written = list(_tensors(_changed(func, args)))
        nbytes = float(sum({id(t): _held(t) for t in read}.values()) + sum(map(_held, written)))
        if packet.__name__ == "_unsafe_view" or not nbytes:
            return
        formula = _FORMULAS.get(packet) or flop_registry.get(packet)
        flops = float(formula(*args, **told, out_val=out)) if formula else 0.0
        dtype = next((t.dtype for t in (*read, *written) if t.is_floating_point()), torch.float32)
        seconds = self._roofline.seconds(flops, nbytes, dtype_name(dtype))
        done = self._done
        self._done = Work(done.seconds + seconds, done.flops + flops, done.nbytes + nbytes)

    def stamp(self) -> Work:
        """Return the work up to here."""
        return self._done

    def between_s(self, start: Work, end: Work) -> float:
        """Return the time that the work between two stamps takes."""
        return float(getattr(end, self._counted) - getattr(start, self._counted))

    def host_s(self, stamp: Work) -> None:
        """Return None: no time passes on the host."""

    def reached(self, stamp: Work) -> bool:
        """Return True: what is counted is done."""
        return True

    def finish(self) -> None:
        """Do nothing."""


def _convolution_backward(
    grad: Tensor, inputs: Tensor, weight: Tensor, *rest: Any, out_val: Any
) -> float:
    """Return the operations of a convolution's backward.

    Each gradient that is asked for, of inputs and weight, takes those of forward. torch's
    own formula counts every pair of channels of a grouped convolution, also across groups.
    """
    transposed, mask = rest[4], rest[-1]
    positions = inputs if transposed else grad
    each = 2 * positions.numel() * weight[0].numel()
    return float(each * sum(mask[:2]))


_FORMULAS = {torch.ops.aten.convolution_backward: _convolution_backward}
"""What is counted otherwise than torch's table has it."""


def _changed(func: Any, args: Any) -> list[Any]:
    """Return the arguments that an operation writes in their place."""
    pairs = zip(func._schema.arguments, args, strict=False)
    return [value for one, value in pairs if one.alias_info and one.alias_info.is_write]


class _FusedAttention(TorchFunctionMode):
    """Dispatches attention as one kernel; see [Note: attention]."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        told = dict(kwargs or {})
        if func is functional.scaled_dot_product_attention:
            return _fused(*args, **told)
        return func(*args, **told)


_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def _fused(*args: Any, **told: Any) -> Tensor:
    """Return what ``scaled_dot_product_attention`` of the same arguments does, in one operation."""
    given = dict(zip(_ARGUMENTS, args, strict=False)) | told
    query, key, value = (given[name] for name in _ARGUMENTS[:3])
    mask, shape = given.get("attn_mask"), query.shape[:-1]
    if given.get("enable_gqa"):
        groups = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(groups, -3) for t in (key, value))
    # The kernel takes (batch, heads, positions, width).
    while query.dim() < 4:
        query, key, value = (t.unsqueeze(0) for t in (query, key, value))
    query, key, value = (t.reshape(-1, *t.shape[-3:]) for t in (query, key, value))
    if mask is not None:
        bias = torch.empty_like(mask, dtype=query.dtype)
        while bias.dim() < 4:
            bias = bias.unsqueeze(0)
        mask = bias.reshape(-1, *bias.shape[-3:]).expand(*query.shape[:-1], key.shape[-2])
    out: Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(
        query,
        key,
        value,
        mask,
        True,
        given.get("dropout_p", 0.0),
        given.get("is_causal", False),
        scale=given.get("scale"),
    )[0]
    return out.reshape(*shape, value.shape[-1])


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _tensors(one)


def _held(tensor: Tensor) -> int:
    """Return the bytes that a tensor has in memory; what is repeated without a copy counts once."""
    distinct = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        distinct *= size if stride else min(size, 1)
    return distinct * tensor.element_size()
