"""Explanation: what iterations lose time to, what would mend it, and the command for it.

Each printed number has its formula in ``docs/metrics.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from syncopate.analysis.causes.counterfactuals import WORTH
from syncopate.analysis.causes.explanation import Explanation
from syncopate.analysis.causes.trial import (
    BATCHES,
    CONGESTION,
    GROUP,
    PIPELINE,
    PLAN,
    SLOW_SERVER,
    STAGES,
    TRANSFERS,
    Cause,
)
from syncopate.analysis.collectives import bandwidths
from syncopate.analysis.exposure import exposures
from syncopate.analysis.ranks.arrivals import lateness
from syncopate.analysis.ranks.stragglers import COMPUTE, LINK, PAUSE, SERVER
from syncopate.analysis.work import SEVERAL
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import FSDP, Plan
from syncopate.artifacts.timeline import PAUSES, Timeline
from syncopate.errors import one_line
from syncopate.units import format_count, format_rate, format_seconds

_SHOWN = 8

_FIRST = 4
"""Messages of units that are named."""

_INPUT, _COLLECTION, _EVALUATION, _CHECKPOINT, _PLANNING = PAUSES

_RECORDED = "FILE"
"""What stands for the files of the recording in a command."""

_TO_WORKLOAD = f"syncopate convert {_RECORDED} --to workload -o workload.json"
"""Makes a workload of a recording."""

_WORDS = {
    COMPUTE: (
        "{who} computes longer than the others{detail}",
        "look for other processes, a throttled clock or more data there; give it less to do",
        "",
    ),
    _INPUT: (
        "{who} waits for input before forward, or does something else between steps",
        "load ahead: more DataLoader workers, a deeper prefetch, data nearer to the ranks; or see "
        "what the loop does from the end of a step to the next forward",
        "",
    ),
    _COLLECTION: (
        "{who} stands still for garbage collection{when}",
        "gc.freeze() after the first steps, or gc.disable() and gc.collect() on all ranks in the "
        "same step",
        "",
    ),
    _EVALUATION: (
        "{who} evaluates{when}",
        "evaluate less often, or on all ranks at once",
        "",
    ),
    _CHECKPOINT: (
        "{who} saves a checkpoint{when}",
        "save less often, or write a copy while training goes on",
        "",
    ),
    _PLANNING: (
        "{who} measures and plans{when}, as a first run does",
        "it ends by itself, and the next run begins with the plan that was kept; --last 50 looks "
        "at the end alone",
        "",
    ),
    PAUSE: (
        "{who} takes unusually long{when}, for no recorded reason",
        "see what happens there: garbage collection, evaluation, checkpoints, other processes",
        "",
    ),
    LINK: (
        "{who} has {detail}",
        "see its link, its port and its processor; if it has to be so, calibrate, and plan for it",
        "syncopate calibrate -o cluster.json",
    ),
    BATCHES: (
        "ranks compute unequally long, now one and now another: batches of unequal length{detail}",
        "batches of equal length on all ranks in each step: sort or bucket samples by length, or "
        "cut batches by tokens",
        "",
    ),
    CONGESTION: (
        "transfers took more than 1.5x as long as usual{when}",
        "see who else used the network then: other jobs, storage, backups",
        "",
    ),
    SERVER: (
        "messages to and from servers are exposed; this is the most that could be saved",
        "more servers, or weights pulled every k-th step; give --workload and --cluster to see "
        "what a plan without servers would save",
        f"{_TO_WORKLOAD} && "
        "syncopate plan -w workload.json -c cluster.json --exchange served --pull-period auto",
    ),
    SLOW_SERVER: (
        "{who} has weights there later than the others{detail}",
        "see its processor, its link and what else runs there; or train without it",
        "",
    ),
    STAGES: (
        "stages of a pipeline take unequally long{detail}",
        "move layers from the longest stage to the others",
        "",
    ),
    PIPELINE: (
        "stages of a pipeline wait for each other; this is the most that could be saved",
        "more micro-batches",
        "",
    ),
    TRANSFERS: (
        "transfers are exposed; this is the most that a plan or a network could save",
        "a better plan: make a workload of this recording, and plan for it on a calibrated "
        "cluster, or a typical one (--network 10gbe --nodes 4)",
        f"{_TO_WORKLOAD} && syncopate plan -w workload.json -c cluster.json",
    ),
    PLAN: (
        "this plan, compared with the best one",
        "train by the best plan, with plan=syncopate.Plan.load('plan.json')",
        "syncopate plan -w WORKLOAD -c CLUSTER -o plan.json",
    ),
}
"""Kind of a cause -> what costs time, what would mend it, and the command for it."""

_SIZES_FIRST = (
    "a better plan: record again with what messages carry (torch.profiler with record_shapes=True "
    "on CPUs), make a workload of that recording, and plan for it"
)
"""What mends exposed transfers of which nothing says how long they are."""

_UNITS = {
    TRANSFERS: (
        "transfers of units are exposed; this is the most that a plan or a network could save",
        "a plan of units: which modules to wrap together, how far ahead to gather them, and which "
        "to keep (docs/fsdp.md)",
        f"{_TO_WORKLOAD} && syncopate plan -w workload.json -c cluster.json --exchange {FSDP}",
    ),
    PLAN: (
        "these units, compared with the best plan's",
        "train by the best plan, with syncopate.fsdp2(model, plan='plan.json')",
        f"syncopate plan -w WORKLOAD -c CLUSTER --exchange {FSDP} -o plan.json",
    ),
}
"""The same, where FSDP2 trains."""

_REGULAR = (
    "the script does something else there: an evaluation, a checkpoint, a log? Do it less often; "
    "with syncopate.pause('evaluation') around it a trace says what it is"
)
"""What mends pauses that come in equal distances."""

_PULLED_SELDOM = (
    "more servers, or weights pulled more seldom than in one of {period} steps, as now; give "
    "--workload and --cluster to see what a plan without servers would save"
)
"""What mends exposed messages to and from servers where weights are pulled with a delay."""

_BEYOND_A_PLAN = (
    "transfers that the best plan leaves exposed; the most that a network could save",
    "a faster network, or fewer bits (docs/narrow.md)",
    "syncopate plan -w WORKLOAD -c CLUSTER --wire-dtype bfloat16",
)
"""The same of transfers, where the best plan is known."""


def verdict(found: Explanation) -> str:
    """Return an explanation's result in one sentence."""
    if found.abstains:
        return "no explanation, because the evidence is thin"
    best_s = max((cause.gain_s for cause in found.causes), default=0.0)
    if best_s < WORTH * found.iteration_s:
        return f"nothing worth doing: {found.of_bound:.0%} of the bound"
    first = told(found.causes[0], found)
    said = f"{first['what']}: {first['share']:.0%} of an iteration"
    if (count := len(_several(found))) > 1:
        said += f"; {count} causes together {found.together_s / found.iteration_s:.0%}"
    return said


