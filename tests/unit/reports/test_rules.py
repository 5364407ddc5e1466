"""Rules of other libraries, read back as strictly as the libraries' own readers do and more."""

from __future__ import annotations

import json

import pytest

from syncopate.cluster import Cluster, Level
from syncopate.costs.tabulate import decision_table
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.reports.nccl_tuner import LARGEST_BYTES, nccl_tuner
from syncopate.reports.open_mpi import open_mpi
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
