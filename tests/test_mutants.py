"""The mutation run: which mutants it draws, what it makes of verdicts, and where a mutant is."""

from __future__ import annotations

import textwrap
import tomllib

import pytest

from tests import architecture, mutants, planted
from tests.children import REPOSITORY
from tests.mutants import KILLED, NO_TESTS, SURVIVED, UNCHECKED, UNJUDGED, Mutant

SETTINGS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["tool"]["mutmut"]


IMPURE = {
    "engine", "collectives", "calibration", "profiling", "paramserver", "tracing", "reports", "cli",
    "benchmarking",
}  # fmt: skip
"""Rooms that do things, and are mutated."""


def test_rooms_are_mutated_and_judged_by_their_unit_tests():
    package = REPOSITORY / "src" / "syncopate"
    expected = {room for room in architecture.PURE if (package / room).exists()} | IMPURE
    assert set(mutants.rooms()) == expected
    asked = SETTINGS["pytest_add_cli_args_test_selection"]
    assert set(asked) == {f"tests/unit/{room}" for room in expected}
    for path in (*asked, *SETTINGS["also_copy"], *SETTINGS["source_paths"]):
        assert (REPOSITORY / path).exists(), path


def test_verdicts_are_read_by_name():
    printed = (
        "    syncopate.costs.model.bound.x_bound_s__mutmut_1: killed\n"
        "    syncopate.costs.model.bound.x_bound_s__mutmut_2: no tests\n"
        "some remark: of mutmut's\n"
    )
    assert mutants.verdicts(printed) == {
        "syncopate.costs.model.bound.x_bound_s__mutmut_1": KILLED,
        "syncopate.costs.model.bound.x_bound_s__mutmut_2": NO_TESTS,
    }


def named(room, count, start=0):
    return [f"syncopate.{room}.file.x_f__mutmut_{i}" for i in range(start, start + count)]


def test_a_sample_is_of_one_room_and_the_same_whatever_else_there_is():
    names = [*named("costs", 400), *named("planning", 50)]
    drawn = mutants.draw(names, "costs", 40, seed=1)
    assert len(set(drawn)) == 40
    assert all(name.startswith("syncopate.costs.") for name in drawn)
    assert mutants.draw(reversed(names), "costs", 40, seed=1) == drawn
    assert mutants.draw(names, "costs", 40, seed=2) != drawn
    fewer = [name for name in names if name != drawn[7]]
    assert mutants.draw(fewer, "costs", 40, seed=1)[:39] == [*drawn[:7], *drawn[8:]]
    assert len(mutants.draw(names, "planning", 100, seed=1)) == 50


def test_the_score_is_of_those_judged_alone():
    names = named("engine", 5) + named("costs", 2)
    given = (KILLED, "timeout", SURVIVED, UNJUDGED, NO_TESTS, KILLED, SURVIVED)
    sample = [Mutant(name, verdict) for name, verdict in zip(names, given, strict=True)]
    found = mutants.score([*names, *named("engine", 9, 100)], sample, "engine")
    assert (found.mutants, found.sample, found.judged, found.noticed) == (14, 5, 4, 2)
    assert found.share == 0.5
    nothing = mutants.score(names, [Mutant(names[0], UNJUDGED)], "engine")
    assert (nothing.judged, nothing.share) == (0, 0.0)


SOURCE = textwrap.dedent(
    '''
    def outer(n):
        """Return n, at least 1."""
        if n < 1:
            return 1
        return n


    class Box:
        @staticmethod
        def outer(n):
            n += 1
            return n
    '''
)


@pytest.mark.parametrize(
    ("name", "diff", "line", "change"),
    [
        (
            "syncopate.room.file.x_outer__mutmut_3",
            '--- a\n+++ b\n@@ -1,5 +1,5 @@\n def outer(n):\n     """Return n, at least 1."""\n'
            "-    if n < 1:\n+    if n <= 1:\n         return 1\n     return n\n",
            4,
            ("if n < 1:", "if n <= 1:"),
        ),
        (
            "syncopate.room.file.xǁBoxǁouter__mutmut_1",
            "--- a\n+++ b\n@@ -1,4 +1,4 @@\n @staticmethod\n def outer(n):\n"
            "-    n += 1\n+    n -= 1\n     return n\n",
            12,
            ("n += 1", "n -= 1"),
        ),
    ],
)
def test_a_mutant_is_shown_where_it_is(name, diff, line, change):
    assert mutants.place_of(name, diff, SOURCE) == (line, change)
    assert SOURCE.split("\n")[line - 1].strip() == change[0]


class FakeMutmut:
    """Stands for mutmut: every name it is asked about is killed, but for those that survive."""

    def __init__(self, known, survivors=()):
        self.known = dict(known)
        self.survivors = set(survivors)
        self.asked = []

    def run(self, names, jobs, counted=None):
        self.asked.append(list(names))
        for name in names:
            self.known[name] = SURVIVED if name in self.survivors else KILLED
        return "done"


