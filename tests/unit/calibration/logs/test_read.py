"""read_logs: several logs as one cluster, and what is said where they do not tell enough."""

from __future__ import annotations

import gzip
import math
import subprocess
import sys
from pathlib import Path

import pytest

from syncopate.artifacts.cluster import NETWORKS, Cluster
from syncopate.calibration.logs.read import is_log, read_logs
from syncopate.costs.model.collective import collective_costs
from syncopate.errors import (
    ArtifactError,
    CalibrationError,
    InvalidValueError,
    SyncopateError,
    UnknownNameError,
)
from syncopate.schedules.registry import require_curves
from tests.children import environment
from tests.unit.calibration.logs import written
from tests.unit.calibration.logs.written import BW, IPERF, LAT, SIZES, nccl_tests, times_us

RING = "n:1:2 [0] NCCL INFO NCCL_ALGO set by environment to Ring\n"
TREE = "n:1:2 [0] NCCL INFO NCCL_ALGO set by environment to Tree\n"


@pytest.fixture
def made(tmp_path):
    """Read texts as the files of one cluster."""

    def read(*texts: str, **given) -> Cluster:
        paths = []
        for number, text in enumerate(texts):
            paths.append(tmp_path / f"{number}.log")
            paths[-1].write_text(text)
        return read_logs(paths, **given)

    return read


