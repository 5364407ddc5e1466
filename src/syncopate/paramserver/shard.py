"""Shard: the slices of one server: weights, optimizer states, and gradients that wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import zmq
from torch import Tensor

from syncopate.paramserver import optimizers
from syncopate.paramserver.tensors import (
    dtype_of,
    flat_bytes,
    frame_of,
    joined,
    parted,
    tensor_of,
)
from syncopate.protocol.actions import Add, Initialise, Stage, Update
from syncopate.protocol.bundle import Cut
from syncopate.protocol.piece import Slice
from syncopate.protocol.rules import STEPS, Rules

WEIGHTS = "weights"
_STATE = "state:"
_BACKUP = "backup:"


class Shard:
    """The tensors of one server.

    Attributes:
        changed: keys of slices that changed since :meth:`snapshot` last took them.
    """

    def __init__(self, rules: Rules, slices: Iterable[Slice]) -> None:
        """Hold ``slices``, without values yet."""
        self.changed: set[int] = set()
        self._rules = rules
        self._specs = {spec.key: spec for spec in slices}
        # The sum of the gradients that were added before their update, by key, and how many.
        self._sums: dict[int, tuple[Tensor, int]] = {}
        self._staged: dict[tuple[int, int, int], Tensor] = {}
        self._weights: dict[int, Tensor] = {}
        self._states: dict[int, optimizers.State] = {key: {} for key in self._specs}
        self._backups: dict[int, dict[int, Tensor]] = {key: {} for key in self._specs}
        # Weights that ZeroMQ sends lie where they are: code that changes them has to know.
        self._sending: dict[int, list[zmq.MessageTracker]] = {}

    @property
    def held(self) -> set[int]:
        """Keys of the slices that have values."""
        return set(self._weights)

    @property
    def waiting(self) -> int:
        """How many gradients, and sums of gradients, are held until an update takes them."""
        return len(self._staged) + len(self._sums)

    def stage(self, action: Stage, frame: zmq.Frame) -> None:
        """Hold a payload until an update takes it."""
        dtype = dtype_of(self._specs[action.key].dtype)
        data = tensor_of(frame, dtype)
        if action.part is not None:
            begin, end = (at // dtype.itemsize for at in action.part)
            data = data[begin:end]
        self._staged[action.key, action.worker, action.sequence] = data

    def add(self, action: Add) -> None:
        """Add a staged gradient to those of the next update."""
        gradient = self._staged.pop((action.key, action.worker, action.sequence))
        total, count = self._sums.pop(action.key, (None, 0))
        total = gradient if total is None else total.add_(gradient)
        self._sums[action.key] = (total, count + 1)

    def split(self, cut: Cut) -> None:
        """Let the parts of a bundle be by themselves."""
        key, itemsize = cut.key, dtype_of(self._specs[cut.key].dtype).itemsize
        self._specs |= {part.key: part for part in cut.parts}
        self._sending.pop(key, None)
        state, backups = self._states.pop(key), self._backups.pop(key)
        weights, total = self._weights.pop(key, None), self._sums.pop(key, None)
        staged = {number: t for number, t in self._staged.items() if number[0] == key}
        for part, begin_byte, end_byte in cut.places():
            own = slice(begin_byte // itemsize, end_byte // itemsize)
            if weights is not None:
                self._weights[part.key] = weights[own].clone()  # the whole may be being sent
                self.changed.add(part.key)
            self._states[part.key] = {
                name: (tensor if name == STEPS else tensor[own]).clone()
                for name, tensor in state.items()
            }
            self._backups[part.key] = {rank: t[own].clone() for rank, t in backups.items()}
            if total is not None:
                self._sums[part.key] = (total[0][own], total[1])
            for (_, worker, sequence), tensor in staged.items():
                self._staged[part.key, worker, sequence] = tensor[own]
        for number in staged:
            del self._staged[number]
        self.changed.discard(key)

    def initialise(self, action: Initialise) -> None:
        """Take a staged payload as weights, and what follows them as the optimizer's state."""
        key = action.key
        staged = flat_bytes(self._staged.pop((key, action.worker, 0)))
        state = parted(staged, self._specs[key].carried(action.state))
        self._weights[key], self._states[key] = state.pop(""), state
        self.changed.add(key)

    def update(self, action: Update) -> None:
        """Add those gradients that were not, in the order given, and apply their mean."""
        key, count = action.key, len(action.gradients)
        _, added = self._sums.get(key, (None, 0))
        for worker, sequence in action.gradients[added:]:
            self.add(Add(key, worker, sequence))
        total, _ = self._sums.pop(key)
        if count > 1:
            total.div_(count)
        weights = self._writable(key)
        state = self._states[key]
        if action.compensate is not None:
            backup = self._backups[key].get(action.compensate, weights)
            rule = self._rules.compensation
            total = optimizers.compensate(rule, total, weights, backup, state)
        optimizers.step(self._rules.optimizer, action.lr, weights, total, state)
        self.changed.add(key)

    def payload(
        self, key: int, backup_for: int | None, let_go: Callable[[], None] | None = None
    ) -> zmq.Frame:
        """Return a tracked frame with the weights of a slice, as they are now.

        Args:
            key: of the slice.
            backup_for: the worker for which a copy is kept; None: for none.
            let_go: called, in any thread, when ZeroMQ no longer needs the weights.
        """
        weights = self._weights[key]
        if backup_for is not None:
            self._backups[key][backup_for] = weights.clone()
            self.changed.add(key)
        frame = frame_of(flat_bytes(weights), let_go)
        assert frame.tracker is not None
        trackers = [tracker for tracker in self._sending.get(key, []) if not tracker.done]
        self._sending[key] = [*trackers, frame.tracker]
        return frame

    def state_payload(self, key: int) -> tuple[tuple[str, ...], zmq.Frame]:
        """Return what the optimizer remembers of a slice, and the weights with that behind them.

        Returns:
            Names in the order of the payload, and a tracked frame.
        """
        state = self._states[key]
        names = tuple(name for name in self._rules.state if name in state)
        return names, frame_of(joined([self._weights[key], *(state[name] for name in names)]))

    def snapshot(self, key: int) -> dict[str, Tensor]:
        """Return everything that is kept of a slice, by name; not copied."""
        self.changed.discard(key)
        found = {WEIGHTS: self._weights[key]}
        found |= {f"{_STATE}{name}": tensor for name, tensor in self._states[key].items()}
        found |= {f"{_BACKUP}{rank}": tensor for rank, tensor in self._backups[key].items()}
        return found

    def restore(self, key: int, tensors: dict[str, Tensor]) -> None:
        """Take back what :meth:`snapshot` returned."""
        self._weights[key] = tensors[WEIGHTS]
        for name, tensor in tensors.items():
            if name.startswith(_STATE):
                self._states[key][name.removeprefix(_STATE)] = tensor
            elif name.startswith(_BACKUP):
                self._backups[key][int(name.removeprefix(_BACKUP))] = tensor

    def _writable(self, key: int) -> Tensor:
        """Return weights that may be changed: a copy where the old ones are being sent."""
        if any(not tracker.done for tracker in self._sending.pop(key, [])):
            self._weights[key] = self._weights[key].clone()
        return self._weights[key]
