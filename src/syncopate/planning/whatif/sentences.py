"""Sentences: what a sweep says, in words; figures with the precision that they deserve."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from msgspec.structs import replace

from syncopate.artifacts.results.whatif import (
    PLANS,
    Change,
    Doubt,
    LinkNeeded,
    Outcome,
    Point,
    Setting,
)
from syncopate.planning.whatif.changes import NOTHING, WORTH
from syncopate.planning.whatif.predictor import efficiency
from syncopate.units import format_count, format_link, format_rate, format_seconds

_MOST_SERIES = 6
"""Of so many series is said from how many nodes on the network limits."""

_MOST_VALUES = 8
"""Of an axis that is the only one, so many values are said one by one."""

_COMPUTING = ("compute", "batch")
"""Kinds of changes that leave the network as it is."""


def today_sentence(base: Point, today: str, unit: str) -> str:
    """Return a sentence on today's iteration: its time, its interval and its bound."""
    found = base.by(today)
    prediction = found.prediction
    return (
        f"{words_of(base.setting)}, {PLANS[today]}: {format_seconds(prediction.iteration_s)} an "
        f"iteration ({interval_words(found)}), {number(found.throughput)} {unit}, "
        f"{found.efficiency:.0%} efficiency; computation and line rate allow "
        f"{format_seconds(prediction.bound_s)}"
    )


def interval_words(found: Outcome) -> str:
    """Return the interval of an iteration: ``"201 to 231 ms"``."""
    low_s, high_s = found.prediction.low_s, found.prediction.high_s
    assert low_s is not None
    assert high_s is not None
    return f"{format_seconds(low_s)} to {format_seconds(high_s)}"


def words_of(setting: Setting, varied: Iterable[str] = ("nodes", "bandwidth")) -> str:
    """Return a setting in words: what some axes say, such as ``"8 nodes at 10 Gbit/s"``."""
    said = [setting.said(axis) for axis in varied]
    return " at ".join(said[:2]) + "".join(f", {one}" for one in said[2:])


def limits(points: Sequence[Point], varied: Sequence[str], keep: float) -> Iterator[str]:
    """Yield from how many nodes on the network limits, for each of the first few series.

    It limits where an iteration keeps less than ``keep`` of what ranks compute alone, and with all
    larger numbers of nodes in the series too.
    """
    if "nodes" not in varied:
        yield from _along(points, varied)
        return
    series: dict[Setting, list[Point]] = defaultdict(list)
    for point in points:
        series[replace(point.setting, nodes=0)].append(point)
    others = [axis for axis in varied if axis != "nodes"]
    for count, (setting, found) in enumerate(series.items()):
        if count == _MOST_SERIES:
            yield f"and {len(series) - _MOST_SERIES} more series, in the table"
            return
        ordered = sorted(found, key=lambda point: point.setting.nodes)
        where = ", ".join(setting.said(axis) for axis in others)
        said = "; ".join(_limit(ordered, today, keep) for today in PLANS)
        yield f"{where}: {said}" if where else said


def _along(points: Sequence[Point], varied: Sequence[str]) -> Iterator[str]:
    """Yield what each value of the only axis keeps, where there are a few."""
    if len(varied) != 1 or len(points) > _MOST_VALUES:
        return
    for today, words in PLANS.items():
        kept = [
            f"{point.setting.said(varied[0])} {_efficiency_words(point.by(today))}"
            for point in points
        ]
        yield f"efficiency with {words}: {'; '.join(kept)}"


def _limit(points: Sequence[Point], today: str, keep: float) -> str:
    """Say from where on one way of exchanging gradients keeps less than ``keep``."""
    first: Point | None = None
    for point in reversed(points):
        if point.by(today).efficiency >= keep:
            break
        first = point
    shown = points[-1] if first is None else first
    nodes = format_count(shown.setting.nodes, "node")
    there = f"({_efficiency_words(shown.by(today))} there)"
    if first is None:
        return f"with {PLANS[today]} the network does not limit up to {nodes} {there}"
    return f"with {PLANS[today]} the network limits from {nodes} on {there}"


def _efficiency_words(found: Outcome) -> str:
    """Return an efficiency with the ends of its interval: ``"70%, 54% to 88%"``."""
    prediction = found.prediction
    said = f"{found.efficiency:.0%}"
    low, high = (
        f"{efficiency(prediction.compute_s, seconds or 0.0):.0%}"
        for seconds in (prediction.high_s, prediction.low_s)
    )
    return said if low == high == said else f"{said}, {low} to {high}"


