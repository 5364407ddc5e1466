"""``syncopate explain`` on files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from msgspec import structs

from syncopate.analysis.causes.explanation import explanation
from syncopate.artifacts.timeline import Timeline
from syncopate.cli import main
from syncopate.planning.planner import make_plan
from syncopate.runs.best_plan import against_the_best
from syncopate.simulation import simulate
from tests.unit import examples
from tests.unit.analysis.made import made
from tests.unit.tracing.foreign.made import profile
from tests.unit.tracing.foreign.test_profiler import EVALUATED


@pytest.fixture
def explain(monkeypatch, capfd):
    """Run the command; return exit code, standard output, standard error."""

    def command(*arguments):
        monkeypatch.setattr("sys.argv", ["syncopate", "explain", *map(str, arguments)])
        code = main()
        told = capfd.readouterr()
        return code, " ".join(told.out.split()), told.err

    return command


@pytest.fixture
def files(tmp_path):
    """Return paths of a workload and a cluster, and a function from a policy to a timeline's."""
    model, where = examples.workload(), examples.steady_cluster()

    def trained(policy, **told):
        plan = make_plan(model, where, policy, **told)
        return simulate(model, plan, where, iterations=6).save(tmp_path / f"{policy}.json")

    model.save(tmp_path / "w.json")
    where.save(tmp_path / "c.json")
    return tmp_path / "w.json", tmp_path / "c.json", trained


def test_causes_are_ranked_in_plain_words(explain, tmp_path):
    """Rank 1 costs 4 s of 13, exposed transfers another 2."""
    path = made(4, 6, lambda r, i: {"forward_s": 6.0} if r == 1 else {}).save(tmp_path / "t.json")
    code, out, _ = explain(path)
    assert code == 0
    assert (
        "1. rank 1 computes longer than the others: 6.00 s of forward, where they take 2.00 s "
        "without it: 9.00 s, 4.00 s (31%) less" in out
    )
    assert "2. transfers are exposed" in out
    convert = "--to workload -o workload.json && syncopate plan -w workload.json -c cluster.json"
    assert convert in out
    assert "$ syncopate convert " in out


def test_the_last_iterations_are_played_again_and_which_is_said(explain, tmp_path):
    change = {"forward_s": 6.0}
    path = made(2, 9, lambda r, i: change if r == 1 and i < 5 else {}).save(tmp_path / "t.json")
    code, out, told = explain(path, "--last", "4", "--json")
    assert "the last 4 iterations are looked at, from iteration 5 on" in told
    assert (code, json.loads(out)["iterations"]) == (0, 3)
    assert not [one for one in json.loads(out)["causes"] if one["kind"] == "compute"]
    code, out, told = explain(path, "--json")
    assert (json.loads(out)["iterations"], told) == (8, "")
    code, _, told = explain(path, "--last", "0")
    assert (code, "last is 0; it must be at least 1" in told) == (2, True)


def test_json_has_the_figures_and_the_words(explain, tmp_path):
    change = {"forward_s": 6.0}
    path = made(4, 6, lambda r, i: change if r == 1 else {}).save(tmp_path / "t.json")
    found = json.loads(explain(path, "--json")[1])
    first = found["causes"][0]
    assert (first["kind"], first["ranks"]) == ("compute", [1])
    assert first["gain_s"] == pytest.approx(4.0)
    assert first["iteration_s"] == pytest.approx(9.0)
    assert (first["lane"], first["own"], first["others"]) == ("forward", 6.0, 2.0)
    assert found["verdict"].startswith("rank 1 computes longer than the others: 6.00 s of forward")
    assert "31% of an iteration" in found["verdict"]


def test_the_best_plan_is_a_cause_of_its_own(explain, files):
    workload, cluster, trained = files
    found = json.loads(explain(trained("single"), "-w", workload, "-c", cluster, "--json")[1])
    causes = {one["kind"]: one for one in found["causes"]}
    best = make_plan(examples.workload(), examples.steady_cluster(), "auto").prediction
    assert causes["plan"]["iteration_s"] == pytest.approx(best.iteration_s, rel=1e-6)
    assert causes["plan"]["command"] == f"syncopate plan -w {workload} -c {cluster} -o plan.json"
    # Transfers are what is left to a network then.
    assert causes["transfers"]["gain_s"] + causes["plan"]["gain_s"] == pytest.approx(
        found["iteration_s"] - examples.workload().compute_s, rel=1e-6
    )
    out = explain(trained("single"), "-w", workload, "-c", cluster)[1]
    assert "of the link's 10.00 Gbit/s" in out
    assert "predicted by the best" in out


def test_what_any_plan_loses_is_no_gain_of_the_best(files):
    """Half a second of gaps in each iteration stays, whatever is planned."""
    trained = files[2]
    timeline = Timeline.load(trained("single"))
    found = explanation(timeline)
    gaps = replace(found, even_s=found.even_s + 0.5, bound_s=found.bound_s + 0.5)
    plans = []
    for one in (found, gaps):
        best, _ = against_the_best(timeline, one, examples.workload(), examples.steady_cluster())
        plans.append({cause.kind: cause.gain_s for cause in best.causes}["plan"])
    assert plans[0] > 0
    assert plans[1] == pytest.approx(plans[0])


