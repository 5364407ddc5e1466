"""Needed: the inverse question, which link keeps an efficiency.

Efficiency does not fall with a faster link, so the first of ascending rates that keeps it is the
slowest; of rates that are not sold the least is found by halving, to within ``CLOSE``. Where the
physical bound alone says that a rate is too slow, nothing is planned.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from syncopate.artifacts.results.whatif import DDP, LinkNeeded, Prices, Setting
from syncopate.planning.margins import EXACT
from syncopate.planning.whatif.costs import epoch_cost
from syncopate.planning.whatif.machines import BANDWIDTH, linked
from syncopate.planning.whatif.predictor import Predictor, throughput
from syncopate.units import SOLD_GBIT, parse_link, sold_as

CLOSE = 0.05
"""How close the least rate is found, as a share."""

_REACH = 1e-9


def link_needed(
    setting: Setting, keep: float, today: str, predictor: Predictor, *, exactly: bool
) -> LinkNeeded:
    """Return the cheapest link that keeps an efficiency, or that none does.

    Where prices name links, they are the ones that are asked of, and the cheapest is by the cost of
    an epoch; else all that are sold, and the slowest.

    Args:
        setting: with any link.
        keep: the efficiency.
        today: by which plan.
        predictor: of this training.
        exactly: whether the least rate is looked for, too; 0 otherwise.
    """
    late = setting.wire_dtype or setting.pull_period or setting.local_sgd
    bounded = today == DDP or not late

    def keeps(bytes_per_s: float) -> bool:
        at = linked(predictor.cluster, setting, BANDWIDTH, bytes_per_s)
        compute_s = predictor.compute_s(at, EXACT)
        if bounded and compute_s < (keep - _REACH) * predictor.bound_s(at):
            return False  # no plan is faster than the bound
        iteration_s = predictor.iteration_s(at, ddp=today == DDP, shifts=EXACT)
        return compute_s >= (keep - _REACH) * iteration_s

    named = sorted({parse_link(name) for name in _names(predictor.prices)})
    enough = next((rate for rate in named if keeps(rate)), None)
    if enough is None:
        return LinkNeeded(
            nodes=setting.nodes, today=today, link="", bandwidth_bytes_per_s=0.0,
            least_bytes_per_s=0.0,
        )  # fmt: skip
    least = _least(keeps, named[0], enough) if exactly else 0.0
    costs = None
    if predictor.prices is not None:
        costs = {rate: _cost(setting, rate, today, predictor) for rate in named if rate >= enough}
        enough = min(costs, key=lambda rate: (costs[rate], rate))
    return LinkNeeded(
        nodes=setting.nodes,
        today=today,
        link=sold_as(enough),
        bandwidth_bytes_per_s=enough,
        least_bytes_per_s=least,
        epoch_cost=None if costs is None else costs[enough],
    )


def _names(prices: Prices | None) -> list[str]:
    if prices is not None and prices.link_hour:
        return list(prices.link_hour)
    return [f"{gbit}g" for gbit in SOLD_GBIT]


def _least(keeps: Callable[[float], bool], start: float, enough: float) -> float:
    """Return the least rate that keeps the efficiency, as ``enough`` does."""
    high = start
    while high < enough and not keeps(high):
        high *= 2
    low = high / 2
    while keeps(low) and low > 1:
        low, high = low / 2, low
    while high / low > 1 + CLOSE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high


def _cost(setting: Setting, rate: float, today: str, predictor: Predictor) -> float:
    assert predictor.prices is not None
    at = linked(predictor.cluster, setting, BANDWIDTH, rate)
    iteration_s = predictor.iteration_s(at, ddp=today == DDP, shifts=EXACT)
    return epoch_cost(predictor.prices, at, throughput(at, iteration_s))