def best_change(changes: Sequence[Change], base: Point, today: str) -> Iterator[str]:
    """Yield which change gains most, which of those that cost nothing, or that none does."""
    if not changes:  # an interruption came before them
        return
    network = [one for one in changes if one.kind not in _COMPUTING]
    best = max((one.gain for one in network), default=0.0)
    if best < WORTH:
        helps = any(one.kind == "batch" and one.gain >= WORTH for one in changes)
        left = "faster devices and larger batches are" if helps else "faster devices are"
        yield (
            f"no other network, plan, exchange or delay gains {WORTH:.0%}: computation is "
            f"{base.by(today).efficiency:.0%} of an iteration already; {left} what is left"
        )
    if changes[0].gain >= WORTH:
        gains = f"{changes[0].words}, {times(changes[0].gain)} the throughput"
        yield f"the single change that gains most: {gains}"
    free = next((one for one in changes if one.asks == NOTHING), None)
    if free is not None and free.gain >= WORTH and free is not changes[0]:
        yield f"of those that ask for no other hardware and no other training: {free.words}, " + (
            f"{times(free.gain)}"
        )


def link_sentences(needed: Sequence[LinkNeeded], keep: float, currency: str) -> Iterator[str]:
    """Yield which link keeps the efficiency, for neighbouring numbers of nodes together."""
    for today, words in PLANS.items():
        mine = sorted((one for one in needed if one.today == today), key=lambda one: one.nodes)
        said = []
        for _, group in groupby(mine, key=lambda one: one.bandwidth_bytes_per_s):
            said.append(_needed(list(group), currency))
        if said:
            yield f"to keep {keep:.0%} with {words} takes {'; '.join(said)}"


def _needed(group: Sequence[LinkNeeded], currency: str) -> str:
    """Say which link some numbers of nodes need, all the same."""
    first, last = group[0], group[-1]
    nodes = format_count(last.nodes, "node")
    if first is not last:
        nodes = f"{first.nodes} to {nodes}"
    if not first.bandwidth_bytes_per_s:
        return f"more than any link that is sold on {nodes}"
    text = f"{format_link(first.bandwidth_bytes_per_s)} on {nodes}"
    exact = next((one for one in group if one.least_bytes_per_s), None)
    if exact is not None:
        where = f" on {exact.nodes}" if len(group) > 1 else ""
        text += f" (at least {format_rate(exact.least_bytes_per_s)} of messages{where})"
    costs = [one.epoch_cost for one in group if one.epoch_cost is not None]
    if costs:
        ends = dict.fromkeys((number(costs[0]), number(costs[-1])))
        text += f", {' to '.join(ends)} {currency} an epoch"
    return text


def doubt_sentences(doubts: Sequence[Doubt], changes: Sequence[Change]) -> Iterator[str]:
    """Yield which input would change the advice, or that none would."""
    words = {one.kind: one.words for one in changes}
    turned = [one for one in doubts if one.changes]
    for one in turned:
        way = "more" if one.factor > 1 else "less"
        share = abs(one.factor - 1)
        yield (
            f"were {one.what} {share:.0%} {way}, the advice would be another: {words[one.advice]}, "
            f"{times(one.gain)}"
        )
    if doubts and not turned:
        named = ", ".join(dict.fromkeys(one.what for one in doubts))
        yield f"that stays first with {named} at either end of its interval, one at a time"


def cost_sentence(points: Sequence[Point], varied: Sequence[str], currency: str) -> Iterator[str]:
    """Yield where an epoch costs least."""
    priced = [point for point in points if point.epoch_cost is not None]
    if not priced:
        return
    cheap = min(priced, key=lambda point: point.epoch_cost or 0.0)
    where = words_of(cheap.setting, varied or ("nodes", "bandwidth"))
    yield (
        f"an epoch costs least with {where}: {number(cheap.epoch_cost or 0.0)} {currency} by the "
        f"best plan, {number(cheap.ddp_epoch_cost or 0.0)} by DDP's buckets"
    )


def whole(text: str) -> str:
    """Return words as a sentence."""
    return f"{text[0].upper()}{text[1:]}."


def times(gain: float) -> str:
    """Return a gain as a factor: ``"1.25x"``."""
    return f"{1 + gain:.2f}x"


def number(value: float) -> str:
    """Return a figure for people: three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
