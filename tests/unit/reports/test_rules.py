"""Rules of other libraries, read back as strictly as the libraries' own readers do and more."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.artifacts.cluster import Cluster, Level
from syncopate.artifacts.results.decision_table import (
    Candidate,
    CollectiveDecisions,
    DecisionTable,
    SizeRange,
)
from syncopate.costs.decide.tabulate import decision_table
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.reports.rules.nccl_tuner import LARGEST_BYTES, nccl_tuner
from syncopate.reports.rules.open_mpi import open_mpi
from tests.unit import examples

NCCL_ALGORITHMS = {
    "allreduce": {"tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree"},
    "reducescatter": {"ring", "pat", "nvls", "collnet_direct"},
    "allgather": {"ring", "pat", "nvls", "collnet_direct"},
    "broadcast": {"ring"},
    "reduce": {"ring"},
}
"""What NCCL's cost table has an entry for, by the names of the plug-in."""

OPEN_MPI_ALGORITHMS = {
    "allreduce": {
        "basic_linear", "nonoverlapping", "recursive_doubling", "ring", "segmented_ring",
        "rabenseifner", "allgather_reduce",
    },
    "bcast": {
        "basic_linear", "chain", "pipeline", "split_binary_tree", "binary_tree", "binomial",
        "knomial", "scatter_allgather", "scatter_allgather_ring",
    },
    "reduce": {
        "linear", "chain", "pipeline", "binary", "binomial", "in-order_binary", "rabenseifner",
        "knomial",
    },
    "allgather": {
        "linear", "bruck-k-fanout", "recursive_doubling", "ring", "neighbor", "two_proc",
        "sparbit", "direct-messaging",
    },
    "reduce_scatter": {"non-overlapping", "recursive_halving", "ring", "butterfly"},
    "reduce_scatter_block": {
        "basic_linear", "recursive_doubling", "recursive_halving", "butterfly",
    },
}  # fmt: skip
"""What Open MPI 6 calls the algorithms of its tuned component, by its names of the collectives."""


def restrict(cluster):
    def decide(collective, names):
        found = decision_table(cluster, (collective,), {collective: names}).collectives
        return found[0] if found else None

    return decide


def tuner(cluster, **options):
    return nccl_tuner(decision_table(cluster), restrict(cluster), **options)


def rules(cluster):
    return open_mpi(decision_table(cluster), restrict(cluster))


def read_tuner(text, hosts, ranks):
    """Read as the plug-in does; return (collective, size) -> (algorithm, protocol, channels)."""
    lines = []
    for line in text.splitlines():
        assert len(line) < 255
        if not line or line.startswith("#"):
            continue
        name, low, high, algorithm, protocol, channels, *rest = line.split(",")
        assert algorithm in NCCL_ALGORITHMS[name]
        assert protocol in {"ll", "ll128", "simple"}
        assert 0 <= int(low) <= int(high) < 2**64
        assert int(channels) == -1 or int(channels) >= 1
        assert [int(item) for item in rest] == [hosts, ranks, -1, -1]
        # The first that matches is taken: of sizes on two lines the second would be ignored.
        assert all(found[0] != name or found[2] < int(low) for found in lines)
        lines.append((name, int(low), int(high), algorithm, protocol, int(channels)))

    def lookup(collective, nbytes):
        for name, low, high, *found in lines:
            if name == collective and low <= nbytes <= high:
                return tuple(found)
        return None

    return lookup


