"""Logs of iperf3 and perftest: rates and latencies between two hosts."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from syncopate.artifacts.artifact import TOO_DEEP
from syncopate.artifacts.overlap import RDMA, TCP
from syncopate.calibration.logs.iperf import is_iperf, read_iperf
from syncopate.calibration.logs.measured import LinkLog
from syncopate.calibration.logs.perftest import is_perftest, read_perftest
from syncopate.calibration.logs.text import lines_of
from syncopate.errors import ArtifactError
from tests.unit.calibration.logs.written import BW, IPERF, LAT


def iperf(text: str) -> LinkLog:
    assert is_iperf(text)
    (found,) = read_iperf("log", text, lines_of(text))
    return found


def perftest(text: str) -> LinkLog:
    assert is_perftest(text)
    (found,) = read_perftest("log", lines_of(text))
    return found


def gbit(log: LinkLog) -> float:
    assert log.rate_bytes_per_s is not None
    return log.rate_bytes_per_s * 8 / 1e9


def document(**changes: Any) -> str:
    made: dict[str, Any] = {
        "start": {"test_start": {"protocol": "TCP", "num_streams": 1, "target_bitrate": 0}},
        "intervals": [],
        "end": {
            "streams": [{"sender": {"mean_rtt": 1500}}],
            "sum_sent": {"bits_per_second": 9.5e9},
            "sum_received": {"bits_per_second": 9.4e9},
        },
    }
    return json.dumps(made | changes, indent=1)


def only(text: str, *words: str) -> str:
    """Return the rows that have a word, and all other lines."""
    lines = [
        line for line in text.splitlines() if " sec " not in line or any(w in line for w in words)
    ]
    return "\n".join(lines)


class TestIperf:
    @pytest.mark.parametrize(
        ("text", "rate"),
        [
            (IPERF, 9.22),
            (re.sub(r"\[SUM.*\n", "", IPERF), 4.72 + 4.50),
            (only(IPERF, "sender"), 9.30),
            # Cut off before the summary: intervals.
            (IPERF[: IPERF.index("[  5]   0.00-2.00")], (9.40 + 9.20) / 2),
            (IPERF[: IPERF.index("[  5]   0.00-2.00") - 200], 9.40),
            # A row that another process wrote into.
            (IPERF + "[SUM]   0.00-2.0.04 sec  9 GBytes  9.9.8 Gbits/sec  receiver\n", 9.22),
            ("0: " + IPERF.replace("\n", "\n0: "), 9.22),
            # In both directions, the better one.
            (re.sub(r"\[SUM\]( .*receiver)", r"[SUM][TX-C]\1\n[SUM][RX-C] 0.00-2.04 sec  "
                    r"2.3 GBytes  9.37 Gbits/sec                  receiver", IPERF), 9.37),
        ],
    )  # fmt: skip
    def test_what_was_received_counts(self, text: str, rate: float) -> None:
        found = iperf(text)
        assert gbit(found) == pytest.approx(rate)
        assert (found.carrier, found.one_way) == (TCP, ())

    def test_rates_in_bytes_count_in_1024s(self) -> None:
        found = iperf(re.sub(r"9.22 Gbits/sec( .*receiver)", r"1100 MBytes/sec\1", IPERF))
        assert found.rate_bytes_per_s == 1100 * 2**20

    def test_json(self) -> None:
        assert gbit(iperf(document())) == pytest.approx(9.4)
        assert gbit(iperf(document(end={"sum_sent": {"bits_per_second": 8e9}}))) == 8
        # The round trip on a busy link is no latency of small messages.
        assert iperf(document()).one_way == ()

    def test_a_rate_that_was_asked_for_is_told(self) -> None:
        start = {"test_start": {"protocol": "TCP", "target_bitrate": 2e9}}
        assert iperf(document(start=start)).remarks == (
            "log: iperf3 was told to send 2 Gbit/s (-b), so that the network may carry more",
        )

    def test_a_stream_of_events(self) -> None:
        whole = json.loads(document())
        lines = [
            json.dumps({"event": "start", "data": whole["start"]}),
            json.dumps({"event": "interval", "data": {}}),
            json.dumps({"event": "end", "data": whole["end"]}),
            '{"event": ' + "[" * 200_000,
            '{"event": "e',
        ]
        assert gbit(iperf("\n".join(lines))) == pytest.approx(9.4)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (document()[:-60], "not valid JSON (damaged or truncated)"),
            (document(end={}, error="unable to connect"), "iperf3 says: unable to connect"),
            (document(end={}), "no end with a sum of the received bytes"),
            (document(start={"test_start": {"protocol": "UDP"}}), "a test of UDP"),
            (re.sub(r"  receiver", r"  0.01 ms  0/90 (0%)  receiver", IPERF), "a test of UDP"),
            (
                "Connecting to host h, port 5201\niperf3: error - unable to connect: refused\n",
                "without a result: iperf3 says: unable to connect: refused",
            ),
            ("Connecting to host h, port 5201\n", "it has no row of a rate"),
        ],
    )
    def test_refusals(self, text: str, said: str) -> None:
        with pytest.raises(ArtifactError) as raised:
            iperf(text)
        assert said in str(raised.value)

    def test_json_that_is_too_deep(self) -> None:
        with pytest.raises(ArtifactError, match=TOO_DEEP):
            iperf('{"start": {"connected": ' + "[" * 200_000)


class TestPerftest:
    def test_a_rate_is_the_best_average_in_mebibytes(self) -> None:
        found = perftest(BW)
        assert found.rate_bytes_per_s == 11600 * 2**20
        assert (found.tool, found.carrier, found.one_way) == ("ib_write_bw", RDMA, ())

    def test_a_rate_in_gigabits(self) -> None:
        text = BW.replace("MB/sec", "Gb/sec").replace("11600.00", "97.50").replace("11500.00", "90")
        assert gbit(perftest(text)) == pytest.approx(97.5)

    def test_both_directions_together_are_halved(self) -> None:
        found = perftest(BW.replace("RDMA_Write BW", "RDMA_Write Bidirectional BW"))
        assert found.rate_bytes_per_s == 5800 * 2**20

    def test_latencies_are_the_typical_ones(self) -> None:
        found = perftest(LAT)
        assert found.tool == "ib_write_lat"
        assert dict(found.one_way) == pytest.approx({2: 1.8e-6, 4096: 2.62e-6, 65536: 14.92e-6})

    def test_a_read_goes_there_and_back(self) -> None:
        found = perftest(LAT.replace("RDMA_Write", "RDMA_Read"))
        assert found.one_way[0] == pytest.approx((2, 0.9e-6))

    def test_by_duration_there_is_an_average_alone(self) -> None:
        lines = [line for line in LAT.splitlines() if not line.startswith(" 4096")]
        text = "\n".join(lines).replace(lines[3], " #bytes  #iterations  t_avg[usec]  tps average")
        text = re.sub(r"\n (2|65536) .*", r"\n \1  1000  1.91  523560.2", text)
        assert dict(perftest(text).one_way) == pytest.approx({2: 1.91e-6, 65536: 1.91e-6})

    def test_both_in_one_file_and_a_last_line_that_was_cut_off(self) -> None:
        found = perftest(BW + LAT[: LAT.index("65536") + 20])
        assert found.tool == "ib_write_bw and ib_write_lat"
        assert [size for size, _ in found.one_way] == [2, 4096]

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (BW[: BW.index("Conflicting")], "no row can be read"),
            (re.sub(r"\n \d+ ", r"\n nan ", LAT), "no row can be read"),
            (BW.replace("MB/sec", "parsec"), "a rate in parsec; known: MB/sec, Gb/sec"),
        ],
    )
    def test_refusals(self, text: str, said: str) -> None:
        with pytest.raises(ArtifactError) as raised:
            perftest(text)
        assert said in str(raised.value)
