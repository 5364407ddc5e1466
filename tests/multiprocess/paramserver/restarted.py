"""A worker that torchrun starts again: trains, and kills itself where its command line says.

Its arguments: a folder for the result, and for each time that torchrun starts the workers a rank
and the step in which this rank dies; -1: before it joins. With a third argument it raises instead.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

from syncopate.paramserver.worker import KVStore
from syncopate.protocol.rules import Adam, Rules
from tests.multiprocess.paramserver.killable import gradients
from tests.multiprocess.paramserver.servers import QUICK

STEPS = 8


def train(store: KVStore, dies_in: int) -> dict[str, torch.Tensor]:
    """Train from the step at which the job is; die in a step, of which some pushes are on disk."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(24, 24) for _ in range(20)))
    weights = {name: p.detach() for name, p in model.named_parameters()}
    store.init(weights)
    for step in range(store.step, STEPS):
        own = list(gradients(model, step, store.rank).items())
        half = len(own) // 2 if step == dies_in else len(own)
        pushed = [store.push(name, gradient) for name, gradient in own[:half]]
        if step == dies_in:
            for handle in pushed:
                handle.wait()
            _die()
        pulled = [store.pull(name, weights[name]) for name in weights]
        for handle in (*pushed, *pulled):
            handle.wait()
    return weights


def _die() -> None:
    Path(sys.argv[1], "died").touch()
    if len(sys.argv) > 3:
        raise RuntimeError(sys.argv[3])
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Train, and save where this worker began and what it has in the end."""
    torch.set_num_threads(1)
    folder, dies = Path(sys.argv[1]), json.loads(sys.argv[2])
    restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    rank, step = dies[restart] if restart < len(dies) else (-1, 0)
    dies_in = step if rank == int(os.environ["RANK"]) else STEPS
    if dies_in < 0:
        _die()
    with KVStore(Rules(mode="ssgd", optimizer=Adam(lr=0.05)), limits=QUICK) as store:
        assert store.rank == int(os.environ["RANK"])
        weights = train(store, dies_in)
    began = {"began": store.step, "resumed": store.resumed, "restart": restart}
    torch.save((began, weights), folder / f"{store.rank}.pt")


if __name__ == "__main__":
    main()
