"""The campaign's arithmetic and its report; the figures themselves are for quiet machines."""

from __future__ import annotations

import json
import math

import pytest
from benchmarks.campaign import bounds, fig4, parts, report, results, targets, timing
from benchmarks.campaign.results import Cell, PartResult, Sampled, Saying, Scene, Stream
from reproduce import linear_pipeline

import syncopate.costs.model.bound
from syncopate.artifacts.cluster import Level
from syncopate.benchmarking.sweep import parse_algorithm
from syncopate.errors import UnknownNameError
from syncopate.lab import Topology
from syncopate.schedules.registry import build
from syncopate.units import KIB, MIB

RATE = 1e9 / 8 * 1448 / 1514
RACKS = next(part for part in parts.PARTS if part.name == "racks").topology


@pytest.mark.parametrize(
    ("collective", "least"),
    [("all_reduce", 1.5), ("reduce_scatter", 0.75), ("all_gather", 0.75), ("broadcast", 1.0)],
)
def test_the_bound_is_the_least_bytes_at_the_rate_of_payload(collective, least):
    found = bounds.bound_s(Topology(hosts=4), collective, MIB)
    assert found == pytest.approx(least * MIB / RATE)


@pytest.mark.parametrize("uplink", [1e9 / 8, 0.25e9 / 8])
def test_the_bound_between_racks_is_the_one_that_plans_are_held_to(uplink):
    topology = Topology(hosts=8, racks=2, uplink_bytes_per_s=uplink, placement="alternating")
    found = bounds.bound_s(topology, "all_reduce", MIB)
    assert found == pytest.approx(syncopate.costs.model.bound.wire_s(topology.cluster(), MIB))
    # An uplink carries n, the link of each of eight hosts 1.75 n.
    assert found == pytest.approx(MIB / RATE * max(1.75, 1e9 / 8 / uplink))


def test_part_of_the_hosts_have_a_bound_of_their_own():
    assert bounds.bound_s(Topology(hosts=8), "all_reduce", MIB, hosts=2) == pytest.approx(
        MIB / RATE
    )


def test_what_schedules_put_on_links():
    count = 1 << 12
    ring = bounds.sent_bytes(build("all_reduce", "ring", 8), RACKS, count, 4)
    assert {ring[f"host{host}"] / (4 * count) for host in range(8)} == {1.75}
    assert ring["rack0"] == ring["rack1"] == 7 * 4 * count
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    ordered = bounds.sent_bytes(build("all_reduce", "ring", 8, order=order), RACKS, count, 4)
    assert ordered["rack0"] == 1.75 * 4 * count
    two_each = Topology(hosts=4, ranks_per_host=2)
    staged = build("all_reduce", "blueconnect", 8, factors=(2, 4))
    sent = bounds.sent_bytes(staged, two_each, count, 4)
    assert set(sent) == {"host0", "host1", "host2", "host3"}
    assert set(sent.values()) == {1.5 * 4 * count}


def cell(collective: str, nbytes: int, ranks: int, **medians_s: float) -> Cell:
    contenders = {
        name: Sampled(samples_s=(0.99 * s, s, 1.01 * s), ran=name) for name, s in medians_s.items()
    }
    return Cell(
        collective=collective, nbytes=nbytes, world_size=ranks, contenders=contenders, wrong=0
    )


def test_a_call_lasts_from_the_last_start_to_the_last_end():
    spans = [(10.0, 15.0), (12.0, 15.5)]
    assert timing.from_last_start(spans) == 3.5
    assert timing.longest(spans) == 5.0


def test_noise_is_a_small_difference_or_quartiles_that_overlap():
    assert cell("reduce", 4, 4, auto=1.1, native=1.0).slower("auto", "native")
    assert not cell("reduce", 4, 4, auto=1.04, native=1.0).slower("auto", "native")
    assert not cell("reduce", 4, 4, auto=1.0, native=1.1).slower("auto", "native")
    wide = Sampled(samples_s=(0.5, 1.0, 2.0, 3.0))
    narrow = Sampled(samples_s=(1.3, 1.3, 1.3))
    overlapping = Cell(
        collective="reduce",
        nbytes=4,
        world_size=4,
        contenders={"auto": wide, "native": narrow},
        wrong=0,
    )
    assert not overlapping.slower("auto", "native")


def test_streams_between_the_sizes_measured():
    streams = [
        Stream(nbytes=size, everyone=False, samples_s=(seconds,))
        for size, seconds in ((100, 1.0), (300, 2.0))
    ]
    found = [results.stream_s(streams, n, everyone=False) for n in (50, 100, 200, 300, 600)]
    assert found == pytest.approx([0.5, 1.0, 1.5, 2.0, 4.0])
    assert math.isnan(results.stream_s(streams, 100, everyone=True))


@pytest.mark.parametrize(
    "text", ["native", "lp:blocks=8", "blueconnect:factors=4x2:stages=ring+recursive:pipelines=4"]
)
def test_labels_are_what_bench_reads(text):
    name, options = parse_algorithm("all_reduce", text)
    assert results.label(name, options) == text


def test_parts_by_name_and_by_lab():
    assert [part.name for part in parts.chosen(["flat"])] == ["flat4", "flat8"]
    groups = [[part.name for part in group] for group in parts.by_lab(parts.chosen([]))]
    assert ["flat8", "pipeline8"] in groups
    assert ["failures"] in groups
    assert sum(map(len, groups)) == len(parts.PARTS)
    with pytest.raises(UnknownNameError, match="known: flat4"):
        parts.chosen(["round"])


