"""What a training needs before its first step: little to load, and few meetings of the ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace

from syncopate.collectives import Communicator
from syncopate.engine.selfplan import cache
from syncopate.errors import CollectiveError
from tests.children import HANGS_S, environment
from tests.multiprocess.engine.start_cases import keep, started
from tests.multiprocess.harness import run_ranks

OBJECTS = ("all_gather_object", "broadcast_object", "barrier")


def _counted(name: str, counts: Counter[str]) -> Any:
    """Return the method of communicators called ``name``, which counts its calls."""
    was = getattr(Communicator, name)

    def counted(*args: Any) -> Any:
        counts[name] += 1
        return was(*args)

    return counted


def _meetings(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Return how often the ranks meet over objects, for each way to start."""
    os.environ[cache.VARIABLE] = folder
    plan = keep()
    counts: Counter[str] = Counter()
    for name in OBJECTS:
        setattr(Communicator, name, _counted(name, counts))
    found: dict[str, Any] = {}
    for how, options, expected in (
        ("kept", {}, plan),
        ("given", {"plan": plan}, plan),
        ("safe", {"cache": False, "deterministic": True}, None),
    ):
        counts.clear()
        model = started(**options)
        found[how] = dict(counts)
        assert expected in (None, model.syncopate.plan)
        model.syncopate.detach()
    return found


def test_the_ranks_meet_few_times_before_the_first_step(tmp_path: Path) -> None:
    for found in run_ranks(_meetings, 2, str(tmp_path)):
        assert found == {
            "kept": {"all_gather_object": 1, "broadcast_object": 1},
            "given": {"all_gather_object": 2},
            "safe": {"all_gather_object": 1},
        }


_RANK = """
import os, sys
import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace

rank, port = map(int, sys.argv[1:])
store = dist.TCPStore("127.0.0.1", port, None, is_master=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)

import syncopate
from tests.multiprocess.engine.start_cases import keep, started

def loaded(*names):
    return sorted(m for m in sys.modules if any(f"{m}.".startswith(f"{n}.") for n in names))

plan = keep()
before = loaded("syncopate")
model = started()
assert loaded("syncopate") == before, "distribute and its modules are loaded with the package"
assert model.syncopate.plan == plan, model.syncopate.plan
planning = loaded(
    "scipy", "syncopate.planning", "syncopate.costs.papers", "syncopate.costs.decide.decisions",
    "syncopate.simulation", "syncopate.calibration", "syncopate.profiling.profile",
    "syncopate.engine.selfplan.background.proposals",
)
assert planning == [], planning
model.syncopate.detach()
model = started(cache=False)
assert model.syncopate.planning
assert loaded("syncopate") == before
planning = loaded("syncopate.planning", "syncopate.simulation", "syncopate.calibration")
assert planning == [], "they are loaded when the training has earned it, or in another process"
assert "scipy.optimize" not in sys.modules
model.syncopate.detach()
sys.stdout.flush()
os._exit(0)
"""


def test_a_kept_plan_starts_without_loading_what_plans(tmp_path: Path) -> None:
    store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    loopback = "lo" if sys.platform == "linux" else "lo0"
    child = environment(GLOO_SOCKET_IFNAME=loopback, **{cache.VARIABLE: str(tmp_path)})
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _RANK, str(rank), str(store.port)],
            env=child,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=HANGS_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)


def _widened(rank: int, world_size: int) -> None:
    model = started(cache=False, deterministic=True)
    engine = model.syncopate
    before = engine.communicator
    threads = [thread.name for thread in threading.enumerate()]
    engine.install(replace(engine.plan, channels=2))
    assert engine.communicator is before
    assert before.channels == 2
    # One failure detector watches over all channels.
    assert [thread.name for thread in threading.enumerate()] == threads
    total = torch.ones(3)
    before.all_reduce(total, channel=1)
    assert total.tolist() == [world_size] * 3
    engine.detach()
    with pytest.raises(CollectiveError, match="closed"):
        before.all_reduce(total, channel=1)


def test_a_plan_of_more_channels_widens_the_communicator_that_is_there() -> None:
    run_ranks(_widened, 2)
