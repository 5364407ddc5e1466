"""A real lab: what ranks see, how fast links are, what they carried, how runs end."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path

import pytest

from syncopate.errors import SyncopateError
from syncopate.lab import Lab, Topology, network
from tests.lab.helpers import PYTHON, is_alive, is_gone, namespaces_of, own_links

FLOWS = str(Path(__file__).with_name("flows.py"))
MBIT = 1e6 / 8
_MOST_RUNS = 10

LOOK_AROUND = """
import json, os, socket
print(json.dumps({
    "environment": dict(os.environ),
    "hostname": socket.gethostname(),
    "address": socket.gethostbyname(socket.gethostname()),
    "peer": socket.gethostbyname("host0"),
    "links": sorted(os.listdir("/sys/class/net")),
}))
"""


class Lines:
    """Collects what ranks print."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str, str]] = []

    def __call__(self, rank: int, stream: str, line: str) -> None:
        self.lines.append((rank, stream, line))

    def of(self, rank: int) -> list[str]:
        return [line for who, _, line in self.lines if who == rank]


def _rate(lab: Lab, nbytes: int, *flows: str) -> float:
    """Run TCP flows between ranks, all at once; return their rate together, in bytes per second."""
    lines = Lines()
    outcome = lab.run([*PYTHON, FLOWS, str(nbytes), *flows], sink=lines, grace_s=1)
    assert outcome.exit_code == 0, lines.lines
    times = [[float(field) for field in line.split()[1:]] for _, _, line in lines.lines]
    begin_s, end_s = min(row[0] for row in times), max(row[1] for row in times)
    return sum(row[2] for row in times) / (end_s - begin_s)


def _runs_to_fill(lab: Lab, limit: float, share: float, nbytes: int, *flows: str) -> int:
    """Run flows until they go at ``share`` of a shaper's rate; return how many runs that took.

    Above the limit nothing may ever pass.
    """
    return _runs_to_reach(lab, share * limit, limit, nbytes, *flows)


def _runs_to_reach(lab: Lab, least: float, limit: float, nbytes: int, *flows: str) -> int:
    """Run flows until they go at ``least`` bytes per second; return how many runs that took.

    A busy machine delays flows by any time, so they get several runs to show that no shaper of less
    holds them back.
    """
    rates: list[float] = []
    while not rates or max(rates) < least:
        assert len(rates) < _MOST_RUNS, rates
        rates.append(_rate(lab, nbytes, *flows))
        assert rates[-1] <= limit
    return len(rates)


@pytest.fixture(scope="module")
def lab():
    before = own_links()
    topology = Topology(
        hosts=4,
        ranks_per_host=2,
        rate_bytes_per_s=200 * MBIT,
        racks=2,
        uplink_bytes_per_s=100 * MBIT,
    ).with_host_rates({3: 50 * MBIT})
    with Lab(topology) as lab:
        assert own_links() == before
        yield lab
    assert is_gone(lab.run_id)
    assert own_links() == before


def test_ranks_find_themselves_on_hosts(lab):
    lines = Lines()
    assert lab.run([*PYTHON, "-c", LOOK_AROUND], sink=lines).exit_code == 0
    for rank in range(8):
        (line,) = lines.of(rank)
        seen = json.loads(line)
        host = rank // 2
        assert (seen["hostname"], seen["address"]) == (f"host{host}", f"10.0.0.{host + 1}")
        assert (seen["peer"], seen["links"]) == ("10.0.0.1", ["eth0", "lo"])
        environment = seen["environment"]
        assert environment["RANK"] == str(rank)
        assert environment["LOCAL_RANK"] == str(rank % 2)
        assert environment["GROUP_RANK"] == str(host)
        assert (environment["WORLD_SIZE"], environment["LOCAL_WORLD_SIZE"]) == ("8", "2")
        assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == ("10.0.0.1", "29500")
        assert environment["GLOO_SOCKET_IFNAME"] == "eth0"
        assert environment["SYNCOPATE_LAB"] == lab.run_id


def test_a_link_has_its_rate_and_counts_its_bytes(lab):
    """200 Mbit/s between host0 and host1, and every byte of it on both counters."""
    nbytes = 6_000_000
    before = lab.counters()
    runs = _runs_to_fill(lab, 200 * MBIT, 0.85, nbytes, "0>2")
    host0, host1, host2, *_ = network.since(before, lab.counters())
    for carried in (host0.tx_bytes, host1.rx_bytes):
        assert runs * nbytes <= carried <= runs * nbytes * 1.05
    assert host1.tx_bytes < max(runs, 2) * 0.025 * nbytes  # acknowledgements
    assert host2.tx_bytes + host2.rx_bytes < max(runs, 2) * 1000


