"""``syncopate bench`` on real ranks: the table, the artefact, the peer, and wrong results."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path

import pytest
import torch

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.results.benchmark import BACK_TO_BACK, BARRIER, Benchmark
from syncopate.benchmarking import contenders as bench_module
from syncopate.benchmarking.contenders import suitable
from syncopate.benchmarking.run import bench
from syncopate.benchmarking.sweep import Effort, Sweep
from syncopate.cli import main
from syncopate.cli.common import ranks
from syncopate.collectives import Communicator
from syncopate.costs.decide.decisions import choose
from syncopate.errors import InvalidValueError
from syncopate.schedules.conditions import CONDITIONS
from tests.children import run_command
from tests.multiprocess.harness import run_ranks

RANKS = 4


def test_the_command_prints_tables_and_writes_every_sample(tmp_path):
    line = "bench --local 4 --sizes 4B,1001B,256KiB -a native,ring --against gloo -n 3 -w 1 --full"
    done = run_command(line, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "wrote bench.json"
    for part in (
        "4 ranks on 1 host",
        "3 calls after 1 to warm up, separated by barriers",
        "all_reduce (native)",
        "all_reduce (ring)",
        "all_reduce (gloo)",
        "#wrong",
        "times gloo's speed",
        "every result verified, none wrong",
    ):
        assert done.stdout.count(part) >= 1, part
    benchmark = Benchmark.load(tmp_path / "bench.json")
    assert [(one.contender, one.peer) for one in benchmark.series] == [
        ("native", False),
        ("ring", False),
        ("gloo", True),
    ]
    assert benchmark.root == -1
    assert {"torch", "python", "cpu", "backend", "syncopate", "date"} <= set(benchmark.metadata)
    for series in benchmark.series:
        assert [(p.count, p.nbytes) for p in series.points] == [
            (1, 4),
            (250, 1000),
            (65536, 1 << 18),
        ]
        for timing in (t for p in series.points for t in (p.in_place, p.out_of_place)):
            assert len(timing.samples_s) == 3
            assert timing.time_s == pytest.approx(sum(timing.samples_s) / 3)
            assert timing.wrong == 0


def every_collective(rank: int, world_size: int) -> list[Benchmark]:
    found = []
    with Communicator(timeout_s=60) as communicator:
        for collective, conditions in CONDITIONS.items():
            for dtype, mode in (("float32", BARRIER), ("int16", BACK_TO_BACK)):
                root = 2 if conditions.rooted else 0
                sweep = Sweep(collective, (2, 4001), dtype, root, against=("gloo",))
                effort = Effort(iterations=2, warmup=1, mode=mode)
                found.append(bench(communicator, sweep, effort))
    return found


def test_every_collective_and_suitable_algorithm_is_verified():
    by_rank = run_ranks(every_collective, RANKS)
    assert all(found == by_rank[0] for found in by_rank)
    for benchmark in by_rank[0]:
        assert benchmark.wrong == 0
        names, _ = suitable(benchmark.collective, benchmark.hosts)
        assert [one.contender for one in benchmark.series] == [*names, "gloo"]
        assert benchmark.root == (2 if CONDITIONS[benchmark.collective].rooted else -1)
        for timing in (p.in_place for one in benchmark.series for p in one.points):
            assert timing.wrong == 0
            if benchmark.mode == BACK_TO_BACK:
                # Each sample is the maximum over ranks, so their mean is at least any rank's.
                assert timing.time_s <= sum(timing.samples_s) / 2 * (1 + 1e-9)


def command(communicator: Communicator, line: str) -> tuple[int, str, str]:
    """Run a command line on ranks that have met already; return code, output and errors."""
    world_size = str(communicator.world_size)
    os.environ |= {"RANK": str(communicator.rank), "WORLD_SIZE": world_size}
    sys.argv = ["syncopate", *line.split()]
    ranks.joined = lambda **_: contextlib.nullcontext(communicator)
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        code = main()
    return code, out.getvalue(), err.getvalue()


def broken(
    rank: int, world_size: int, folder: Path
) -> tuple[int, int, str, dict[str, tuple[int, str, str]]]:
    """Let the last rank's result of every call be one element off."""
    real = bench_module._ours

    def faulty(run, *arguments):
        def wrong(tensor: torch.Tensor, *root: int, **asked) -> None:
            run(tensor, *root, **asked)
            if rank == world_size - 1:
                tensor[7] += 1

        return real(wrong, *arguments)

    bench_module._ours = faulty
    with Communicator(timeout_s=60) as communicator:
        sweep, effort = Sweep("all_reduce", (400,), algorithms=("ring",)), Effort(2, 0)
        found = bench(communicator, sweep, effort)
        unchecked = bench(communicator, sweep, Effort(2, 0, check=False))
        odd = ("lp:blocks=3", "blueconnect:factors=2x1", "ring:order=1x0")
        varied = bench(communicator, Sweep("all_reduce", (4000,), algorithms=odd), effort)
        assert [one.contender for one in varied.series] == list(odd)
        wrong_value = Sweep("all_reduce", (4,), algorithms=("lp:blocks=0",))
        with pytest.raises(InvalidValueError, match="blocks"):
            bench(communicator, wrong_value, effort)
        with pytest.raises(InvalidValueError) as caught:
            bench(communicator, Sweep("reduce", (4,), root=world_size))
        line = f"bench -a ring --sizes 400B -n 1 -w 0 -o {folder}/bench.json"
        said = {
            "wrong": command(communicator, line),
            "unchecked": command(communicator, f"{line} --no-check"),
        }
        bench_module._ours = real
        said["right"] = command(communicator, line)
    return found.wrong, unchecked.series[0].points[0].in_place.wrong, str(caught.value), said


