"""Workload: what a model asks of the network in every iteration.

The gradient tensors stand in ready order, the order in which backward finishes them, with the time
backward spends on each. That order and those times decide what can be merged and hidden.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from typing import ClassVar

from msgspec import structs

from syncopate.artifacts.artifact import Artifact, Record
from syncopate.artifacts.cluster import Cluster, Interference
from syncopate.artifacts.level import require_time
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.shown import Row, Shown
from syncopate.units import dtype_bytes, format_bytes, format_count, format_seconds

_ROUNDING = 1e-12
"""Times that differ by less, as a share of an iteration, differ by the rounding of their sums."""

_MOST_BYTES = 2**63 - 1

TIMES = "times"
"""The entry of a workload's metadata that says what its times are an assumption about; there is
none where they were measured."""

ELEMENT, TENSOR = "element", "tensor"
"""The kinds of optimizers: those that treat every element alike and by itself, and update a part of
a tensor as they would update it within the whole; and those that look at whole tensors, at their
norm or their shape."""

_BY_ELEMENT = (
    "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD",
    "Rprop",
)  # fmt: skip
_BY_TENSOR = ("Adafactor", "Muon")

OPTIMIZERS: dict[str, str] = dict.fromkeys(_BY_ELEMENT, ELEMENT) | dict.fromkeys(_BY_TENSOR, TENSOR)
"""Name of a class of ``torch.optim`` -> its kind; torch does not say it."""


class GradientTensor(Record, frozen=True, kw_only=True):
    """One parameter's gradient.

    Attributes:
        name: the parameter's name in ``model.named_parameters()``; a shared one counted once.
        numel: number of elements.
        dtype: element type by torch's name, such as ``"float32"``.
        backward_s: backward time from the previous tensor's ready time to this one's.
        forward_s: forward time attributed to this parameter.
    """

    name: str
    numel: int
    dtype: str = "float32"
    backward_s: float = 0.0
    forward_s: float = 0.0

    def __post_init__(self) -> None:
        if self.numel < 0:
            raise InvalidValueError(f"numel of {self.name}", self.numel, "an integer >= 0")
        if self.nbytes > _MOST_BYTES:
            rule = f"at most {_MOST_BYTES // dtype_bytes(self.dtype)}: a tensor has 2**63 - 1 bytes"
            raise InvalidValueError(f"numel of {self.name}", self.numel, rule)
        require_time(f"backward_s of {self.name}", self.backward_s)
        require_time(f"forward_s of {self.name}", self.forward_s)

    @property
    def nbytes(self) -> int:
        """Size of the gradient in bytes."""
        return self.numel * dtype_bytes(self.dtype)


class Workload(Shown, Artifact, frozen=True, kw_only=True):
    """One training iteration of one model on one rank, without communication.

    Attributes:
        model: what to call it in reports.
        tensors: gradients in ready order; at least one.
        forward_s: t_f, the whole forward pass with the loss.
        backward_s: t_b, the whole backward pass; at least the sum over the tensors.
        update_s: t_u, from the end of backward to the next forward (optimizer, zeroing).
        forward_order: indices of the tensors in the order in which forward needs their weights;
            empty for the reverse of ready order.
        whole: indices of the tensors that the optimizer looks at whole, ascending. Where ranks own
            shards, one rank has all of such a tensor, and shards are unequal.
        interference: what overlap costs this model, measured by its own iterations with traffic
            beside them; None where it was not, and then the cluster's counts.
        buffers_nbytes: bytes that the model's buffers take beside its gradients in every iteration,
            as elements of a float32 sum; None where it was not measured, and then nothing that
            travels beside gradients is counted.
        metadata: device, batch, versions, clock, how many ranks were profiled at once, in all and
            on a host: all that makes the figures reproducible.
    """

    KIND: ClassVar[str] = "workload"

    model: str
    tensors: tuple[GradientTensor, ...]
    forward_s: float
    backward_s: float
    update_s: float = 0.0
    forward_order: tuple[int, ...] = ()
    whole: tuple[int, ...] = ()
    buffers_nbytes: int | None = None
    interference: Interference | None = None
    metadata: dict[str, str] = {}

    def __post_init__(self) -> None:
        if not self.tensors:
            raise InvalidValueError(
                "tensors", (), "at least one gradient tensor (nothing to communicate)"
            )
        for what in ("forward_s", "backward_s", "update_s"):
            require_time(what, getattr(self, what))
        names = [tensor.name for tensor in self.tensors]
        if len(set(names)) != len(names):
            twice = sorted(name for name, times in Counter(names).items() if times > 1)
            raise InvalidValueError("name of tensors", twice, "unique")
        if self.forward_order and sorted(self.forward_order) != list(range(len(names))):
            raise InvalidValueError(
                "forward_order", self.forward_order, f"a permutation of 0..{len(names) - 1}"
            )
        if self.whole != tuple(sorted(set(self.whole) & set(range(len(names))))):
            rule = f"ascending indices in 0..{len(names) - 1}"
            raise InvalidValueError("whole", self.whole, rule)
        if self.buffers_nbytes is not None and self.buffers_nbytes < 0:
            raise InvalidValueError("buffers_nbytes", self.buffers_nbytes, "an integer >= 0")
        parts = sum(tensor.backward_s for tensor in self.tensors)
        if parts > self.backward_s * (1 + 1e-6) + 1e-12:
            raise InvalidValueError(
                "backward_s", self.backward_s, f"at least the sum over the tensors, {parts}"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of all gradients."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def summary(self) -> tuple[str, ...]:
        """Return the model, how much it sends and how long it computes."""
        gradients = format_count(len(self.tensors), "gradient")
        parts = (
            ("forward", self.forward_s),
            ("backward", self.backward_s),
            ("update", self.update_s),
        )
        times = ", ".join(f"{what} {format_seconds(part_s)}" for what, part_s in parts)
        return (f"{self.model}: {gradients} of {format_bytes(self.nbytes)}; {times}",)

    def rows(self) -> list[Row]:
        """Return the gradients, in ready order; ``ready_s`` from the start of forward."""
        return [
            {
                "gradient": tensor.name,
                "nbytes": tensor.nbytes,
                "dtype": tensor.dtype,
                "forward_s": tensor.forward_s,
                "backward_s": tensor.backward_s,
                "ready_s": ready_s,
            }
            for tensor, ready_s in zip(self.tensors, self.ready_s, strict=True)
        ]

    def interference_on(self, cluster: Cluster) -> Interference:
        """Return the cost of overlap for this model on ``cluster``."""
        return cluster.interference if self.interference is None else self.interference

    def beside_nbytes(self, world_size: int) -> int:
        """Return the bytes that travel beside the gradients: flags and buffers, as float32.

        None, where the model's buffers were not measured, and where a rank is alone.
        """
        if self.buffers_nbytes is None or world_size == 1:
            return 0
        return 4 * flag_count(len(self.tensors), world_size) + self.buffers_nbytes

    @property
    def compute_s(self) -> float:
        """Computation of one iteration: forward, backward and update."""
        return self.forward_s + self.backward_s + self.update_s

    @property
    def ready_s(self) -> tuple[float, ...]:
        """Ready time of each gradient, counted from the start of the forward pass.

        A gradient that is ready as backward ends is so to the last bit, in any order the same
        times were added: where overlap stalls computation, an ulp of backward that is left would
        cost the whole collective.
        """
        end_s = self.forward_s + self.backward_s
        slack_s = _ROUNDING * end_s
        ready_s = accumulate((t.backward_s for t in self.tensors), initial=self.forward_s)
        return tuple(end_s if abs(end_s - at_s) <= slack_s else at_s for at_s in ready_s)[1:]

    @property
    def needed_s(self) -> tuple[float, ...]:
        """The progress of forward at which the weights of each tensor are needed first.

        Layers follow one another in ``forward_order`` and take the forward time of their tensors;
        what no tensor accounts for comes last. Where no tensor has any, all have a part of forward
        like theirs of backward. A layer is a module: it needs all its tensors as it begins.
        """
        order = self.forward_order or tuple(reversed(range(len(self.tensors))))
        parts_s = [tensor.forward_s for tensor in self.tensors]
        if not any(parts_s):
            parts_s = [tensor.backward_s for tensor in self.tensors]
            known_s = sum(parts_s)
            parts_s = [part_s * self.forward_s / known_s if known_s else 0.0 for part_s in parts_s]
        begins_s = [0.0, *accumulate(parts_s[index] for index in order)]
        needed_s = [0.0] * len(order)
        modules: dict[str, float] = {}
        for begin_s, index in zip(begins_s, order, strict=False):
            module, dot, _ = self.tensors[index].name.rpartition(".")
            at_s = min(begin_s, self.forward_s)
            needed_s[index] = modules.setdefault(module, at_s) if dot else at_s
        return tuple(needed_s)

    def scaled(self, factor: float) -> Workload:
        """Return the same workload on a machine that takes ``factor`` times as long to compute.

        Every time is multiplied by it: forward, backward, update and those of the tensors, and with
        them all ready times.

        Raises:
            InvalidValueError: the factor is negative, NaN or infinite.
        """
        require_time("factor of a workload", factor)
        return structs.replace(
            self,
            tensors=tuple(
                structs.replace(
                    tensor,
                    backward_s=tensor.backward_s * factor,
                    forward_s=tensor.forward_s * factor,
                )
                for tensor in self.tensors
            ),
            forward_s=self.forward_s * factor,
            backward_s=self.backward_s * factor,
            update_s=self.update_s * factor,
        )

    @property
    def fingerprint(self) -> str:
        """Identity of the model for a plan: a hash of every tensor's name, size and dtype.

        It does not depend on the order of the tensors or on any time.
        """
        return fingerprint((tensor.name, tensor.numel, tensor.dtype) for tensor in self.tensors)


def flag_count(parameters: int, world_size: int) -> int:
    """Return how many numbers ranks tell each other in a backward, buffers not counted.

    One for each parameter, two for each rank, and one for all (:mod:`syncopate.engine.trailer`).
    """
    return parameters + 2 * world_size + 1


def fingerprint(tensors: Iterable[tuple[str, int, str]]) -> str:
    """Hash ``(name, numel, dtype)`` triples in any order into 16 hexadecimal digits."""
    lines = sorted(f"{name}:{numel}:{dtype}" for name, numel, dtype in tensors)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def kind_named(name: str) -> str:
    """Return the kind of an optimizer by its name, or by that of its kind.

    Raises:
        UnknownNameError: no such name; lists those there are.

    Example:
        >>> kind_named("Muon"), kind_named("element")
        ('tensor', 'element')
    """
    known = OPTIMIZERS | {kind: kind for kind in (ELEMENT, TENSOR)}
    if name not in known:
        raise UnknownNameError("optimizer", name, known)
    return known[name]