def result(name: str, **fields: object) -> PartResult:
    topology = next(part.topology for part in parts.PARTS if part.name == name)
    whole = {"command": "python x", "quick": False, "elapsed_s": 1.0} | fields
    return PartResult(part=name, topology=topology, **whole)


def flat8(factor: float) -> PartResult:
    """A part in which everything takes ``factor`` times its bound."""

    def at(collective: str, nbytes: int) -> Cell:
        seconds = factor * bounds.bound_s(Topology(hosts=8), collective, nbytes)
        return cell(collective, nbytes, 8, auto=seconds, native=3.5 * seconds)

    return result(
        "flat8",
        cells=(at("all_reduce", 64 * KIB), at("all_reduce", 16 * MIB), at("broadcast", 64 * MIB)),
        streams=(Stream(nbytes=16 * MIB, everyone=True, samples_s=(0.2,)),),
    )


@pytest.mark.parametrize(("factor", "share"), [(1.02, True), (1.2, False)])
def test_targets_are_met_or_not(factor, share):
    found = {target.what: target for target in targets.targets(flat8(factor))}
    assert len(found) == 4
    assert found["all_reduce of 16.0 MiB: of the line-rate bound"].met == share
    assert found["broadcast of 64.0 MiB: of the line-rate bound"].met == share
    assert found["all_reduce of 64.0 KiB: faster than Gloo's own"].figures == (
        "3.50x",
        ">= 3.00x",
    )
    assert all(target.met for what, target in found.items() if "of the line" not in what)


def test_calibration_finds_the_racks_or_does_not():
    levels = tuple(
        Level(name=name, size=size, latency_s=1e-4, bandwidth_bytes_per_s=1e8)
        for name, size in (("host", 4), ("rack", 2))
    )
    for placement, share in (((0, 2, 4, 6, 1, 3, 5, 7), 1.0), ((), 0.5)):
        (found,) = targets.targets(result("racks", levels=levels, placement=placement))
        assert found.value == share
    (found,) = targets.targets(result("racks", levels=levels[:1]))
    assert found.value == 0.0


@pytest.mark.parametrize(("third", "named_s"), [(True, 7.5), (False, None)])
def test_who_named_the_lost_host_and_when(third, named_s):
    heard = Saying(ranks=(0, 1), seconds=2.0, text="rank 2 was lost", names=True)
    late = Saying(ranks=(3,), seconds=7.5, text="rank 2 was lost", names=third)
    scene = Scene(title="x", limit_s=5.0, by=(0, 1, 3), sayings=(heard, late))
    assert scene.named_s == named_s
    (found,) = targets.targets(result("failures", scenes=(scene,)))
    assert not found.met
    assert found.figures[0] == ("7.5 s" if third else "never")


def pipeline8() -> PartResult:
    level = Level(name="host", size=8, latency_s=1e-4, bandwidth_bytes_per_s=1e8)
    cells = []
    for ranks, seconds in ((2, 0.7), (4, 0.71), (8, 0.72)):
        found = cell("broadcast", 64 * MIB, ranks, lp=seconds, mst=2.0, be=1.2, native=4.0)
        lp = Sampled(samples_s=found.contenders["lp"].samples_s, ran="lp:blocks=64")
        rest = {n: Sampled(samples_s=s.samples_s) for n, s in found.contenders.items() if n != "lp"}
        cells.append(
            Cell(
                collective="broadcast",
                nbytes=64 * MIB,
                world_size=ranks,
                contenders={"lp": lp, **rest},
                wrong=0,
            )
        )
    return result("pipeline8", cells=tuple(cells), levels=(level,))


def test_fig_4_is_what_the_reproduction_reads(tmp_path):
    path = tmp_path / "linear_pipeline_8hosts.json"
    path.write_text(json.dumps(fig4.measurement(pipeline8())))
    measured = linear_pipeline.read_measured(path)
    rows = linear_pipeline.beside_prices(measured)
    assert [row.ranks for row in rows] == [2, 4, 8]
    assert rows[2].over_fewest[0] == pytest.approx(0.72 / 0.7)
    assert rows[2].speedups["native"] == (pytest.approx(4.0 / 0.72), None)
    assert rows[2].speedups["mst"][1] == pytest.approx(3.0, rel=0.2)


def test_the_report_has_every_part_and_says_what_was_missed(tmp_path):
    scene = Scene(title="A host dies", limit_s=5.0, by=(0,), sayings=())
    everything = [
        result("failures", scenes=(scene,)),
        flat8(1.2),
        pipeline8(),
        result("nodes", cells=(cell("all_reduce", MIB, 8, auto=0.1, native=0.2),)),
    ]
    text = report.report(everything, "folder")
    heads = [line for line in text.splitlines() if line.startswith("## ")]
    assert heads[0] == "## Targets met"
    assert len(heads) == 5
    assert "**not met**" in text
    assert "`folder/flat8.json`" in text
    assert "no figure here counts" not in text
    path = everything[1].save(tmp_path / "flat8.json")
    assert PartResult.load(path) == everything[1]
    hasty = report.report([result("flat4", quick=True)], "folder")
    assert "no figure here counts" in hasty
