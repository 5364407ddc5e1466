"""Serving: what a training with a parameter server spends its time on, from its messages.

Of a worker in an iteration:

    phase 1, computation only     from the last answer to a pull of the iteration before, to its
                                  first push
    phase 2, overlapped           from its first push to its last
    phase 3, communication        from its first push to the last answer to a pull
    computation                   phase 1 + phase 2
    overlap ratio                 phase 2 / (phase 1 + phase 3)
    wait overhead                 from the first answer to a pull to the last

Of a server, a parameter and an iteration:

    synchronization overhead      from the first push that came to the last
    update overhead               from the last push to the first answer to one; where servers
                                  answer each push by itself, from a push to its answer
    search overhead               from a request to pull to its answer

Source: SketchDLC, Sections 3.2.4, 4.2 and 5.3.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncopate.analysis.evidence.noise import quantile
from syncopate.analysis.phases import Phases
from syncopate.artifacts.columns import Columns
from syncopate.errors import InvalidValueError


class Message(NamedTuple):
    """One message of a push or a pull, as one node saw it.

    Attributes:
        node: whose record it is, such as ``"w0"`` or ``"s1"``.
        push: whether it belongs to a push; else to a pull.
        sends: whether the node sent it.
        key: index of the parameter.
        iteration: of the training, from 0; negative before the first.
        peer: the node at the other end.
        time_s: when.
        nbytes: its size.
    """

    node: str
    push: bool
    sends: bool
    key: int
    iteration: int
    peer: str
    time_s: float
    nbytes: int = 0


class Messages(Columns[Message]):
    """Messages as columns, 34 bytes each.

    Args:
        texts: names of nodes.
        columns: field of a message -> its column; ``node`` and ``peer`` are places in ``texts``.
    """

    DTYPES: ClassVar[dict[str, str]] = {
        "node": "i4",
        "push": "?",
        "sends": "?",
        "key": "i4",
        "iteration": "i4",
        "peer": "i4",
        "time_s": "f8",
        "nbytes": "i8",
    }
    """Field of a message -> the type of its column."""

    node: NDArray[np.int32]
    iteration: NDArray[np.int32]

    def __init__(self, texts: Sequence[str], columns: Mapping[str, Any]) -> None:
        self.texts = tuple(texts)
        for field, dtype in self.DTYPES.items():
            setattr(self, field, np.asarray(columns[field], dtype))

    @classmethod
    def of(cls, messages: Iterable[Message]) -> Messages:
        """Return messages as columns."""
        if isinstance(messages, Messages):
            return messages
        rows = list(messages)
        columns: dict[str, Any] = dict(
            zip(cls.DTYPES, zip(*rows, strict=True), strict=True)
            if rows
            else dict.fromkeys(cls.DTYPES, ())
        )
        named = dict.fromkeys((*columns["node"], *columns["peer"]))
        texts = {text: place for place, text in enumerate(named)}
        for field in ("node", "peer"):
            columns[field] = [texts[text] for text in columns[field]]
        return cls(tuple(texts), columns)

    def take(self, rows: NDArray[Any]) -> Messages:
        """Return the messages of some rows: their numbers, or True where one is wanted."""
        return Messages(self.texts, {field: getattr(self, field)[rows] for field in self.DTYPES})

    def made(self, rows: slice) -> Iterator[Message]:
        """Yield messages one by one."""
        values = self.values(rows)
        for field in ("node", "peer"):
            values[field] = [self.texts[place] for place in values[field]]
        yield from map(Message._make, zip(*values.values(), strict=True))


class Overhead(NamedTuple):
    """A stretch of time that a node spent.

    Attributes:
        kind: ``"wait"``, ``"search"``, ``"update"`` or ``"synchronization"``.
        node: which node.
        iteration: in which iteration.
        seconds: how long.
        key: for which parameter; -1: for all.
        peer: for which worker; empty: for all.
    """

    kind: str
    node: str
    iteration: int
    seconds: float
    key: int = -1
    peer: str = ""


class Distribution(NamedTuple):
    """Values, and the normal distribution that is fitted to them.

    Attributes:
        number: how many values.
        mean: of the values, and of the normal distribution.
        deviation: the standard deviation of both; 0 of a single value.
        least: the smallest value.
        low: the 5th percentile; by linear interpolation between values, as all percentiles.
        median: the middle value.
        high: the 95th percentile; a normal distribution has it at mean + 1.645 deviations.
        most: the largest value.
    """

    number: int
    mean: float
    deviation: float
    least: float
    low: float
    median: float
    high: float
    most: float


def distribution(values: Sequence[float]) -> Distribution:
    """Return the distribution of values.

    Raises:
        InvalidValueError: there are none.
    """
    if not values:
        raise InvalidValueError("values", values, "at least one")
    mean = statistics.fmean(values)
    deviation = statistics.pstdev(values, mean)
    ordered = sorted(values)
    at = (quantile(ordered, share) for share in (0.0, 0.05, 0.5, 0.95, 1.0))
    return Distribution(len(values), mean, deviation, *at)


def bytes_per_iteration(messages: Iterable[Message]) -> dict[str, dict[str, float]]:
    """Return bytes of an iteration by node and kind of message, the mean over iterations.

    Kinds are ``"push_sent"``, ``"push_received"``, ``"pull_sent"`` and ``"pull_received"``, as the
    node sees them. Messages before the first iteration do not count.
    """
    total: dict[str, dict[str, float]] = {}
    iterations: dict[str, set[int]] = defaultdict(set)
    for m in messages:
        if m.iteration < 0:
            continue
        iterations[m.node].add(m.iteration)
        kinds = ("push_sent", "push_received", "pull_sent", "pull_received")
        mine = total.setdefault(m.node, dict.fromkeys(kinds, 0.0))
        mine[f"{'push' if m.push else 'pull'}_{'sent' if m.sends else 'received'}"] += m.nbytes
    return {
        node: {kind: value / len(iterations[node]) for kind, value in nbytes.items()}
        for node, nbytes in sorted(total.items())
    }


def served_phases(messages: Iterable[Message]) -> tuple[Phases, ...]:
    """Return the phases of every worker's iterations but the first, by iteration, then worker.

    An iteration that is not whole, as the last of a trace that was cut short, is left out.
    """
    found = []
    for worker, iterations in _by_iteration(messages, "w"):
        for (before, last), (now, mine) in pairwise(iterations):
            if now != before + 1:
                continue
            pushes, pulls, had = _pushes(mine), _answers(mine), _answers(last)
            if not (pushes and len(pulls) == len(pushes) and had):
                continue
            computed_s = pushes[-1] - had[-1]
            communicated_s = pulls[-1] - pushes[0]
            found.append(
                Phases(
                    rank=int(worker[1:]),
                    iteration=now,
                    duration_s=pulls[-1] - had[-1],
                    computation_s=computed_s,
                    communication_s=communicated_s,
                    overlapped_s=pushes[-1] - pushes[0],
                )
            )
    return tuple(sorted(found, key=lambda phase: (phase.iteration, phase.rank)))


def overheads(messages: Iterable[Message], *, synchronous: bool = True) -> tuple[Overhead, ...]:
    """Return the overheads of all nodes: those of workers, then those of servers.

    Args:
        messages: of any nodes; those before the first iteration do not count.
        synchronous: whether servers answer a push when all workers pushed.
    """
    packed = Messages.of(messages)
    found = []
    for worker, iterations in _by_iteration(packed, "w", first=0):
        for iteration, mine in iterations:
            if pulls := _answers(mine):
                found.append(Overhead("wait", worker, iteration, pulls[-1] - pulls[0]))
    for server, iterations in _by_iteration(packed, "s", first=0):
        for iteration, mine in iterations:
            found += _of_server(server, iteration, mine, synchronous)
    return tuple(found)


def _of_server(
    server: str, iteration: int, messages: Sequence[Message], synchronous: bool
) -> list[Overhead]:
    found: list[Overhead] = []
    by_key: dict[int, list[Message]] = defaultdict(list)
    for message in messages:
        by_key[message.key].append(message)
    for key, mine in sorted(by_key.items()):
        pushed = {m.peer: m.time_s for m in mine if m.push and not m.sends}
        answers = [m for m in mine if m.push and m.sends and m.peer in pushed]
        last_s = max(pushed.values(), default=0.0)
        if pushed:
            took_s = last_s - min(pushed.values())
            found.append(Overhead("synchronization", server, iteration, took_s, key))
        if synchronous and answers:
            took_s = min(m.time_s for m in answers) - last_s
            found.append(Overhead("update", server, iteration, took_s, key))
        for m in () if synchronous else answers:
            took_s = m.time_s - pushed[m.peer]
            found.append(Overhead("update", server, iteration, took_s, key, m.peer))
        asked = {m.peer: m.time_s for m in mine if not m.push and not m.sends}
        for m in mine:
            if not m.push and m.sends and m.peer in asked:
                took_s = m.time_s - asked[m.peer]
                found.append(Overhead("search", server, iteration, took_s, key, m.peer))
    return found


def _by_iteration(
    messages: Iterable[Message], role: str, first: int = -sys.maxsize
) -> Iterator[tuple[str, Iterator[tuple[int, Sequence[Message]]]]]:
    """Yield workers or servers, each with its iterations from the first, and their messages.

    The messages of an iteration alone are made when it comes: a long trace has millions.
    """
    packed = Messages.of(messages)
    nodes, numbers = packed.node, packed.iteration
    for name, place in sorted((text, place) for place, text in enumerate(packed.texts)):
        if name.startswith(role):
            rows = np.flatnonzero((nodes == place) & (numbers >= first))
            if len(rows):
                yield name, _iterations(packed, rows)


def _iterations(messages: Messages, rows: NDArray[Any]) -> Iterator[tuple[int, Sequence[Message]]]:
    numbers = messages.iteration
    rows = rows[np.argsort(numbers[rows], kind="stable")]
    for mine in np.split(rows, np.flatnonzero(np.diff(numbers[rows])) + 1):
        yield int(numbers[mine[0]]), list(messages.take(mine))


def _pushes(messages: Iterable[Message]) -> list[float]:
    return sorted(m.time_s for m in messages if m.push and m.sends)


def _answers(messages: Iterable[Message]) -> list[float]:
    return sorted(m.time_s for m in messages if not m.push and not m.sends)