def test_of_the_best_plan_there_is_no_better(explain, files):
    workload, cluster, trained = files
    found = json.loads(explain(trained("auto"), "-w", workload, "-c", cluster, "--json")[1])
    assert "plan" not in {one["kind"] for one in found["causes"]}


def test_nothing_worth_doing_is_said(explain, tmp_path):
    change = {"ready": (0.2, 0.4), "transfers_s": (0.5, 0.5)}
    path = made(2, 6, lambda r, i: change).save(tmp_path / "t.json")
    assert "nothing worth doing: 100% of the bound" in explain(path)[1]


def test_thin_evidence_is_said_with_what_to_record(explain, tmp_path):
    path = made(2, 2).save(tmp_path / "t.json")
    code, out, _ = explain(path)
    assert code == 0
    assert "no explanation, because the evidence is thin - 2 iterations do not tell" in out


def test_what_does_not_go_together_is_refused(explain, files, tmp_path):
    workload, cluster, trained = files
    assert "the other of --workload and --cluster" in explain(trained("single"), "-w", workload)[2]
    two = made(2, 6).save(tmp_path / "two.json")
    assert "4 ranks" in explain(two, "-w", workload, "-c", cluster)[2]
    slow = made(4, 6).save(tmp_path / "slow.json")
    code, _, err = explain(slow, "-w", workload, "-c", cluster)
    assert code == 2
    assert "that of the training" in err


def test_of_arrivals_alone_it_is_said_who_is_late_and_what_to_record(explain, tmp_path):
    """As of torch's flight recorder, which knows nothing of computation."""
    timeline = made(3, 6, lambda r, i: {"backward_s": 8.0 if r == 2 else 4.0})
    sent = tuple(span for span in timeline.spans if span.lane == "push")
    path = structs.replace(timeline, spans=sent).save(tmp_path / "arrivals.json")
    code, said, _ = explain(path)
    assert code == 0
    assert said.startswith("rank 2 comes later than the others to bucket 0 by"), said
    assert "no causes: computation was not recorded" in said
    code, said, _ = explain(path, "--json")
    found = json.loads(said)
    assert (code, len(found["abstains"])) == (0, 1)
    assert found["lateness_s"]["2"]["bucket 0"] > 0


def test_two_ranks_of_a_large_job_are_explained_by_their_own_numbers(explain, tmp_path):
    """Rank 70 computes longer than rank 5; nothing is asked of the 126 others."""
    paths = []
    for rank, late_ms in ((5, 0), (70, 40)):
        rows = []
        for number in range(6):
            begin = 200 * number
            rows += [
                ("user_annotation", f"ProfilerStep#{number}", begin, begin + 200, {}),
                ("user_annotation", "DistributedDataParallel.forward", begin + 1, begin + 20, {}),
                ("cpu_op", EVALUATED, begin + 20, begin + 100 + late_ms, {}),
                ("cpu_op", "c10d::allreduce_", begin + 99 + late_ms, begin + 100 + late_ms, {}),
                ("user_annotation", "gloo:all_reduce", begin + 100 + late_ms, begin + 150, {}),
                ("user_annotation", "Optimizer.step#SGD.step", begin + 151, begin + 199, {}),
            ]
        paths.append(tmp_path / f"rank{rank}.json")
        paths[-1].write_text(json.dumps(profile(rank, rows, world_size=128)))
    code, out, err = explain(*paths)
    assert code == 0
    assert "rank 70 computes longer than the others" in out
    assert "evidence is thin" not in out
    said = " ".join(err.split())
    assert said.count("have no file") == 1
    assert "ranks 0 to 4, 6 to 69 and 71 to 127 have no file" in said


def test_commands_are_printed_in_one_line_and_need_what_there_is(tmp_path, monkeypatch, capfd):
    """Files of long names; without their bytes, messages make no workload."""
    long = tmp_path / ("a" * 120)
    long.mkdir()
    timeline = made(4, 6)
    path = timeline.save(long / "t.json")
    monkeypatch.setattr("sys.argv", ["syncopate", "explain", str(path)])
    assert main() == 0
    (line,) = [one for one in capfd.readouterr().out.splitlines() if "$ syncopate convert" in one]
    assert str(path) in line
    assert "syncopate plan -w workload.json -c cluster.json" in line
    bare = tuple(structs.replace(span, nbytes=0) for span in timeline.spans)
    structs.replace(timeline, spans=bare).save(path)
    assert main() == 0
    told = " ".join(capfd.readouterr().out.split())
    assert "convert" not in told
    assert "record again with what messages carry (torch.profiler with record_shapes=True" in told


def test_clocks_that_are_far_off_are_no_reason_to_say_that_all_is_well(tmp_path, explain):
    timeline = made(4, 6)
    off = {**timeline.metadata, "clock_error_s": "5.0"}
    path = structs.replace(timeline, metadata=off).save(tmp_path / "t.json")
    code, out, _ = explain(path)
    assert code == 0
    assert "no explanation, because the evidence is thin" in out
    assert "the clocks of hosts agree to 56% of an iteration" in out
