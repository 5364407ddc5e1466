"""Report: results as Markdown, every table with its command, every target met or not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from syncopate.lab.network import shape_of
from syncopate.lab.topology import TCP_GOODPUT
from syncopate.units import MIB, format_bytes, format_seconds

from .bounds import bound_s, least_bytes
from .parts import PARTS
from .results import NOISE, Cell, PartResult, Sampled, stream_s
from .targets import Target, share_of_bound, targets

_BURST_SHARE = shape_of(1e9 / 8).burst_bytes / least_bytes("all_reduce", 8, 4 * MIB)

_HEAD = f"""\
Hosts are emulated on one machine (`syncopate lab`): each has a network namespace and one shaped
link, and all share the machine's processors. Times are medians of calls that a barrier separates,
each from the last rank's start to the last rank's end, which one clock for all hosts shows;
contenders took turns. In brackets are the quartiles. *By own* is the same by the longest of the
ranks' own durations, in which a rank that left the barrier early waits for the last. *Gloo* is
the backend's own collective (`native`). The *bound* is the least bytes that a host must send or
receive (all-reduce 2(p-1)/p n; reduce-scatter and all-gather (p-1)/p n; broadcast and reduce n),
over the rate that TCP's payload gets: 1448 bytes of a frame of 1514, {TCP_GOODPUT:.1%} of the
link's rate. It knows no burst: after silence a link passes a millisecond of its rate at once, so
short messages may beat it. That is {_BURST_SHARE:.1%} of what a link carries for an all-reduce of
4 MiB among eight hosts at 1 Gbit/s, and a quarter of that at 16 MiB. A result is slower *beyond
noise* when the medians are more than {NOISE:.0%} apart and the quartiles do not overlap. Every
result was verified. Raw samples are in the JSON files named below.
"""


def report(results: Sequence[PartResult], folder: str) -> str:
    """Return the whole report.

    Args:
        results: in any order; those of parts not measured are missing.
        folder: where the raw files are, as the report should say it.
    """
    order = [part.name for part in PARTS]
    found = sorted(results, key=lambda result: order.index(result.part))
    lines = ["# Collectives on emulated hosts", "", _HEAD]
    if any(result.quick for result in found):
        lines += ["**A quick run, to see that everything works: no figure here counts.**", ""]
    lines += [*_hardware(found), *_summary(found)]
    for result in found:
        lines += section(result, folder)
    return "\n".join(lines).rstrip() + "\n"


def section(result: PartResult, folder: str) -> list[str]:
    """Return the lines of one part."""
    part = next(part for part in PARTS if part.name == result.part)
    lines = [
        f"## {part.title}",
        "",
        f"    {result.command}",
        "",
        f"{result.topology.describe()}; {result.metadata.get('date', 'no date')}, "
        f"{result.elapsed_s:.0f} s. Raw: `{folder}/{result.part}.json`.",
        "",
    ]
    wrong = sum(cell.wrong for cell in result.cells)
    if wrong:
        lines += [f"**{wrong} elements were wrong.**", ""]
    lines += _levels(result)
    tables = _TABLES[part.body]
    return lines + tables(result) + _verdicts(targets(result))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a Markdown table and an empty line; the first column is text, the others figures."""
    lines = [_row(head), _row(["---", *("---:" for _ in head[1:])])]
    return [*lines, *(_row(row) for row in rows), ""]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _hardware(results: Sequence[PartResult]) -> list[str]:
    facts: dict[str, list[str]] = {}
    for result in results:
        for name, value in result.metadata.items():
            facts.setdefault(name, [])
            if value not in facts[name]:
                facts[name].append(value)
    order = ("cpu", "cores", "memory", "system", "python", "torch", "syncopate")
    rows = [(name, ", ".join(facts[name])) for name in order if name in facts]
    return table(("hardware and versions", ""), rows) if rows else []


