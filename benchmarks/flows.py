"""Prices against the flow kernel: seeded cases of every collective, algorithm and topology.

    python benchmarks/flows.py                       # 20,000 cases
    python benchmarks/flows.py --cases 500 --seed 7
    python benchmarks/flows.py --cases 500 --unequal 1
    python benchmarks/flows.py --json flows.json     # every case that is off by more than 1%

Ctrl-C ends it early, and shows what was done.

A *configuration* is a cluster of one to four levels, of which one in three may have units of
unequal size, with ranks in order or scrambled, and an algorithm with options: those that fit the
cluster, as planning takes them; its defaults, which know nothing of the cluster; or any (blocks,
factors, stages, pipelines, order, root). It is priced once (``costs/model``), and its price is held
against the reference (``simulation/flows.py``) at five sizes from a byte to a gigabyte, five cases.
No clock decides anything: the same seed gives the same
figures everywhere.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.level import Level, Size, unit_counts
from syncopate.costs.model.collective import fixed_cost
from syncopate.costs.schedule.price import price_pieces
from syncopate.output import write_output
from syncopate.schedules.conditions import conditions
from syncopate.schedules.registry import ALGORITHMS, build, fitted
from syncopate.simulation.flows import Case, flow_seconds

SIZES = 5
"""Sizes at which a configuration is looked at."""

CLOSE = 0.01
"""Share by which a price may be off."""

UNEQUAL = 1 / 3
"""Share of clusters that may have units of unequal size, unless said otherwise."""

TOGETHER = 40
"""Configurations that are played side by side."""

SHOWN = 12
WAYS = ("fitted", "defaults", "any options")


class Configuration(NamedTuple):
    """An algorithm on a cluster.

    Attributes:
        cluster: the machines.
        collective: its name.
        algorithm: its name.
        root: of a rooted collective, else 0.
        options: what the algorithm is told.
        way: how the options were chosen, one of ``WAYS``.
        sizes: bytes of the whole buffer.
    """

    cluster: Cluster
    collective: str
    algorithm: str
    root: int
    options: dict[str, Any]
    way: str
    sizes: tuple[float, ...]

    @property
    def title(self) -> str:
        """What to call it in a line."""
        levels = "x".join(level.size_text for level in self.cluster.levels)
        placed = " scrambled" if self.cluster.placement else ""
        told = {name: value for name, value in self.options.items() if name != "order"}
        options = "".join(f" {name}={value}" for name, value in told.items())
        return f"{self.collective} {self.algorithm}{options} on {levels}{placed} ({self.way})"


class Compared(NamedTuple):
    """A price beside the reference, in s."""

    configuration: Configuration
    nbytes: float
    price_s: float
    played_s: float

    @property
    def off(self) -> float:
        """By what share the price is off."""
        return self.price_s / self.played_s - 1


def drawn(seed: int, most_ranks: int = 48, unequal: float = UNEQUAL) -> Iterator[Configuration]:
    """Yield configurations without end; the same for the same seed."""
    rng = random.Random(seed)
    keys = sorted(ALGORITHMS)
    while True:
        most = rng.choice((12, 12, 12, 24, 24, most_ranks))
        cluster = _cluster(rng, most, unequal)
        collective, algorithm = rng.choice(keys)
        rooted = conditions(collective).rooted
        way = rng.choice(WAYS)
        root = rng.randrange(cluster.world_size) if rooted and way == WAYS[2] else 0
        options = {
            WAYS[0]: lambda: fitted(collective, algorithm, cluster),  # noqa: B023
            WAYS[1]: dict,
            WAYS[2]: lambda: _options(rng, cluster, collective, algorithm),  # noqa: B023
        }[way]()
        sizes = tuple(10 ** rng.uniform(0, 9) for _ in range(SIZES))
        yield Configuration(cluster, collective, algorithm, root, options, way, sizes)


def _cluster(rng: random.Random, most_ranks: int, unequal: float) -> Cluster:
    equal: list[int] = []
    for _ in range(rng.randint(1, 4)):
        room = most_ranks // math.prod(equal)
        if room >= 2:
            equal.append(rng.randint(2, min(room, 8 if equal else 12)))
    sizes = _unequal(rng, equal) if rng.random() < unequal else tuple(equal)
    levels = tuple(
        Level(
            name=f"level {index}",
            size=size,
            latency_s=10 ** rng.uniform(-6, -4),
            bandwidth_bytes_per_s=10 ** rng.uniform(8.5, 11),
        )
        for index, size in enumerate(sizes)
    )
    ranks = list(range(unit_counts(levels)[0]))
    if rng.random() < 0.5:
        rng.shuffle(ranks)
    placement = () if ranks == sorted(ranks) else tuple(ranks)
    gamma = rng.choice((0.0, 1e-11, 2.5e-10))
    return Cluster(name="drawn", levels=levels, placement=placement, reduction_s_per_byte=gamma)


def _unequal(rng: random.Random, equal: Sequence[int]) -> tuple[Size, ...]:
    """Return sizes of which those of some level are unequal, where one has several units."""
    found: list[Size] = []
    units, chosen = 1, rng.randrange(max(len(equal) - 1, 1))
    for index, size in reversed(list(enumerate(equal))):
        each = [size] * units
        if index == chosen or rng.random() < 0.3:
            each = [rng.randint(1, size) for _ in range(units)]
        found.append(tuple(each) if len(set(each)) > 1 else each[0])
        units = sum(each)
    return tuple(reversed(found)) if units > 1 else tuple(equal)


def _options(
    rng: random.Random, cluster: Cluster, collective: str, algorithm: str
) -> dict[str, Any]:
    known = ALGORITHMS[collective, algorithm].options
    options: dict[str, Any] = {}
    if "blocks" in known:
        options["blocks"] = rng.choice((1, 2, 3, 8, 20))
    if "factors" in known:
        options["factors"] = _factors(rng, cluster.world_size)
    if "stages" in known and rng.random() < 0.5:
        names = ("ring", "recursive")
        options["stages"] = tuple(rng.choice(names) for _ in options["factors"])
    if "pipelines" in known and rng.random() < 0.5:
        options["pipelines"] = rng.choice((2, 3, 6))
    if rng.random() < 0.3:
        order = list(range(cluster.world_size))
        rng.shuffle(order)
        options["order"] = tuple(order)
    return options


def _factors(rng: random.Random, ranks: int) -> tuple[int, ...]:
    found = []
    while ranks > 1 and len(found) < 3:
        factor = rng.choice([f for f in range(2, ranks + 1) if ranks % f == 0])
        found.append(factor)
        ranks //= factor
    return (*found, ranks) if ranks > 1 else tuple(found)


def compared(configurations: Sequence[Configuration]) -> list[Compared]:
    """Price each configuration and play it at its sizes."""
    prices, cases = [], []
    for one in configurations:
        schedule = build(
            one.collective, one.algorithm, one.cluster.world_size, one.root, **one.options
        )
        if one.root == 0:
            cost = fixed_cost(one.cluster, one.collective, one.algorithm, one.options)
            prices += [float(cost(nbytes)) for nbytes in one.sizes]
        else:
            prices += price_pieces(schedule, one.cluster)(one.sizes).tolist()
        cases += [Case(schedule, one.cluster, nbytes) for nbytes in one.sizes]
    played = flow_seconds(cases).tolist()
    rows = [(one, nbytes) for one in configurations for nbytes in one.sizes]
    return [Compared(*row, *pair) for row, *pair in zip(rows, prices, played, strict=True)]


def show(found: Sequence[Compared]) -> None:
    """Print what share is within 1%, by algorithm, by levels and by way, and the worst cases."""
    groups: dict[str, list[Compared]] = defaultdict(list)
    for one in found:
        c = one.configuration
        groups[f"  {c.collective} {c.algorithm}"].append(one)
        equal = all(isinstance(level.size, int) for level in c.cluster.levels)
        unequal = "" if equal else ", unequal units"
        groups[f" {len(c.cluster.levels)} levels{unequal}"].append(one)
        groups[f" {c.way}, {'scrambled' if c.cluster.placement else 'in order'}"].append(one)
    groups["all"] = list(found)
    print(f"{'':34s}{'cases':>8s}{'within 1%':>11s}{'worst':>9s}")
    for name in sorted(groups):
        rows = groups[name]
        share = sum(abs(one.off) <= CLOSE for one in rows) / len(rows)
        worst = max(rows, key=lambda one: abs(one.off))
        print(f"{name.strip():34s}{len(rows):8,d}{share:11.2%}{worst.off:+9.2%}")
    print("worst cases:")
    for one in sorted(found, key=lambda one: -abs(one.off))[:SHOWN]:
        print(f"  {one.off:+.3%} at {one.nbytes:,.0f} B: {one.configuration.title}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the campaign; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=20_000, help="default 20,000")
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    parser.add_argument("--ranks", type=int, default=48, help="at most so many (default 48)")
    help_unequal = "share of clusters that may have units of unequal size (default a third)"
    parser.add_argument("--unequal", type=float, default=UNEQUAL, help=help_unequal)
    parser.add_argument("--quick", action="store_true", help="few cases, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args(arguments)
    cases = 50 if options.quick else options.cases
    if cases < 1 or options.ranks < 2:
        parser.error("--cases must be at least 1 and --ranks at least 2")
    source = drawn(options.seed, options.ranks, options.unequal)
    found: list[Compared] = []
    begun = time.process_time()
    try:
        while len(found) < cases:
            count = min(TOGETHER, math.ceil((cases - len(found)) / SIZES))
            found += compared([next(source) for _ in range(count)])
            spent_s = time.process_time() - begun
            print(f"{len(found):,d} cases, {spent_s:.0f} s of processor", flush=True)
    except KeyboardInterrupt:
        print("interrupted; this is what was done:")
    if not found:
        return
    show(found)
    if options.json:
        far = [one for one in found if abs(one.off) > CLOSE]
        rows = [{"case": o.configuration.title, "nbytes": o.nbytes, "off": o.off} for o in far]
        report = {"seed": options.seed, "cases": len(found), "beyond_1%": rows}
        write_output(options.json, json.dumps(report, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
