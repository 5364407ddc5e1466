"""Sparse: sums of sparse tensors, of which every rank holds other elements.

All ranks gather the indices and the values of all, in the order of ranks, and add them up: so all
have the same bits.
"""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from syncopate.c10d.collectives import Planner
from syncopate.collectives.runner import Runner
from syncopate.collectives.shards import Form
from syncopate.errors import InvalidValueError


def require_sum(tensor: Tensor, reduction: str) -> None:
    """Refuse operations that sparse tensors do not have.

    Raises:
        InvalidValueError: another reduction, layout or device.
    """
    if reduction != "SUM":
        raise InvalidValueError("reduction of sparse tensors", reduction, "SUM")
    if tensor.layout is not torch.sparse_coo or tensor.device.type != "cpu":
        given = f"on {tensor.device}, {tensor.layout}"
        raise InvalidValueError("sparse tensor", given, "on a CPU, torch.sparse_coo")


def all_reduce(runner: Runner | None, planner: Planner, tensor: Tensor) -> None:
    """Replace ``tensor`` by its sum over the ranks; on the channel's thread.

    Args:
        runner: what carries it; None for a rank alone.
        planner: chooses how.
        tensor: a sparse COO tensor, of the same size and dtype on every rank.
    """
    mine = tensor.detach().coalesce()
    if runner is None:
        return
    counts = runner.objects.all_gather(len(mine.values()))
    indices = _gathered(runner, planner, mine.indices().t().contiguous(), counts)
    values = _gathered(runner, planner, mine.values().contiguous(), counts)
    total = torch.sparse_coo_tensor(indices.t(), values, mine.shape).coalesce()
    with torch.no_grad():  # a detached one would have indices of its own
        tensor.copy_(total)


def _gathered(runner: Runner, planner: Planner, rows: Tensor, counts: list[int]) -> Tensor:
    """Return the rows of all ranks, one rank's after the other's.

    Args:
        runner: what carries them.
        planner: chooses how.
        rows: this rank's, along the first dimension.
        counts: how many each rank has.
    """
    bounds = tuple(accumulate(counts, initial=0))
    whole = rows.new_empty((bounds[-1], *rows.shape[1:]))
    width = whole[:1].numel() if bounds[-1] else 1
    rank = runner.group.rank()
    whole[bounds[rank] : bounds[rank + 1]] = rows
    form = Form(tuple(width * bound for bound in bounds))
    planner.planned("all_gather", whole.nbytes, form=form).run(runner, whole.view(-1))
    return whole
