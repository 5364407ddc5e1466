"""Auto: the exchange, the channels and the buckets with the shortest predicted iteration.

Every exchange is planned on every number of channels that may be chosen. Predictions within
``NEAR`` of the best are not told apart; of them the first stays. Exchanges whose programs are DDP's
come before the others, and one channel before two. But where weights are pulled, two come first:
a second channel hides what a message costs beyond its price, which is not predicted, and there
twice as many messages are on the critical path.
"""

from __future__ import annotations

from dataclasses import replace

from syncopate.artifacts.plan import EXCHANGES, Prediction
from syncopate.planning.question import Draft, Question
from syncopate.planning.search.changes import PLAYED_MESSAGES
from syncopate.planning.search.search import Rivals, searched
from syncopate.units import format_seconds

NEAR = 1e-3
"""Predictions closer than this share are not told apart."""


def auto(question: Question, rivals: Rivals) -> Draft:
    """Return the best plan of all, with the reason.

    Args:
        question: what is to be planned.
        rivals: policies that no plan of an exchange is to be behind.
    """
    asked = [
        question.only(exchange, channels)
        for exchange in question.costs
        for channels in sorted(question.channels, reverse=bool(EXCHANGES[exchange].pull))
    ]
    # Each gets its share of the search; what it finds decides, and the winner searches on.
    most = PLAYED_MESSAGES // (4 * len(asked))
    drafts = [searched(one, rivals, most) for one in asked]
    predictions = [one.predict(draft) for one, draft in zip(asked, drafts, strict=True)]
    limit_s = (1 + NEAR) * min(prediction.iteration_s for prediction in predictions)
    chosen = next(i for i, p in enumerate(predictions) if p.iteration_s <= limit_s)
    best = searched(asked[chosen], rivals)
    reached = asked[chosen].predict(best)
    if predictions[chosen].iteration_s < reached.iteration_s:
        best, reached = drafts[chosen], predictions[chosen]
    others: dict[str, Prediction] = {}
    for one, prediction in zip(asked, predictions, strict=True):
        known = others.get(one.exchange)
        if known is None or prediction.iteration_s < known.iteration_s:
            others[one.exchange] = prediction
    best = replace(best, exchange=asked[chosen].exchange)
    reason = _reason(best, reached, others)
    return replace(best, reason=reason)


def _reason(best: Draft, reached: Prediction, others: dict[str, Prediction]) -> str:
    """Say in a line why this one: what it takes, what the next best exchange does, and why."""
    exchange = best.exchange
    rivals = {name: found for name, found in others.items() if name != exchange}
    text = f"{exchange}: {format_seconds(reached.iteration_s)}"
    if rivals:
        rival = min(rivals, key=lambda name: rivals[name].iteration_s)
        text += f" against {format_seconds(rivals[rival].iteration_s)} ({rival})"
    why = _why(exchange, reached)
    total = sum(bucket.nbytes for bucket in best.buckets) or 1
    pulled = sum(bucket.nbytes for bucket in best.buckets if bucket.pull is not None)
    if EXCHANGES[exchange].pull and pulled < total:
        why += f", {1 - pulled / total:.0%} of the bytes all-reduced"
    return f"{text}, {why}; bound {format_seconds(reached.bound_s)}"


def _why(exchange: str, reached: Prediction) -> str:
    if reached.communication_s == 0:
        return "nothing to communicate"
    if reached.exposed_s <= 0.01 * reached.compute_s:
        return "computation hides all but 1% of communication"
    pull = EXCHANGES[exchange].pull
    if pull:
        return f"{pull.removeprefix('all_')}s hide in forward"
    return "fewer start-ups than with weights that come back"
