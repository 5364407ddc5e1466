"""Tables: a worker's tables: what is pushed to them and pulled from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.paramserver.driver import Handle, Pulled, Pushed, Taken
from syncopate.paramserver.rows.frames import SomeRows, ascends, bytes_of, payload_of, rows_of
from syncopate.paramserver.rows.hashing import Ids, servers_of
from syncopate.paramserver.rows.index import Slots
from syncopate.paramserver.session import Session
from syncopate.paramserver.tensors import aligned, dtype_of, is_direct
from syncopate.protocol import messages as msg
from syncopate.protocol.limits import Limits
from syncopate.protocol.placement.bundle import Place
from syncopate.protocol.placement.piece import Slice, TableSlice
from syncopate.protocol.rules import STEPS, Rules
from syncopate.protocol.table import MOST_TABLES, Table, columns_of, key_of, require_rows
from syncopate.units import dtype_name

IDS, WEIGHTS = "ids", "weights"
_ID_DTYPES = (torch.int32, torch.int64)

TableState = Mapping[str, Tensor]
"""Rows of a table and what the optimizer remembers of them: ``"ids"`` (rows,), ``"weights"`` and
others (rows, width), ``"steps"`` (1,)."""


class _Declared(NamedTuple):
    table: Table
    rules: Rules
    slices: list[Slice]


class Tables:
    """The tables that a worker declared."""

    def __init__(self, session: Session, limits: Limits) -> None:
        """Begin with none.

        Args:
            session: of the worker.
            limits: pushes and pulls of more than a slice are cut.
        """
        self._session = session
        self._most_bytes, self._payload_bytes = limits.slice_bytes, limits.payload_bytes
        self._declared: dict[str, _Declared] = {}
        self._servers = len(session.roster.servers)

    def declare(self, key: str, table: Table, rules: Rules) -> None:
        """Let the servers keep ``table``.

        Raises:
            InvalidValueError: there is one of that name, or it cannot be updated by ``rules``.
            UnknownNameError: rows cannot have such elements.
        """
        table.require_valid()
        require_rows(rules.require_valid())
        if key in self._declared or len(self._declared) >= MOST_TABLES:
            rule = f"the name of a new table, and the tables at most {MOST_TABLES}"
            raise InvalidValueError("key", key, rule)
        if (nbytes := table.row_bytes(columns_of(rules.state))) > self._payload_bytes:
            rule = (
                f"so small that a row with what the optimizer remembers of it has at most "
                f"{self._payload_bytes} bytes (payload_bytes); it has {nbytes}"
            )
            raise InvalidValueError(f"the width of {key!r}", table.width, rule)
        number, numel = len(self._declared), table.rows * table.width
        slices = [
            Slice(key_of(number, server), key, table.dtype, 0, numel, table)
            for server in range(self._servers)
        ]
        self._declared[key] = _Declared(table, rules, slices)
        self._session.declare_table([TableSlice(piece, rules) for piece in slices])

    def brought(self, before: Tables, held: Mapping[str, TableState] | None) -> None:
        """Go on with the tables of other servers; blocks until worker 0 has brought them.

        Args:
            before: as they were declared there.
            held: worker 0's: what :meth:`held` returned of each; None: of another worker.
        """
        for key, (table, rules, _) in before._declared.items():
            self.declare(key, table, rules)
            if held is not None:
                self.begin(key, held[key]).wait()
            self.meet(key)

    def all_held(self) -> dict[str, dict[str, Tensor]]:
        """Return what :meth:`held` returns of each table."""
        return {key: self.held(key) for key in self._declared}

    def of(self, key: str) -> Table:
        """Return the table ``key``.

        Raises:
            UnknownNameError: there is none.
        """
        if key not in self._declared:
            raise UnknownNameError("table", key, self._declared)
        return self._declared[key].table

    def begin(self, key: str, given: TableState | None) -> Handle:
        """Push a table's first value: the rows ``given``, or none; worker 0 alone.

        Raises:
            InvalidValueError: they are no rows of the table.
        """
        table, rules, _ = self._declared[key]
        given = given or {IDS: torch.empty(0, dtype=torch.int64)}
        ids = self._ids(key, given[IDS])
        columns = {
            WEIGHTS: given.get(WEIGHTS, torch.empty(0, table.width, dtype=dtype_of(table.dtype)))
        }
        columns |= {name: given[name] for name in rules.state if name in given and name != STEPS}
        values = {name: self._values(key, name, ids, each) for name, each in columns.items()}
        if not ascends(ids):
            order = np.argsort(ids, kind="stable")
            ids = ids[order]
            if not ascends(ids):
                raise InvalidValueError(f"ids of {key!r}", "some twice", "each once")
            values = {name: each[torch.from_numpy(order)] for name, each in values.items()}
        state = tuple(name for name in values if name != WEIGHTS)
        steps = int(given[STEPS].item()) if STEPS in given else 0
        first = msg.BeginRows(0, 0, state=state, steps=steps)
        return self._push(key, SomeRows(ids, values.pop(WEIGHTS), values), first, 0)

    def push(
        self,
        key: str,
        ids: object,
        values: Tensor,
        priority: int,
        lr: float | None,
        *,
        reached: bool = True,
    ) -> Handle:
        """Push gradients of rows: those of a row that comes several times are added.

        Raises:
            InvalidValueError: they are no rows of the table.
        """
        table = self.of(key)
        numbers = self._ids(key, ids)
        gradients = self._values(key, "values", numbers, values)
        if not ascends(numbers):
            shape = (table.rows, table.width)
            places = torch.from_numpy(numbers)[None]
            summed = torch.sparse_coo_tensor(places, gradients, shape, check_invariants=False)
            summed = summed.coalesce()
            numbers, gradients = summed._indices()[0].numpy(), summed._values()
        push = msg.PushRows(0, 0, lr, reached=reached)
        return self._push(key, SomeRows(numbers, gradients, {}), push, priority)

    def pull(self, key: str, ids: object, out: Tensor | None, priority: int) -> Handle:
        """Receive rows into ``out``, or into a new tensor, which the handle has as ``out``.

        Raises:
            InvalidValueError: there are no such rows, or ``out`` has not their shape.
        """
        table = self.of(key)
        numbers, dtype = self._ids(key, ids), dtype_of(table.dtype)
        if out is None:
            shape = ids.shape if isinstance(ids, Tensor | np.ndarray) else (len(numbers),)
            out = torch.empty(*shape, table.width, dtype=dtype)
        elif (out.numel(), out.dtype) != (len(numbers) * table.width, dtype):
            rule = f"{len(numbers)} rows of {table.width} elements of {table.dtype}"
            raise InvalidValueError(f"out of {key!r}", _described(out), rule)
        places: Slots | None = None
        if not ascends(numbers):
            numbers, places = np.unique(numbers, return_inverse=True)
        direct, target = places is None and is_direct(out), out
        if direct:
            found = out.detach().view(-1, table.width)
        else:
            found = torch.empty(len(numbers), table.width, dtype=dtype)

        def finish() -> None:
            if not direct:
                rows = found if places is None else found[torch.from_numpy(places.reshape(-1))]
                target.detach().copy_(rows.view(target.shape))

        handle = self._pull(key, numbers, found, priority, finish)
        handle.out = out
        return handle

    def meet(self, key: str) -> None:
        """Wait until worker 0 has given the table its first value."""
        nothing, rows = np.empty(0, np.int64), torch.empty(0, self.of(key).width)
        self._pull(key, nothing, rows, 0, lambda: None, everywhere=True).wait()

    def held(self, key: str) -> dict[str, Tensor]:
        """Return all rows that the servers keep, and what the optimizer remembers of them."""
        table = self.of(key)
        _, rules, slices = self._declared[key]
        each = max(1, self._most_bytes // table.row_bytes(columns_of(rules.state)))
        found: dict[int, list[SomeRows]] = {piece.key: [] for piece in slices}
        left, steps = {piece.key: 0 for piece in slices}, 0
        while left:
            told: dict[int, msg.TableState] = {}
            handle = self._session.handle(len(left))

            def pull(piece: Slice, _: Place) -> None:
                def take(data: Tensor, answer: msg.Weights) -> None:
                    assert isinstance(answer, msg.TableState)
                    told[piece.key] = answer  # noqa: B023
                    found[piece.key].append(rows_of(data.clone(), table, answer.state))

                asked = msg.PullTable(piece.key, 0, 0, begin=left[piece.key], count=each)  # noqa: B023
                self._session.pull(asked, Pulled(take, handle))  # noqa: B023

            self._session.submit([p for p in slices if p.key in left], pull, handle)
            handle.wait()
            steps = max(said.steps for said in told.values())
            left = {k: left[k] + each for k, said in told.items() if left[k] + each < said.held}
        return _joined([rows for key in found for rows in found[key]], steps)

    def _push(self, key: str, rows: SomeRows, push: msg.PushRows, priority: int) -> Handle:
        table, _, slices = self._declared[key]
        columns = [rows.values, *rows.state.values()]
        each = max(1, self._most_bytes // table.row_bytes(len(columns)))
        payloads: dict[int, list[Tensor]] = {}
        for piece, here in zip(slices, self._spread(rows.ids), strict=True):
            ids, own = rows.ids, columns
            if here is not None:
                ids, own = ids[here], [column[torch.from_numpy(here)] for column in columns]
            payloads[piece.key] = [
                payload_of(ids[begin : begin + each], [c[begin : begin + each] for c in own])
                for begin in range(0, max(1, len(ids)), each)
            ]
        nbytes = sum(part.numel() for parts in payloads.values() for part in parts)
        session = self._session
        handle = session.handle(len(slices), nbytes)

        def submit(piece: Slice, _: Place) -> None:
            parts = payloads[piece.key]
            own = msgspec.structs.replace(push, key=piece.key, parts=len(parts))
            session.push(own, priority, Pushed(parts[0], handle, parts))

        session.submit(slices, submit, handle)
        return handle

    def _pull(
        self,
        key: str,
        ids: Ids,
        found: Tensor,
        priority: int,
        finish: Callable[[], None],
        *,
        everywhere: bool = False,
    ) -> Handle:
        """Receive the rows ``ids``, ascending, into ``found``, and call ``finish``."""
        table, _, slices = self._declared[key]
        each = max(1, self._most_bytes // table.row_bytes())
        wanted: dict[int, list[tuple[Ids, Tensor | slice]]] = {}
        for piece, here in zip(slices, self._spread(ids), strict=True):
            own = ids if here is None else ids[here]
            parts: list[tuple[Ids, Tensor | slice]] = []
            for begin in range(0, len(own), each):
                end = begin + each
                place = slice(begin, end) if here is None else torch.from_numpy(here[begin:end])
                parts.append((own[begin:end], place))
            if parts or everywhere:
                wanted[piece.key] = parts or [(own, slice(0, 0))]
        if not wanted:
            wanted[slices[0].key] = [(ids, slice(0, 0))]
        session = self._session
        handle = session.handle(sum(map(len, wanted.values())))
        handle.finish(finish)

        def submit(piece: Slice, _: Place) -> None:
            for own, place in wanted[piece.key]:
                pull = msg.PullRows(piece.key, 0, 0, priority, count=len(own))
                asked = bytes_of(own.copy())  # the caller's may change
                session.pull(pull, Pulled(_filling(found, place), handle, asked=asked))

        session.submit([piece for piece in slices if piece.key in wanted], submit, handle)
        return handle

    def _spread(self, ids: Ids) -> Iterator[Slots | None]:
        """Give which of the rows each server keeps; None for all."""
        if self._servers == 1:
            yield None
            return
        servers = servers_of(ids, self._servers)
        order = np.argsort(servers, kind="stable")
        ends = np.cumsum(np.bincount(servers, minlength=self._servers))
        yield from np.split(order, ends[:-1])

    def _ids(self, key: str, ids: object) -> Ids:
        """Return numbers of rows, flat, as integers of 64 bits."""
        given = torch.from_numpy(ids) if isinstance(ids, np.ndarray) else ids
        if not isinstance(given, Tensor) or given.dtype not in _ID_DTYPES:
            what = dtype_name(given.dtype) if isinstance(given, Tensor) else type(ids).__name__
            raise InvalidValueError(f"ids of {key!r}", what, "a tensor of int32 or int64")
        flat = given.detach().cpu().reshape(-1).to(torch.int64).numpy()
        rows = self.of(key).rows
        wrong = flat[(flat < 0) | (flat >= rows)] if len(flat) else flat
        if len(wrong):
            raise InvalidValueError(f"an id of {key!r}", int(wrong[0]), f"from 0 to {rows - 1}")
        return flat

    def _values(self, key: str, what: str, ids: Ids, values: Tensor) -> Tensor:
        """Return values of rows, shape (rows, width), on the CPU."""
        table = self.of(key)
        width = values.shape[-1] if values.dim() else 0
        fits = values.numel() == len(ids) * table.width and (width == table.width or not len(ids))
        if not fits or dtype_name(values.dtype) != table.dtype:
            rule = f"{len(ids)} rows of {table.width} elements of {table.dtype}"
            raise InvalidValueError(f"{what} of {key!r}", _described(values), rule)
        return values.detach().cpu().reshape(-1, table.width)


def whole_table(key: str, table: Tensor) -> tuple[Table, dict[str, Tensor]]:
    """Return what a table is of which all rows are given, and these rows.

    Raises:
        InvalidValueError: it has not two dimensions.
    """
    if table.dim() != 2:
        raise InvalidValueError(f"the table {key!r}", _described(table), "of shape (rows, width)")
    kind = Table(rows=table.shape[0], width=table.shape[1], dtype=dtype_name(table.dtype))
    return kind, {IDS: torch.arange(table.shape[0]), WEIGHTS: table.detach()}


def _filling(found: Tensor, place: Tensor | slice) -> Taken:
    def take(data: Tensor, _: msg.Weights) -> None:
        if data.numel():
            found[place] = aligned(data, found.dtype).view(-1, found.shape[1])

    return take


def _described(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {dtype_name(tensor.dtype)}"


def _joined(parts: Sequence[SomeRows], steps: int) -> dict[str, Tensor]:
    """Return rows of several servers as one, ascending."""
    ids = np.concatenate([rows.ids for rows in parts])
    order = torch.from_numpy(np.argsort(ids))
    found = {IDS: torch.from_numpy(ids)[order]}
    found[WEIGHTS] = torch.cat([rows.values for rows in parts])[order]
    for name in parts[0].state:
        found[name] = torch.cat([rows.state[name] for rows in parts])[order]
    return found | {STEPS: torch.tensor([steps])}
