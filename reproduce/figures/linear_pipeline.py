"""LP's rows: Tables 1 and 2, Figs. 2 to 5, and what its text says of them.

Fig. 4 has a jump at 5 GPUs, which no longer share a PCI-E switch. A pipeline over links of unequal
rates goes at the pace of the slowest; a tree pays the slow link in one of its rounds. So LP's jump
is put in as a rate, and what comes out is that everything else of Fig. 4 stays flat or does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import bsp_sgd_table
import linear_pipeline as lp
from bsp_sgd import ALGORITHMS
from bsp_sgd_networks import rows as lines
from bsp_sgd_table import DATA, NETWORKS, Place, Profile

from .rows import Figure, Given, Paper

AT_SWITCH = 4
"""GPUs on one PCI-E switch."""

SLOWER = 2.0
"""By how much a link through the host's memory is slower; assumed."""

NUMBERS = {row.printed: number for number, row in ALGORITHMS.items()}
"""What Table 2 calls an algorithm -> its number in Section 3."""

_AT = "at 1 GB/s"

Cells = Mapping[str, Mapping[str, Mapping[Place, Profile]]]
"""Network -> source -> cells."""


def chain_s(rates: Sequence[float], nbytes: float, blocks: int, latency_s: float) -> float:
    """Return what a pipeline down a chain of links takes.

    Args:
        rates: bytes per second of each link, in order.
        nbytes: of the message.
        blocks: that it is cut into.
        latency_s: α of each link.
    """
    steps = [latency_s + nbytes / blocks / rate for rate in rates]
    return sum(steps) + (blocks - 1) * max(steps, default=0.0)


def tree_s(ranks: int, nbytes: float, latency_s: float) -> float:
    """Return what a broadcast down a minimum spanning tree takes; one round crosses the switch."""
    rounds = (ranks - 1).bit_length()
    slow = 1 if ranks > AT_SWITCH else 0
    return rounds * latency_s + (rounds + slow * (SLOWER - 1)) * nbytes / lp.BYTES_PER_S


def pipelined_s(ranks: int) -> float:
    """Return what LP's broadcast of GoogLeNet takes on so many GPUs of Fig. 4."""
    rates = [lp.BYTES_PER_S] * (ranks - 1)
    if ranks > AT_SWITCH:
        rates[AT_SWITCH - 1] /= SLOWER
    return chain_s(rates, lp.NBYTES, lp.BLOCKS, lp.ALPHA_S)


def figures() -> Iterator[Figure]:
    """Yield all rows."""
    yield from tables()
    yield from figure_3()
    yield from figure_4()
    yield from table_2()
    yield from section_4()


def tables() -> Iterator[Figure]:
    """Yield Table 1 beside the schedules, and the steps of Fig. 2."""
    for entry in lp.table_one():
        yield Figure(
            "Table 1",
            f"{entry.collective.replace('_', '-')} by {entry.algorithm.upper()}, 51 MB on 4 GPUs",
            entry.formula_s * 1e3,
            simulated=entry.schedule_s * 1e3,
            form="{:.2f} ms",
            why="a chain takes p - 2 + n/b steps, Table 1 prints p - 1 + n/b"
            if entry.algorithm == "lp"
            else "",
        )
    for item in lp.compare_with_paper(lp.scaling((4,))):
        if "steps" in item.what:
            yield Figure("Fig. 2", item.what, item.paper, simulated=item.ours, form="{:.0f}")
    yield Figure("Fig. 2", "reduce and broadcast: steps, 3 x 4 blocks", 10, 2 * (3 - 2 + 4), None,
                 "{:.0f}")  # fmt: skip


def on_hosts() -> Mapping[tuple[str, str], float]:
    """Return LP's speed-ups on 4 emulated hosts, by collective and over which algorithm."""
    found = {}
    for path in sorted(DATA.glob(lp.MEASURED)):
        for row in lp.beside_prices(lp.read_measured(path)):
            if row.ranks == 4:
                for name, (measured, _) in row.speedups.items():
                    found.setdefault((row.collective, name), measured)
    return found


def figure_3() -> Iterator[Figure]:
    """Yield LP's average speed-ups, and what its theory says."""
    measured = on_hosts()
    for item in lp.compare_with_paper(lp.scaling((4,))):
        if "steps" in item.what:
            continue
        collective = item.what.partition(":")[0]
        over = "be" if "BE" in item.what else "mst"
        theory = "theory" in item.what
        why = ""
        if not theory and over == "be":
            why = "its BE is Open MPI's, which stages in host memory and reduces on the CPU"
        elif not theory and collective != "broadcast":
            why = "its MST is Caffe's, which reduces after the whole message"
        yield Figure(
            "Section 3.2" if theory else "Fig. 3",
            f"{collective.replace('_', '-')}: LP over {over.upper()}, 4 GPUs",
            item.paper,
            simulated=item.ours,
            measured=None if theory else measured.get((collective, over)),
            why=why,
        )


def figure_4() -> Iterator[Figure]:
    """Yield how a broadcast's time goes with the number of GPUs."""
    lp_s = {p: pipelined_s(p) for p in range(2, 7)}
    mst_s = {p: tree_s(p, lp.NBYTES, lp.ALPHA_S) for p in range(2, 7)}
    hosts = _scaled_on_hosts()
    for what, ours, one, other, said in (
        ("LP", lp_s, 3, 2, 1.0),
        ("LP", lp_s, 4, 2, 1.0),
        ("LP", lp_s, 5, 4, "a jump"),
        ("LP", lp_s, 6, 5, 1.0),
        ("MST", mst_s, 3, 2, "a jump"),
        ("MST", mst_s, 4, 3, 1.0),
        ("MST", mst_s, 5, 4, "a jump"),
        ("MST", mst_s, 6, 5, 1.0),
    ):
        why = ""
        if what == "LP" and said == "a jump":
            why = f"put in: the link across the switch is {SLOWER:g} times slower and sets the pace"
        elif said == "a jump":
            why = "a round more" + (", across the switch" if one == 5 else "")
        yield Figure(
            "Fig. 4",
            f"broadcast by {what}: {one} GPUs over {other}",
            said,
            simulated=None if why.startswith("put in") else ours[one] / ours[other],
            measured=hosts.get((one, other)) if what == "LP" else None,
            why=why,
        )


