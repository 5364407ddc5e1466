"""Frames: rows as the payloads of messages carry them: numbers, weights, and what is remembered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from syncopate.paramserver.rows.hashing import Ids
from syncopate.paramserver.tensors import aligned, dtype_of, flat_bytes
from syncopate.protocol.rules import STEPS
from syncopate.protocol.table import ID_BYTES, Table, columns_of


class SomeRows(NamedTuple):
    """Rows of a table.

    Attributes:
        ids: their numbers, each once, ascending; shape (rows,).
        values: weights or gradients, shape (rows, width).
        state: what the optimizer remembers, by name, each as ``values``.
    """

    ids: Ids
    values: Tensor
    state: dict[str, Tensor]


def payload_of(ids: Ids, columns: Sequence[Tensor]) -> Tensor:
    """Return the bytes of rows' numbers and, behind them, of ``columns``, each (rows, width)."""
    parts = [bytes_of(ids)]
    parts += [flat_bytes(column.contiguous()) for column in columns]
    return torch.cat(parts)


def rows_of(data: Tensor, table: Table, state: tuple[str, ...] = ()) -> SomeRows:
    """Return the rows in a payload, in its own memory where that is aligned.

    Args:
        data: its bytes.
        table: theirs.
        state: what is in it behind the weights, by name.
    """
    names = [name for name in state if name != STEPS]
    count = data.numel() // table.row_bytes(columns_of(state))
    ids = aligned(data[: count * ID_BYTES], torch.int64).numpy()
    values = aligned(data[count * ID_BYTES :], dtype_of(table.dtype))
    columns = values.view(columns_of(state), count, table.width)
    return SomeRows(ids, columns[0], dict(zip(names, columns[1:], strict=True)))


def bytes_of(ids: Ids) -> Tensor:
    """Return the bytes of rows' numbers, in their own memory where that is contiguous."""
    return torch.from_numpy(np.ascontiguousarray(ids).view(np.uint8))


def ascends(ids: Ids) -> bool:
    """Say whether numbers ascend, each once."""
    return bool(np.all(ids[1:] > ids[:-1]))
