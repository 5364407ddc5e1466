"""Sentences: what a sweep says, in words; figures with the precision that they deserve."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from syncopate.artifacts.whatif import BEST, DDP, Change, Doubt, LinkNeeded, Outcome, Point, Setting
from syncopate.planning.whatif.axes import AXES
from syncopate.planning.whatif.changes import NOTHING, WORTH
from syncopate.planning.whatif.links import link_words
from syncopate.units import format_count, format_seconds

PLANS = {DDP: "DDP's buckets", BEST: "the best plan"}
"""Today -> its words."""

_MOST_SERIES = 6
"""Of so many series is said from how many nodes on the network limits."""

_COMPUTING = ("compute", "batch")
"""Kinds of changes that leave the network as it is."""


def today_sentence(base: Point, today: str, unit: str) -> str:
    """Say what an iteration takes today, how sure that is, and what it could not fall below."""
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
    said = [value_words(setting, axis) for axis in varied]
    return " at ".join(said[:2]) + "".join(f", {one}" for one in said[2:])


def value_words(setting: Setting, axis: str) -> str:
    """Return the value of an axis in words, such as ``"8 nodes"`` or ``"k = 4"``."""
    if axis not in AXES:
        value = dict(setting.levels)[axis]
        name, _, what = axis.rpartition(".")
        return f"{name} {link_words(value) if what == 'bandwidth' else format_seconds(value)}"
    if axis == "gpu_speed":
        return setting.profile or f"{setting.gpu_speed:g}x the compute speed"
    value = getattr(setting, AXES[axis])
    return {
        "nodes": lambda: format_count(value, "node"),
        "gpus_per_node": lambda: f"{value} GPUs a node",
        "bandwidth": lambda: link_words(value),
        "latency": lambda: f"{format_seconds(value)} latency",
        "oversubscription": lambda: f"{value:g}:1 oversubscribed",
        "batch": lambda: f"batch {value}",
        "exchange": lambda: value or "best exchange",
        "policy": lambda: value or "best buckets",
        "algorithm": lambda: value or "cheapest algorithm",
        "wire_dtype": lambda: value or "own types",
        "pull_period": lambda: f"k = {value}" if value else "synchronous",
        "servers": lambda: format_count(value, "server") if value else "servers as hosts",
        "local_sgd": lambda: f"average every {value}" if value else "no local SGD",
    }[axis]()


def limits(points: Sequence[Point], varied: Sequence[str], keep: float) -> Iterator[str]:
    """Yield from how many nodes on the network limits, for each of the first few series.

    It limits where an iteration keeps less than ``keep`` of what ranks compute alone, and with all
    larger numbers of nodes in the series too.
    """
    if "nodes" not in varied:
        return
    series: dict[Setting, list[Point]] = defaultdict(list)
    for point in points:
        series[replace(point.setting, nodes=0)].append(point)
    others = [axis for axis in varied if axis != "nodes"]
    for count, (setting, found) in enumerate(series.items()):
        if count == _MOST_SERIES:
            yield f"and {len(series) - _MOST_SERIES} more series, in the table"
            return
        found = sorted(found, key=lambda point: point.setting.nodes)
        where = ", ".join(value_words(setting, axis) for axis in others) or "this network"
        said = [_limit(found, today, keep) for today in (DDP, BEST)]
        yield f"{where}: {said[0]}; {said[1]}"


def _limit(points: Sequence[Point], today: str, keep: float) -> str:
    """Say from where on one way of exchanging gradients keeps less than ``keep``."""
    first: Point | None = None
    for point in reversed(points):
        if point.by(today).efficiency >= keep:
            break
        first = point
    if first is None:
        last = points[-1]
        return (
            f"with {PLANS[today]} the network does not limit up to "
            f"{format_count(last.setting.nodes, 'node')} ({last.by(today).efficiency:.0%} there)"
        )
    return (
        f"with {PLANS[today]} the network limits from {format_count(first.setting.nodes, 'node')} "
        f"on ({first.by(today).efficiency:.0%} there)"
    )


def best_change(changes: Sequence[Change], base: Point, today: str) -> Iterator[str]:
    """Yield which change gains most, which of those that cost nothing, or that none does."""
    found = base.by(today)
    network = [one for one in changes if one.kind not in _COMPUTING]
    best = max((one.gain for one in network), default=0.0)
    if best < WORTH:
        share = found.prediction.compute_s / found.prediction.iteration_s
        yield (
            f"no other network, plan, exchange or delay gains {WORTH:.0%}: computation is "
            f"{share:.0%} of an iteration already. Faster devices and larger batches are what is "
            "left"
        )
    if changes and changes[0].gain >= WORTH:
        first = changes[0]
        yield f"the single change that gains most: {first.words}, {times(first.gain)} the throughput"
    free = next((one for one in changes if one.asks == NOTHING), None)
    if free is not None and free.gain >= WORTH and free is not changes[0]:
        yield f"of those that ask for no other hardware and no other training: {free.words}, " + (
            f"{times(free.gain)}"
        )


def link_sentences(needed: Sequence[LinkNeeded], keep: float, currency: str) -> Iterator[str]:
    """Yield which link keeps the efficiency, for each number of nodes."""
    by_nodes: dict[int, list[LinkNeeded]] = defaultdict(list)
    for one in needed:
        by_nodes[one.nodes].append(one)
    for nodes, found in sorted(by_nodes.items()):
        said = " and ".join(_needed(one, currency) for one in found)
        yield f"to keep {keep:.0%} on {format_count(nodes, 'node')} takes {said}"


def _needed(one: LinkNeeded, currency: str) -> str:
    with_plan = f"with {PLANS[one.today]}"
    if not one.bandwidth_bytes_per_s:
        return f"more than faster links {with_plan} (none that is sold does)"
    text = link_words(one.bandwidth_bytes_per_s)
    details = []
    if one.least_bytes_per_s:
        details.append(f"at least {one.least_bytes_per_s * 8 / 1e9:.2g} Gbit/s of messages")
    if one.epoch_cost is not None:
        details.append(f"{number(one.epoch_cost)} {currency} an epoch")
    return f"{text} {with_plan}" + (f" ({', '.join(details)})" if details else "")


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


def times(gain: float) -> str:
    """Return a gain as a factor: ``"1.25x"``."""
    return f"{1 + gain:.2f}x"


def number(value: float) -> str:
    """Return a figure for people: three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
