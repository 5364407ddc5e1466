"""Mutants: small faults put into the sources one at a time, and how many of them the tests notice.

    make mutants                                      # a sample of every room
    make mutants ARGS='--rooms costs --sample 500'    # more of one

``mutmut`` makes the mutants, in a copy of the tree under ``mutants/``; the sources stay as they
are, also after Ctrl-C, and the same command goes on where it stopped. Every mutant is judged by the
unit tests that reach its function. What these do not notice in a room of :data:`RANK_TESTS` is
judged by its tests of several ranks, as many as there is time for. A sample is drawn by a hash of
the mutants' names, so it stays the same when others come and go.

Then the faults of ``tests/planted.py`` are planted, each by itself, and each of their tests has to
fail.

Not mutated: decorated functions, code outside functions, and lines that raise, whose words are no
behaviour.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from syncopate.cli.common.console import err, progress_bar
from syncopate.output import write_output
from tests.children import REPOSITORY
from tests.planted import PLANTED, unnoticed

COPY = REPOSITORY / "mutants"
VERDICTS = COPY / "ranks.json"
"""What the tests of several ranks said, for the next run."""
RANK_TESTS = {
    "engine": ("engine/test_*.py",),
    "collectives": ("collectives/test_*.py",),
    "calibration": ("calibration/test_calibration.py",),
    "profiling": ("engine/test_timeline.py", "engine/test_selfplan.py"),
    "paramserver": ("paramserver/test_*.py",),
    "tracing": ("tracing/test_capture.py", "tracing/test_record.py"),
    "cli": ("cli/test_command_line.py",),
    "benchmarking": ("benchmarking/test_bench.py",),
}
"""Room -> its tests of several ranks, in ``tests/multiprocess``."""

RANK_LIMIT_S = 900.0

KILLED = "killed"
SURVIVED = "survived"
NO_TESTS = "no tests"
UNCHECKED = "not checked"
NOTICED = {KILLED, "timeout", "segfault", "caught by type check"}
"""Verdicts that mean that the tests failed, one way or the other."""
UNJUDGED = "not judged"
"""No unit test reaches it, and no test of several ranks was asked."""

_GRACE_S = 10.0
_NOBODY = "nothing-has-this-name"
_COUNTED = re.compile(r"(\d+)/\d+ ")
_HUNK = re.compile(r"^@@ -(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        name: mutmut's, such as ``syncopate.costs.model.bound.x_bound_s__mutmut_3``.
        verdict: ``killed``, ``survived``, ``no tests``, ...
        by: whose verdict it is: ``unit`` or ``ranks``.
        place: ``file:line`` of what was changed; empty for those that were noticed.
        change: the line before and after; empty for those that were noticed.
    """

    name: str
    verdict: str
    by: str = "unit"
    place: str = ""
    change: tuple[str, str] = ("", "")

    @property
    def room(self) -> str:
        """The folder of the package that it is in."""
        return self.name.split(".")[1]


@dataclass(frozen=True)
class Score:
    """How the sample of a room fared."""

    room: str
    mutants: int
    sample: int
    judged: int
    noticed: int

    @property
    def share(self) -> float:
        """Noticed of those judged."""
        return self.noticed / self.judged if self.judged else 0.0


def rooms(pyproject: Path = REPOSITORY / "pyproject.toml") -> tuple[str, ...]:
    """Return the rooms that are mutated: those that mutmut is told."""
    settings = tomllib.loads(pyproject.read_text("utf-8"))["tool"]["mutmut"]
    return tuple(Path(pattern).parent.name for pattern in settings["only_mutate"])


def verdicts(printed: str) -> dict[str, str]:
    """Return verdict by name out of what ``mutmut results`` prints."""
    rows = (line.strip().partition(": ") for line in printed.splitlines())
    return {name: verdict for name, _, verdict in rows if "__mutmut_" in name}


