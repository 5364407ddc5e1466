"""What the calls return: the values of the commands, as objects that print and show themselves."""

from __future__ import annotations

import json
import math

import msgspec
import pytest

import syncopate
from syncopate.cli import main
from syncopate.errors import ArtifactError, InvalidValueError
from syncopate.planning.planner import make_plan
from syncopate.simulation import simulate
from tests.unit import examples
from tests.unit.analysis.made import made


def _slow():
    """Rank 1 costs 4 s of 13, exposed transfers another 2."""
    return made(4, 6, lambda r, i: {"forward_s": 6.0} if r == 1 else {})


def _printed(monkeypatch, capfd, *arguments):
    monkeypatch.setattr("sys.argv", ["syncopate", *map(str, arguments)])
    assert main() == 0
    return json.loads(capfd.readouterr().out)


def test_an_explanation_has_its_causes_as_rows():
    found = syncopate.explain(_slow())
    first = found.rows()[0]
    assert (first["kind"], first["ranks"], first["gain_s"]) == ("compute", (1,), 4.0)
    assert first["share"] == pytest.approx(4 / 13)
    assert found.summary()[0].endswith("31% of an iteration; 2 causes together 46%") or (
        "31% of an iteration" in found.summary()[0]
    )
    assert "rank 1 computes longer than the others" in str(found)
    assert found.abstains == ()


def test_what_is_called_and_what_is_commanded_say_the_same(monkeypatch, capfd, tmp_path):
    slow, even = _slow().save(tmp_path / "slow.json"), made(4, 6).save(tmp_path / "even.json")
    for found, command in (
        (syncopate.explain(slow), ("explain", slow)),
        (syncopate.analyze(slow), ("analyze", slow)),
        (syncopate.difference(even, slow), ("compare", even, slow)),
    ):
        said = json.loads(msgspec.json.encode(found.to_dict()))
        assert said == _printed(monkeypatch, capfd, *command, "--json")


def test_phases_of_each_iteration_are_rows():
    rows = syncopate.analyze(_slow()).rows()
    assert [row["iteration"] for row in rows] == list(range(6))
    assert {round(row["lasts_s"], 9) for row in rows[:-1]} == {13.0}
    for row in rows:
        parts = row["computation_s"] + row["exposed_s"] + row["idle_s"]
        assert math.isclose(parts, row["lasts_s"])


def test_a_difference_has_the_figures_of_both_runs():
    found = syncopate.difference(made(4, 6), _slow())
    (lasts,) = [row for row in found.rows() if row["what"] == "iteration"]
    assert (lasts["before"], lasts["after"], lasts["differs"]) == (9.0, 13.0, True)
    assert found.found.verdict in found.summary()[0]


def test_runs_without_steps_are_refused_by_the_call_and_not_when_they_are_printed():
    none = syncopate.Timeline(name="none", source="simulated", world_size=2, spans=())
    with pytest.raises(InvalidValueError, match="computation in at least one iteration"):
        syncopate.difference(none, none)


def test_a_workload_goes_with_its_cluster(tmp_path):
    workload, cluster = examples.workload(), examples.steady_cluster()
    plan = make_plan(workload, cluster, "wfbp")
    trained = simulate(workload, plan, cluster, iterations=6)
    paths = workload.save(tmp_path / "w.json"), cluster.save(tmp_path / "c.json")
    given = syncopate.explain(trained, workload=workload, cluster=cluster)
    by_file = syncopate.explain(trained, workload=paths[0], cluster=paths[1])
    assert given.best == by_file.best
    assert given.best is not None
    assert given.files == ("workload.json", "cluster.json")
    assert by_file.files == tuple(map(str, paths))
    with pytest.raises(InvalidValueError, match="given with the other"):
        syncopate.explain(trained, workload=workload)


REFUSED = {
    "simulate": lambda work, plan, machines: syncopate.simulate("w.json", plan, machines),
    "simulate, exchanged": lambda work, plan, machines: syncopate.simulate(plan, work, machines),
    "make_plan": lambda work, plan, machines: syncopate.make_plan("w.json", machines),
    "make_fsdp_plan": lambda work, plan, machines: syncopate.make_fsdp_plan(work, 4),
    "compare": lambda work, plan, machines: syncopate.compare(work, "c.json"),
    "whatif": lambda work, plan, machines: syncopate.whatif("w.json", machines),
    "explain": lambda work, plan, machines: syncopate.explain(_slow(), workload=3, cluster=4),
    "report": lambda work, plan, machines: syncopate.report(_slow(), cluster=work),
    "replay": lambda work, plan, machines: syncopate.replay(3, bandwidth="x2"),
    "replay, on": lambda work, plan, machines: syncopate.replay(_slow(), on=10),
    "bench": lambda work, plan, machines: syncopate.bench(3),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_what_is_no_artefact_is_refused_by_name(call):
    workload, cluster = examples.workload(), examples.steady_cluster()
    plan = make_plan(workload, cluster, "wfbp")
    with pytest.raises(InvalidValueError, match=r"is .*; it must be a "):
        call(workload, plan, cluster)


def test_a_report_reads_what_its_run_ran_on_as_an_explanation_does(tmp_path):
    workload, cluster = examples.workload(), examples.steady_cluster()
    plan = make_plan(workload, cluster, "wfbp")
    given = {"workload": workload, "cluster": cluster, "plan": plan}
    trained = simulate(workload, plan, cluster, iterations=6)
    paths = {name: one.save(tmp_path / f"{name}.json") for name, one in given.items()}
    assert syncopate.report(trained, **given) == syncopate.report(trained, **paths)


def test_a_page_is_saved_and_shown_in_a_notebook(tmp_path):
    page = syncopate.report(_slow(), against=[made(4, 6)])
    assert page.save(tmp_path / "p.html").read_text() == page
    assert page.startswith("<!doctype html>") or page.lower().startswith("<!doctype html>")
    assert len(repr(page)) < 100
    assert page._repr_html_().startswith('<iframe srcdoc="&lt;!')
    assert "as long" in page


def test_files_without_a_timeline_are_refused(tmp_path):
    with pytest.raises(ArtifactError, match="none"):
        syncopate.explain(tmp_path / "none.json")


def test_a_run_is_replayed_by_a_call_as_by_the_command(monkeypatch, capfd, tmp_path):
    path = made(4, 6).save(tmp_path / "a.json")
    found = syncopate.replay(path, bandwidth="x2")
    assert found.medians_s == (9.0, pytest.approx(8.0))
    assert [row["recorded_s"] for row in found.rows()] == [9.0] * 5
    assert "the median iteration took 9.00 s, and takes 8.00 s there" in repr(found)
    said = _printed(monkeypatch, capfd, "replay", path, "--bandwidth", "x2", "--json")
    assert said == json.loads(msgspec.json.encode(found.to_dict()))
    cluster = examples.steady_cluster().save(tmp_path / "c.json")
    own = syncopate.replay(made(4, 6), cluster=cluster)
    assert own.medians_s[1] == pytest.approx(9.0)
    with pytest.raises(InvalidValueError, match="one place to play it on"):
        syncopate.replay(path, on=cluster, bandwidth="x2")