class TestCollectives:
    def test_prices_are_what_was_measured_at_every_size(self, made) -> None:
        cluster = made(nccl_tests())
        require_curves(cluster)
        cost = collective_costs(cluster).of("native")
        for size in SIZES:
            assert float(cost(size)) == pytest.approx(sum(times_us(size)) / 2e6, rel=1e-6)

    def test_one_log_is_given_by_its_path(self, tmp_path) -> None:
        path = tmp_path / "0.log"
        path.write_text(nccl_tests())
        assert read_logs(path) == read_logs([path])
        assert read_logs(str(path)) == read_logs([path])

    def test_levels_hold_what_was_seen_to_pass(self, made) -> None:
        cluster = made(nccl_tests(hosts=4, per_host=8, start_us=140.0, s_per_byte=2e-9))
        device, host = cluster.levels
        assert (device.name, device.size, host.name, host.size) == ("device", 8, "host", 4)
        size = SIZES[-1]
        busbw = 2 * 31 / 32 * size / (sum(times_us(size, 140.0)) / 2e6)
        assert host.bandwidth_bytes_per_s == pytest.approx(busbw)
        # A tree: 2 (8 - 1) messages within hosts, 2 log2 4 between them.
        assert host.latency_s == pytest.approx(0.995 * 140e-6 / 18, rel=0.01)
        assert (
            "18 messages one after the other of a tree, which the log"
            in cluster.metadata["latency"]
        )
        assert "taken to be no faster than between hosts" in cluster.metadata["devices"]

    def test_a_ring_has_more_messages(self, made) -> None:
        cluster = made(nccl_tests(start_us=140.0, before=RING))
        assert cluster.levels[1].latency_s == pytest.approx(0.995 * 140e-6 / 62, rel=0.01)
        assert cluster.metadata["algorithm of all_reduce"].startswith("ring: 8 B to 32.0 MiB, as")

    def test_a_log_of_one_host_tells_its_inside(self, made) -> None:
        inside = nccl_tests(1, 8, start_us=28.0, s_per_byte=1e-10)
        cluster = made(nccl_tests(start_us=140.0), inside)
        device, host = cluster.levels
        assert device.latency_s == pytest.approx(0.995 * 2e-6, rel=0.01)
        assert device.bandwidth_bytes_per_s == pytest.approx(2 * 7 / 8 / 1e-10, rel=0.02)
        assert host.latency_s == pytest.approx(0.995 * (140e-6 - 28e-6) / 4, rel=0.01)
        assert [len(curve.points) for curve in cluster.curves] == [len(SIZES)]

    def test_one_host_alone_is_a_cluster(self, made) -> None:
        cluster = made(nccl_tests(1, 8, start_us=28.0))
        assert [level.name for level in cluster.levels] == ["device"]
        assert cluster.levels[0].latency_s == pytest.approx(0.995 * 2e-6, rel=0.01)
        assert cluster.curve("all_reduce", "native") is not None

    def test_every_collective_has_its_curve(self, made) -> None:
        texts = [nccl_tests(test=t) for t in ("all_reduce", "reduce_scatter", "broadcast")]
        cluster = made("".join(texts[:2]), texts[2])
        assert [curve.collective for curve in cluster.curves] == [
            "all_reduce", "reduce_scatter", "broadcast",
        ]  # fmt: skip

    def test_single_messages_tell_latency_first(self, made) -> None:
        cluster = made(nccl_tests(), nccl_tests(test="sendrecv", start_us=9.0))
        assert cluster.levels[1].latency_s == pytest.approx(0.995 * 9e-6, rel=0.01)
        assert [curve.collective for curve in cluster.curves] == ["all_reduce"]

    def test_several_logs_of_one_test_are_samples(self, made) -> None:
        cluster = made(nccl_tests(), nccl_tests(sizes=SIZES[-3:]))
        counts = [len(point.samples_s) for point in cluster.curves[0].points]
        assert counts == [2] * (len(SIZES) - 3) + [4] * 3

    def test_of_forced_algorithms_the_faster_counts_at_each_size(self, made) -> None:
        ring = nccl_tests(start_us=300.0, s_per_byte=1e-9, before=RING)
        tree = nccl_tests(start_us=100.0, s_per_byte=4e-9, before=TREE)
        cluster = made(ring, tree)
        for point in cluster.curves[0].points:
            both = (times_us(point.nbytes, 300.0, 1e-9), times_us(point.nbytes, 100.0, 4e-9))
            assert point.samples_s == pytest.approx([t * 1e-6 for t in min(both)])
        said = cluster.metadata["algorithm of all_reduce"]
        assert said.startswith("tree: 8 B to 32.0 KiB, as NCCL_ALGO allowed; ring: 128.0 KiB to")

    def test_what_nccl_chose_itself_goes_before_what_it_was_told(self, made) -> None:
        cluster = made(nccl_tests(start_us=300.0), nccl_tests(start_us=100.0, before=TREE))
        assert cluster.curves[0].points[0].samples_s[0] == pytest.approx(300e-6, rel=1e-3)

    def test_ranks_that_do_not_follow_their_hosts_are_placed(self, made) -> None:
        text = nccl_tests(2, 2)
        for rank, host in enumerate((0, 1, 0, 1)):
            line = next(x for x in text.splitlines() if f"Rank  {rank} " in x)
            text = text.replace(line, line.replace(f"node{rank // 2:02d}", f"gpu{host:02d}"))
        cluster = made(text)
        assert cluster.hosts == ("gpu00", "gpu01", "gpu00", "gpu01")
        assert cluster.placement == (0, 2, 1, 3)

    def test_another_number_of_hosts_has_levels_and_no_curves(self, made) -> None:
        cluster = made(nccl_tests(), nodes=64)
        assert (cluster.world_size, cluster.curves) == (512, ())
        assert "the curves of 32 ranks are left out" in cluster.warnings[0]
        assert cluster.levels[1].latency_s == made(nccl_tests()).levels[1].latency_s

    def test_ranks_that_the_log_does_not_tell_are_told(self, made) -> None:
        text = nccl_tests(8, 32)
        listed = text[text.index("# Using") : text.index(written.NEW)]
        bare = text.replace(listed, "")
        cluster = made(bare, nodes=8, ranks_per_host=32)
        assert cluster.world_size == 256
        assert cluster.curves == made(text).curves
        assert cluster.levels == made(text).levels
        with pytest.raises(
            CalibrationError, match=r"it is not in the log.*give --nodes and --ranks"
        ):
            made(bare)


class TestLinks:
    def test_a_rate_and_a_latency_by_two_tools(self, made) -> None:
        cluster = made(BW, LAT, nodes=16)
        (host,) = cluster.levels
        assert (host.size, host.bandwidth_bytes_per_s) == (16, 11600 * 2**20)
        assert host.latency_s == pytest.approx(1.8e-6, rel=0.01)
        assert cluster.metadata["latency"].startswith("fitted to single messages:")

    def test_one_size_of_a_latency_will_do(self, made) -> None:
        text = LAT[: LAT.index(" 4096")]
        assert made(BW, text).levels[0].latency_s == pytest.approx(1.8e-6)

    def test_latency_by_hand(self, made) -> None:
        cluster = made(IPERF, latency_s=33e-6)
        assert cluster.levels[0].latency_s == 33e-6
        assert cluster.levels[0].bandwidth_bytes_per_s == pytest.approx(9.22e9 / 8)
        assert cluster.metadata["latency"] == "given by hand"

    def test_latency_of_a_typical_network_is_said_to_be_no_measurement(self, made) -> None:
        cluster = made(IPERF, network="10gbe", nodes=8)
        assert cluster.levels[0].latency_s == NETWORKS["10gbe"][0]
        assert cluster.metadata["latency"] == (
            "no log tells it: typical of 10gbe, which was not measured here"
        )

    def test_a_measured_latency_goes_before_a_typical_one(self, made) -> None:
        assert made(BW, LAT, network="10gbe").levels[0].latency_s < 2e-6

    def test_hosts_by_a_collective_and_the_network_by_links(self, made) -> None:
        cluster = made(nccl_tests(1, 8, start_us=28.0), BW, LAT, nodes=4)
        device, host = cluster.levels
        assert (device.size, host.size) == (8, 4)
        assert device.latency_s == pytest.approx(0.995 * 2e-6, rel=0.01)
        assert host.bandwidth_bytes_per_s == 11600 * 2**20
        assert cluster.curves == ()

    def test_the_slowest_pair_counts_and_is_told(self, made) -> None:
        slow = IPERF.replace("9.22 Gbits", "3.00 Gbits")
        cluster = made(IPERF, IPERF, slow, latency_s=1e-5)
        assert cluster.levels[0].bandwidth_bytes_per_s == pytest.approx(3e9 / 8)
        assert "2.log: 3.00 Gbit/s, where the typical pair reaches 9.22" in cluster.warnings[0]