def test_a_wrong_element_is_found_wherever_it_is(tmp_path):
    for rank, found in enumerate(run_ranks(broken, 2, tmp_path)):
        wrong, unchecked, message, said = found
        assert wrong == 2  # once out of place, once in place
        assert unchecked == -1
        assert "a rank in 0..1" in message
        code, out, err = said["wrong"]
        assert code == 1
        assert "all_reduce returned 2 wrong elements (ring 2); do not train with" in err
        assert ("2 wrong elements: ring 2" in out) == (rank == 0)
        assert [said[how][0] for how in ("unchecked", "right")] == [0, 0]


def on_a_known_cluster(rank: int, world_size: int) -> Benchmark:
    cluster = Cluster.preset("1gbe", world_size)
    algorithms = ("auto", "lp", "lp:blocks=3", "native")
    sweep = Sweep("broadcast", (64, 8 << 20), algorithms=algorithms)
    with Communicator(timeout_s=60) as communicator:
        with pytest.raises(InvalidValueError, match="where no cluster is given"):
            bench(communicator, sweep)
        with pytest.raises(InvalidValueError, match="world size of the cluster"):
            bench(communicator, sweep, cluster=Cluster.preset("1gbe", world_size + 1))
        every = bench(communicator, Sweep("reduce", (64,)), Effort(1, 0), cluster=cluster)
        assert [one.contender for one in every.series] == ["auto", *suitable("reduce", "abc")[0]]
        return bench(communicator, sweep, Effort(1, 0), cluster=cluster)


def test_a_known_cluster_gives_auto_and_the_options_of_every_size():
    first, *others = run_ranks(on_a_known_cluster, 3)
    assert all(found == first for found in others)
    assert first.wrong == 0
    assert first.metadata["cluster"] == "3 nodes, 1gbe"
    ran = {
        one.contender: [(point.algorithm, point.options) for point in one.points]
        for one in first.series
    }
    cluster = Cluster.preset("1gbe", 3)
    chosen = [choose(cluster, "broadcast", nbytes) for nbytes in (64, 8 << 20)]
    assert ran["auto"] == [(choice.algorithm, choice.options) for choice in chosen]
    small, large = ran["lp"]
    assert small == ("lp", {"blocks": 1})
    assert large[1]["blocks"] > 1
    assert ran["lp:blocks=3"] == [("lp", {"blocks": 3})] * 2
    assert ran["native"] == [("native", {})] * 2
    assert chosen[0].algorithm != chosen[1].algorithm


def test_ranks_on_hosts_are_offered_the_hierarchies_too():
    flat, _ = suitable("all_reduce", ["a"] * 4)
    deep, cluster = suitable("all_reduce", ["a", "a", "b", "b"])
    assert "two_level" not in flat
    assert {"two_level", "blueconnect"} <= set(deep)
    assert flat[0] == deep[0] == "native"
    assert cluster.world_size == 4


def kept(rank: int, world_size: int) -> tuple[list[list[int]], Benchmark]:
    seen: list[list[int]] = []
    sweep = Sweep(collective="all_reduce", sizes=(4, 64, 1024), algorithms=("ring",))
    with Communicator() as communicator:
        found = bench(
            communicator,
            sweep,
            Effort(iterations=1, warmup=0),
            keep=lambda one: seen.append([point.nbytes for point in one.series[0].points]),
        )
    return seen, found


def test_what_is_measured_can_be_kept_after_each_size():
    for seen, found in run_ranks(kept, 2):
        assert seen == [[4], [4, 64], [4, 64, 1024]]
        assert [point.nbytes for point in found.series[0].points] == seen[-1]
