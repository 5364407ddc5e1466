"""``syncopate record``: a plain DDP script, one rank slow in its backward, seen by its arrivals."""

from __future__ import annotations

import os
import statistics
import sys
import textwrap

from syncopate.cli import main
from syncopate.tracing.foreign import read_timeline
from tests.multiprocess.harness import run_ranks

ITERATIONS = 4
SLEEP_S = 0.2

SCRIPT = f"""
import sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

class Sleepy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        if dist.get_rank() == 1:
            time.sleep({SLEEP_S})
        return gradient

class Layer(torch.nn.Linear):
    def forward(self, x):
        return super().forward(Sleepy.apply(x))

assert sys.argv[1:] == ["--lr", "0.1"]
model = torch.nn.Sequential(torch.nn.Linear(256, 256), Layer(256, 256))
ddp = DistributedDataParallel(model, bucket_cap_mb=0.2)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for _ in range({ITERATIONS}):
    optimizer.zero_grad()
    ddp(torch.ones(4, 256)).sum().backward()
    optimizer.step()
sys.exit(3)
"""


def _record(rank, world_size, folder):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))
    script = folder / "train.py"
    sys.argv = ["syncopate", "record", "-o", str(folder / "traces"), str(script), "--lr", "0.1"]
    return main()


def test_a_sleep_in_backward_shows_as_late_arrivals_from_its_bucket_on(tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    assert run_ranks(_record, 2, tmp_path) == [3, 3]
    timeline = read_timeline(sorted((tmp_path / "traces").iterdir()))
    assert timeline.world_size == 2
    spans = {(s.name, s.iteration, s.rank): s for s in timeline.spans}
    # The first iteration has DDP's first buckets; from the second on they are in ready order.
    later = range(1, ITERATIONS)
    late_s = {
        bucket: statistics.median(
            spans[f"bucket {bucket}", i, 1].start_s - spans[f"bucket {bucket}", i, 0].start_s
            for i in later
        )
        for bucket in (0, 1)
    }
    assert abs(late_s[0]) < SLEEP_S / 2 < late_s[1]
    for i in later:
        ours, theirs = spans["bucket 1", i, 0], spans["bucket 1", i, 1]
        assert ours.end_s == max(ours.start_s, theirs.start_s)
        assert ours.nbytes == theirs.nbytes == 4 * (256 * 256 + 256)
        assert spans["SGD", i, 0].start_s > theirs.start_s
        between = spans["input, forward, backward", i, 1]
        assert spans["SGD", i - 1, 1].end_s == between.start_s
        assert between.end_s == theirs.start_s
        assert between.duration_s > SLEEP_S
    assert {s.lane for s in timeline.spans} == {"push", "pull", "update", "backward"}
