"""Doubts: which uncertain input would change the advice.

Each input goes to either end of its interval, the others stay, and the changes that gain most are
predicted again (one at a time, as in a tornado diagram).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from syncopate.artifacts.results.whatif import DDP, Doubt, Setting
from syncopate.planning.margins import INPUTS
from syncopate.planning.whatif.changes import TIED, Option, change_of
from syncopate.planning.whatif.predictor import Predictor, throughput

RIVALS = 3
"""So many of the changes that gain most are predicted again."""


def doubts(
    base: Setting, today: str, advised: Sequence[Option], predictor: Predictor
) -> Iterator[Doubt]:
    """Yield the advice with every input at either end of its interval.

    Args:
        base: today's setting.
        today: by which plan.
        advised: options to advise, the greatest gain first; at least one.
        predictor: of this training.
    """
    first, rivals = advised[0], advised[:RIVALS]
    for place, what in enumerate(INPUTS):
        share = predictor.margins.of(what)
        if share == 0:
            continue
        for factor in (1 / (1 + share), 1 + share):
            shifts = tuple(factor if one == place else 1.0 for one in range(len(INPUTS)))
            now_s = predictor.iteration_s(base, ddp=today == DDP, shifts=shifts)
            now = throughput(base, now_s)
            found = {one.kind: change_of(one, now, predictor, shifts) for one in rivals}
            best = max(found.values(), key=lambda change: change.gain)
            changes = 1 + best.gain > (1 + TIED) * (1 + found[first.kind].gain)
            advice = best if changes else found[first.kind]
            yield Doubt(
                what=what, factor=factor, advice=advice.kind, gain=advice.gain, changes=changes
            )
