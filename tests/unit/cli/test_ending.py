"""What SIGINT and SIGTERM do to commands that keep what they have."""

from __future__ import annotations

import signal
import subprocess
import textwrap
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest
import typer

import syncopate
from syncopate.artifacts.plan import SERVERLESS
from syncopate.artifacts.results.benchmark import Benchmark
from syncopate.calibration.partial import Partial, Taken
from syncopate.cli import bench, calibrate
from syncopate.cli.common import ending as endings
from syncopate.cli.common.console import progress_bar
from syncopate.cli.common.ending import EndedError, code_of, ended_once
from syncopate.errors import ArtifactError
from syncopate.planning.planner import compared
from syncopate.reports.bench import ENDED
from tests.children import run_script
from tests.clock import set_clock
from tests.unit import examples


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [(signal.SIGTERM, signal.SIGINT, 143), (signal.SIGINT, signal.SIGTERM, 130)],
)
def test_the_first_signal_ends_the_work_and_those_that_follow_soon_change_nothing(
    first, second, code
) -> None:
    before = [signal.getsignal(number) for number in (first, second)]
    with ended_once():
        with pytest.raises(KeyboardInterrupt) as ended, progress_bar("measuring"):
            signal.raise_signal(first)
        signal.raise_signal(second)
        signal.raise_signal(first)
    assert code_of(ended.value) == code
    assert [signal.getsignal(number) for number in (first, second)] == before


def test_a_signal_that_comes_later_is_another_wish(monkeypatch) -> None:
    now_s = [100.0]
    set_clock(monkeypatch, endings.__name__, monotonic=lambda: now_s[0])
    with ended_once():
        with pytest.raises(EndedError):
            signal.raise_signal(signal.SIGTERM)
        now_s[0] += endings.AGAIN_S
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_what_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with ended_once():
            signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def _ended(line: str, prelude: str) -> subprocess.CompletedProcess[str]:
    """Run a command line in a process of its own, which ``prelude`` ends by a signal."""
    return run_script(
        f"""
import os, signal, sys
{textwrap.dedent(prelude)}
from syncopate.cli import main
sys.argv = {["syncopate", *line.split()]!r}
sys.exit(main())
"""
    )


def test_a_sweep_that_is_ended_before_its_first_point_says_so_by_its_code(run) -> None:
    prelude = """
        from syncopate.planning.whatif import study
        study.Study.run = lambda self, progress=None: os.kill(os.getpid(), signal.SIGTERM)
    """
    done = _ended("whatif workload.json --network 10gbe --nodes 2,4", prelude)
    assert done.returncode == 143
    assert done.stderr.splitlines()[-1] == "ended by SIGTERM"
    assert not Path("whatif.json").exists()


