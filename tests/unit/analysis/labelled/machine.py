"""A machine that plays what ranks do: computation, and messages that wait for all of their group.

Each rank does its steps in their order. A message is launched into a queue of its rank and channel.
It moves when it is the first of that queue on all ranks of its group.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

COMPUTED = ("forward", "backward", "update")
"""What ranks compute."""


class Compute(NamedTuple):
    """A rank computes, pauses, or stands still: then there is no kind."""

    kind: str
    lasts_s: float
    iteration: int


class Launch(NamedTuple):
    """A rank comes to a message.

    Attributes:
        key: the same on all ranks of the message, and no other's.
        kind: such as ``"all_reduce"``; of a message of two ``"send"`` or ``"recv"``.
        group: its name.
        ranks: that take part.
        nbytes: that it carries.
        lasts_s: from when all are there.
        tail_s: by how much longer it takes on this rank.
        queue: of this rank; messages of one queue go one after the other.
        iteration: which.
    """

    key: tuple[object, ...]
    kind: str
    group: str
    ranks: tuple[int, ...]
    nbytes: int
    lasts_s: float
    tail_s: float
    queue: str
    iteration: int


class Wait(NamedTuple):
    """A rank goes on when a message is over."""

    key: tuple[object, ...]


Step = Compute | Launch | Wait


class Row(NamedTuple):
    """What a rank did, as a table has it."""

    rank: int
    iteration: int
    kind: str
    start_s: float
    end_s: float
    nbytes: int = 0
    group: str = ""
    called_s: float = 0.0


class _Rank:
    def __init__(self, steps: Iterable[Step]) -> None:
        self.steps = iter(steps)
        self.waits: tuple[object, ...] | None = None
        self.now_s = 0.0
        self.free_s: dict[str, float] = defaultdict(float)
        self.queues: dict[str, deque[tuple[Launch, float]]] = defaultdict(deque)
        self.over_s: dict[tuple[object, ...], float] = {}


def played(programs: Sequence[Iterable[Step]]) -> list[Row]:
    """Return all that ranks do, by their steps.

    Raises:
        ValueError: a rank waits for what never comes.
    """
    ranks, rows = [_Rank(steps) for steps in programs], list[Row]()
    there: dict[tuple[object, ...], dict[int, tuple[Launch, float]]] = defaultdict(dict)
    awake = deque(range(len(ranks)))
    while awake:
        number = awake.popleft()
        rank = ranks[number]
        if rank.waits is not None:
            rank.now_s = max(rank.now_s, rank.over_s.pop(rank.waits))
            rank.waits = None
        for step in rank.steps:
            if isinstance(step, Compute):
                begun_s, rank.now_s = rank.now_s, rank.now_s + step.lasts_s
                if step.kind and step.lasts_s > 0:
                    rows.append(Row(number, step.iteration, step.kind, begun_s, rank.now_s))
            elif isinstance(step, Launch):
                queue = rank.queues[step.queue]
                queue.append((step, rank.now_s))
                if len(queue) == 1:
                    awake.extend(_moved(ranks, there, rows, [(number, step.queue)]))
            elif step.key in rank.over_s:
                rank.now_s = max(rank.now_s, rank.over_s.pop(step.key))
            else:
                rank.waits = step.key
                break
    if stuck := [number for number, rank in enumerate(ranks) if rank.waits is not None]:
        raise ValueError(f"ranks {stuck} wait for {[ranks[r].waits for r in stuck]}")
    return rows


def _moved(
    ranks: Sequence[_Rank],
    there: dict[tuple[object, ...], dict[int, tuple[Launch, float]]],
    rows: list[Row],
    heads: list[tuple[int, str]],
) -> Iterable[int]:
    """Move the messages whose ranks have all come; yield the ranks that waited for them."""
    while heads:
        number, queue = heads.pop()
        launch, called_s = ranks[number].queues[queue][0]
        come = there[launch.key]
        come[number] = launch, max(called_s, ranks[number].free_s[queue])
        if len(come) < len(launch.ranks):
            continue
        moves_s = max(begun_s for _, begun_s in come.values())
        for other, (mine, begun_s) in come.items():
            rank = ranks[other]
            end_s = moves_s + mine.lasts_s + mine.tail_s
            _, mine_called_s = rank.queues[mine.queue].popleft()
            rows.append(
                Row(other, mine.iteration, mine.kind, begun_s, end_s, mine.nbytes, mine.group,
                    mine_called_s)
            )  # fmt: skip
            rank.free_s[mine.queue] = end_s
            rank.over_s[launch.key] = end_s
            if rank.queues[mine.queue]:
                heads.append((other, mine.queue))
            if rank.waits == launch.key:
                yield other
        del there[launch.key]


def ends_s(rows: Iterable[Row]) -> Mapping[int, float]:
    """Return when each iteration ends on the last rank: with its last computation."""
    found: dict[int, float] = {}
    for row in rows:
        if row.kind in COMPUTED:
            found[row.iteration] = max(found.get(row.iteration, 0.0), row.end_s)
    return found
