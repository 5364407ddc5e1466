"""Shard: the slices of one server: weights, optimizer states, and gradients that wait.

What it keeps of tables lies in :class:`~syncopate.paramserver.rows.share.TableShare`, one for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec
import torch
import zmq
from torch import Tensor

from syncopate.paramserver.narrow import decoded
from syncopate.paramserver.rows.frames import ascends, rows_of
from syncopate.paramserver.rows.hashing import servers_of
from syncopate.paramserver.rows.share import TableShare
from syncopate.paramserver.storage import optimizers
from syncopate.paramserver.storage.state import Record
from syncopate.paramserver.storage.updaters import Updaters, Updating
from syncopate.paramserver.tensors import (
    aligned,
    dtype_of,
    flat_bytes,
    frame_of,
    joined,
    parted,
    tensor_of,
)
from syncopate.protocol import messages as msg
from syncopate.protocol.actions import (
    Add,
    Answer,
    Ask,
    Initialise,
    Measure,
    Stage,
    Unstage,
    Update,
)
from syncopate.protocol.gradients.narrow import is_narrowed
from syncopate.protocol.messages import Refusal
from syncopate.protocol.placement.bundle import Cut
from syncopate.protocol.placement.piece import Slice, TableSlice
from syncopate.protocol.rules import STEPS, Rules
from syncopate.protocol.slice import Position
from syncopate.protocol.table import ID_BYTES, columns_of

WEIGHTS = "weights"
_STATE = "state:"
_BACKUP = "backup:"


class Shard:
    """The tensors of one server.

    Attributes:
        changed: keys of slices that changed since :meth:`snapshot` last took them.
    """

    def __init__(self, updaters: Updaters | None = None) -> None:
        """Hold nothing yet; ``updaters`` are the server's."""
        self.changed: set[int] = set()
        self._specs: dict[int, Slice] = {}
        self._tables: dict[int, TableShare] = {}
        # Numbers of rows that workers wait for, by key and worker.
        self._asked: dict[tuple[int, int], zmq.Frame] = {}
        # The sum of the gradients that were added before their update, by key, and how many.
        self._sums: dict[int, tuple[Tensor | None, int]] = {}
        # Means of gradients that wait for the norm of the step; None: no worker has a gradient.
        self._means: dict[int, Tensor | None] = {}
        self._staged: dict[tuple[int, int, int], Tensor] = {}
        self._weights: dict[int, Tensor] = {}
        self._states: dict[int, optimizers.State] = {}
        self._rules: list[Rules] = []  # by group, and what updates by them
        self._updates: list[Updating] = []
        self._updaters = updaters or Updaters()
        self._clip_norm, self._keeps_before = math.inf, False
        self._backups: dict[int, dict[int, Tensor]] = {}
        # Weights and states of the version before, where they are kept; code never changes them.
        self._before: dict[int, tuple[Tensor, optimizers.State]] = {}
        # Weights that ZeroMQ sends lie where they are: code that changes them has to know.
        self._sending: dict[int, list[zmq.MessageTracker]] = {}

    def keep(self, rules: Rules, slices: Iterable[Slice]) -> None:
        """Hold ``slices`` of tensors, without values yet, updated by ``rules``.

        Raises:
            ParameterServerError: there is no such updater here.
        """
        self._rules = [rules.of(group) for group in range(len(rules.groups) + 1)]
        self._updates = [self._updaters.of(each.optimizer) for each in self._rules]
        self._clip_norm = rules.clip_norm or math.inf
        self._keeps_before = rules.keeps_before
        specs = {spec.key: spec for spec in slices if spec.table is None}
        self._specs |= specs
        self._states |= {key: {} for key in specs}
        self._backups |= {key: {} for key in specs}

    def keep_table(self, spec: TableSlice) -> None:
        """Hold a share of a table as well."""
        self._specs[spec.slice.key] = spec.slice
        self._tables[spec.slice.key] = TableShare(spec)

    @property
    def held(self) -> set[int]:
        """Keys of the slices that have values."""
        return set(self._weights) | {key for key, share in self._tables.items() if share.begun}

    @property
    def waiting(self) -> int:
        """How many gradients, and sums of gradients, are held until an update takes them."""
        tables = sum(share.waiting for share in list(self._tables.values()))  # in any thread
        return len(self._staged) + len(self._sums) + len(self._means) + tables

    def require_rows(
        self, message: msg.PushRows | msg.PullRows, frame: zmq.Frame, rank: int, servers: int
    ) -> None:
        """Refuse numbers of rows that are not this server's.

        Raises:
            Refusal: some are not in the table, not ascending, or of another server.
        """
        spec = self._specs.get(message.key)
        if spec is None or spec.table is None:
            return
        data = tensor_of(frame, torch.uint8)
        if isinstance(message, msg.PullRows):
            ids = aligned(data[: data.numel() // ID_BYTES * ID_BYTES], torch.int64).numpy()
        else:
            state = message.state if isinstance(message, msg.BeginRows) else ()
            whole = spec.table.row_bytes(columns_of(state))
            ids = rows_of(data[: data.numel() // whole * whole], spec.table, state).ids
        wrong = len(ids) and (ids[0] < 0 or ids[-1] >= spec.table.rows or not ascends(ids))
        if wrong or (servers > 1 and (servers_of(ids, servers) != rank).any()):
            reason = f"rows of {spec.name} that are not in it, not ascending or not kept here"
            raise Refusal(msg.MALFORMED, reason)

    def stage(self, action: Stage, frame: zmq.Frame) -> None:
        """Hold a payload until an update takes it."""
        if action.key in self._tables:
            self._tables[action.key].stage(action, tensor_of(frame, torch.uint8))
            return
        spec = self._specs[action.key]
        dtype, push_dtype = dtype_of(spec.dtype), self._rules[spec.group].push_dtype
        if action.sequence and len(frame) and is_narrowed(spec, push_dtype):
            data = decoded(spec, push_dtype, tensor_of(frame, torch.uint8))
        else:
            data = tensor_of(frame, dtype)
        if action.part is not None:
            begin, end = (at // dtype.itemsize for at in action.part)
            data = data[begin:end]
        self._staged[action.key, action.worker, action.sequence] = data

    def add(self, action: Add) -> None:
        """Add a staged gradient to those of the next update; those of rows wait for it."""
        if action.key in self._tables:
            return
        gradient = self._staged.pop((action.key, action.worker, action.sequence))
        total, count = self._sums.pop(action.key, (None, 0))
        if gradient.numel() == self._specs[action.key].numel:  # else the worker has none
            total = gradient if total is None else total.add_(gradient)
        self._sums[action.key] = (total, count + 1)

    def measure(self, action: Measure) -> float:
        """Make the mean of the gradients of the next update; return the sum of its squares."""
        mean = self._means[action.key] = self._mean(action.key, action.gradients)
        if mean is None:
            return 0.0
        exact = mean.to(torch.complex128 if mean.is_complex() else torch.float64)
        return float(torch.vdot(exact, exact).real)

    def split(self, cut: Cut) -> None:
        """Keep the parts of a bundle as slices of their own from now on."""
        key, itemsize = cut.key, dtype_of(self._specs[cut.key].dtype).itemsize
        self._specs |= {part.key: part for part in cut.parts}
        self._sending.pop(key, None)
        state, backups = self._states.pop(key), self._backups.pop(key)
        before = (self._before.pop(key),) if key in self._before else ()
        weights, total = self._weights.pop(key, None), self._sums.pop(key, None)
        mean = (self._means.pop(key),) if key in self._means else ()
        staged = {number: t for number, t in self._staged.items() if number[0] == key}
        for part, begin_byte, end_byte in cut.places():
            own = slice(begin_byte // itemsize, end_byte // itemsize)
            if weights is not None:
                self._weights[part.key] = weights[own].clone()  # the whole may be being sent
                self.changed.add(part.key)
            self._states[part.key] = _some(state, own)
            for old_weights, old_state in before:
                self._before[part.key] = old_weights[own].clone(), _some(old_state, own)
            self._backups[part.key] = {rank: t[own].clone() for rank, t in backups.items()}
            if total is not None:
                self._sums[part.key] = (_part(total[0], own), total[1])
            for each in mean:
                self._means[part.key] = _part(each, own)
            for (_, worker, sequence), tensor in staged.items():
                self._staged[part.key, worker, sequence] = tensor[own]
        for number in staged:
            del self._staged[number]
        self.changed.discard(key)

    def initialise(self, action: Initialise) -> None:
        """Take a staged payload as weights, and what follows them as the optimizer's state."""
        key = action.key
        self.changed.add(key)
        if key in self._tables:
            self._tables[key].initialise(action)
            return
        staged = flat_bytes(self._staged.pop((key, action.worker, 0)))
        state = parted(staged, self._specs[key].carried(action.state))
        self._weights[key], self._states[key] = state.pop(""), state

    def update(self, action: Update) -> None:
        """Add those gradients that were not, in the order given, and apply their mean."""
        key = action.key
        self.changed.add(key)
        if key in self._tables:
            self._tables[key].update(action)
            return
        made = key in self._means
        total = self._means.pop(key) if made else self._mean(key, action.gradients)
        if self._keeps_before:
            self.keep_before(key)
        if total is None:
            return
        if action.norm is not None:
            optimizers.clip(total, action.norm, self._clip_norm)
        weights = self._writable(key)
        state, rules = self._states[key], self._rules[self._specs[key].group]
        if action.compensate is not None:
            backup = self._backups[key].get(action.compensate, weights)
            total = optimizers.compensate(rules.compensation, total, weights, backup, state)
        self._updates[self._specs[key].group](action.lr, weights, total, state)

    def keep_before(self, key: int) -> None:
        """Keep what a slice is, because another version follows."""
        if key in self._tables:
            self._tables[key].keep_before()
            return
        weights, state = self._weights[key], self._states[key]
        self._before[key] = weights, state
        self._weights[key] = weights.clone()
        self._states[key] = {name: tensor.clone() for name, tensor in state.items()}
        self._sending.pop(key, None)

    def unstage(self, action: Unstage) -> None:
        """Drop the parts that came of a push of rows."""
        self._tables[action.key].unstage(action.worker, action.sequence)

    def _mean(self, key: int, gradients: Sequence[tuple[int, int]]) -> Tensor | None:
        """Return the mean of gradients, of which some were added; None where none is there."""
        _, added = self._sums.get(key, (None, 0))
        for worker, sequence in gradients[added:]:
            self.add(Add(key, worker, sequence))
        total, count = self._sums.pop(key)
        return total.div_(count) if total is not None and count > 1 else total

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

    def state_payload(self, key: int, *, before: bool = False) -> tuple[tuple[str, ...], zmq.Frame]:
        """Return what the optimizer remembers of a slice, and the weights with that behind them.

        Args:
            key: of the slice.
            before: whether as they were before the last update.

        Returns:
            Names in the order of the payload, and a tracked frame.
        """
        weights, state = self._weights[key], self._states[key]
        if before:
            weights, state = self._before[key]
        rules = self._rules[self._specs[key].group]
        names = tuple(name for name in rules.state if name in state)
        return names, frame_of(joined([weights, *(state[name] for name in names)]))

    def ask(self, action: Ask, frame: zmq.Frame) -> None:
        """Hold the numbers of rows that a worker waits for."""
        self._asked[action.key, action.worker] = frame

    def answer(
        self, action: Answer, let_go: Callable[[], None] | None = None
    ) -> tuple[msg.Weights, zmq.Frame]:
        """Return what answers a pull: the message, and a tracked frame with what goes along."""
        asked = action.message
        assert isinstance(asked, msg.Weights)
        if isinstance(asked, msg.State):
            state, frame = self.state_payload(asked.key, before=action.before)
            return msgspec.structs.replace(asked, state=state), frame
        if isinstance(asked, msg.Rows):
            ids = tensor_of(self._asked.pop((asked.key, action.worker)), torch.int64).numpy()
            rows = self._tables[asked.key].rows(ids, before=action.before)
            return asked, frame_of(flat_bytes(rows), let_go)
        if isinstance(asked, msg.TableState):
            table = self._tables[asked.key]
            held, steps, state, data = table.kept(*action.range, before=action.before)
            told = msgspec.structs.replace(asked, held=held, steps=steps, state=state)
            return told, frame_of(data)
        if action.before:
            return asked, frame_of(flat_bytes(self._before[asked.key][0]), let_go)
        return asked, self.payload(asked.key, action.backup_for, let_go)

    def record(self, key: int, position: Position, *, whole: bool) -> Record:
        """Return what is to be written of a slice that is at ``position``.

        Of a table, unless ``whole``, rows that changed since the last call.
        """
        if key not in self._tables:
            return Record(position, self.snapshot(key))
        self.changed.discard(key)
        share = self._tables[key]
        return Record(position, share.snapshot(whole=whole), not whole, share.nbytes)

    def snapshot(self, key: int) -> dict[str, Tensor]:
        """Return everything that is kept of a slice of a tensor, by name; not copied."""
        self.changed.discard(key)
        found = {WEIGHTS: self._weights[key]}
        found |= {f"{_STATE}{name}": tensor for name, tensor in self._states[key].items()}
        found |= {f"{_BACKUP}{rank}": tensor for rank, tensor in self._backups[key].items()}
        return found

    def restore(self, key: int, tensors: dict[str, Tensor]) -> None:
        """Take back what :meth:`snapshot` returned; of a table, what records have, in order."""
        if key in self._tables:
            self._tables[key].restore(tensors)
            return
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


def _some(state: optimizers.State, own: slice) -> optimizers.State:
    """Return a copy of the state of some elements."""
    return {
        name: (tensor if name == STEPS else tensor[own]).clone() for name, tensor in state.items()
    }


def _part(tensor: Tensor | None, own: slice) -> Tensor | None:
    return None if tensor is None else tensor[own]
