"""Checker: proves a schedule right, symbolically, for every buffer it will ever run on.

Every chunk of every rank holds an expression: undefined, the data of one rank, or the sum of two
expressions. Expressions are interned, so that equal ones are the same small integer, and a sum is
interned without regard to the order of its operands, because IEEE addition commutes but does not
associate. Playing the rounds over these integers proves that

* no rank sends, or adds to, data that are undefined;
* no chunk of a rank is written twice in one round, where the order would be left to chance;
* no contribution is added twice, and where the collective promises a result there is every one;
* all ranks that promise the result of a chunk hold the same expression, so that for any data
  and the dtype their results are bit-identical.
"""

from __future__ import annotations

from collections.abc import Sequence

from syncopate.errors import ScheduleError
from syncopate.schedules.base import REDUCE, Schedule
from syncopate.schedules.conditions import chunks_at, conditions

_UNDEFINED = -1


class _Expressions:
    """Interned expressions; expression r < p is the data of rank r.

    Attributes:
        ranks: the contributions of each expression, as a bit mask over ranks.
    """

    def __init__(self, world_size: int) -> None:
        self.ranks = [1 << rank for rank in range(world_size)]
        self._sums: dict[tuple[int, int], int] = {}

    def sum(self, a: int, b: int) -> int:
        """Return the expression a + b, which is b + a."""
        key = (a, b) if a < b else (b, a)
        found = self._sums.get(key)
        if found is None:
            found = self._sums[key] = len(self.ranks)
            self.ranks.append(self.ranks[a] | self.ranks[b])
        return found


def check(schedule: Schedule, bounds: Sequence[int] | None = None) -> None:
    """Prove that ``schedule`` does what its collective promises; see the module.

    Takes O(chunk transfers) time: seconds for the half million of a ring of 512 ranks.

    Args:
        schedule: what is to be proved.
        bounds: rank r's shard is the chunks ``bounds[r]:bounds[r + 1]``; all ranks have as many
            when left out.

    Raises:
        ScheduleError: it does not; the message names the round, the ranks and the chunk.
        UnknownNameError: its collective is none there is.
    """
    promised = conditions(schedule.collective)
    expressions = _Expressions(schedule.world_size)
    start, end = (
        [chunks_at(place, schedule, rank, bounds) for rank in range(schedule.world_size)]
        for place in (promised.start, promised.end)
    )
    buffers = _start(schedule, start)
    table = schedule.table.table.tolist()
    begin = 0
    while begin < len(table):
        stop = begin
        while stop < len(table) and table[stop][0] == table[begin][0]:
            stop += 1
        _play(schedule, table[begin:stop], buffers, expressions)
        begin = stop
    everyone = (1 << schedule.world_size) - 1
    expected = [everyone] * schedule.chunks
    if not promised.reduces:
        for rank, chunks in enumerate(start):
            for chunk in chunks:
                expected[chunk] = 1 << rank
    _require_end(schedule, (end, expected), buffers, expressions)


def _start(schedule: Schedule, chunks: Sequence[range]) -> list[list[int]]:
    """Return what every rank holds in every chunk when it starts with its own ``chunks``."""
    buffers = [[_UNDEFINED] * schedule.chunks for _ in range(schedule.world_size)]
    for rank, buffer in enumerate(buffers):
        for chunk in chunks[rank]:
            buffer[chunk] = rank
    return buffers


def _play(
    schedule: Schedule,
    transfers: list[list[int]],
    buffers: list[list[int]],
    expressions: _Expressions,
) -> None:
    """Play the transfers of one round; writes land only after every read."""
    written: dict[tuple[int, int], int] = {}
    for step, src, dst, start, stop, op in transfers:
        for chunk in range(start, stop):
            sent = buffers[src][chunk]
            where = f"round {step}, rank {src} to rank {dst}, chunk {chunk}"
            if sent == _UNDEFINED:
                raise _refuted(schedule, where, "the data sent are undefined")
            if (dst, chunk) in written:
                raise _refuted(schedule, where, "the chunk is written twice in this round")
            if op == REDUCE:
                held = buffers[dst][chunk]
                if held == _UNDEFINED:
                    raise _refuted(schedule, where, "the receiver adds to undefined data")
                twice = expressions.ranks[sent] & expressions.ranks[held]
                if twice:
                    raise _refuted(schedule, where, f"rank {_ranks(twice)} is added twice")
                sent = expressions.sum(held, sent)
            written[dst, chunk] = sent
    for (rank, chunk), expression in written.items():
        buffers[rank][chunk] = expression


def _require_end(
    schedule: Schedule,
    promised: tuple[Sequence[range], Sequence[int]],
    buffers: list[list[int]],
    expressions: _Expressions,
) -> None:
    """Refute what does not end as promised.

    Args:
        schedule: what was played.
        promised: the chunks that each rank must hold the result of, and whose contributions the
            result of each chunk is made of, as a bit mask over ranks.
        buffers: what every rank holds in every chunk.
        expressions: what that stands for.
    """
    chunks, expected = promised
    results: dict[int, tuple[int, int]] = {}
    for rank, buffer in enumerate(buffers):
        for chunk in chunks[rank]:
            where = f"at the end, rank {rank}, chunk {chunk}"
            held = buffer[chunk]
            if held == _UNDEFINED:
                raise _refuted(schedule, where, "the data are undefined")
            missing = expected[chunk] & ~expressions.ranks[held]
            if missing:
                raise _refuted(schedule, where, f"rank {_ranks(missing)} is missing")
            first, result = results.setdefault(chunk, (rank, held))
            if result != held:
                raise _refuted(
                    schedule,
                    where,
                    f"the sum is built by other additions than on rank {first}, so that their "
                    f"results may differ in rounding",
                )


def _refuted(schedule: Schedule, where: str, why: str) -> ScheduleError:
    return ScheduleError(f"{schedule.title}: {where}: {why}")


def _ranks(mask: int) -> str:
    """Write a bit mask of ranks for people: ``"0, 3, 5"``."""
    return ", ".join(str(rank) for rank in range(mask.bit_length()) if mask >> rank & 1)
