"""``syncopate compare`` on files."""

from __future__ import annotations

import json

import pytest

from syncopate.cli import main
from tests.unit.analysis.made import made


@pytest.fixture
def run(monkeypatch, capfd):
    """Run a command; return exit code, standard output, standard error."""

    def command(*arguments):
        monkeypatch.setattr("sys.argv", ["syncopate", *map(str, arguments)])
        code = main()
        told = capfd.readouterr()
        return code, told.out, told.err

    return command


@pytest.fixture
def runs(tmp_path):
    slow = made(2, 5, lambda r, i: {"transfers_s": (1.8, 3.6)})
    return made(2, 5).save(tmp_path / "a.json"), slow.save(tmp_path / "b.json")


def test_two_runs_stand_side_by_side(run, runs):
    code, out, _ = run("compare", *runs)
    assert code == 0
    assert "transfers take 1.80x as long: the network" in out
    (row,) = [line for line in out.splitlines() if line.strip().startswith("computation")]
    assert " ".join(row.split()) == "computation 7.00 s ± 0.0 us 7.00 s ± 0.0 us 1.00"


def test_json_has_the_figures_and_the_verdict(run, runs):
    found = json.loads(run("compare", *runs, "--json")[1])
    assert found["verdict"].endswith("the network")
    of_transfers = {c["what"]: c for c in found["changes"]}["transferring, exposed"]
    assert of_transfers["before"]["mean"] == pytest.approx(2.0)
    assert of_transfers["after"] == {
        "mean": pytest.approx(3.6),
        "deviation": pytest.approx(0.0),
        "count": 4,
    }


def test_what_is_no_timeline_is_refused(run, runs, tmp_path):
    code, _, err = run("compare", runs[0], tmp_path / "none.json")
    assert code == 2
    assert "none.json: cannot be read" in err
