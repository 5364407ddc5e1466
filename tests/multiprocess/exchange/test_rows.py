"""An exchange from outside: a row of the parts that there are, and one of one's own."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from syncopate.artifacts.plan import SHARDED
from syncopate.engine.distribute import distribute
from syncopate.engine.exchange.kinds import KINDS
from syncopate.engine.exchange.layout import Layout
from syncopate.engine.exchange.update.pieces import Pieces
from syncopate.engine.exchange.update.sharded_update import Beside, PieceUpdate
from tests.multiprocess.engine.cases import TIMEOUT_S, identical_everywhere, plan_of
from tests.multiprocess.exchange.cases import Odd, batch
from tests.multiprocess.harness import run_ranks


class Signs(Beside):
    """Owners step by the signs of the averages: signSGD (Bernstein et al. 2018) on shards."""

    def __init__(self, layout: Layout) -> None:
        self._pieces = layout.shared(Pieces).of

    def updates(self, optimizer: Optimizer, stepping: frozenset[int]) -> None:
        for piece in chain(*self._pieces):
            piece.gradient.sign_()


def loss_of(model: nn.Module, rank: int, step: int) -> Any:
    return model(batch(rank, step, 4, 5, dtype=torch.float64)).square().mean()


def trained(rank: int, ranks: int) -> None:
    KINDS[SHARDED] = KINDS[SHARDED]._replace(update=partial(PieceUpdate, beside=(Signs,)))
    model: Any = Odd().double()
    made, plan = SGD(model.parameters(), lr=0.01), plan_of(model, ranks, exchange=SHARDED)
    model, optimizer = distribute(model, made, plan=plan, timeout_s=TIMEOUT_S)
    alone = Odd().double()
    alone.load_state_dict(model.state_dict())
    for step in range(5):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.step()
        alone.zero_grad()
        sum(loss_of(alone, each, step) for each in range(ranks)).backward()
        with torch.no_grad():
            for parameter in alone.parameters():
                parameter.sub_(parameter.grad.sign(), alpha=0.01)
        identical_everywhere(model.parameters())
        torch.testing.assert_close(list(model.parameters()), list(alone.parameters()))


def test_an_exchange_is_a_row_of_parts() -> None:
    run_ranks(trained, 2)