PLANNING = """
    from syncopate.planning import planner
    make_plan, made = planner.make_plan, []
    def ended(*given, **told):
        if len(made) == {after}:
            os.kill(os.getpid(), signal.{name})
        made.append(0)
        return make_plan(*given, **told)
    planner.make_plan = ended
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_planning_that_is_ended_shows_the_plans_that_it_has(run, name, code) -> None:
    line = "plan -w workload.json --network 10gbe --nodes 4"
    done = _ended(line, PLANNING.format(after=3, name=name))
    assert done.returncode == code, done.stderr
    assert [policy in done.stdout for policy in ("wfbp", "single", "threshold", "mg-wfbp")] == [
        *(True, True, True),
        False,
    ]
    assert done.stderr.splitlines()[-1] == (
        "note: ended: these are not all plans, and none is written"
    )
    assert not Path("plan.json").exists()
    done = _ended(f"{line} --json", PLANNING.format(after=2, name=name))
    assert [plan["policy"] for plan in msgspec.json.decode(done.stdout)] == ["wfbp", "single"]
    done = _ended(line, PLANNING.format(after=0, name=name))
    assert (done.returncode, done.stdout) == (code, "")
    assert "note: ended before the first plan was made" in done.stderr


def test_plans_stand_by_exchange_and_policy_and_the_best_last(run) -> None:
    code, out, _ = run("plan -w workload.json --network 10gbe --nodes 4 --json")
    assert code == 0
    named = [(plan["exchange"], plan["policy"]) for plan in msgspec.json.decode(out)]
    assert named[:-1] == [(exchange, name) for exchange in SERVERLESS for name in compared()]
    assert named[-1][1] == "auto"


def _rows(whole: Benchmark, *, count: int) -> bench._Rows:
    """Return what is kept when the first size of ``count`` has been measured."""
    rows = bench._Rows(count, Path("bench.json"))
    first = tuple(msgspec.structs.replace(one, points=one.points[:1]) for one in whole.series)
    rows.keep(msgspec.structs.replace(whole, series=first))
    return rows


def test_a_size_that_was_measured_is_written_and_told(run, capfd) -> None:
    rows = _rows(examples.benchmark(), count=2)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "all_reduce 1.0 KiB: ring 90.0 us, 0.017 GB/s; next gloo, 2.00x\n")
    assert Benchmark.load("bench.json") == rows.found
    assert rows.found.metadata[ENDED] == "after 1 of 2 sizes"
    assert ENDED not in _rows(examples.benchmark(), count=1).found.metadata


def test_a_benchmark_that_is_ended_is_shown_with_all_its_outputs(run, capfd) -> None:
    results = {"output": Path("-"), "html": None, "full": False, "json": False}
    bench._show_ended(_rows(examples.benchmark(), count=2), results)
    out, err = capfd.readouterr()
    assert Benchmark.from_json(out).metadata[ENDED] == "after 1 of 2 sizes"
    assert "the fastest in place" in err
    assert err.splitlines()[-1] == "note: ended after 1 of 2 sizes"
    bench._show_ended(bench._Rows(2, Path("other.json")), results)
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "note: ended before the first size was measured: nothing was written\n"


def _taken() -> Taken:
    taken = Taken()
    taken.network = examples.cluster()
    return taken


ASKED = {"budget_s": "10.0"}


def test_what_was_measured_is_gone_on_from_by_the_same_call_alone(run, capfd) -> None:
    output = Path("new.json")
    kept = calibrate._Kept(output, ASKED)
    assert kept.partial is None
    kept.keep(_taken())
    assert capfd.readouterr().err == (
        "note: ended before the calibration was complete: links are kept in new.json.partial, and "
        "the same command goes on from there\n"
    )
    again = calibrate._Kept(output, ASKED)
    assert again.partial == Partial.load("new.json.partial")
    again.say_found()
    assert capfd.readouterr().err == "going on from new.json.partial\n"
    again.keep(Taken())
    told = "note: ended before anything more was measured: new.json.partial stays as it was\n"
    assert capfd.readouterr().err == told
    other = calibrate._Kept(output, {"budget_s": "20.0"})
    other.say_found()
    assert other.partial is None
    assert "is of another call (budget_s): everything is measured anew" in capfd.readouterr().err
    other.remove()
    assert not Path("new.json.partial").exists()


def test_before_links_are_measured_nothing_is_kept(run, capfd) -> None:
    for output, taken in ((Path("new.json"), Taken()), (Path("-"), _taken())):
        calibrate._Kept(output, ASKED).keep(taken)
        assert capfd.readouterr().err == (
            "note: ended before the calibration was complete: nothing was written\n"
        )
    assert not list(Path().glob("*.partial"))
    assert calibrate._Kept(Path("/dev/null"), ASKED).path is None


def test_a_damaged_file_is_refused(run) -> None:
    Path("new.json.partial").write_text("{")
    with pytest.raises(ArtifactError, match=r"new\.json\.partial"):
        calibrate._Kept(Path("new.json"), ASKED)


def test_other_racks_are_another_call(run) -> None:
    told = {"racks": Path("racks.txt"), "budget_s": 1.0}
    Path("racks.txt").write_text("a r1\n")
    first = calibrate._asked(told, "cpu")
    assert calibrate._asked(told, "cpu") == first
    Path("racks.txt").write_text("a r2\n")
    assert calibrate._asked(told, "cpu") != first
    Path("racks.txt").unlink()
    assert calibrate._asked(told, "cpu")["racks"] == "racks.txt"


def test_who_does_not_lead_writes_nothing(run, monkeypatch, capfd) -> None:
    """An ended rank leaves with the code of the signal."""

    def ended(*given, **told):
        raise EndedError

    monkeypatch.setattr(syncopate, "calibrate", ended)
    monkeypatch.setattr(calibrate.ranks, "joined", lambda **_: nullcontext())
    with pytest.raises(typer.Exit) as left:
        calibrate._measure("cpu", {}, None)
    assert left.value.exit_code == 143
    assert capfd.readouterr() == ("", "")