def _several(found: Explanation) -> list[Cause]:
    """Return the causes that can be mended: exposed transfers are what a network could save."""
    return [cause for cause in found.causes if cause.kind not in (TRANSFERS, SERVER, PIPELINE)]


def told(
    cause: Cause,
    found: Explanation,
    files: tuple[str, str] | None = None,
    recorded: str = _RECORDED,
) -> dict[str, Any]:
    """Return a cause in plain words, with its figures.

    Args:
        cause: of ``found``.
        found: the explanation.
        files: of the workload and the cluster, where they were given.
        recorded: the files of the recording, as one writes them in a command.
    """
    words_of = _WORDS | _UNITS if found.exchange == FSDP else _WORDS
    what, fix, command = words_of[cause.kind]
    if not found.sized and _RECORDED in command:
        fix, command = _SIZES_FIRST, ""
    command = command.replace(_RECORDED, recorded)
    if files is not None:
        if cause.kind == TRANSFERS:
            what, fix, command = _BEYOND_A_PLAN
            if found.exchange == FSDP:
                fix, command = "a faster network, or fewer bits by fully_shard's mp_policy", ""
        command = command.replace("WORKLOAD", files[0]).replace("CLUSTER", files[1])
    if cause.kind == PAUSE and _distance(cause.iterations):
        fix = _REGULAR
    if cause.kind == SERVER and found.pull_period > 1:
        fix = _PULLED_SELDOM.format(period=found.pull_period)
    node = "server" if cause.kind == SLOW_SERVER else "rank"
    words = {
        "who": _ANY if cause.kind == PAUSE and not cause.ranks else _who(cause.ranks, node),
        "when": _when(cause.iterations),
        "detail": _detail(cause),
    }
    return {
        "what": what.format(**words),
        "share": cause.gain_s / found.iteration_s,
        "iteration_s": found.iteration_s - cause.gain_s,
        "fix": fix,
        "command": command,
    }