def test_what_was_killed_before_is_not_tried_again(monkeypatch):
    one, two, three, four = names = named("costs", 4)
    fake = FakeMutmut({one: KILLED, two: SURVIVED, three: UNCHECKED, four: UNCHECKED}, {four})
    monkeypatch.setattr(mutants, "_run", fake.run)
    monkeypatch.setattr(mutants, "_known", lambda: fake.known)
    found = mutants.judge(names, dict(fake.known), jobs=1)
    assert fake.asked == [[two, three, four]]
    assert found == {one: KILLED, two: KILLED, three: KILLED, four: SURVIVED}
    assert mutants.judge([one], fake.known, jobs=1) == {one: KILLED}
    assert len(fake.asked) == 1


def test_a_run_that_stopped_is_no_score(monkeypatch):
    names = named("costs", 1)
    monkeypatch.setattr(mutants, "_run", lambda *arguments: "the clean tests fail")
    monkeypatch.setattr(mutants, "_known", lambda: dict.fromkeys(names, UNCHECKED))
    with pytest.raises(SystemExit, match="the clean tests fail"):
        mutants.judge(names, dict.fromkeys(names, UNCHECKED), jobs=1)


def test_ranks_judge_one_mutant_each_and_what_they_noticed_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(mutants, "VERDICTS", tmp_path / "ranks.json")
    monkeypatch.setattr(mutants, "_diff", lambda name: "a change")
    passing, failing = named("engine", 2)
    asked = []

    def passes(files, mutant):
        asked.append(mutant)
        return mutant == passing

    monkeypatch.setattr(mutants, "_passes", passes)
    expected = {passing: SURVIVED, failing: KILLED}
    assert mutants.judge_by_ranks([passing, failing]) == expected
    assert mutants.judge_by_ranks([passing, failing]) == expected
    assert asked == [passing, failing, passing]


def test_what_has_changed_in_the_tree_leaves_the_copy(tmp_path):
    tree, copy = tmp_path / "tree", tmp_path / "copy"
    package = "src/syncopate"
    in_tree = {f"{package}/same.py": "1", f"{package}/new.py": "2", f"{package}/costs/own.py": "3"}
    in_copy = {
        f"{package}/same.py": "1",
        f"{package}/new.py": "1",
        f"{package}/costs/own.py": "mutated",
        f"{package}/costs/own.py.meta": "{}",
        f"{package}/costs/gone.py": "mutated",
        f"{package}/costs/gone.py.meta": "{}",
        "tests/test_gone.py": "",
        "mutmut-stats.json": "{}",
    }
    for root, files in ((tree, in_tree), (copy, in_copy)):
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    (tree / "pyproject.toml").write_text('[tool.mutmut]\nonly_mutate = ["src/syncopate/costs/*"]')
    mutants.refresh(tree, copy)
    left = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    assert left == {
        "tree.sha256",
        f"{package}/same.py",
        f"{package}/costs/own.py",
        f"{package}/costs/own.py.meta",
    }
    stats = copy / "mutmut-stats.json"
    stats.write_text("{}")
    mutants.refresh(tree, copy)
    assert stats.exists()  # nothing has changed, so which test reaches what has not either
    (tree / package / "costs" / "own.py").write_text("4")
    mutants.refresh(tree, copy)
    assert not stats.exists()


@pytest.mark.parametrize("room", mutants.RANK_TESTS)
def test_tests_of_several_ranks_are_there(room):
    assert room in IMPURE
    for name in mutants.RANK_TESTS[room]:
        assert list(REPOSITORY.glob(f"tests/multiprocess/{name}")), name


@pytest.mark.parametrize("bug", planted.PLANTED, ids=lambda bug: bug.what)
def test_a_planted_fault_changes_the_sources_of_today(bug):
    source = (REPOSITORY / planted.SOURCES / bug.file).read_text("utf-8")
    compile(bug.changed(source), bug.file, "exec")
    assert bug.changed(source) != source
    assert bug.tests
    for test in bug.tests:
        assert (REPOSITORY / test.partition("::")[0]).exists(), test


def test_what_a_fault_changes_must_be_there_once():
    bug = planted.Planted("it adds", "a.py", "x + y", "x - y", ("tests",))
    assert bug.changed("return x + y") == "return x - y"
    for source in ("return x * y", "x + y, x + y"):
        with pytest.raises(ValueError, match=r"'x [+] y' occurs [02] times in a.py"):
            bug.changed(source)


def test_planted_faults_are_told_by_the_tests_that_pass(tmp_path):
    package = tmp_path / planted.SOURCES
    package.mkdir(parents=True)
    (package / "sums.py").write_text("def total(x, y):\n    return x + y\n")
    load = "import runpy\ntotal = runpy.run_path('src/syncopate/sums.py')['total']\n"
    (tmp_path / "test_all.py").write_text(load + "def test_it():\n    assert total(1, 2) == 3\n")
    (tmp_path / "test_zero.py").write_text(load + "def test_it():\n    assert total(1, 0) == 1\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    bug = planted.Planted(
        "it subtracts", "sums.py", "x + y", "x - y", ("test_all.py", "test_zero.py")
    )
    assert list(planted.unnoticed([bug], tmp_path)) == [(bug, ["test_zero.py"])]
    assert "x + y" in (package / "sums.py").read_text()