def _summary(results: Sequence[PartResult]) -> list[str]:
    rows = []
    for result in results:
        found = targets(result)
        if found:
            missed = [target.what for target in found if not target.met]
            met = f"{len(found) - len(missed)} of {len(found)}"
            rows.append((result.part, met, "; ".join(missed)))
    return ["## Targets met", "", *table(("part", "met", "not met"), rows)] if rows else []


def _verdicts(found: Sequence[Target]) -> list[str]:
    if not found:
        return []
    rows = []
    for target in found:
        value, limit = target.figures
        what = target.what + (f" ({target.note})" if target.note else "")
        rows.append((what, value, limit, "met" if target.met else "**not met**"))
    return table(("target", "measured", "wanted", ""), rows)


def _levels(result: PartResult) -> list[str]:
    if not result.levels:
        return []
    found = "; ".join(
        f"{level.name}: {level.size}, {format_seconds(level.latency_s)}, "
        f"{level.bandwidth_bytes_per_s * 8e-9:.3f} Gbit/s"
        for level in result.levels
    )
    placed = f"; ranks by position {result.placement}" if result.placement else ""
    return [f"Calibrated levels (size, latency, bandwidth): {found}{placed}.", ""]


def spread(sampled: Sampled) -> str:
    """Return a median and its quartiles."""
    low, high = (format_seconds(value) for value in sampled.quartiles_s)
    return f"{format_seconds(sampled.median_s)} ({low} to {high})"


def _flat(result: PartResult) -> list[str]:
    lines = _decisions(result) + _streams(result)
    for collective in dict.fromkeys(cell.collective for cell in result.cells):
        lines += [f"### {collective}, {result.topology.hosts} hosts", ""]
        head = (
            *("size", "auto took", "auto", "Gloo", "Gloo / auto", "by own", "n"),
            *(
                "of the bound",
                "by own",
                "of the raw rate",
                "of a stream alone",
                "of streams at once",
            ),
        )
        lines += table(head, [_flat_row(result, cell) for cell in result.of(collective)])
    return lines


def _flat_row(result: PartResult, cell: Cell) -> list[str]:
    auto, native = cell.contenders["auto"], cell.contenders["native"]
    row = [
        *(format_bytes(cell.nbytes), f"`{auto.ran}`", spread(auto), spread(native)),
        *(
            f"{cell.ratio('native', 'auto'):.2f}x",
            f"{native.own_median_s / auto.own_median_s:.2f}x",
        ),
        str(len(auto.samples_s)),
    ]
    if cell.nbytes < MIB:
        return [*row, *("" for _ in range(5))]
    share = share_of_bound(result, cell, "auto")
    own_share = share * auto.median_s / auto.own_median_s
    least = least_bytes(cell.collective, cell.world_size, cell.nbytes)
    streams = [
        stream_s(result.streams, least, everyone=everyone) / auto.median_s
        for everyone in (False, True)
    ]
    return [*row, *(f"{value:.1%}" for value in (share, own_share, share * TCP_GOODPUT, *streams))]


def _decisions(result: PartResult) -> list[str]:
    if not result.decisions:
        return []
    rows = []
    for collective in dict.fromkeys(row.collective for row in result.decisions):
        taken = "; ".join(
            f"{format_bytes(row.least_bytes)} `{row.ran}`"
            for row in result.decisions
            if row.collective == collective
        )
        rows.append((collective, taken))
    return ["What `auto` takes from which size on, as calibrated:", "", *table(("", ""), rows)]


def _streams(result: PartResult) -> list[str]:
    rate = result.topology.rate_bytes_per_s * TCP_GOODPUT
    rows = []
    for nbytes in dict.fromkeys(stream.nbytes for stream in result.streams):
        times = [stream_s(result.streams, nbytes, everyone=every) for every in (False, True)]
        cells = [f"{format_seconds(time)}, {nbytes / rate / time:.1%}" for time in times]
        rows.append((format_bytes(nbytes), *cells))
    head = ("plain TCP stream", "host 0 to host 1, of line rate", "every host to the next at once")
    return table(head, rows) if rows else []


