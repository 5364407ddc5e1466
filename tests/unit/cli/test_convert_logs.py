"""``syncopate convert`` of logs of other tools."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster, Interference
from syncopate.artifacts.workload import Workload
from syncopate.cli.common.machines import machines
from tests.unit.calibration.logs.written import BW, IPERF, LAT, nccl_tests

FILES = {"ar.log": nccl_tests(), "bw.log": BW, "lat.log": LAT, "iperf.log": IPERF}


@pytest.fixture
def convert(run, tmp_path):
    """Run the command in a folder with logs; return code, output, errors."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return lambda line: run(f"convert {line}")


def test_a_log_becomes_a_cluster_that_can_be_planned_for(convert, run) -> None:
    code, out, err = convert("ar.log -o made.json")
    assert (code, out) == (0, "")
    assert "note: latency: fitted to the start-up of all_reduce in ar.log, 18 messages" in err
    assert "note: devices: no log of one host tells its inside" in err
    assert "note: overlap: an assumption: computation beside a collective at 84%" in err
    assert err.endswith("wrote made.json\n")
    code, out, _ = run("plan -w workload.json -c made.json --policy optimal -o plan.json")
    assert (code, "native" in out) == (0, True)


def test_it_is_printed_where_no_file_is_named(convert) -> None:
    code, out, _ = convert("bw.log lat.log --nodes 16")
    assert (code, Cluster.from_json(out).world_size) == (0, 16)


def test_what_logs_do_not_tell_is_said_by_options(convert) -> None:
    cluster = Cluster.from_json(convert("iperf.log --latency 20us --nodes 4 --ranks-per-host 8")[1])
    assert [level.latency_s for level in cluster.levels] == pytest.approx([20e-6, 20e-6])
    assert [level.size for level in cluster.levels] == [8, 4]
    code, out, err = convert("iperf.log --network 10gbe --nodes 4 --to cluster")
    assert code == 0
    assert Cluster.from_json(out).reduction_s_per_byte == 2.5e-10
    assert "note: latency: no log tells it: typical of 10gbe, which was not measured here" in err


def test_a_log_becomes_rules_of_other_libraries(convert) -> None:
    code, out, _ = convert("bw.log lat.log --nodes 8 --to nccl-tuner")
    assert (code, out.startswith("#") or "allreduce" in out) == (0, True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("iperf.log", "no log tells the latency of small messages: iperf3 measured large ones"),
        ("iperf.log --latency fast", "duration is 'fast'; it must be a number and one of ns, us"),
        ("workload.json --to cluster", "workload.json: begins with '{'; expected a log of nccl-"),
        ("ar.log workload.json", "workload.json: begins with '{'; expected a log of nccl-tests"),
        ("ar.log --collective all_redcue", "unknown collective 'all_redcue'; known: all_reduce"),
        (
            "--latency 3us --network 10gbe --nodes 2",
            "FILE is not given; it must be given with --latency",
        ),
        ("none.log --to cluster", "none.log: cannot be read: No such file or directory"),
        ("ar.log --to perfetto", "expected a timeline, files of `syncopate record`"),
        ("ar.log --channels 3", "--channels is 3; it must be left out"),
    ],
)
def test_refusals(convert, line, said) -> None:
    code, out, err = convert(line)
    assert (code in (1, 2), out) == (True, "")
    assert said in err
    assert err.count("error: ") == 1


def test_a_typical_network_has_a_default_of_what_overlap_costs() -> None:
    assert machines(network="10gbe", nodes=4).interference == Interference(
        compute_rate=1 / 1.189, collective_stretch=1.3
    )


def test_what_is_assumed_is_said_where_it_is_used(run) -> None:
    run("profile syncopate.zoo:lenet5 --on v100 -o absent.json")
    for line in ("plan -w absent.json --policy wfbp", "simulate -w absent.json -p plan.json"):
        code, _, err = run(f"{line} --network 10gbe --nodes 4 -o {line.split()[0]}.json")
        assert code == 0
        assert "note: times: an assumption: the roofline of NVIDIA V100 SXM2" in err
        assert "note: overlap: an assumption: computation beside a collective at 84%" in err
    assert "note: " not in run("plan -w workload.json -c cluster.json")[2]
    measured = replace(Workload.load("workload.json"), interference=Interference(compute_rate=0.9))
    measured.save("measured.json")
    code, _, err = run("plan -w measured.json --policy wfbp --network 10gbe --nodes 4 -o plan.json")
    assert (code, "note: overlap" in err) == (0, False)
