"""Documents: generated tables are current, links lead somewhere, numbers have their formulas."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.decide.tabulate import decision_table
from syncopate.planning.planner import make_plan
from syncopate.reports import bench, decisions, terminal
from tests.architecture import ARROWS, EFFECTS, PRESENTATION, PURE, ROOMS, VOCABULARY
from tests.unit import examples

REPOSITORY = Path(__file__).parents[1]
PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md")])
TO_FOLLOW = (REPOSITORY / "README.md", REPOSITORY / "docs" / "index.md")
"""Pages whose commands a reader runs from top to bottom; each part of a page stands by itself."""


def test_the_reference_is_current():
    generated = runpy.run_path(str(REPOSITORY / "docs" / "generate.py"))["render"]()
    written = (REPOSITORY / "docs" / "reference.md").read_text()
    assert written == generated, "run `make docs` and commit docs/reference.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_documents_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            heads = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in heads}


def test_every_column_of_the_reports_has_its_formula():
    text = (REPOSITORY / "docs" / "metrics.md").read_text()
    metrics = {
        name.strip()
        for row in re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
        for name in re.sub(r"\(.*?\)", "", row).split(",")
    }
    known = metrics | {"size", "policy", "algorithms", "buckets", "level", "algorithm"}
    known |= {"tensor", "tensors", "dtype", "ready #", "elements", "#", "channel"}
    known |= {"ring", "gloo", "options"}
    known |= {curve.algorithm.replace("_", " ") for curve in examples.cluster().curves}
    for table in examples.tables(
        terminal.cluster_report(examples.cluster()),
        terminal.workload_report(examples.workload()),
        terminal.plans_report([examples.plan()], measured_s={"optimal": 0.1}),
        terminal.plan_report(examples.plan()),
        bench.bench_report(examples.benchmark()),
        decisions.decision_report(decision_table(examples.cluster())),
    ):
        for column in table.columns:
            name = str(column.header).replace("\n", " ").removesuffix(" GB/s").strip()
            name = re.sub(r"^(out of|in) place |^size ", "", name)
            assert name in known, f"docs/metrics.md does not explain {name!r}"


def commands_of(part: str) -> Iterator[tuple[str, set[str], str | None]]:
    """Yield the commands of a part of a page, each with the files it reads and the one it writes.

    A run's directory is written where ``SYNCOPATE_TRACE`` stands. What a command does not take
    raises an error of the command line.
    """
    known = dict(runpy.run_path(str(REPOSITORY / "docs" / "generate.py"))["commands"]())
    blocks = re.findall(r"^( *)```\n(.*?)^\1```", part, re.DOTALL | re.MULTILINE)
    lines = (line.removeprefix(indent) for indent, block in blocks for line in block.splitlines())
    for line in lines:
        if not line.startswith(("syncopate ", "torchrun ", "SYNCOPATE_TRACE=")):
            continue
        words = shlex.split(line, comments=True)
        if words[0].startswith("SYNCOPATE_TRACE="):
            yield line, set(), words[0].partition("=")[2]
        elif "syncopate" in words:
            words = words[words.index("syncopate") :]
            (name,) = (one for one in known if words[: len(one.split())] == one.split())
            arguments = words[len(name.split()) :]
            written = writes(name, known[name].make_context(name, list(arguments)).params)
            files = {one for one in arguments if one.endswith(".json") or one.startswith("runs/")}
            yield line, files - {written}, written


def writes(name: str, given: dict[str, Any]) -> str | None:
    """Return the file that a command writes with these parameters, None where it prints."""
    output = given.get("output")
    if output is None and name == "syncopate plan" and not given["algorithm"]:
        return "plan.json"
    return None if output is None or str(output) == "-" else str(output)


def out_of_order(page: str) -> list[str]:
    """Return the commands of a page that read what is not there yet, or write what is."""
    found = []
    for part in re.split(r"^## ", page, flags=re.MULTILINE):
        there: set[str] = set()
        for line, files, written in commands_of(part):
            if written in there or any(
                one not in there and not (REPOSITORY / one).exists() for one in files
            ):
                found.append(line)
            there |= {written} if written else set()
    return found


@pytest.mark.parametrize("page", TO_FOLLOW, ids=lambda page: page.name)
def test_commands_can_be_run_from_top_to_bottom(page):
    """Each writes a file of its own, and reads what is in the clone or was written before."""
    assert out_of_order(page.read_text()) == []


def test_a_command_too_early_and_a_file_written_twice_are_found():
    early = "syncopate replay runs/a --bandwidth x2"
    again = "syncopate plan --model resnet50 --device h100 --network 10gbe --nodes 2"
    lines = [
        "syncopate profile syncopate.zoo:resnet20  # workload.json",
        early,
        "SYNCOPATE_TRACE=runs/a torchrun train.py",
        early,
        "syncopate plan -w workload.json --network 10gbe --nodes 4",
        "syncopate plan -w workload.json --network 10gbe --nodes 4 --algorithm ring",
        again,
        f"{again} -o other.json",
    ]
    page = "\n".join(["## A part", "```", *lines, "```", ""])
    assert out_of_order(page) == [early, again]
    assert out_of_order(f"{page}\n## Another\n```\n{early}\n```\n") == [early, again, early]


def by_hand(page: str) -> str:
    """Return the first JSON file that a page writes by hand."""
    return (REPOSITORY / "docs" / page).read_text().split("```json\n")[1].split("```")[0]


def test_the_workload_that_the_documents_write_by_hand_can_be_planned_for():
    workload = Workload.from_json(by_hand("workload.md"))
    assert (workload.nbytes, workload.compute_s) == (102_192_000, pytest.approx(0.216))
    assert workload.ready_s[-1] == workload.forward_s + workload.backward_s
    plan = make_plan(workload, Cluster.preset("10gbe", 8), "optimal")
    assert plan.fingerprint == workload.fingerprint


def test_the_page_of_gpus_predicts_what_is_predicted():
    workload, boxes = (
        Workload.from_json(by_hand("workload.md")),
        Cluster.from_json(by_hand("gpus.md")),
    )
    assert (boxes.world_size, boxes.host_count) == (32, 4)
    page = (REPOSITORY / "docs" / "gpus.md").read_text()
    ring = make_plan(workload, boxes, "threshold", algorithm="ring").prediction
    sharded = make_plan(workload, boxes, "optimal", exchange="sharded").prediction
    assert ring
    assert sharded
    assert f"| DDP's buckets through a flat ring | 1777 | {ring.iteration_s * 1e3:.0f} |" in page
    assert f"against {sharded.iteration_s * 1e3:.2f} ms (sharded)" in page


@pytest.mark.parametrize("kind", [Workload, GradientTensor], ids=lambda kind: kind.__name__)
def test_the_page_of_the_workload_has_every_field_and_no_other(kind):
    text = (REPOSITORY / "docs" / "workload.md").read_text().split("## Fields")[1]
    tables = text.split("Each of the `tensors`:")
    table = tables[0] if kind is Workload else tables[1].split("\n\n## ")[0]
    named = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| ([^|]+) \|", table, re.M))))
    assert named - {"kind", "schema_version"} == set(kind.__struct_fields__)


def test_every_page_is_linked_from_another():
    linked = {
        (page.parent / target.partition("#")[0]).resolve()
        for page in PAGES
        for target in re.findall(r"\]\((?!https?:|#)([^)]+)\)", page.read_text())
        if (page.parent / target.partition("#")[0]).resolve() != page
    }
    assert [
        page.name for page in PAGES if page.parent == REPOSITORY / "docs" and page not in linked
    ] == []


def pictured_layers() -> list[list[str]]:
    """Return the rooms in the picture of docs/design.md, layer by layer, from above."""
    picture = (REPOSITORY / "docs" / "design.md").read_text().split("## Rooms")[1].split("```")[1]
    layers = re.split(r"^ +\.+$", picture, flags=re.MULTILINE)
    return [re.findall(r"^(?:\w[\w ]*?)? {2,}(\w+) {2,}\S", layer, re.M) for layer in layers]


def test_the_picture_of_the_design_has_every_room_once_in_its_layer():
    layers = pictured_layers()
    assert [set(layer) for layer in layers] == [PRESENTATION, EFFECTS, PURE, VOCABULARY]
    assert sum(map(len, layers)) == len(ROOMS)


def test_the_picture_of_the_design_has_every_room_above_those_that_it_imports():
    order = [room for layer in pictured_layers() for room in layer]
    place = {room: line for line, room in enumerate(order)}
    upwards = [
        f"{room} imports {other}, which is above it"
        for room in order
        if room not in VOCABULARY
        for other in ARROWS[room] & ROOMS - {room}
        if place[other] < place[room]
    ]
    assert upwards == []