def _scaled_on_hosts() -> dict[tuple[int, int], float]:
    """Return LP's broadcast on p hosts over that on q, where both were measured."""
    seconds: dict[int, float] = {}
    for path in sorted(DATA.glob(lp.MEASURED)):
        for row in lp.beside_prices(lp.read_measured(path)):
            if row.collective == "broadcast":
                seconds.setdefault(row.ranks, row.lp_s[0])
    return {(p, q): seconds[p] / seconds[q] for p in seconds for q in seconds if p > q}


def cells() -> Cells:
    """Return Table 2 by network and source; measurements are the kept ones."""
    labs = [bsp_sgd_table.Lab.load(path) for path in bsp_sgd_table.committed()]
    return {block.name: block.sources for block in bsp_sgd_table.blocks(labs)}


def _place(method: str) -> Place:
    collective, number = method.split()
    return Place(collective.lower(), NUMBERS[number])


def table_2() -> Iterator[Figure]:
    """Yield the communication of an iteration, all cells."""
    for network, sources in cells().items():
        measured = sources.get("measured", {})
        for place, profile in sources["paper"].items():
            lab = measured.get(place)
            yield Figure(
                "Table 2",
                f"{network}, {place.collective.upper()} {ALGORITHMS[place.number].printed}: "
                "communication",
                profile.comm_s,
                simulated=sources[_AT][place].comm_s,
                measured=None if lab is None else lab.comm_s,
                form="{:.3f} s",
                why=f"at 1 GB/s (Section 3.2); Section 3's Algorithm {place.number}",
            )
        rate = bsp_sgd_table.rate_of(network)
        fitted = next(what for what in sources if what.startswith("at ") and what != _AT)
        place = Place("lp", 3)
        yield Figure(
            "Table 2",
            f"{network}, LP Alg.2: communication, at the {rate / 1e9:.1f} GB/s of its LP Alg.1",
            sources["paper"][place].comm_s,
            simulated=sources[fitted][place].comm_s,
            form="{:.3f} s",
            why="no single rate gives LP's and BE's cells",
        )


def section_4() -> Iterator[Figure]:
    """Yield the speed-ups of training that the text and Fig. 5 have."""
    found = cells()
    for row in lines(DATA / "lp_speedups.csv"):
        network, one, other = row["network"], row["method"], row["over"]
        yield _speedup("Section 4.2, Fig. 5", network, (one, other), float(row["value"]), found)
    yield _speedup("Section 1", "GoogLeNet", ("LP Alg.1", "MST Alg.1"), 1.7, found)
    for network in NETWORKS:
        theirs = found[network]["paper"]
        for other, said in (("BE Alg.1", {"AlexNet": 0.10, "GoogLeNet": 0.06}),
                            ("MST Alg.1", {"AlexNet": 0.11, "GoogLeNet": 0.43})):  # fmt: skip
            pair = _place("LP Alg.1"), _place(other)
            ratio = theirs[pair[0]].comm_s / theirs[pair[1]].comm_s
            ours = [found[network][_AT][place].comm_s for place in pair]
            yield Figure(
                "Section 4.2",
                f"{network}: LP Alg.1's communication as a part of {other}'s",
                said[network],
                simulated=ours[0] / ours[1],
                form="{:.0%}",
                why=f"Table 2 says {ratio:.1%}",
            )
    for network in NETWORKS:
        for one, other in (("LP Alg.3", "LP Alg.2"), ("LP Alg.2", "LP Alg.1")):
            yield _speedup("Section 4.2", network, (one, other), "faster", found)


def _speedup(
    where: str, network: str, pair: tuple[str, str], said: float | str, found: Cells
) -> Figure:
    """Return how much faster an iteration is by the first method of a pair than by the second."""
    ratios = {}
    for source in ("paper", _AT, "measured"):
        profiles = found[network].get(source, {})
        known = [profiles[_place(method)] for method in pair if _place(method) in profiles]
        if len(known) == 2:
            ratios[source] = known[1].iteration_s / known[0].iteration_s
    return Figure(
        where,
        f"{network}: {pair[0]} over {pair[1]}",
        said,
        simulated=ratios[_AT],
        measured=ratios.get("measured"),
        why=f"its Table 2 says {ratios['paper']:.2f}x; ours at 1 GB/s",
    )


GIVEN = (
    ("α, 1/β", "0.1 us, 1 GB/s", "Section 3.2; reduction is free there"),
    ("b", "64 KB", "Section 3.2"),
    ("AlexNet, GoogLeNet", "256 MB, 51 MB", "Table 2"),
    ("computation of an iteration", "0.93 s, 0.26 s", "Table 2, means"),
    (
        "a link across the PCI-E switch",
        f"{SLOWER:g} times slower, from GPU {AT_SWITCH + 1} on",
        "assumed: through the host's memory, Section 4.1",
    ),
)


def paper(*, quick: bool = False) -> Paper:
    """Return all of the paper; nothing of it takes long."""
    given = tuple(Given(*one) for one in GIVEN)
    return Paper("linear_pipeline", "Linear pipelines and BSP-SGD", given, tuple(figures()))