@pytest.mark.parametrize(
    ("texts", "given", "error", "said"),
    [
        ([IPERF], {}, CalibrationError, "no log tells the latency of small messages: iperf3 me"),
        ([BW], {}, CalibrationError, "ib_write_bw measured large ones alone; give a log of ib_wr"),
        ([LAT], {}, CalibrationError, "no log tells the bandwidth between hosts"),
        (
            [nccl_tests(sizes=SIZES[8:])],
            {},
            CalibrationError,
            "latency of small messages: nccl-tests measured large ones alone",
        ),
        (
            [nccl_tests(), nccl_tests(2, 8)],
            {},
            CalibrationError,
            "has 16 ranks on 2 hosts, and",
        ),
        ([nccl_tests(1, 8)], {"nodes": 4}, CalibrationError, "no log tells the bandwidth between"),
        (
            [nccl_tests(1, 8)],
            {"latency_s": 1e-5},
            InvalidValueError,
            "left out: the logs are of one host",
        ),
        ([BW], {"nodes": 1, "latency_s": 0.0}, InvalidValueError, "ranks is 1; it must be at"),
        ([BW], {"nodes": 0}, InvalidValueError, "nodes is 0; it must be an integer >= 1"),
        ([BW], {"network": "ib"}, UnknownNameError, "unknown network 'ib'; known: 1gbe"),
        (["hello\nthere"], {}, ArtifactError, "begins with 'hello'; expected a log of nccl-tests"),
        (["  \n"], {}, ArtifactError, "it is empty"),
        (["\0\1"], {}, ArtifactError, "no text, and so no log"),
        (['{"kind": "cluster"}'], {}, ArtifactError, "expected a log of nccl-tests"),
    ],
)  # fmt: skip
def test_refusals(made, texts, given, error, said) -> None:
    with pytest.raises(error) as raised:
        made(*texts, **given)
    assert said in str(raised.value)


def test_files_are_known_by_their_content(tmp_path) -> None:
    for number, text in enumerate((nccl_tests(), BW, LAT, IPERF, written.OLD)):
        (tmp_path / str(number)).write_text(text)
        assert is_log(tmp_path / str(number))
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(nccl_tests().encode()))
    assert is_log(packed)
    assert read_logs([packed]).world_size == 32
    for number, text in enumerate(('{"traceEvents": []}', '{"kind": "timeline"}', "a,b\n1,2", "")):
        (tmp_path / f"not{number}").write_text(text)
        assert not is_log(tmp_path / f"not{number}")
    assert not is_log(tmp_path)
    assert not is_log(tmp_path / "none")


def test_any_damage_is_one_error_or_a_cluster(tmp_path) -> None:
    """A log that is cut off anywhere gives an error of the house, and no other."""
    path = tmp_path / "log"
    for text in (nccl_tests(2, 2), BW + LAT, IPERF):
        for end in range(0, len(text), max(len(text) // 60, 1)):
            path.write_text(text[:end])
            try:
                cluster = read_logs([path], latency_s=1e-5)
            except SyncopateError:
                continue
            rates = [level.bandwidth_bytes_per_s for level in cluster.levels]
            assert all(0 < rate < math.inf for rate in rates)


def test_reading_logs_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(nccl_tests())
    script = (
        "import sys; from syncopate.calibration.logs.read import read_logs; "
        "print(read_logs(sys.argv[1:]).world_size, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "log")],
        check=False, capture_output=True, text=True, env=environment(),
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("32 False\n", "")
