"""Updates of rows: bit for bit those of torch's optimizers with sparse gradients."""

from __future__ import annotations

import pytest
import torch

from syncopate.paramserver.rows.updates import Chosen, beginning, update_rows
from syncopate.protocol.rules import SGD, Adagrad, Adam, Rules

ROWS, WIDTH, STEPS = 50, 7, 9
KINDS = [
    (SGD(lr=0.1), torch.optim.SGD, {}),
    (Adagrad(lr=0.1), torch.optim.Adagrad, {}),
    (
        Adagrad(lr=0.1, lr_decay=0.1, initial_accumulator_value=0.3, eps=1e-4),
        torch.optim.Adagrad,
        {"lr_decay": 0.1, "initial_accumulator_value": 0.3, "eps": 1e-4},
    ),
    (Adam(lr=0.1), torch.optim.SparseAdam, {}),
    (
        Adam(lr=0.1, betas=(0.8, 0.99), eps=1e-5),
        torch.optim.SparseAdam,
        {"betas": (0.8, 0.99), "eps": 1e-5},
    ),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, WIDTH, 64])
@pytest.mark.parametrize(("rule", "kind", "options"), KINDS)
def test_an_update_is_torchs(rule, kind, options, width, dtype):
    torch.manual_seed(width)
    theirs = torch.nn.Parameter(torch.randn(ROWS, width, dtype=dtype))
    ours = theirs.detach().clone()
    state = {
        name: torch.full_like(ours, first)
        for name, first in beginning(Rules(optimizer=rule)).items()
    }
    optimizer = kind([theirs], lr=0.1, **options)
    for step in range(1, STEPS + 1):
        rate = optimizer.param_groups[0]["lr"] = 0.1 / step
        slots = torch.randperm(ROWS)[: 5 * step].sort().values
        values = torch.randn(len(slots), width, dtype=dtype)
        theirs.grad = torch.sparse_coo_tensor(
            slots[None], values.clone(), ours.shape, check_invariants=True
        ).coalesce()
        optimizer.step()
        update_rows(rule, rate, Chosen(slots, ours, state), values, step)
        assert torch.equal(ours, theirs.detach()), step
