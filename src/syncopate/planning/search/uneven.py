"""Uneven: what messages cost whose shards follow tensors, priced as a plan's prediction does.

Where an optimizer looks at whole tensors, the shards of a bucket are unequal, and which bucket is
how uneven depends on where it is cut. The problem of ``problem.py`` counts all shards as equal, for
the dynamic programmes need costs by bytes alone; the search plays its best candidates again with
these.
"""

from __future__ import annotations

from syncopate.artifacts.plan import EXCHANGES, SHARDED
from syncopate.planning.parts import Message, elements_of
from syncopate.planning.question import Question, recipe_of
from syncopate.simulation.shards import Shards
from syncopate.simulation.traffic import priced


class Uneven:
    """Prices of messages with the shards that they are going to have.

    Args:
        question: of the ``sharded`` exchange, of tensors that are looked at whole.

    Attributes:
        largest_part: the part of all bytes that the rank with the most of them updates.
    """

    def __init__(self, question: Question) -> None:
        tensors = question.workload.tensors
        self._names = [tensor.name for tensor in tensors]
        self._numels = [tensor.numel for tensor in tensors]
        self._problem = question.problem
        self._costs = question.costs[SHARDED]
        self._cluster = question.cluster
        self._shards = Shards(question.workload, self._names, question.cluster.world_size)
        self.largest_part = self._shards.largest_part

    def price(self, message: Message, *, pulled: bool) -> tuple[float, float]:
        """Return the duration of a message, and the part of it that does not share the link."""
        names = self._names[message.start : message.stop]
        numel = self._numels[message.start]
        elements = elements_of(numel, message)
        collective = EXCHANGES[SHARDED].pull if pulled else EXCHANGES[SHARDED].push
        sizes = self._problem.carried(message.start, message.stop, elements, numel)
        recipe = recipe_of(collective, self._costs[collective], sizes)
        return priced(self._costs, (), self._cluster, recipe, self._shards.parts(names, elements))


def is_uneven(question: Question) -> bool:
    """Say whether shards of this question's plans are unequal."""
    whole = question.exchange == SHARDED and bool(question.workload.whole)
    return whole and question.cluster.world_size > 1
