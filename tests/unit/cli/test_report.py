"""``syncopate report`` on files."""

from __future__ import annotations

import json
import re
import sys

import pytest
from msgspec.structs import replace

from syncopate.cli import main
from syncopate.planning.planner import make_plan
from syncopate.simulation import simulate
from syncopate.tracing.foreign import NOTE
from tests.unit import examples
from tests.unit.analysis.made import made

pytest.importorskip("jinja2", reason="the extra html is not installed")


@pytest.fixture
def report(monkeypatch, capfd, tmp_path):
    """Run the command; return exit code, the page and standard error."""

    def command(*arguments):
        output = tmp_path / "report.html"
        line = ["syncopate", "report", *map(str, arguments), "-o", str(output)]
        monkeypatch.setattr(sys, "argv", line)
        code = main()
        return code, output.read_text() if output.exists() else "", capfd.readouterr().err

    return command


@pytest.fixture
def files(tmp_path):
    """Return the paths of a workload, a cluster, a plan, and what was trained by it."""
    model, where = examples.workload(), examples.steady_cluster()
    plan = make_plan(model, where, "single")
    paths = [tmp_path / f"{name}.json" for name in ("w", "c", "p", "t")]
    trained = simulate(model, plan, where, iterations=6)
    for artefact, path in zip((model, where, plan, trained), paths, strict=True):
        artefact.save(path)
    return paths


def test_a_timeline_becomes_a_page(report, tmp_path):
    path = made(4, 6, lambda r, i: {"forward_s": 6.0} if r == 1 else {}).save(tmp_path / "t.json")
    code, page, err = report(path)
    assert (code, err) == (0, f"wrote {tmp_path / 'report.html'}\n")
    assert "rank 1 computes longer than the others: 6.00 s of forward" in page


def test_the_plan_is_played_and_compared_with_what_came(report, files):
    workload, cluster, plan, trained = files
    code, page, _ = report(trained, "-w", workload, "-c", cluster, "-p", plan)
    assert code == 0
    rows = re.findall(r'data-label="took / expected">([^<]*)<', page)
    # What was recorded was played by the same plan at the same pace.
    assert rows == ["1.00x"]
    assert page.count('class="meant"') == 1
    assert f"syncopate plan -w {workload} -c {cluster} -o plan.json" in page
    assert "link 10.00 Gbit/s" in page


def test_a_cluster_alone_prices_what_was_sent(report, files):
    _, cluster, _, trained = files
    page = report(trained, "-c", cluster)[1]
    assert re.findall(r'data-label="took / expected">([^<]*)<', page) == ["1.00x"]
    assert 'class="meant"' not in page
    assert page.count('class="line c0"') > 10


def test_a_run_before_is_compared(report, tmp_path):
    before = made(2, 6).save(tmp_path / "a.json")
    after = made(2, 6, lambda r, i: {"transfers_s": (1.0, 4.0)}).save(tmp_path / "b.json")
    page = report(after, "--against", before)[1]
    assert "an iteration takes 1.22x as long (9.00 s, now 11.00 s)" in page


def test_what_a_command_remarks_stands_on_the_page(report, tmp_path):
    timeline = replace(made(2, 6), metadata={f"{NOTE}clocks": "clocks were not compared"})
    code, page, err = report(timeline.save(tmp_path / "t.json"))
    assert code == 0
    assert "note: clocks were not compared" in err
    assert "<li>clocks were not compared</li>" in page


def test_options_that_do_not_fit_are_refused(report, files, tmp_path):
    workload, cluster, _, trained = files
    code, page, err = report(trained, "-w", workload)
    assert (code, page) == (2, "")
    assert "given together with --cluster" in err
    other = made(3, 6).save(tmp_path / "other.json")
    code, _, err = report(other, "-c", cluster)
    assert code == 2
    assert "of as many ranks as the training, 3" in err


def test_servers_are_not_priced_as_collectives(report, files, tmp_path):
    _, cluster, _, _ = files
    served = replace(made(4, 6), metadata={"exchange": "served"}).save(tmp_path / "served.json")
    code, page, _ = report(served, "-c", cluster)
    assert code == 0
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert len(json.loads(found.group(1))["spans"]["start"]) == len(made(4, 6).spans)
    assert "Plan against measurement" not in page


def test_of_a_long_timeline_the_last_iterations_are_looked_at(report, tmp_path):
    path = made(2, 9).save(tmp_path / "t.json")
    code, page, err = report(path, "--last", "5")
    assert code == 0
    assert "the last 5 iterations are looked at" in err
    assert "<li>the last 5 iterations are looked at, from iteration 4 on</li>" in page
    assert "2 ranks, 5 iterations" in " ".join(page.split())


def test_an_algorithm_without_a_price_vetoes_no_page(report, files, monkeypatch):
    workload, cluster, plan, trained = files
    text = plan.read_text()
    assert '"ring"' in text
    plan.write_text(text.replace('"ring"', '"native"'))
    code, page, err = report(trained, "-w", workload, "-c", cluster, "-p", plan)
    assert code == 0, err
    assert re.search(
        "<li>native for all_reduce was not measured .*: ring stands in for it</li>", page
    )
    assert page.count('class="meant"') == 1
    plan.write_text(text.replace('"ring"', '"rign"'))
    code, page, err = report(trained, "-w", workload, "-c", cluster, "-p", plan)
    assert code == 0, err
    assert "<li>the plan is not compared with what came: unknown algorithm" in page
    assert 'class="meant"' not in page