def _pipeline(result: PartResult) -> list[str]:
    lines = []
    for collective in dict.fromkeys(cell.collective for cell in result.cells):
        cells = [cell for cell in result.of(collective) if "lp" in cell.contenders]
        lines += [f"### {collective} of {format_bytes(cells[0].nbytes)}", ""]
        head = (
            *("hosts", "LP took", "LP", "over the fewest", "of LP's bound"),
            *("MST / LP", "BE / LP", "Gloo / LP"),
        )
        lines += table(head, [_pipeline_row(result, cell, cells[0]) for cell in cells])
    for cell in result.cells:
        if "lp" not in cell.contenders:
            what = f"{cell.collective} of {format_bytes(cell.nbytes)}, {cell.world_size} hosts"
            rows = [(f"`{name}`", spread(found)) for name, found in cell.contenders.items()]
            lines += table((what, ""), rows)
    return lines


def _pipeline_row(result: PartResult, cell: Cell, fewest: Cell) -> list[str]:
    lp = cell.contenders["lp"]
    # In the middle of the chain a rank receives what is reduced and, once more, the result.
    passes = 2 if cell.collective == "all_reduce" and cell.world_size > 2 else 1
    bound = passes * bound_s(result.topology, "broadcast", cell.nbytes, hosts=cell.world_size)
    return [
        *(str(cell.world_size), f"`{lp.ran}`", spread(lp)),
        f"{lp.median_s / fewest.contenders['lp'].median_s:.3f}x",
        f"{bound / lp.median_s:.1%}",
        *(
            f"{cell.ratio(name, 'lp'):.2f}x" if name in cell.contenders else ""
            for name in ("mst", "be", "native")
        ),
    ]


def _contenders(result: PartResult) -> list[str]:
    lines = _decisions(result)
    for cell in result.cells:
        bound = bound_s(result.topology, cell.collective, cell.nbytes)
        lines += [
            f"### {cell.collective} of {format_bytes(cell.nbytes)}; bound {format_seconds(bound)}",
            "",
        ]
        head = ("", "ran", "time", "over the bound", "Gloo / it")
        links = ("sent per host / n", "by schedule", "sent per rack / n", "by schedule")
        shown = links if result.topology.racks > 1 else links[:2]
        rows = []
        for name, found in cell.contenders.items():
            row = [name, f"`{found.ran or name}`", spread(found), f"{found.median_s / bound:.2f}x"]
            row.append(f"{cell.ratio('native', name):.2f}x")
            for prefix in ("host", "rack")[: len(shown) // 2]:
                row += [_sent(found.link_bytes, prefix, cell.nbytes)]
                row += [_sent(found.scheduled_bytes, prefix, cell.nbytes)]
            rows.append(row)
        lines += table((*head, *shown), rows)
    return lines


def _sent(links: dict[str, float], prefix: str, nbytes: int) -> str:
    """Return the busiest link's bytes over the message's."""
    sent = [count for name, count in links.items() if name.startswith(prefix)]
    return f"{max(sent) / nbytes:.3f}" if sent else ""


def _scenes(result: PartResult) -> list[str]:
    lines = []
    for scene in result.scenes:
        lines += [f"### {scene.title}", ""]
        for saying in scene.sayings:
            ranks = (
                f"rank{'s' if len(saying.ranks) > 1 else ''} {', '.join(map(str, saying.ranks))}"
            )
            lines += [f"{ranks}, after {saying.seconds:.1f} s:", "", f"    {saying.text}", ""]
    return lines


_TABLES = {
    "flat": _flat,
    "pipeline": _pipeline,
    "racks": _contenders,
    "nodes": _contenders,
    "failures": _scenes,
}