def explanation_report(
    timeline: Timeline,
    found: Explanation,
    cluster: Cluster | None = None,
    plan: Plan | None = None,
    files: tuple[str, str] | None = None,
    *,
    recorded: str = _RECORDED,
) -> RenderableType:
    """Return ranked causes, or why there are none.

    Args:
        timeline: what was explained.
        found: its explanation.
        cluster: what its bandwidth is compared with.
        plan: the best one, where it is known.
        files: of the workload and the cluster, where they were given.
        recorded: the files of the recording, as one writes them in a command.
    """
    lines = Text.assemble(
        (one_line(timeline.name), "bold"),
        f", {one_line(timeline.source)}: {format_count(timeline.world_size, 'rank')}\n",
        f"an iteration takes {format_seconds(found.iteration_s)}, the mean of {found.iterations}; "
        f"the bound is {format_seconds(found.bound_s)}: {found.of_bound:.0%}\n",
        f"played again it takes {format_seconds(found.replayed_s)}: {found.error:.1%} off\n",
    )
    seen = (*_reached(timeline, cluster), *_units(timeline, found))
    for said in (*seen, *expected(found, plan), *_remarks(found)):
        lines.append(f"{one_line(said)}\n")
    late_s = lateness(timeline)
    parts: list[RenderableType] = [lines, Text(one_line(verdict(found)), style="bold")]
    parts += [Text(one_line(f"  - {lack}")) for lack in found.abstains]
    for number, cause in enumerate(found.causes[:_SHOWN], start=1):
        words = told(cause, found, files, recorded)
        parts.append(
            Text.assemble(
                (f"\n{number}. {one_line(words['what'])}\n", "bold"),
                *(f"   {one_line(said)}\n" for said in _gain(cause, found)),
                *(f"   {one_line(said)}\n" for said in _late(cause, found, late_s)),
                f"   to mend it: {one_line(words['fix'])}",
            )
        )
        if words["command"]:  # to be copied, so in one line
            command = Text(one_line(f"   $ {words['command']}"), no_wrap=True, overflow="ignore")
            parts.append(command)
    parts += [Text(f"\n{one_line(said)}") for said in _altogether(found)]
    return Group(*parts, Text())


def explanation_json(
    found: Explanation, files: tuple[str, str] | None = None, recorded: str = _RECORDED
) -> dict[str, Any]:
    """Return the same as values for JSON."""
    values = dict(msgspec.to_builtins(found))
    values["verdict"] = verdict(found)
    values["of_bound"], values["error"] = found.of_bound, found.error
    for row, cause in zip(values["causes"], found.causes, strict=True):
        row.update(told(cause, found, files, recorded))
    return values