def read_rules(text, ranks):
    """Read as Open MPI does, refusing what it would ignore; return a look-up like the above."""
    document = json.loads(text)
    assert set(document) == {"rule_file_version", "module", "collectives"}
    assert (document["rule_file_version"], document["module"]) == (3, "tuned")
    assert set(document["collectives"]) <= set(OPEN_MPI_ALGORITHMS)
    for name, sets in document["collectives"].items():
        for each in sets:
            assert set(each) == {"comm_size_min", "comm_size_max", "rules"}
            assert each["comm_size_min"] == each["comm_size_max"] == ranks
            for rule in each["rules"]:
                assert set(rule) <= {"msg_size_min", "msg_size_max", "alg", "seg_size", "faninout"}
                assert rule["alg"] in OPEN_MPI_ALGORITHMS[name]
                assert isinstance(rule["msg_size_min"], int)
                assert rule["msg_size_max"] == "inf" or isinstance(rule["msg_size_max"], int)
                assert ("seg_size" in rule) == (rule["alg"] == "pipeline")
                assert ("faninout" in rule) == (rule["alg"] == "bruck-k-fanout")

    def lookup(collective, nbytes):
        for each in document["collectives"].get(collective, ()):
            for rule in each["rules"]:
                high = rule["msg_size_max"]
                if rule["msg_size_min"] <= nbytes and (high == "inf" or nbytes <= high):
                    return rule
        return None

    return lookup


SIZES = (0, 1, 4, 16 * 1024, 16 * 1024 + 1, 1 << 20, 1 << 26, 1 << 34)


@pytest.mark.parametrize("nodes", [1, 2, 3, 8, 12])
def test_every_file_is_read_without_a_gap(nodes):
    cluster = Cluster.preset("10gbe", nodes)
    lookup = read_tuner(tuner(cluster).text, nodes, nodes)
    assert lookup("broadcast", 4) is None
    other = read_rules(rules(cluster).text, nodes)
    if nodes == 1:
        return
    for nbytes in (*SIZES, LARGEST_BYTES):
        assert lookup("allreduce", nbytes) is not None
        for name in ("allreduce", "bcast", "reduce", "allgather", "reduce_scatter"):
            assert other(name, nbytes) is not None


def test_nccl_is_told_the_best_of_what_it_has():
    cluster = Cluster.preset("10gbe", 8)
    made = tuner(cluster)
    lookup = read_tuner(made.text, 8, 8)
    assert lookup("allreduce", 4) == ("tree", "ll", -1)
    assert lookup("allreduce", 20_000) == ("tree", "simple", -1)
    assert lookup("allreduce", 1 << 26) == ("ring", "simple", -1)
    assert lookup("allgather", 4) == ("pat", "simple", -1)
    first, *_ = made.notes
    assert first.startswith("allreduce up to 83.1 KiB: recursive_doubling is the fastest here")
    assert "NCCL has no counterpart; tree" in first
    assert "2.00x as long" in first
    assert any(note.startswith("broadcast: no rules; NCCL has ring alone") for note in made.notes)
    assert "single one" in made.notes[-1]


def test_protocol_and_channels_can_be_given():
    cluster = Cluster.preset("10gbe", 8)
    made = tuner(cluster, protocol="ll128", channels=8)
    lookup = read_tuner(made.text, 8, 8)
    assert lookup("allreduce", 4) == ("tree", "ll128", 8)
    assert lookup("allgather", 4) == ("pat", "simple", 8)
    assert not any("single one" in note for note in made.notes)
    with pytest.raises(UnknownNameError, match="unknown protocol 'll256'; known: ll, ll128"):
        tuner(cluster, protocol="ll256")
    with pytest.raises(InvalidValueError, match="channels is 0"):
        tuner(cluster, channels=0)


def test_several_ranks_on_a_host_leave_nccl_one_algorithm_for_shards():
    levels = (
        Level(name="device", size=4, latency_s=5e-6, bandwidth_bytes_per_s=10e9),
        Level(name="host", size=2, latency_s=50e-6, bandwidth_bytes_per_s=1.25e9),
    )
    cluster = Cluster(name="two\nhosts", levels=levels)
    made = tuner(cluster)
    lookup = read_tuner(made.text, 2, 8)
    ours = {r.chosen.algorithm for r in decision_table(cluster).of("all_gather").ranges}
    assert "ring" not in ours
    assert lookup("allgather", 4) is None
    assert any(n.startswith("allgather") and n.endswith("NCCL decides") for n in made.notes)


