"""Hashing: which server keeps a row, and the values that a row begins with.

Both follow from the row's number, and the latter from a seed besides, by the finaliser of
splitmix64 (Steele et al., 2014). So they are the same in every process, on any number of servers.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from syncopate.paramserver.tensors import dtype_of
from syncopate.protocol.table import Constant, Initial, Table, Uniform

Ids = NDArray[np.int64]
"""Numbers of rows, shape (rows,)."""

_Bits = NDArray[np.uint64]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _11, _40 = (np.uint64(bits) for bits in (30, 27, 31, 11, 40))
_SERVER_BITS = np.uint64(32)
_CHUNK = 1 << 20
"""Elements whose first values are computed at a time."""


def mixed(bits: _Bits) -> _Bits:
    """Return 64 bits for each 64 bits, all of which depend on all."""
    bits = bits ^ (bits >> _30)
    bits *= _FIRST
    bits ^= bits >> _27
    bits *= _SECOND
    bits ^= bits >> _31
    return bits


def hash_of(ids: Ids) -> _Bits:
    """Return a hash of each row's number: its upper half says the server, its lower the place."""
    return mixed(ids.view(np.uint64) + _STEP)


def servers_of(ids: Ids, servers: int) -> NDArray[np.int64]:
    """Return the rank of the server that keeps each row."""
    return ((hash_of(ids) >> _SERVER_BITS) % np.uint64(servers)).view(np.int64)


def initial_rows(table: Table, ids: Ids) -> Tensor:
    """Return the values that rows begin with.

    Args:
        table: theirs.
        ids: their numbers, shape (rows,).

    Returns:
        Shape (rows, width). Elements of ``Normal`` are by Box and Muller (1958), in float64; their
        last bits are as this processor's logarithm and cosine have them.
    """
    found = torch.empty(len(ids), table.width, dtype=dtype_of(table.dtype))
    if isinstance(table.initial, Constant):
        return found.fill_(table.initial.value)
    each = max(1, _CHUNK // table.width)
    for begin in range(0, len(ids), each):
        part = _drawn(table.initial, ids[begin : begin + each], table.width)
        found[begin : begin + each] = torch.from_numpy(part)
    return found


def _drawn(initial: Initial, ids: Ids, width: int) -> NDArray[np.float64]:
    assert not isinstance(initial, Constant)
    seed = mixed(np.array([initial.seed], np.uint64) + _STEP)
    with np.errstate(over="ignore"):
        columns = np.arange(1, width + 1, dtype=np.uint64) * _STEP
        bits = mixed(mixed(ids.view(np.uint64) ^ seed)[:, None] + columns)
    if isinstance(initial, Uniform):
        share = (bits >> _11).astype(np.float64) * 2.0**-53
        return initial.low + (initial.high - initial.low) * share
    near = ((bits >> _40).astype(np.float64) + 1) * 2.0**-24
    turn = (bits & np.uint64(2**40 - 1)).astype(np.float64) * 2.0**-40
    drawn: NDArray[np.float64] = np.sqrt(-2 * np.log(near)) * np.cos(2 * np.pi * turn)
    return initial.mean + initial.std * drawn
