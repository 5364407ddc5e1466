"""SSD-SGD's rows: Table 2, Figs. 4 to 7.

Speeds are simulated by the paper's own model (Section 2): one channel for pushes and pulls, pulled
weights an iteration late, Eq. 2 for SSGD and the timeline of Eq. 4 for SSD-SGD. What it cannot know
is how fast the testbed's servers were, so that comes from a measured speed: SSGD's of ResNet-50 at
batch 32 on 4 servers. With fewer servers each takes so much more. Measured is on emulated hosts,
whose links carry both directions at once.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import cache

import ssd_sgd
import ssd_sgd_search as search
from formulas.ssd_sgd import Times, ssgd_iteration_s, steady_iteration_s
from mg_wfbp import lines
from ssd_sgd_runs import FIG_4, FIG_5, PERIODS, ROWS, SSGD, TABLE_2, Study

from . import resnet50
from .rows import Drawn, Figure, Given, Paper

DATA = ssd_sgd.DATA
MACHINES, GPUS, SERVERS = 4, 4, (1, 2, 3, 4)
LINEAR_IMAGES_S = {32: 3657.22, 64: 3682.12}
"""Images a GPU -> images/s of ResNet-50 by linear scaling (Section 4.5)."""

SSD5_IMAGES_S, SSD5_GAIN = 786.86, 0.723
"""Of a machine at batch 32 on 4 servers with k = 5 (Section 4.4), and over SSGD (Section 4.6)."""

RESNET50_OPERATIONS = 4.1e9
RESNET50, ALEXNET, VGG11 = "ResNet-50", "AlexNet", "VGG-11"
_FORWARD = 1 / 3
_MEASURED_AS = {RESNET50: "resnet50", ALEXNET: "alexnet", VGG11: "vgg11"}
LONGEST = PERIODS[-1]


def ssgd_s() -> float:
    """Return the paper's iteration of SSGD with ResNet-50 at batch 32 on 4 servers."""
    return GPUS * 32 / SSD5_IMAGES_S * (1 + SSD5_GAIN)


def compute_s(network: str, batch: int) -> float:
    """Return what a machine computes in an iteration; all networks at ResNet-50's rate."""
    resnet_s = MACHINES * GPUS * batch / LINEAR_IMAGES_S[batch]
    if network == RESNET50:
        return resnet_s
    return resnet_s * sum(work for _, work in layers(network)) / RESNET50_OPERATIONS


@cache
def push_s_per_byte() -> float:
    """Return what a byte's push takes with 4 servers: half of Eq. 2's T_c, over all bytes."""
    communication_s = ssgd_s() - _FORWARD * compute_s(RESNET50, 32)
    return communication_s / 2 / sum(nbytes for nbytes, _ in layers(RESNET50))


@cache
def layers(network: str) -> tuple[tuple[int, float], ...]:
    """Return bytes and work of each layer in backward order; work in any unit."""
    if network == RESNET50:
        return resnet50.layers()
    return tuple(
        (4 * int(row["parameters"]), float(row["multiply_adds"]))
        for row in lines(DATA / "ssd_sgd_networks.csv")
        if row["network"] == network
    )


def times(network: str, batch: int, servers: int) -> Times:
    """Return what an iteration consists of; a server's link is what its share of bytes takes."""
    found = layers(network)[::-1]
    total, seconds = sum(work for _, work in found), compute_s(network, batch)
    per_byte = push_s_per_byte() * MACHINES / servers
    messages_s = [nbytes * per_byte for nbytes, _ in found]
    return Times(
        forward_s=_FORWARD * seconds,
        backward_s=[(1 - _FORWARD) * seconds * work / total for _, work in found],
        push_s=messages_s,
        pull_s=messages_s,
    )


def gain(network: str, batch: int, servers: int, period: int) -> float:
    """Return SSD-SGD's simulated speed over SSGD's, less one."""
    of = times(network, batch, servers)
    return ssgd_iteration_s(of) / steady_iteration_s(of, period) - 1


@cache
def measured() -> dict[tuple[str, int, int, str], float]:
    """Return seconds of an iteration on emulated hosts, by model, batch, servers and method."""
    return {
        (row["model"], int(row["batch"]), int(row["servers"]), row["method"]): float(row["step_s"])
        for row in lines(DATA / "ssd_sgd_measured.csv")
    }


def measured_gain(network: str, batch: int, servers: int, method: str) -> float:
    """Return a method's measured speed over SSGD's, less one."""
    name, found = _MEASURED_AS[network], measured()
    return found[name, batch, servers, SSGD] / found[name, batch, servers, method] - 1


def figures(study: Study, searched: Study | None) -> Iterator[Figure]:
    """Yield all rows."""
    yield from table_2(study)
    yield from figure_4(study)
    yield from figure_5(study, searched)
    yield from figure_6()
    yield from figure_7()


def _above(study: Study, row: str, base: str) -> float | None:
    spread = ssd_sgd.above(study, "digits", row, base)
    return None if spread is None else spread.mean