def draw(names: Iterable[str], room: str, size: int, seed: int) -> list[str]:
    """Return ``size`` names of a room, by a hash: others that come or go change few of them."""

    def key(name: str) -> bytes:
        return hashlib.sha256(f"{seed}:{name}".encode()).digest()

    return sorted((name for name in names if name.split(".")[1] == room), key=key)[:size]


def place_of(name: str, diff: str, source: str) -> tuple[int, tuple[str, str]]:
    """Return the line of ``source`` that a mutant changes, and its text before and after.

    Args:
        name: the mutant's.
        diff: mutmut's, whose first line is the function's first.
        source: the text of the module.
    """
    mangled = name.rpartition(".")[2].rpartition("__mutmut_")[0]
    owner, _, function = mangled.removeprefix("xǁ").rpartition("ǁ")
    function = function if owner else mangled.removeprefix("x_")
    first = _first_line(ast.parse(source), owner, function)
    hunk = _HUNK.search(diff)
    assert hunk is not None, diff
    body = diff[hunk.end() :].split("\n")[1:]
    offset = next(i for i, line in enumerate(body) if line[:1] in "+-")
    removed = next((line[1:].strip() for line in body if line.startswith("-")), "")
    added = next((line[1:].strip() for line in body if line.startswith("+")), "")
    return first + int(hunk[1]) - 1 + offset, (removed, added)


def _first_line(tree: ast.Module, owner: str, function: str) -> int:
    scope: Sequence[ast.stmt] = tree.body
    if owner:
        scope = next(n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == owner)
    found = next(n for n in scope if isinstance(n, ast.FunctionDef) and n.name == function)
    return min(node.lineno for node in (found, *found.decorator_list))


def score(names: Iterable[str], sample: Sequence[Mutant], room: str) -> Score:
    """Return how the sample of a room fared."""
    here = [mutant for mutant in sample if mutant.room == room]
    judged = [mutant for mutant in here if mutant.verdict != UNJUDGED]
    return Score(
        room=room,
        mutants=sum(name.split(".")[1] == room for name in names),
        sample=len(here),
        judged=len(judged),
        noticed=sum(mutant.verdict in NOTICED for mutant in judged),
    )


def _mutmut(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("mutmut")), *arguments]


def _known() -> dict[str, str]:
    done = subprocess.run(
        _mutmut("results", "--all", "true"), cwd=REPOSITORY, capture_output=True, check=True
    )
    return verdicts(done.stdout.decode())


def _run(names: Sequence[str], jobs: int, counted: Callable[[int], None] | None = None) -> str:
    """Let mutmut judge some mutants; return what it printed. Ends with it, also by Ctrl-C."""
    command = _mutmut("run", "--max-children", str(jobs), *names)
    process = subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    printed = ""
    try:
        while piece := os.read(process.stdout.fileno(), 1 << 16).decode(errors="replace"):
            printed = (printed + piece)[-8000:]
            if counted is not None and (found := _COUNTED.findall(piece)):
                counted(int(found[-1]))
    finally:
        try:
            process.wait(_GRACE_S)  # Ctrl-C has reached it as well, and it ends its own workers
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
    return printed


def _last_words(printed: str) -> str:
    """Return what was printed after the last frame of a spinner."""
    return printed.rpartition("\r")[2].strip()


def refresh(tree: Path = REPOSITORY, copy: Path = COPY) -> None:
    """Remove from the copy what is no longer as in the tree; mutmut makes anew what is missing.

    It renews the modules that it mutates by itself, and leaves everything else as it finds it:
    other modules, tests, and what it knows of which test reaches which function.
    """
    shutil.rmtree(copy / "tests", ignore_errors=True)
    mutated = {copy / "src" / "syncopate" / room for room in rooms(tree / "pyproject.toml")}
    for path in [*copy.glob("src/**/*.py")]:
        source = tree / path.relative_to(copy)
        renewed = mutated & set(path.parents)
        if not source.exists() or (not renewed and source.read_bytes() != path.read_bytes()):
            for kept in path.parent.glob(f"{path.name}*"):
                kept.unlink()
    seen, now = copy / "tree.sha256", _fingerprint(tree)
    if not seen.exists() or seen.read_text() != now:
        (copy / "mutmut-stats.json").unlink(missing_ok=True)
        copy.mkdir(exist_ok=True)
        seen.write_text(now)