def test_a_link_has_its_rate_in_both_directions_at_once(lab):
    _runs_to_fill(lab, 400 * MBIT, 0.75, 5_000_000, "0>2", "2>0")


def test_flows_share_an_uplink(lab):
    """Two flows leave rack 0 from different hosts; its uplink has half the rate of either."""
    before = lab.counters()
    runs = _runs_to_fill(lab, 100 * MBIT, 0.85, 3_000_000, "0>4", "2>5")
    rack0, rack1 = network.since(before, lab.counters())[-2:]
    assert rack0.tx_bytes == rack1.rx_bytes >= runs * 6_000_000


def test_senders_to_one_host_share_its_link(lab):
    """Either sender could fill the link of host3; the switch's port makes them share it."""
    _runs_to_fill(lab, 50 * MBIT, 0.85, 1_000_000, "4>6", "0>7")


def test_a_slow_host_is_slow(lab):
    _runs_to_fill(lab, 50 * MBIT, 0.85, 1_500_000, "6>4")


def test_ranks_of_one_host_do_not_use_its_link(lab):
    before = lab.counters()
    runs = _runs_to_reach(lab, 2 * 200 * MBIT, math.inf, 20_000_000, "0>1")
    assert network.since(before, lab.counters())[0].tx_bytes < runs * 2000


def test_the_first_rank_that_fails_decides_after_a_grace(lab, tmp_path):
    lines = Lines()
    failed = tmp_path / "failed"
    first = f"echo bad >&2; echo $$ > {failed}; exit 7"
    over = f"test -s {failed} && ! kill -0 $(cat {failed}) 2> /dev/null"
    second = f"until {over}; do sleep 0.05; done; echo lost 5; exit 1"
    script = f"case $RANK in 5) {first};; 0) {second};; esac"
    # The others sleep for longer than this test may take.
    outcome = lab.run(["sh", "-c", f"{script}; sleep 600"], sink=lines, grace_s=1.0)
    assert (outcome.exit_code, outcome.first_failed) == (7, 5)
    assert (5, "stderr", "bad") in lines.lines
    assert (0, "stdout", "lost 5") in lines.lines
    assert [result.stopped for result in outcome.ranks] == [rank not in (0, 5) for rank in range(8)]
    assert outcome.ranks[1].returncode == -signal.SIGTERM
    assert "rank 5 on host2 exited with code 7" in outcome.summary()
    assert outcome.summary().endswith("then failed: rank 0; ended 6 that still ran")


def test_a_killed_rank_is_named(lab):
    outcome = lab.run(["sh", "-c", "[ $RANK != 3 ] || kill -9 $$"], sink=Lines())
    assert outcome.exit_code == 128 + signal.SIGKILL
    assert outcome.summary().startswith("rank 3 on host1 was ended by SIGKILL")


def test_what_cannot_be_started_is_refused(lab, tmp_path):
    with pytest.raises(SyncopateError, match="command not found"):
        lab.run(["no-such-program"])
    script = tmp_path / "broken"
    script.write_text("no interpreter line")
    script.chmod(0o755)
    lines = Lines()
    assert lab.run([str(script)], sink=lines).exit_code == 126
    assert any("error: host3: " in line for line in lines.of(7))


def test_ranks_end_when_their_output_cannot_be_taken(lab):
    def refuse(rank: int, stream: str, line: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        lab.run(["sh", "-c", "echo; sleep 60"], sink=refuse)


@pytest.mark.parametrize("failure", [SyncopateError("no"), KeyboardInterrupt()])
def test_a_set_up_that_fails_half_way_leaves_nothing(monkeypatch, failure):
    seen = []

    def fail(run_id: str, topology: Topology) -> None:
        seen.extend(namespaces_of(run_id))
        raise failure

    monkeypatch.setattr(network, "_build_core", fail)
    broken = Lab(Topology(hosts=2, racks=2))
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(type(failure)), broken:
        pytest.fail("it stands")
    assert len(seen) == 5
    assert is_gone(broken.run_id)
    assert signal.getsignal(signal.SIGTERM) == handler


def test_an_error_inside_the_block_leaves_nothing_not_even_processes():
    pids = Lines()
    small = Lab(Topology(hosts=1))

    def leave() -> None:
        with small:
            small.run(["sh", "-c", "sleep 600 >&- 2>&- & echo $!"], sink=pids)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()
    assert is_gone(small.run_id)
    (pid,) = pids.of(0)
    assert not is_alive(int(pid))
