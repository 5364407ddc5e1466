"""Explain names faults of plain DDP on two hosts, from what torch.profiler saw of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from syncopate.analysis.causes.explanation import Explanation, explanation
from syncopate.lab import Topology
from syncopate.tracing.foreign import read_timeline
from syncopate.units import MIB
from syncopate.zoo import replay
from tests.lab.hosts import run_on_hosts
from tests.lab.test_explain import workload

TWO = Topology(hosts=2, ranks_per_host=2, rate_bytes_per_s=400e6 / 8)
STEPS = 8
FAULTY = 2
"""The first rank of the second host."""

LONGER_S, LATE_S = 0.64, 0.48
"""By how much a rank is late: also where others use this machine, transfers cost less."""


def trained(folder: str, fault: str) -> None:
    """Be a rank of plain DDP under the profiler; one of them has the fault."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    slow = fault == "slow" and rank == FAULTY
    bare = replay(workload(0.08 + LONGER_S * slow))
    model = DistributedDataParallel(bare, bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(bare.parameters(), lr=1e-3)
    for step in range(STEPS + 2):
        if step == 2:  # DDP has rebuilt its buckets
            profiler = profile(activities=[ProfilerActivity.CPU], record_shapes=True)
            profiler.start()
        if fault == "input" and rank == FAULTY:
            time.sleep(LATE_S)
        optimizer.zero_grad()
        model(None).backward()
        optimizer.step()
    profiler.stop()
    profiler.export_chrome_trace(str(Path(folder) / f"rank{rank}.json.gz"))
    dist.destroy_process_group()


def explained(folder: Path, fault: str = "", topology: Topology = TWO) -> Explanation:
    """Return what explain says of a training with a fault."""
    folder.mkdir()
    run_on_hosts(topology, trained, str(folder), fault)
    return explanation(read_timeline(sorted(folder.glob("rank*.json.gz"))))


@pytest.mark.parametrize(
    ("fault", "kind", "cost_s"), [("slow", "compute", LONGER_S), ("input", "input", LATE_S)]
)
def test_a_rank_that_is_late_is_named_first(
    tmp_path: Path, fault: str, kind: str, cost_s: float
) -> None:
    found = explained(tmp_path / fault, fault)
    assert found.abstains == ()
    first = found.causes[0]
    assert (first.kind, first.ranks) == (kind, (FAULTY,)), found.causes
    # Loosely: on busy processors Gloo's messages take longer, and hide less behind backward.
    assert 0.5 * cost_s < first.gain_s < 1.5 * cost_s


def test_a_slow_link_between_two_hosts_is_what_transfers_cost(tmp_path: Path) -> None:
    """Of two hosts either may have the slow link, and a profiler counts no bytes of a link."""
    rate_bytes_per_s = TWO.rate_bytes_per_s / 10
    found = explained(tmp_path / "link", topology=TWO.with_host_rates({1: rate_bytes_per_s}))
    assert found.abstains == ()
    assert {cause.ranks for cause in found.causes} == {()}, found.causes
    assert found.causes[0].kind == "transfers"
    # A ring of four ranks sends 3/2 of the bytes over the link of each host.
    assert found.causes[0].gain_s > 0.5 * 1.5 * 2 * MIB / rate_bytes_per_s