def test_open_mpi_is_told_names_segments_and_fan_out():
    lookup = read_rules(rules(Cluster.preset("10gbe", 8)).text, 8)
    assert lookup("allreduce", 4)["alg"] == "recursive_doubling"
    assert lookup("allreduce", 1 << 26)["alg"] == "rabenseifner"
    assert lookup("bcast", 4)["alg"] == "binomial"
    assert lookup("bcast", 1 << 20)["alg"] == "scatter_allgather"
    assert lookup("allgather", 4)["alg"] == "recursive_doubling"
    assert lookup("reduce_scatter_block", 4)["alg"] == "recursive_halving"
    pipeline = lookup("bcast", 36_000_000)
    assert pipeline["alg"] == "pipeline"
    assert pipeline["seg_size"] == pytest.approx(36_000_000 / 64, rel=0.05)
    odd = read_rules(rules(Cluster.preset("10gbe", 6)).text, 6)
    assert odd("allgather", 4)["alg"] == "bruck-k-fanout"
    assert odd("allgather", 4)["faninout"] == 2
    assert odd("reduce_scatter", 4)["alg"] == "butterfly"


def test_measured_decisions_are_kept_where_they_have_a_counterpart():
    made = rules(examples.steady_cluster())
    lookup = read_rules(made.text, 4)
    assert lookup("allreduce", 1024)["alg"] == "recursive_doubling"
    assert lookup("allreduce", 1 << 20)["alg"] == "ring"
    assert not any(note.startswith("allreduce") for note in made.notes)
    missing = tuner(examples.steady_cluster())
    note = missing.notes[0]
    assert note.endswith(
        "recursive_doubling is the fastest here, and NCCL has no counterpart; no rule, NCCL decides"
    )


def decided(collective, *ranges):
    """Make decisions by hand; each range is (the largest size or None, its candidates in turn)."""
    found, low = [], 0
    for high, (chosen, *others) in ranges:
        at = low + 1 if high is None else high
        found.append(
            SizeRange(min_bytes=low, max_bytes=high, at_bytes=at, chosen=chosen, others=(*others,))
        )
        low = at + 1
    return CollectiveDecisions(collective=collective, basis="priced", ranges=tuple(found))


def takes(algorithm, expected_s=1.0, **options):
    return Candidate(algorithm=algorithm, options=options, expected_s=expected_s)


def of_hand(collectives, library, among=None):
    """Return the look-up and notes of a library that is told decisions made by hand."""
    table = DecisionTable(
        cluster="by hand", world_size=8, hosts=8, probed=False, collectives=collectives
    )

    def restrict(collective, names):
        return among or table.of(collective)

    made = library(table, restrict)
    read = read_rules(made.text, 8) if library is open_mpi else read_tuner(made.text, 8, 8)
    return read, made.notes


def test_a_range_holds_its_largest_size():
    ranges = (
        (1000, [takes("mst"), takes("ring")]),
        (40_000, [takes("ring"), takes("mst")]),
        (50_000, [takes("binary_tree"), takes("ring")]),
        (None, [takes("ring"), takes("mst")]),
    )
    lookup, notes = of_hand((decided("all_reduce", *ranges),), nccl_tuner)
    assert lookup("allreduce", 1000) == ("tree", "ll", -1)
    assert lookup("allreduce", 1001) == ("ring", "ll", -1)
    assert lookup("allreduce", 16 * 1024) == ("ring", "ll", -1)
    assert lookup("allreduce", 16 * 1024 + 1) == ("ring", "simple", -1)
    assert lookup("allreduce", 40_000) == ("ring", "simple", -1)
    assert lookup("allreduce", 40_001) == ("tree", "simple", -1)
    assert lookup("allreduce", 50_000) == ("tree", "simple", -1)
    assert lookup("allreduce", 50_001) == ("ring", "simple", -1)
    assert not any(note.startswith("allreduce") for note in notes)
    assert lookup("allreduce", 2**64 - 1) == ("ring", "simple", -1)
    ranges = (
        (1000, [takes("recursive_doubling"), takes("ring")]),
        (5_000_000, [takes("ring"), takes("be")]),
        (6_000_000, [takes("be"), takes("ring")]),
        (7_000_000, [takes("halving_doubling"), takes("ring")]),
        (None, [takes("ring"), takes("be")]),
    )
    lookup, notes = of_hand((decided("all_reduce", *ranges),), open_mpi)
    for nbytes, algorithm in (
        (1000, "recursive_doubling"),
        (1001, "ring"),
        (5_000_000, "ring"),
        (5_000_001, "rabenseifner"),
        (7_000_000, "rabenseifner"),
        (7_000_001, "ring"),
    ):
        assert lookup("allreduce", nbytes)["alg"] == algorithm
    both = lookup("allreduce", 6_000_000)
    assert (both["msg_size_min"], both["msg_size_max"]) == (5_000_001, 7_000_000)
    assert notes == ()


