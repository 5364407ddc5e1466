"""Packages from outside: installed into a folder, used by name, and named where they are broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import HANGS_S, environment
from tests.planted_package import PAGE, install, of_the_page, project

RESNET = "examples/workloads/resnet50.json"
MACHINES = "--network 10gbe --nodes 4"
MODULE = of_the_page("star_and_halves.py")

PREAMBLE = """
import sys
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.workload import Workload
from syncopate.errors import *
from syncopate.planning.planner import compare, make_plan
from syncopate.planning.registry import POLICIES, require_policy
from syncopate.schedules.registry import ALGORITHMS, algorithms, build, has, names, require

workload, cluster = Workload.load("examples/workloads/resnet50.json"), Cluster.preset("10gbe", 4)


def refused(call, *args, **options):
    try:
        call(*args, **options)
    except SyncopateError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("not refused")

"""


def python(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program with a folder on its path, in the repository's root."""
    return _run(folder, "-c", PREAMBLE + program)


def syncopate(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Run a command with a folder on its path, in the repository's root."""
    return _run(folder, "-m", "syncopate", *line.split())


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        check=False,
        capture_output=True,
        text=True,
        env=environment(folder),
        timeout=HANGS_S,
    )


@pytest.fixture(scope="module")
def star(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("star")
    install(folder, of_the_page("pyproject.toml"), {"star_and_halves.py": MODULE})
    return folder


def test_a_package_is_used_by_name_and_imported_no_sooner(star):
    done = python(
        star,
        """
plain = make_plan(workload, cluster, "optimal")
assert "star_and_halves" not in sys.modules
assert not {"star", "halves"} & {*algorithms("all_reduce"), *POLICIES}
assert "halves" not in [plan.policy for plan in compare(workload, cluster)]

assert names("all_reduce") == (*algorithms("all_reduce"), "star")
assert "star" not in names("all_gather")
assert "star_and_halves" not in sys.modules

plan = make_plan(workload, cluster, "halves", algorithm="star")
assert (plan.policy, len(plan.buckets)) == ("halves", 2)
assert {bucket.push.algorithm for bucket in plan.buckets} == {"star"}
sizes = [bucket.nbytes for bucket in plan.buckets]
assert abs(sizes[0] - sizes[1]) < 0.1 * sum(sizes), sizes
assert build("all_reduce", "star", 4).rounds == 6
assert "star" in algorithms("all_reduce")
assert "halves" in [plan.policy for plan in compare(workload, cluster)]
best = make_plan(workload, cluster, "optimal")
assert best.prediction.iteration_s <= plain.prediction.iteration_s
""",
    )
    assert done.returncode == 0, done.stderr


def test_the_page_proves_its_algorithm(star):
    block = PAGE.split("## Prove it")[1].split("```python\n")[1].split("```")[0]
    done = _run(star, "-c", block)
    assert done.returncode == 0, done.stderr


def test_commands_plan_and_simulate_with_it(star, tmp_path):
    plan = tmp_path / "plan.json"
    line = f"plan -w {RESNET} {MACHINES} --policy halves --algorithm star -o {plan}"
    done = syncopate(star, line)
    assert done.returncode == 0, done.stderr
    assert "halves" in done.stdout
    done = syncopate(star, f"simulate -w {RESNET} -p {plan} {MACHINES} -o {tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    elsewhere = tmp_path / "nothing"
    done = syncopate(elsewhere, f"simulate -w {RESNET} -p {plan} {MACHINES} -o {tmp_path / 'b'}")
    assert done.returncode == 2
    assert "unknown algorithm 'star'" in done.stderr


def test_a_cluster_that_was_measured_with_it_lets_it_compete(star):
    done = python(
        star,
        """
from msgspec import structs
from syncopate.artifacts.cluster import CollectiveCurve, CurvePoint, LinearFit
from syncopate.costs.decide.decisions import decisions
from syncopate.schedules.registry import require_curves

points = tuple(CurvePoint(nbytes=n, samples_s=(1e-9 * n,)) for n in (2**10, 2**30))
curve = CollectiveCurve(
    collective="all_reduce", algorithm="star", points=points,
    fit=LinearFit(a_s=0.0, b_s_per_byte=1e-9),
)
measured = structs.replace(cluster, curves=(curve,))
require_curves(measured)
assert {b.push.algorithm for b in make_plan(workload, measured).buckets} == {"star"}
assert {d.recipe.algorithm for d in decisions(measured, "all_reduce")} == {"star"}
""",
    )
    assert done.returncode == 0, done.stderr


BROKEN = {
    "no such module": ("nowhere_to_be_found:STAR", "", "ModuleNotFoundError: No module named"),
    "no such name": ("broken_star:NOTHING", "", "AttributeError: "),
    "an import that fails": ("broken_star:STAR", "1 / 0", "ZeroDivisionError: division by zero"),
    "an import that ends": ("broken_star:STAR", "raise SystemExit(3)", "SystemExit: 3"),
    "another kind": ("broken_star:STAR", "STAR = print", "it is a builtin_function_or_method"),
    "another name": (
        "broken_star:STAR",
        f"{MODULE}\nfrom dataclasses import replace\nSTAR = replace(STAR, name='stars')",
        "what is there is named 'all_reduce.stars'",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_package_is_named_where_its_name_is_used(case, tmp_path):
    value, source, reason = BROKEN[case]
    points = {"algorithms": {"all_reduce.star": value}, "policies": {"stars": "nowhere:STARS"}}
    install(tmp_path, project("broken-star", **points), {"broken_star.py": source})
    done = python(
        tmp_path,
        f"""
reason = {reason!r}
for call in (
    lambda: require("all_reduce", "star"),
    lambda: make_plan(workload, cluster, algorithm="star"),
    lambda: build("all_reduce", "star", 4),
):
    said = refused(call)
    assert said.startswith("ExtensionError: entry point 'all_reduce.star' of syncopate.alg"), said
    assert {value!r} in said and "broken-star 1.0" in said and reason in said, said
    assert said.endswith("mend that package or uninstall it"), said
assert "stars" in refused(require_policy, "stars")
assert refused(require, "all_reduce", "rign").endswith("blueconnect, star")
make_plan(workload, cluster)
""",
    )
    assert done.returncode == 0, done.stderr


def test_a_broken_package_breaks_no_other_command(tmp_path):
    points = {"algorithms": {"all_reduce.star": "no:STAR"}, "policies": {"halves": "no:HALVES"}}
    install(tmp_path, project("broken-star", **points), {})
    install(tmp_path, project("damaged"), {}, entry_points="[syncopate.policies]\nno value\n")
    plan = f"plan -w {RESNET} {MACHINES} -o {tmp_path / 'plan.json'}"
    done = syncopate(tmp_path, plan)
    assert (done.returncode, done.stderr.count("broken-star")) == (0, 0), done.stderr
    for words, name in (("--algorithm star", "all_reduce.star"), ("--policy halves", "halves")):
        done = syncopate(tmp_path, f"{plan} {words}")
        assert done.returncode == 2
        assert done.stderr.count("error: ") == 1
        assert f"entry point {name!r}" in done.stderr
        assert "broken-star 1.0" in done.stderr
        assert "Traceback" not in done.stderr
    assert "the entry points of damaged 1.0 cannot be read" in done.stderr


def test_names_that_are_taken_are_refused(tmp_path):
    install(tmp_path, of_the_page("pyproject.toml"), {"star_and_halves.py": MODULE})
    points = {
        "algorithms": {
            "all_reduce.star": "star_and_halves:STAR",
            "all_reduce.ring": "star_and_halves:STAR",
            "all_reduce.native": "star_and_halves:STAR",
        },
        "policies": {"optimal": "star_and_halves:HALVES"},
    }
    install(tmp_path, project("rival", **points), {})
    done = python(
        tmp_path,
        """
said = refused(require, "all_reduce", "star")
assert "rival 1.0 and star-and-halves 0.1 both have it; uninstall all but one" in said, said
require("all_reduce", "ring")
assert ALGORITHMS["all_reduce", "ring"].source != "folklore"
assert require_policy("optimal").source == "this project"
assert require_policy("halves").name == "halves"
""",
    )
    assert done.returncode == 0, done.stderr
    for name in ("all_reduce.ring", "all_reduce.native", "optimal"):
        assert f"entry point '{name}' of " in done.stderr
    assert done.stderr.count("in rival 1.0 is left out: the name is taken") == 3


def test_a_policy_whose_buckets_are_not_all_tensors_is_refused(tmp_path):
    source = f"""{MODULE}
def wrong(problem):
    return ENDS

ENDS = ()
HALVES = Policy("halves", wrong, "wrong", "folklore")
"""
    install(tmp_path, of_the_page("pyproject.toml"), {"star_and_halves.py": source})
    done = python(
        tmp_path,
        """
import star_and_halves
for ends in ((), (0, 161), (80,), (80, 80, 161), (100, 80, 161), (80, 162)):
    star_and_halves.ENDS = ends
    said = refused(make_plan, workload, cluster, "halves")
    assert said.startswith(f"InvalidValueError: partition of policy 'halves' is {ends}"), said
    assert said.endswith("each > 0 and the last 161"), said
""",
    )
    assert done.returncode == 0, done.stderr


def test_a_package_may_register_its_row_by_itself(tmp_path):
    source = f"{MODULE}\nfrom syncopate.schedules.registry import register\nregister(STAR)\n"
    install(tmp_path, of_the_page("pyproject.toml"), {"star_and_halves.py": source})
    done = python(tmp_path, "require('all_reduce', 'star'); assert has('all_reduce', 'star')")
    assert done.returncode == 0, done.stderr