def table_2(study: Study) -> Iterator[Figure]:
    """Yield accuracies as points above SSGD's; digits stand beside ResNet-20 alone."""
    for (figure, workload), rows in ssd_sgd.paper().items():
        if figure != "Table 2":
            continue
        small = workload.startswith("ResNet-20")
        for row in TABLE_2[1:]:
            yield Figure(
                "Table 2",
                f"{workload}, k = {ROWS[row].k}: accuracy above SSGD",
                rows[row]["accuracy"] - rows[SSGD]["accuracy"],
                measured=_above(study, row, SSGD) if small else None,
                form="{:+.2f}",
                points=True,
                why="digits of 8 x 8, warm-up of 100 iterations, five seeds"
                if small
                else "ImageNet on 16 GPUs is not trained here",
            )


def figure_4(study: Study) -> Iterator[Figure]:
    """Yield the lengths of the warm-up."""
    for row in FIG_4:
        yield Figure(
            "Fig. 4",
            f"ResNet-20, k = 1, warm-up of {ROWS[row].warm_up}: accuracy above SSGD",
            ssd_sgd.IN_WORDS[row],
            measured=_above(study, row, SSGD),
            form="{:+.2f}",
            why="a fifth of the iterations here; no difference beyond the spread over seeds",
        )


def lost(study: Study, workload: str, row: str) -> tuple[int, int]:
    """Return in how many seeds accuracy falls below a third of what it was, and of how many.

    What it was is the best before the delay; what it falls to, the least after.
    """
    setting, fell = study.settings[workload], 0
    runs = list(study.found(workload, row).values())
    for run in runs:
        begins = (run.warm_up + 1) // setting.iterations
        fell += min(run.curve[begins:]) < max(run.curve[:begins]) / 3
    return fell, len(runs)


def figure_5(study: Study, searched: Study | None) -> Iterator[Figure]:
    """Yield the local rules: accuracies at the paper's rates and at searched ones, and speeds."""
    printed = ssd_sgd.paper()["Fig. 5", "ResNet-50 (32)"]
    first, *others = FIG_5
    for row in others:
        fell, seeds = lost(study, "digits", row)
        yield Figure(
            "Fig. 5",
            f"{ROWS[row].title} as the local rule, k = 5: accuracy above GLU",
            printed[row]["accuracy"] - printed[first]["accuracy"],
            measured=_above(study, row, first),
            form="{:+.2f}",
            points=True,
            why=f"at the paper's rates: in {fell} of {seeds} seeds training loses its way when the "
            "delay begins (below a third of the accuracy it had)",
        )
    if searched is not None:
        for row in others:
            if dict(search.accuracies(searched, row)):
                yield _searched(row, first, printed, searched)
    for row in others:
        yield Figure(
            "Fig. 5",
            f"{ROWS[row].title} as the local rule, k = 5: speed over GLU's",
            printed[row]["images_per_s"] / printed[first]["images_per_s"],
            why="not trained on a device; on a CPU DC-ASGD-a's update takes 3 times SGD's",
        )


def best_divisor(searched: Study, row: str) -> int:
    """Return the learning rate's divisor of the highest mean accuracy, of those with most seeds."""
    found = dict(search.accuracies(searched, row))
    most = max(len(values) for values in found.values())
    means = {n: statistics.fmean(values) for n, values in found.items() if len(values) == most}
    return max(means, key=means.__getitem__)


def _searched(
    row: str, first: str, printed: dict[str, dict[str, float]], searched: Study
) -> Figure:
    """Return a row of Fig. 5 with the better learning rate of each rule."""
    best = {name: best_divisor(searched, name) for name in (row, first)}
    values = {name: dict(search.accuracies(searched, name))[best[name]] for name in best}
    return Figure(
        "Fig. 5",
        f"{ROWS[row].title} as the local rule, k = 5: accuracy above GLU, rates searched",
        printed[row]["accuracy"] - printed[first]["accuracy"],
        measured=statistics.fmean(values[row]) - statistics.fmean(values[first]),
        form="{:+.2f}",
        points=True,
        why=f"best at lr / {best[row]}: {statistics.fmean(values[row]):.1f}%, GLU at lr / "
        f"{best[first]}: {statistics.fmean(values[first]):.1f}%; {len(values[row])} seeds",
    )


def figure_6() -> Iterator[Figure]:
    """Yield ResNet-50 over numbers of servers and k."""
    for batch, least, most in ((32, 0.08, 0.78), (64, 0.03, 1.10)):
        cells = [(servers, k) for servers in SERVERS for k in PERIODS]
        ours = {cell: gain(RESNET50, batch, *cell) for cell in cells}
        labs = {
            (servers, k): measured_gain(RESNET50, batch, servers, f"ssd-{k}")
            for servers, k in cells
        }
        for what, choose, said in (("most", max, most), ("least", min, least)):
            at, there = choose(ours, key=ours.__getitem__), choose(labs, key=labs.__getitem__)
            yield Figure(
                "Fig. 6",
                f"batch {batch}, {what} over all k and servers: gain over SSGD",
                100 * said,
                simulated=100 * ours[at],
                measured=100 * labs[there],
                form="{:+.0f}%",
                points=True,
                why=f"simulated with {_at(*at)}, measured with {_at(*there)}",
            )
    for batch, servers, period, said in ((64, 1, LONGEST, 1.10), (64, 4, 2, 0.10)):
        yield Figure(
            "Fig. 6",
            f"batch {batch}, {_at(servers, period)}: gain over SSGD",
            100 * said,
            simulated=100 * gain(RESNET50, batch, servers, period),
            measured=100 * measured_gain(RESNET50, batch, servers, f"ssd-{period}"),
            form="{:+.0f}%",
            points=True,
            why="the headline: its servers, not its links, are what it waits for; with links that "
            "carry both directions SSGD's pulls hide behind its pushes"
            if servers == 1
            else "linear scaling in the simulation",
        )