def _fingerprint(tree: Path) -> str:
    found = hashlib.sha256()
    for path in sorted([*tree.glob("src/**/*.py"), *tree.glob("tests/**/*.py")]):
        found.update(str(path.relative_to(tree)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def prepare(jobs: int) -> dict[str, str]:
    """Make the mutants, and find out which tests reach which function; return what is known."""
    refresh()
    # Nothing has this name: mutmut does all that comes before the first mutant, and stops.
    printed = _run([_NOBODY], jobs)
    known = _known()
    if not known or "nothing matches" not in printed:
        raise SystemExit(f"error: mutmut made no mutants:\n{_last_words(printed)}")
    return known


def judge(names: Sequence[str], known: Mapping[str, str], jobs: int) -> dict[str, str]:
    """Return the verdicts of the unit tests; those that were killed before are not tried again."""
    left = [name for name in names if known[name] not in NOTICED]
    if left:
        with progress_bar("unit tests") as advance:
            start: list[int] = []

            def counted(checked: int) -> None:
                start.append(checked)
                done = checked - start[0]
                advance(f"{done} of {len(left)}", min(done / len(left), 1.0))

            printed = _run(left, jobs, counted)
        known = _known()
        if unchecked := sum(known[name] == UNCHECKED for name in names):
            raise SystemExit(f"error: mutmut left {unchecked} unchecked:\n{_last_words(printed)}")
    return {name: known[name] for name in names}


def judge_by_ranks(names: Sequence[str]) -> dict[str, str]:
    """Return the verdicts of the tests of several ranks of a room, one mutant after the other.

    The ranks inherit the variable by which mutmut's copy knows which mutant is at work.
    """
    noticed = json.loads(VERDICTS.read_text()) if VERDICTS.exists() else []
    found: dict[str, str] = {}
    with progress_bar("tests of several ranks") as advance:
        for index, name in enumerate(names):
            advance(f"{index} of {len(names)}", index / len(names))
            # A function that has changed since has other mutants by the same names.
            key = hashlib.sha256((name + _diff(name)).encode()).hexdigest()
            if key not in noticed and not _passes(_rank_tests(name.split(".")[1]), name):
                noticed.append(key)
                VERDICTS.write_text(json.dumps(noticed))
            found[name] = KILLED if key in noticed else SURVIVED
    return found


def _rank_tests(room: str) -> list[str]:
    found = (path for name in RANK_TESTS[room] for path in COPY.glob(f"tests/multiprocess/{name}"))
    return sorted(str(path.relative_to(COPY)) for path in found)


def _passes(files: Sequence[str], mutant: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--timeout=120", *files]
    try:
        done = subprocess.run(
            command,
            check=False,
            cwd=COPY,
            env=os.environ | {"MUTANT_UNDER_TEST": mutant},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=RANK_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _diff(name: str) -> str:
    done = subprocess.run(_mutmut("show", name), cwd=REPOSITORY, capture_output=True, check=True)
    return done.stdout.decode()


def described(mutant: Mutant) -> Mutant:
    """Return a mutant with its place and change."""
    file = "src/" + "/".join(mutant.name.split(".")[:-1]) + ".py"
    line, change = place_of(mutant.name, _diff(mutant.name), (REPOSITORY / file).read_text("utf-8"))
    return Mutant(mutant.name, mutant.verdict, mutant.by, f"{file}:{line}", change)


def report(scores: Sequence[Score], sample: Sequence[Mutant]) -> list[Table | str]:
    """Return a table of the rooms, and the mutants that survived."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("room")
    for title in ("mutants", "sample", "judged", "noticed", "score"):
        table.add_column(title, justify="right")
    for one in scores:
        counts = (one.mutants, one.sample, one.judged, one.noticed)
        table.add_row(one.room, *map(str, counts), f"{one.share:.0%}" if one.judged else "")
    lines: list[Table | str] = [table]
    for mutant in sorted(sample, key=lambda m: m.place):
        if mutant.place:
            before, after = mutant.change
            reached = " (no test reaches it)" if mutant.verdict == NO_TESTS else ""
            lines.append(f"{mutant.place}{reached}\n    - {before}\n    + {after}")
    return lines


def planted_again() -> list[str]:
    """Plant the faults of ``tests/planted.py``; return what each that passed does, and where."""
    passed = []
    with progress_bar("planted faults") as advance:
        for index, (bug, tests) in enumerate(unnoticed(PLANTED)):
            advance(f"{index + 1} of {len(PLANTED)}", (index + 1) / len(PLANTED))
            passed += [f"{bug.what} ({bug.file}): {test} passes" for test in tests]
    return passed


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rooms", default=",".join(rooms()), help="which, by commas")
    parser.add_argument("--sample", type=int, default=100, help="mutants of a room, at most")
    parser.add_argument(
        "--ranks", type=int, default=3, help="of a room, judged by its tests of several ranks"
    )
    parser.add_argument("--no-planted", action="store_true", help="leave out tests/planted.py")
    parser.add_argument("--seed", type=int, default=0, help="another one draws another sample")
    parser.add_argument("--jobs", type=int, default=2, help="mutants judged at a time")
    parser.add_argument("--json", default="out/mutants.json", help="where every verdict goes")
    given = parser.parse_args()
    unknown = set(given.rooms.split(",")) - set(rooms())
    if unknown:
        parser.error(f"unknown room {min(unknown)!r}; known: {', '.join(rooms())}")
    return given


def main() -> int:
    """Draw, judge and report; return the exit code."""
    given = _arguments()
    chosen = given.rooms.split(",")
    err().print("making the mutants and running the unit tests once: a minute or two")
    known = prepare(given.jobs)
    names = [name for room in chosen for name in draw(known, room, given.sample, given.seed)]
    err().print(f"{len(names)} of {len(known)} mutants are judged by the unit tests")
    found = judge(names, known, given.jobs)
    missed = [n for n in names if n.split(".")[1] in RANK_TESTS and found[n] not in NOTICED]
    asked = [
        name
        for room in chosen
        for name in [n for n in missed if n.split(".")[1] == room][: given.ranks]
    ]
    if asked:
        err().print(f"{len(asked)} of them are judged by tests of several ranks, a minute each")
    by_ranks = judge_by_ranks(asked)
    sample = []
    for name in names:
        unreached = name in missed and found[name] == NO_TESTS
        verdict = by_ranks.get(name, UNJUDGED if unreached else found[name])
        mutant = Mutant(name, verdict, "ranks" if name in by_ranks else "unit")
        sample.append(mutant if verdict in NOTICED | {UNJUDGED} else described(mutant))
    scores = [score(known, sample, room) for room in chosen]
    document = {
        "schema_version": 1,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seed": given.seed,
        "rooms": [asdict(one) | {"score": one.share} for one in scores],
        "mutants": [asdict(mutant) for mutant in sample],
    }
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for each in report(scores, sample):
        console.print(each)
    passed = [] if given.no_planted else planted_again()
    document["planted_unnoticed"] = passed
    for line in passed:
        console.print(f"planted, and not noticed: {line}")
    write_output(Path(given.json), (json.dumps(document, indent=1) + "\n").encode())
    err().print(f"wrote {given.json}")
    return 1 if passed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
