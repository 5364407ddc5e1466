"""A rank that dies is named by the others within seconds, wherever it dies, and none hangs."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

import pytest
import torch
from torch import nn

from syncopate.engine.ddp.wrap import ddp
from syncopate.errors import CollectiveError
from tests.multiprocess.ddp.cases import plan_for
from tests.multiprocess.engine.cases import convnet, data
from tests.multiprocess.harness import run_ranks

CULPRIT = 1
LOST = re.compile(rf"rank {CULPRIT} (\(\S+\) )?was lost")
LIMIT_S = 300.0
SOON_S = 20.0
"""Bound on any failure here; in fact a few seconds, on a machine that others load too."""

PLACES: dict[str, tuple[int, dict[str, Any]]] = {
    "backward": (2, {}),
    "first backward": (0, {"static_graph": True}),
    "update": (0, {}),
    "update, without buffers": (0, {"broadcast_buffers": False}),
    "later update": (2, {}),
    "backward, unused parameters": (2, {"find_unused_parameters": True}),
}
"""Where the rank dies -> in which step, and arguments of DDP.

After the first update DDP sends its buckets to all ranks before anything else.
"""


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies(rank: int, world_size: int, where: str) -> dict[str, Any]:
    dies_at, options = PLACES[where]
    torch.manual_seed(0)
    model = convnet()
    # Torch's own patience is far longer than the test's.
    model = ddp(model, plan_for(model, world_size), timeout_s=LIMIT_S, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        if rank == CULPRIT and step == dies_at:
            if "update" in where:
                optimizer.register_step_post_hook(die)
            else:
                model.module[4].weight.register_hook(die)
        began_s = time.monotonic()
        try:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(
                model(data(rank, step, 6, 1, 8, 8)), torch.arange(6) % 5
            )
            loss.backward()
            optimizer.step()
        except CollectiveError as error:
            took_s = time.monotonic() - began_s
            if "unused" not in where:  # what is tried later says so again, and does not hang
                with pytest.raises(CollectiveError, match="broken since"):
                    model(data(rank, step, 6, 1, 8, 8)).sum().backward()
            return {"ranks": error.ranks, "text": str(error), "took_s": took_s}
    return {}


@pytest.mark.parametrize("where", PLACES)
def test_the_others_name_a_rank_that_dies(where: str) -> None:
    results = run_ranks(dies, 4, where, may_die=[CULPRIT])
    assert results[CULPRIT] is None
    for rank in (0, 2, 3):
        found = results[rank]
        assert found["ranks"] == (CULPRIT,), results
        assert LOST.search(found["text"]), found["text"]
        assert found["took_s"] < SOON_S
