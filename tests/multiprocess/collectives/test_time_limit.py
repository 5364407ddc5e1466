"""The time limit is the group's unless another is given: it outlasts what ranks do on their own.

A rank that died is named long before.
"""

from __future__ import annotations

import datetime
import os
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from syncopate.collectives import Communicator
from syncopate.engine.distribute import distribute
from syncopate.errors import CollectiveError, InvalidValueError
from tests.multiprocess.harness import run_ranks

LIMIT_S = 1234.0
HARNESS_S = 321.0
GIVEN_S = 123.0
DYING = 2


def limits(rank: int, world_size: int) -> dict[str, float]:
    """Return the limits that communicators, made and given in all ways, have."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=LIMIT_S))
    found = {}
    for name, options in (
        ("default", {}),
        ("group", {"group": group}),
        ("given", {"group": group, "timeout_s": GIVEN_S}),
        ("longest", {"timeout_s": 1e12}),
    ):
        with Communicator(**options) as communicator:
            communicator.barrier()
            found[name] = communicator.timeout_s
    with pytest.raises(InvalidValueError, match="or None for the group's own time limit"):
        Communicator(timeout_s=0)
    with Communicator(group, channels=2) as communicator:
        own = [runner.group._get_backend(torch.device("cpu")) for runner in communicator._runners]
        found["channels"] = min(each.options._timeout.total_seconds() for each in own)
        mesh = communicator._runners[1]._executor._mesh
        assert mesh is not None
        found["messages"] = mesh._timeout_s
    model = nn.Linear(4, 4)
    model, optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), group=group)
    found["distribute"] = model.syncopate.communicator.timeout_s
    for step in range(3):
        if rank == 0 and step == 1:
            time.sleep(2.0)  # an evaluation, say
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.syncopate.detach()
    return found


def dies(rank: int, world_size: int) -> Any:
    found = limits(rank, world_size)
    group = dist.new_group(timeout=datetime.timedelta(seconds=LIMIT_S))
    communicator = Communicator(group)
    communicator.barrier()
    if rank == DYING:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(CollectiveError) as caught:
        communicator.all_reduce(torch.zeros(100_000), algorithm="ring")
    communicator.close()
    return found, caught.value.ranks


def test_the_limit_is_the_groups_and_a_dead_rank_is_named_long_before() -> None:
    results = run_ranks(dies, 3, timeout_s=HARNESS_S, may_die=[DYING])
    for found, blamed in results[:DYING]:
        assert blamed == (DYING,)
        assert found == {
            "default": HARNESS_S,
            "group": LIMIT_S,
            "given": GIVEN_S,
            "longest": pytest.approx(2147482),
            "channels": LIMIT_S,
            "messages": LIMIT_S,
            "distribute": LIMIT_S,
        }
