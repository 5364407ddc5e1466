"""A model whose gradients servers clip: what one process does that clips."""

from __future__ import annotations

import msgspec
import torch

import syncopate
from syncopate.delay import Delay
from syncopate.protocol.rules import Rules
from tests.multiprocess.exchange.serving.test_served import (
    OPTIMIZERS,
    Net,
    average,
    backward,
    refusal,
)
from tests.multiprocess.harness import run_ranks
from tests.multiprocess.paramserver.servers import QUICK, LocalServers

STEPS = 10
MOST = 0.05


def net():
    model = Net()
    model.norm.eval()
    return model


def trained(rank, _world, job, name):
    model = net()
    optimizer = OPTIMIZERS[name](model.parameters())
    found = msgspec.structs.replace(job, rank=rank)
    with syncopate.KVStore(Rules(clip_norm=MOST), job=found, limits=QUICK) as store:
        late = refusal(
            lambda: syncopate.distribute(model, optimizer, exchange=store, delay=Delay(k=4))
        )
        model, optimizer = syncopate.distribute(model, optimizer, exchange=store)
        norms = []
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(model, step, rank)
            optimizer.step()
            model.syncopate.ready()
            norms.append(store.gradient_norm)
        return {key: value.clone() for key, value in model.state_dict().items()}, norms, late


def alone(name, world):
    torch.set_num_threads(1)  # as on the ranks
    model = net()
    optimizer, norms = OPTIMIZERS[name](model.parameters()), []
    for step in range(STEPS):
        average(model, step, world)
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), MOST)))
        optimizer.step()
    return model.state_dict(), norms


def test_servers_clip_a_models_gradients():
    with LocalServers(servers=2, workers=2) as job:
        results = run_ranks(trained, 2, job.job, "momentum")
    expected, norms = alone("momentum", 2)
    assert max(norms) > MOST
    for weights, found, late in results:
        for key, value in expected.items():
            torch.testing.assert_close(weights[key], value, rtol=1e-5, atol=1e-6)
        assert all(torch.equal(weights[key], results[0][0][key]) for key in weights)
        assert len(found) == len(norms)
        torch.testing.assert_close(found[-1], norms[-1], rtol=1e-4, atol=0)
        assert "left out with Rules(clip_norm=...)" in late