def _at(servers: int, period: int) -> str:
    return f"{servers} server{'s' if servers > 1 else ''}, k = {period}"


def figure_7() -> Iterator[Figure]:
    """Yield SSD-SGD-5 over SSGD on 4 servers."""
    for network, batch, said in (
        (RESNET50, 32, SSD5_GAIN),
        (RESNET50, 64, 0.098),
        (ALEXNET, 32, 0.796),
        (ALEXNET, 64, 1.007),
        (VGG11, 32, 0.587),
        (VGG11, 64, 0.587),
    ):
        yield Figure(
            "Fig. 7",
            f"{network}, batch {batch}, 4 servers, k = 5: gain over SSGD",
            100 * said,
            simulated=100 * gain(network, batch, 4, LONGEST),
            measured=100 * measured_gain(network, batch, 4, f"ssd-{LONGEST}"),
            form="{:+.0f}%",
            points=True,
            why="one figure and no batch in the paper" if network == VGG11 else "",
        )
    for network in (RESNET50, ALEXNET, VGG11):
        for batch in LINEAR_IMAGES_S:
            found, name = measured(), _MEASURED_AS[network]
            ratio = found[name, batch, 4, f"ssd-{LONGEST}"] / found[name, batch, 4, "asgd"]
            yield Figure(
                "Fig. 7",
                f"{network}, batch {batch}, 4 servers: ASGD's speed over SSD-SGD-5's",
                "above 1" if (network, batch) == (RESNET50, 64) else "below 1",
                measured=ratio,
            )


def speeds() -> Drawn:
    """Return Fig. 6 as simulated and, in brackets, as measured: gains over SSGD."""
    rows = []
    for batch in LINEAR_IMAGES_S:
        for servers in SERVERS:
            cells = [f"{batch}", f"{servers}"]
            for k in PERIODS:
                ours = gain(RESNET50, batch, servers, k)
                cells.append(
                    f"{ours:+.0%} ({measured_gain(RESNET50, batch, servers, f'ssd-{k}'):+.0%})"
                )
            rows.append(tuple(cells))
    headings = ("batch", "servers", *(f"k = {k}" for k in PERIODS))
    return Drawn("Fig. 6: gain over SSGD, simulated (measured)", headings, tuple(rows))


def rates(searched: Study) -> Drawn:
    """Return accuracy by local rule and learning rate."""
    rows = []
    for row in search.SEARCH_ROWS:
        cells: list[str] = ["GLU" if row == FIG_5[0] else ROWS[row].title]
        found = dict(search.accuracies(searched, row))
        for divisor in search.DIVISORS:
            cells.append(_mean_and_range(found.get(divisor, ())))
        rows.append(tuple(cells))
    headings = ("digits, k = 5", *(f"lr / {divisor}" for divisor in search.DIVISORS))
    title = "Fig. 5's rules by learning rate, local rates in proportion, test accuracy in %"
    return Drawn(title, headings, tuple(rows))


def _mean_and_range(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = "one seed" if len(values) == 1 else f"{min(values):.1f} to {max(values):.1f}"
    return f"{statistics.fmean(values):.1f} ({spread})"


GIVEN = (
    ("a machine's computation", "0.140 and 0.278 s at batch 32 and 64", "linear scaling, 4.5"),
    (
        "SSGD with ResNet-50, batch 32, 4 servers",
        "0.280 s",
        "786.86 images/s a machine with k = 5 (4.4), 72.3% more than SSGD (4.6)",
    ),
    ("pushes of ResNet-50 to 4 servers", "0.117 s", "half of T_c by Eq. 2, from SSGD's iteration"),
    ("to fewer servers", "4 / servers times as long", "each takes a larger share"),
    ("AlexNet's and VGG-11's computation", "1.01 and 7.62 over 4.1", "multiply-adds; same rate"),
)


def paper(*, quick: bool = False) -> Paper:
    """Return all of the paper; nothing of it takes long."""
    study = ssd_sgd.shown_study(None)
    searched = Study.load(search.SEARCHED) if search.SEARCHED.exists() else None
    drawn = [speeds()] + ([rates(searched)] if searched is not None else [])
    given = tuple(Given(*one) for one in GIVEN)
    return Paper("ssd_sgd", "SSD-SGD", given, tuple(figures(study, searched)), tuple(drawn))