def _gain(cause: Cause, found: Explanation) -> Iterator[str]:
    """Return the lines of a cause: its cost and interval, and its gain alone if others hide it."""
    worth_s = WORTH * found.iteration_s
    gain = f"{format_seconds(cause.gain_s)} ({cause.gain_s / found.iteration_s:.0%})"
    shared = cause.kind not in (TRANSFERS, SERVER, PIPELINE, PLAN)
    if shared and cause.gain_s - cause.alone_s >= worth_s:
        yield f"its part of what all causes give together: {gain}"
        alone_s = max(cause.alone_s, 0.0)
        yield f"alone it gives {format_seconds(alone_s)}: the others hide it"
    else:
        left_s = found.iteration_s - cause.gain_s
        yield f"without it: {format_seconds(left_s)}, {gain} less"
    if cause.high_s - cause.low_s >= worth_s:
        low, high = format_seconds(max(cause.low_s, 0.0)), format_seconds(cause.high_s)
        yield f"by how iterations vary, between {low} and {high}"


def _altogether(found: Explanation) -> Iterator[str]:
    """Return the line of all causes together, and of the rest."""
    if not found.causes:
        return
    if len(_several(found)) > 1:
        left_s = found.iteration_s - found.together_s
        yield (
            f"without all of these but transfers: {format_seconds(left_s)}, "
            f"{format_seconds(found.together_s)} "
            f"({found.together_s / found.iteration_s:.0%}) less"
        )
    if found.left_s >= WORTH * found.iteration_s:
        yield (
            f"left without a cause: {format_seconds(found.left_s)} "
            f"({found.left_s / found.iteration_s:.0%}) in which ranks that others wait for are idle"
        )


def _late(
    cause: Cause, found: Explanation, late_s: Mapping[int, Mapping[str, float]]
) -> Iterator[str]:
    """Say how late the one rank of a cause usually is to each message, where it is worth a word."""
    if len(cause.ranks) != 1 or cause.kind in (LINK, SLOW_SERVER):
        return
    worth_s = WORTH * found.iteration_s
    mine = {name: by for name, by in late_s.get(cause.ranks[0], {}).items() if by > worth_s}
    shown = [f"{name} by {format_seconds(by)}" for name, by in list(mine.items())[:_SHOWN]]
    if shown:
        more = ", .." if len(mine) > _SHOWN else ""
        yield f"it comes later than the others to {', '.join(shown)}{more}"


def _reached(timeline: Timeline, cluster: Cluster | None) -> list[str]:
    """Return what bandwidth was reached, against the link where that is known."""
    said = []
    for one in bandwidths(timeline):
        if one.bus_bytes_per_s <= 0:
            continue
        link = ""
        if cluster is not None:
            rate = cluster.levels[-1].bandwidth_bytes_per_s
            link = f", {one.bus_bytes_per_s / rate:.0%} of the link's {format_rate(rate)}"
        said.append(f"{one.collective} reaches {format_rate(one.bus_bytes_per_s)} (busbw){link}")
    return said


def _units(timeline: Timeline, found: Explanation) -> Iterator[str]:
    """Say which gathers and pushes of units are exposed, the longest first."""
    if found.exchange != FSDP:
        return
    rows = sorted(exposures(timeline).by_message(), key=lambda row: -row.exposed_s)
    spans = timeline.columns
    details = dict(zip(spans.name.tolist(), spans.detail.tolist(), strict=True))
    of = {spans.texts[name]: spans.texts[detail] for name, detail in details.items()}
    for lane, what in (("pull", "gathers"), ("push", "pushes")):
        mine = [row for row in rows if row.lane == lane]
        exposed = [row for row in mine if row.exposed_s > 0]
        whole_s = sum(row.exposed_s for row in exposed)
        if whole_s < WORTH * found.iteration_s:
            continue
        named = [
            f"{_unit(row.name, of.get(row.name, ''))} {format_seconds(row.exposed_s)}"
            for row in exposed[:_FIRST]
        ]
        more = ", .." if len(exposed) > _FIRST else ""
        yield (
            f"{what} that computation does not hide: {len(exposed)} of {len(mine)}, "
            f"{format_seconds(whole_s)}: {', '.join(named)}{more}"
        )


