"""Table: rows that servers keep by number, each made when it is first touched.

[Note: tables] A table is spread over all servers by a hash of the rows' numbers. So what a server
keeps of it is one slice, with a key of its own, and pushes and pulls of that slice say which rows
they mean. Every push of a table goes to every server, with those rows that it keeps and perhaps
none. So the servers count the same pushes, and a synchronous update has those of all workers, as
it has with slices of tensors.

A table begins by worker 0's push 0, like a tensor: with all rows, some or none. Other rows have
values that follow from a seed and their number alone.
"""

from __future__ import annotations

import math

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.protocol.rules import DC_ASGD, SGD, STEPS, Rule, Rules, Updater
from syncopate.units import dtype_bytes

TABLES = 2**30
"""Slices of tensors have keys below it, those of tables from it on, up to that of bundles."""

_SERVERS = 2**16
"""Ranks of servers are below it: the keys of one table follow each other by server."""

MOST_TABLES = (2**31 - TABLES) // _SERVERS

ID_BYTES = 8
"""The number of a row travels as an integer of 64 bits."""

DTYPES = ("float32", "float64")
"""What elements of a table may be."""

_MOST_ELEMENTS, _MOST_WIDTH = 2**62, 2**24
_SEEDS = 2**63


class Constant(Rule, frozen=True, tag="constant"):
    """Every element of a row begins as ``value``."""

    value: float = 0.0


class Uniform(Rule, frozen=True, tag="uniform"):
    """Elements begin uniformly distributed from ``low`` to ``high``, by ``seed`` and row."""

    low: float
    high: float
    seed: int = 0


class Normal(Rule, frozen=True, tag="normal"):
    """Elements begin normally distributed around ``mean``, by ``seed`` and row."""

    mean: float = 0.0
    std: float = 1.0
    seed: int = 0


Initial = Constant | Uniform | Normal
"""What rows are that nothing was pushed to."""


class Table(Rule, frozen=True):
    """A table of rows.

    Attributes:
        rows: how many; their numbers are 0 to ``rows - 1``.
        width: elements of a row.
        dtype: of the elements, one of :data:`DTYPES`.
        initial: what rows are that nothing was pushed to.
    """

    rows: int
    width: int
    dtype: str = "float32"
    initial: Initial = Constant()

    def require_valid(self) -> Table:
        """Return this table.

        Raises:
            InvalidValueError: a number is out of its range.
            UnknownNameError: rows cannot have such elements.
        """
        for name, most in (("rows", _MOST_ELEMENTS - 1), ("width", _MOST_WIDTH)):
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise InvalidValueError(name, value, f"from 1 to {most}")
        if self.dtype not in DTYPES:
            raise UnknownNameError("dtype", self.dtype, DTYPES, "a table of rows")
        if self.rows * self.width >= _MOST_ELEMENTS:
            rule = f"rows of {self.width} elements, fewer than {_MOST_ELEMENTS} in all"
            raise InvalidValueError("rows", self.rows, rule)
        for name in self.initial.__struct_fields__:
            value = getattr(self.initial, name)
            if name == "seed" and not 0 <= value < _SEEDS:
                raise InvalidValueError("seed", value, f"from 0 to {_SEEDS - 1}")
            if not math.isfinite(value):
                raise InvalidValueError(name, value, "finite")
        if isinstance(self.initial, Normal) and self.initial.std < 0:
            raise InvalidValueError("std", self.initial.std, "at least 0")
        return self

    def row_bytes(self, columns: int = 1) -> int:
        """Return what a row takes in a message that has its number and so many values of it.

        Args:
            columns: 1: the weights; and one more for each thing that the optimizer remembers.
        """
        return ID_BYTES + columns * self.width * dtype_bytes(self.dtype)


def key_of(table: int, server: int) -> int:
    """Return the key of what ``server`` keeps of a table.

    Args:
        table: counts tables from 0, in the order in which the workers declare them.
        server: its rank.
    """
    return TABLES + table * _SERVERS + server


def server_of(key: int) -> int:
    """Return the rank of the server that keeps the slice ``key`` of a table."""
    return (key - TABLES) % _SERVERS


def columns_of(state: tuple[str, ...]) -> int:
    """Return how many values of a row a message carries: weights, and the ``state`` by row."""
    return 1 + sum(name != STEPS for name in state)


def require_rows(rules: Rules) -> Rules:
    """Return ``rules``, by which tables can be updated.

    Only rows that a push names are updated, and only they have state, as torch's SGD without
    momentum, Adagrad and SparseAdam do with sparse gradients. What torch refuses there is refused
    here; so is momentum, with which torch moves rows that no gradient names.

    Raises:
        InvalidValueError: they cannot.
    """
    if rules.mode == DC_ASGD:
        raise InvalidValueError("mode", rules.mode, "'ssgd' or 'asgd' for a table of rows")
    if rules.clip_norm is not None:
        rule = "None beside a table of rows, whose gradient has no part in the norm"
        raise InvalidValueError("clip_norm", rules.clip_norm, rule)
    optimizer = rules.optimizer
    if isinstance(optimizer, Updater):
        rule = "SGD, Adagrad or Adam for a table of rows"
        raise InvalidValueError("optimizer", optimizer.name, rule)
    if optimizer.weight_decay:
        rule = "0 for a table of rows: it would change rows that no gradient names"
        raise InvalidValueError("weight_decay", optimizer.weight_decay, rule)
    if isinstance(optimizer, SGD) and optimizer.momentum:
        rule = "0 for a table of rows: it would change rows that no gradient names"
        raise InvalidValueError("momentum", optimizer.momentum, rule)
    return rules