def test_a_range_may_be_a_single_size():
    ranges = (
        (0, [takes("mst"), takes("ring")]),
        (1, [takes("ring"), takes("mst")]),
        (None, [takes("mst"), takes("ring")]),
    )
    lookup, _ = of_hand((decided("all_reduce", *ranges),), nccl_tuner)
    assert [lookup("allreduce", size)[0] for size in (0, 1, 2)] == ["tree", "ring", "tree"]


def test_neighbours_of_one_rule_are_one_line():
    ranges = (
        (9, [takes("mst"), takes("ring")]),
        (99, [takes("binary_tree"), takes("ring")]),
        (None, [takes("ring"), takes("mst")]),
    )
    decisions = (decided("all_reduce", *ranges), decided("all_gather", (None, [takes("ring")])))
    table = DecisionTable(
        cluster="by hand", world_size=8, hosts=2, probed=False, collectives=decisions
    )
    text = nccl_tuner(table, lambda collective, names: table.of(collective)).text
    rows = [line.split(",")[:5] for line in text.splitlines() if not line.startswith("#")]
    assert [row for row in rows if row[0] == "allreduce"] == [
        ["allreduce", "0", "99", "tree", "ll"],
        ["allreduce", "100", "16384", "ring", "ll"],
        ["allreduce", "16385", str(2**64 - 1), "ring", "simple"],
    ]


def test_neighbours_of_other_segments_stay_apart():
    ranges = (
        (1 << 20, [takes("lp", blocks=4), takes("mst")]),
        (None, [takes("lp", blocks=8), takes("mst")]),
    )
    lookup, _ = of_hand((decided("broadcast", *ranges),), open_mpi)
    assert lookup("bcast", 1 << 20)["seg_size"] == 1 << 18
    assert lookup("bcast", (1 << 20) + 1)["seg_size"] == (1 << 17) + 64


@pytest.mark.parametrize(
    ("middle", "instead"), [(1000, "tree, the fastest of what it has, takes 2.00x"), (1001, "ring")]
)
def test_what_stands_in_is_the_best_at_the_size_that_stands_for_the_range(middle, instead):
    """Also where that size is the largest of the range of what stands in."""
    candidates = [takes("lp"), takes("mst", 2.0), takes("ring", 3.0)]
    ours = decided("all_reduce", (middle, candidates), (None, [takes("ring"), takes("mst")]))
    theirs = decided(
        "all_reduce", (1000, [takes("mst"), takes("ring")]), (None, [takes("ring"), takes("mst")])
    )
    _, notes = of_hand((ours,), nccl_tuner, theirs)
    assert f"lp is the fastest here, and NCCL has no counterpart; {instead}" in notes[0]


@given(nbytes=st.integers(1, 1 << 36), blocks=st.integers(1, 4096))
def test_segments_are_the_shortest_that_are_no_more_than_the_blocks(nbytes, blocks):
    ranges = (
        (nbytes, [takes("lp", blocks=blocks), takes("mst")]),
        (None, [takes("mst"), takes("lp")]),
    )
    lookup, _ = of_hand((decided("broadcast", *ranges),), open_mpi)
    length = lookup("bcast", nbytes)["seg_size"]
    assert length % 64 == 0
    assert -(-nbytes // length) <= blocks
    assert (length - 64) * blocks < nbytes