def _unit(name: str, detail: str) -> str:
    """Return what to call a message: with its unit, where the detail of its span has it."""
    _, bracket, rest = detail.partition(" (")
    return f"{name} of {rest.removesuffix(')')}" if bracket else name


def expected(found: Explanation, plan: Plan | None) -> list[str]:
    """Return what the best plan is expected to take; nothing where it is not known."""
    if plan is None or plan.prediction is None:
        return []
    return [
        f"without stragglers and pauses {format_seconds(found.even_s)} by this plan, "
        f"{format_seconds(plan.prediction.iteration_s)} predicted by the best "
        f"({plan.exchange}, {len(plan.buckets)} buckets)"
    ]


def _remarks(found: Explanation) -> list[str]:
    """Return what was left out, and what belongs to no cause."""
    said = []
    if found.between is not None:
        first, last = found.between
        said.append(
            f"iterations {first} to {last} are explained: others are not whole on all ranks"
        )
    if found.drifts:
        ranks = ", ".join(map(str, sorted(found.drifts)))
        most = max(map(abs, found.drifts.values()))
        said.append(
            f"clocks drift, by up to {most:.2%} (ranks {ranks}): that was taken off the times"
        )
    share = found.noise_s / found.iteration_s if found.iteration_s > 0 else 0.0
    if not found.abstains and share >= WORTH:
        said.append(
            f"{format_seconds(found.noise_s)} ({share:.0%}) go to pauses now on one rank and now "
            "on another, for no recorded reason; no rank is blamed for them"
        )
    return said


_ANY = "now one rank and now another"


def _who(ranks: Sequence[int], node: str) -> str:
    if not ranks:
        return f"every {node}"
    names = ", ".join(map(str, ranks[:_SHOWN])) + (", .." if len(ranks) > _SHOWN else "")
    return f"{node} {names}" if len(ranks) == 1 else f"each of {node}s {names}"


def _when(iterations: Sequence[int]) -> str:
    if not iterations:
        return ""
    if distance := _distance(iterations):
        return f" every {distance} iterations, from {iterations[0]} on"
    shown = ", ".join(map(str, iterations[:_SHOWN])) + (", .." if len(iterations) > _SHOWN else "")
    return f" in iteration{'s' if len(iterations) > 1 else ''} {shown}"


def _distance(iterations: Sequence[int]) -> int:
    """Return how far apart iterations are, where all are equally far and there are several."""
    apart = {after - before for before, after in pairwise(iterations)}
    return apart.pop() if len(apart) == 1 and len(iterations) >= SEVERAL and apart != {1} else 0


def _detail(cause: Cause) -> str:
    """Return the figures behind a cause."""
    if cause.kind == COMPUTE and cause.lane:
        own, others = format_seconds(cause.own), format_seconds(cause.others)
        return f": {own} of {cause.lane}, where they take {others}"
    if cause.kind == STAGES:
        own, others = format_seconds(cause.own), format_seconds(cause.others)
        return f", the longest computes {own}, all in the mean {others}"
    if cause.kind == BATCHES and cause.own:
        return f", by {cause.own:.0%} from iteration to iteration"
    return _of_links(cause)


def _of_links(cause: Cause) -> str:
    """Return the figures behind a slow link or server."""
    if cause.kind == SLOW_SERVER:
        own, others = format_seconds(cause.own), format_seconds(cause.others)
        return f": {own} a slice in '{cause.lane}', where others take {others}"
    if cause.kind == LINK and cause.own:
        own, others = format_rate(cause.own), format_rate(cause.others)
        return f"a slow link: {own} while it is busy, where others carry {others}"
    if cause.kind != LINK:
        return ""
    if cause.lane == GROUP:
        return "messages that take longer than those of groups like its own"
    return "its messages later than the others"
