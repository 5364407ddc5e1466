"""Real runs with injected delays, played again: on their own network they take what they took."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import syncopate
from syncopate.analysis.phases import COMMUNICATION
from syncopate.analysis.replay.elsewhere import played_on
from syncopate.analysis.replay.fitted import fitted_network
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.timeline import OWN_CLUSTER, Timeline
from syncopate.cli import main
from syncopate.costs.model.replayed import ClusterNetwork
from syncopate.errors import InvalidValueError
from syncopate.tracing.foreign import read_directory
from syncopate.tracing.run import read_run
from tests.multiprocess.engine.cases import data, mlp, plan_of
from tests.multiprocess.harness import run_ranks

STEPS = 10
SLEEP_S = 0.1
EXCHANGES = ("allreduce", "decoupled", "sharded", "rooted")

PLAIN = f"""
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

class Sleepy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep({SLEEP_S} * (1 + dist.get_rank()))
        return gradient

class Layer(torch.nn.Linear):
    def forward(self, x):
        return super().forward(Sleepy.apply(x))

model = torch.nn.Sequential(torch.nn.Linear(256, 256), Layer(256, 256))
ddp = DistributedDataParallel(model, bucket_cap_mb=0.2)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for _ in range({STEPS}):
    optimizer.zero_grad()
    ddp(torch.ones(4, 256)).sum().backward()
    optimizer.step()
"""


class _Slow(nn.Module):
    """Sleeps in forward, on each rank as long as its number says, and longer in every third."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank, self._step = rank, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._step += 1
        time.sleep(SLEEP_S * (1 + self._rank + (self._step % 3 == 0)))
        return x


def _trained(rank: int, world_size: int, directory: Path) -> None:
    for exchange in EXCHANGES:
        model = nn.Sequential(_Slow(rank), mlp())
        plan = plan_of(model, world_size, [2, 3, 1], exchange=exchange)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with syncopate.trace(directory / exchange):
            trained, optimizer = syncopate.distribute(model, optimizer, plan=plan)
            trained.syncopate.recording.ran_on(Cluster.preset("1gbe", world_size))
            for step in range(STEPS):
                optimizer.zero_grad()
                trained(data(rank, step, 4, 8)).sum().backward()
                optimizer.step()
            trained.syncopate.ready()
            trained.syncopate.detach()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a run of each exchange, by two ranks."""
    folder = tmp_path_factory.mktemp("runs")
    run_ranks(_trained, 2, folder)
    return folder


def _replayed(timeline: Timeline, bandwidth: float = 1.0) -> tuple[float, float]:
    own = fitted_network(timeline)
    return played_on(timeline, own.changed(bandwidth), own).medians_s


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_run_by_distribute_is_within_two_percent_of_itself(runs: Path, exchange: str) -> None:
    timeline = read_run(runs / exchange).timeline
    assert Cluster.from_json(timeline.metadata[OWN_CLUSTER]) == Cluster.preset("1gbe", 2)
    recorded_s, replayed_s = _replayed(timeline)
    assert replayed_s == pytest.approx(recorded_s, rel=0.02)
    assert recorded_s > 2 * SLEEP_S
    # No link makes an iteration shorter than what the slower rank sleeps.
    assert 2 * SLEEP_S < _replayed(timeline, bandwidth=1e6)[1] <= recorded_s * 1.02


def _recorded(rank: int, world_size: int, folder: Path) -> int:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))
    script = str(folder / "train.py")
    sys.argv = ["syncopate", "record", "-o", str(folder / "traces"), script]
    return main()


def _flat(bandwidth: float) -> ClusterNetwork:
    cluster = Cluster.flat(2, latency_s=0.0, bandwidth_bytes_per_s=bandwidth)
    return ClusterNetwork(cluster)


def _without_ends(timeline: Timeline) -> Timeline:
    """Return what is known where no step follows: messages end when the last rank came."""
    met: dict[tuple[int, str], float] = {}
    for span in timeline.spans:
        if span.lane in COMMUNICATION:
            key = (span.iteration, span.name)
            met[key] = max(met.get(key, span.start_s), span.start_s)
    spans = tuple(
        replace(span, end_s=met[span.iteration, span.name]) if span.lane in COMMUNICATION else span
        for span in timeline.spans
    )
    return replace(timeline, spans=spans)


def test_a_run_of_plain_ddp_is_within_two_percent_of_itself(tmp_path: Path) -> None:
    """Over Gloo the next step says when collectives ended; else messages take their price."""
    (tmp_path / "train.py").write_text(textwrap.dedent(PLAIN))
    assert run_ranks(_recorded, 2, tmp_path) == [0, 0]
    timeline = read_directory(tmp_path / "traces", STEPS)
    recorded_s, replayed_s = _replayed(timeline)
    assert replayed_s == pytest.approx(recorded_s, rel=0.02)
    timeline = _without_ends(timeline)
    with pytest.raises(InvalidValueError, match="when messages ended is not known"):
        fitted_network(timeline)
    free, slow = _flat(1e15), _flat(1e6)
    found = played_on(timeline, free, slow)
    assert not found.known
    recorded_s, replayed_s = found.medians_s
    assert replayed_s == pytest.approx(recorded_s, rel=0.02)
    assert recorded_s > 2 * SLEEP_S
    # A ring of two sends each of both buckets once: the last one is behind all computation.
    bucket_s = 4 * (256 * 256 + 256) / 1e6
    there_s = played_on(timeline, slow).medians_s[1]
    assert 2 * SLEEP_S + bucket_s < there_s < recorded_s + 2 * bucket_s
