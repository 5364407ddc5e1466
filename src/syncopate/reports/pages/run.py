"""Run page: why a training scales as it does, as one HTML file: a sentence, a picture, the numbers.

The sentence and the causes are those of ``syncopate explain``; each number has its formula in
``docs/metrics.md``. The picture is drawn by a script of the page's own on a canvas: tens of
thousands of spans stay fluid, and nothing is fetched. All else is there without the script.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from syncopate.analysis.collectives import is_served
from syncopate.analysis.difference import difference
from syncopate.analysis.phases import COMMUNICATION
from syncopate.analysis.ranks.arrivals import clock_error_s
from syncopate.artifacts.timeline import LANES, OWN_CLUSTER
from syncopate.reports.difference import cells
from syncopate.reports.explanation import expected, told, verdict
from syncopate.reports.pages import parts, plots
from syncopate.reports.pages.evidence import Evidence
from syncopate.reports.pages.page import render_page
from syncopate.reports.pages.spans import chosen, drawing
from syncopate.reports.phases import arrivals_report
from syncopate.units import format_seconds

_CAUSES = 8

_UNSAID = ("links", "clock_error_s", "gradients", OWN_CLUSTER)
"""Metadata for programs: what is to be said of it stands elsewhere."""


def run_page(evidence: Evidence) -> str:
    """Return the page of a run.

    Raises:
        InvalidValueError: the timeline has no spans.
        SyncopateError: the packages that make pages are not installed.
    """
    timeline = evidence.timeline
    what = chosen(timeline, parts.waited_for(timeline))
    iterations = len(np.unique(timeline.columns.iteration))
    link = evidence.cluster.levels[-1].bandwidth_bytes_per_s if evidence.cluster else None
    return render_page(
        "run.html",
        drawing(timeline, what),
        title=timeline.name,
        timeline=timeline,
        iterations=iterations,
        served=is_served(timeline),
        verdict=_verdict(evidence),
        tiles=_tiles(evidence),
        division=parts.division(timeline),
        causes=_causes(evidence),
        lacks=evidence.explanation.abstains if evidence.explanation is not None else (),
        said=_said(evidence),
        what=what,
        kinds=[lane for lane in LANES if timeline.columns.in_lanes(lane).any()],
        buckets=parts.buckets(timeline),
        distributions=parts.distributions(timeline),
        course=parts.course(timeline, what) if what.typical >= 0 else {},
        reached=parts.reached(timeline, link),
        bandwidth=plots.bandwidth(evidence),
        plan=plots.against_plan(evidence),
        whole_plan=_whole_plan(evidence),
        journeys=parts.servers(evidence.trips),
        matrix=parts.matrix(timeline),
        path=parts.path(timeline, what.typical) if what.typical >= 0 else {},
        difference=_difference(evidence),
        remarks=evidence.remarks,
        facts=_facts(evidence),
        clocks=_clocks(evidence),
    )


def _verdict(evidence: Evidence) -> tuple[str, str]:
    """Return a word for the style, and the sentence."""
    found = evidence.explanation
    if found is None:
        return "unknown", f"no explanation: {evidence.unexplained}"
    if found.abstains:
        return "unknown", verdict(found)
    return ("bad" if found.causes else "good"), verdict(found)


def _tiles(evidence: Evidence) -> list[tuple[str, str, str]]:
    """Return what to look at first: a figure, what it is, and beside what."""
    timeline, found = evidence.timeline, evidence.explanation
    tiles = []
    whole_s = parts.whole_s(timeline)
    if found is not None:
        whole_s = found.iteration_s
    if whole_s > 0:
        tiles.append((format_seconds(whole_s), "an iteration", "in the mean"))
    if found is not None and whole_s > 0:
        share = min(found.compute_s / whole_s, 1.0)
        tiles.append(
            (f"{share:.0%}", "scaling efficiency", f"{format_seconds(found.compute_s)} computed")
        )
        bound = f"{format_seconds(found.bound_s)} at best"
        tiles.append((f"{found.of_bound:.0%}", "of the bound", bound))
    if timeline.columns.in_lanes(*COMMUNICATION).any():
        share = parts.hidden(timeline)
        tiles.append((f"{share:.0%}", "communication hidden", "behind computation"))
    return tiles


def _causes(evidence: Evidence) -> list[dict[str, Any]]:
    """Return the causes in plain words, the greatest gain first."""
    found = evidence.explanation
    if found is None:
        return []
    rows = []
    for cause in found.causes[:_CAUSES]:
        words = told(cause, found, evidence.files)
        rows.append(
            {
                "what": words["what"],
                "gain": format_seconds(cause.gain_s),
                "share": 100 * words["share"],
                "without": format_seconds(words["iteration_s"]),
                "fix": words["fix"],
                "command": words["command"],
            }
        )
    return rows


def _said(evidence: Evidence) -> list[str]:
    """Return how far the explanation can be trusted, and what the best plan would take."""
    found = evidence.explanation
    if found is None:
        return []
    return [
        f"The {found.iterations} iterations, played again without a change, take "
        f"{format_seconds(found.replayed_s)} each: {found.error:.1%} off.",
        *(f"{said[0].upper()}{said[1:]}." for said in expected(found, evidence.best)),
    ]


def _whole_plan(evidence: Evidence) -> list[tuple[str, str]]:
    """Return what the plan predicts of an iteration beside what was recorded."""
    found, plan = evidence.explanation, evidence.plan
    rows = []
    if plan is not None and plan.prediction is not None:
        rows += [
            ("predicted by the plan", format_seconds(plan.prediction.iteration_s)),
            ("of that exposed", format_seconds(plan.prediction.exposed_s)),
        ]
    if evidence.expected is not None:
        lasts_s = parts.whole_s(evidence.expected)
        rows.append(("the plan, played at the pace of this training", format_seconds(lasts_s)))
    if rows and found is not None:
        rows.append(("recorded", format_seconds(found.iteration_s)))
        rows.append(("recorded, without stragglers and pauses", format_seconds(found.even_s)))
    return rows


def _difference(evidence: Evidence) -> dict[str, Any]:
    """Return every figure of the runs before and of this one, and its change."""
    if not evidence.against:
        return {}
    count = len(evidence.against)
    words = [f"before {place}" for place in range(1, count + 1)] if count > 1 else ["before"]
    found = [difference(before, evidence.timeline) for before in evidence.against]
    changes = [{change.what: change for change in one.changes} for one in found]
    rows = []
    for what in dict.fromkeys(name for mine in changes for name in mine):
        row: list[tuple[str, str]] = []
        now = ""
        for word, mine in zip(words, changes, strict=True):
            _, before, now_here, ratio = cells(mine[what]) if what in mine else ("", "-", "", "-")
            row += [(word, before), (f"now over {word}", ratio)]
            now = now or now_here
        differs = any(mine[what].differs for mine in changes if what in mine)
        rows.append({"what": what, "cells": [*row, ("now", now)], "differs": differs})
    runs = (*zip(words, evidence.against, strict=True), ("now", evidence.timeline))
    return {
        "verdicts": [one.verdict for one in found],
        "runs": [{"word": word, "name": run.name, "ranks": run.world_size} for word, run in runs],
        "rows": rows,
    }


def _facts(evidence: Evidence) -> dict[str, str]:
    timeline = evidence.timeline
    facts = {
        "source": timeline.source,
        "ranks": str(timeline.world_size),
        "spans": str(len(timeline.spans)),
        **{name: said for name, said in sorted(timeline.metadata.items()) if name not in _UNSAID},
    }
    if math.isinf(error_s := clock_error_s(timeline)):
        facts["clocks"] = "not compared: nothing says how far they are apart"
    elif error_s:
        facts["clocks"] = f"compared, at most {format_seconds(error_s)} off"
    if evidence.cluster is not None:
        facts["cluster"] = evidence.cluster.name
    if evidence.plan is not None:
        buckets = f"{len(evidence.plan.buckets)} buckets"
        facts["plan given"] = f"{evidence.plan.policy}, {evidence.plan.exchange}, {buckets}"
    return facts


def _clocks(evidence: Evidence) -> str:
    if evidence.timeline.source != "measured":
        return ""
    said = arrivals_report(evidence.timeline)
    return "" if said is None else str(said)
