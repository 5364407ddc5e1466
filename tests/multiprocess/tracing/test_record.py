"""A plain DDP script, recorded by a command or by one variable; one rank slow in its backward."""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import textwrap

import pytest
from typer.testing import CliRunner

from syncopate.analysis.causes.explanation import explanation
from syncopate.analysis.ranks.arrivals import lateness
from syncopate.cli import main
from syncopate.cli.app import app
from syncopate.tracing.foreign import read_directory, read_timeline
from syncopate.tracing.foreign.recording.recorded import RecordedRank
from tests.children import HANGS_S, REPOSITORY, environment
from tests.multiprocess.harness import run_ranks

ITERATIONS = 4
SLEEP_S = 0.4

MODEL = f"""
import os, sys, time
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

def train(iterations):
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), Layer(256, 256))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.2)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for _ in range(iterations):
        optimizer.zero_grad()
        ddp(torch.ones(4, 256)).sum().backward()
        optimizer.step()
"""

SCRIPT = f"""{MODEL}
assert sys.argv[1:] == ["--lr", "0.1"]
train({ITERATIONS})
sys.exit(3)
"""

UNDER_TORCHRUN = f"""{MODEL}
if __name__ == "__main__":
    dist.init_process_group("gloo")
    data = torch.utils.data.DataLoader(torch.ones(2, 4), num_workers=1)
    assert sum(len(batch) for batch in data) == 2
    train({ITERATIONS})
    dist.destroy_process_group()
"""

SPAWNED = f"""{MODEL}
def rank_main(rank, folder):
    store = dist.FileStore(folder + "/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    train(2)
    trained, path = time.time(), folder + "/run/rank-1.json"
    while not os.path.exists(path) or os.path.getmtime(path) <= trained:
        time.sleep(0.05)
    if rank == 1:
        os._exit(0)
    raise SystemExit("planted")

if __name__ == "__main__":
    torch.multiprocessing.spawn(rank_main, (sys.argv[1],), nprocs=2)
"""


KILLED = f"""{MODEL}
import random, signal
if __name__ == "__main__":
    folder = sys.argv[1]
    rank = int(os.environ["RANK"])
    store = dist.FileStore(folder + "/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)])
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    began = time.time()
    with open(folder + "/steps-" + str(rank), "w", buffering=1) as steps:
        number = 0
        while time.time() - began < {{seconds}} or rank == 0:
            optimizer.zero_grad()
            ddp(torch.ones(4, 64)).sum().backward()
            optimizer.step()
            time.sleep(0.02)
            print(number, time.time(), file=steps)
            number += 1
    os.kill(os.getpid(), signal.SIGKILL)
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
        # Gloo notes no ends: a transfer is over between the last arrival and the first step.
        stepped_s = min(spans["SGD", i, rank].start_s for rank in (0, 1))
        assert max(ours.start_s, theirs.start_s) <= ours.end_s == theirs.end_s
        assert ours.end_s == pytest.approx(stepped_s, abs=1e-6)
        assert ours.nbytes == theirs.nbytes == 4 * (256 * 256 + 256)
        assert stepped_s > theirs.start_s
        backward, forward = spans["backward", i, 1], spans["forward", i, 1]
        assert spans["SGD", i - 1, 1].end_s < forward.start_s
        assert forward.end_s == backward.start_s
        assert backward.end_s == theirs.start_s
        assert backward.duration_s > SLEEP_S
    lanes = {"push", "pull", "update", "forward", "backward"}
    assert {s.lane for s in timeline.spans} == lanes


def _python(folder, script, *arguments):
    """Run a script as a user does who has installed the package and set the variable."""
    (folder / "train.py").write_text(textwrap.dedent(script))
    (folder / "sitecustomize.py").write_text(
        f"import site; site.addsitedir({str(REPOSITORY / 'src')!r})"
    )
    return subprocess.run(
        [sys.executable, *arguments],
        check=False,
        cwd=folder,
        env=environment(folder, SYNCOPATE_TRACE="run", OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=HANGS_S,
    )


def test_a_rank_that_is_killed_loses_the_last_two_seconds_at_most(tmp_path):
    """Rank 1 kills itself without a word; the other one fails for that."""
    (tmp_path / "train.py").write_text(textwrap.dedent(KILLED.replace("{seconds}", "9.5")))
    (tmp_path / "sitecustomize.py").write_text(
        f"import site; site.addsitedir({str(REPOSITORY / 'src')!r})"
    )
    ranks = [
        subprocess.Popen(
            [sys.executable, "train.py", str(tmp_path)],
            cwd=tmp_path,
            env=environment(tmp_path, SYNCOPATE_TRACE="run", OMP_NUM_THREADS="1", RANK=str(rank)),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=HANGS_S)[1] for rank in ranks]
    assert ranks[1].returncode == -signal.SIGKILL, said
    lines = [line.split() for line in (tmp_path / "steps-1").read_text().splitlines()]
    ended_s = float(lines[-1][1])
    known = {step.number for step in RecordedRank.load(tmp_path / "run" / "rank-1.json").steps}
    # What was over 2.5 s before: a machine that is busy may write half a second late.
    over = {int(number) for number, at_s in lines if float(at_s) < ended_s - 2.5}
    assert len(over) > 20
    assert over <= known
    timeline = read_directory(tmp_path / "run", 1_000_000)
    shown = {span.iteration for span in timeline.spans if span.rank == 1}
    assert over <= shown


def test_one_variable_records_a_script_under_torchrun(tmp_path):
    """Neither the agent nor a process that loads data writes a file."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = _python(tmp_path, UNDER_TORCHRUN, *launcher, "train.py")
    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "run").iterdir())
    assert [path.name for path in files] == ["rank-0.json", "rank-1.json"]
    timeline = read_directory(tmp_path / "run", 200)
    cause = explanation(timeline).causes[0]
    assert (cause.kind, cause.ranks) == ("compute", (1,))
    late_s = lateness(timeline)[1]
    assert abs(late_s["bucket 0"]) < SLEEP_S / 2 < late_s["bucket 1"]
    said = CliRunner().invoke(app, ["explain", str(tmp_path / "run")]).stdout
    assert "rank 1 computes longer than the others" in said
    # On a busy machine bucket 0 may be late by some milliseconds, too.
    assert re.search(r"it comes later than the others to (bucket 0 by [^,]+, )?bucket 1 by ", said)


def test_spawned_ranks_are_recorded_that_fail_or_are_killed(tmp_path):
    """One leaves what it had written from time to time, the other writes when it ends."""
    done = _python(tmp_path, SPAWNED, "train.py", str(tmp_path))
    assert "planted" in done.stderr
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["rank-0.json", "rank-1.json"]
    timeline = read_directory(tmp_path / "run", 200)
    assert timeline.world_size == 2
    steps = {(span.rank, span.iteration) for span in timeline.spans if span.lane == "update"}
    assert steps == {(rank, iteration) for rank in (0, 1) for iteration in (0, 1)}
