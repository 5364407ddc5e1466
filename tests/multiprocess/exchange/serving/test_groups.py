"""Groups of an optimizer on servers: each with its own values, bit for bit those of one process."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import syncopate
from tests.multiprocess.exchange.serving.test_served import (
    Net,
    average,
    backward,
    refusal,
    same_states,
    store_of,
)
from tests.multiprocess.harness import run_ranks
from tests.multiprocess.paramserver.servers import LocalServers

STEPS = 12


def made(name, model):
    """Return an optimizer of three groups, and a schedule that changes one group's rate."""
    weights = [p for n, p in model.named_parameters() if n.endswith("weight") and "last" not in n]
    biases = [p for n, p in model.named_parameters() if n.endswith("bias") and "last" not in n]
    last = list(model.last.parameters())
    if name == "sgd":
        groups = [
            {"params": weights, "weight_decay": 1e-2, "momentum": 0.9, "nesterov": True},
            {"params": biases, "lr": 0.004, "momentum": 0.5, "dampening": 0.1},
            {"params": last, "lr": 0.001},
        ]
        optimizer = torch.optim.SGD(groups, lr=0.002)
    else:
        groups = [
            {"params": weights, "weight_decay": 0.1},
            {"params": biases, "betas": (0.8, 0.99), "weight_decay": 0.0},
            {"params": last, "lr": 0.02, "eps": 1e-6},
        ]
        optimizer = torch.optim.AdamW(groups, lr=0.01)
    rates = [lambda _: 1.0, lambda step: 0.5 ** (step // 3), lambda _: 1.0]
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rates)


def net():
    model = Net()
    model.norm.eval()
    return model


def trained(rank, _world, job, name):
    """Return the weights, what the optimizer remembers, and what cannot be changed."""
    model = net()
    optimizer, schedule = made(name, model)
    with store_of(job, rank) as store:
        model, optimizer = syncopate.distribute(model, optimizer, exchange=store)
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(model, step, rank)
            optimizer.step()
            schedule.step()
        weights = {key: value.clone() for key, value in model.state_dict().items()}
        whole = model.syncopate.state_dict(optimizer, everywhere=True)["optimizer"]["state"]
        optimizer.zero_grad()
        backward(model, 0, rank)
        before, optimizer.param_groups[2]["lr"] = optimizer.param_groups[2]["lr"], 0.5
        rate = refusal(optimizer.step)
        optimizer.param_groups[2]["lr"] = before
        optimizer.step()
        optimizer.zero_grad()
        optimizer.param_groups[1]["weight_decay"] = 0.5
        decay = refusal(lambda: backward(model, 0, rank))
    return weights, whole, decay, rate


def alone(name, world):
    """Return the weights of one process that adds the ranks' gradients in their order."""
    torch.set_num_threads(1)  # as on the ranks
    model = net()
    optimizer, schedule = made(name, model)
    for step in range(STEPS):
        average(model, step, world)
        optimizer.step()
        schedule.step()
    return model.state_dict(), optimizer.state_dict()["state"]


@pytest.mark.parametrize(("name", "servers"), [("sgd", 2), ("adamw", 1)])
def test_groups_train_on_servers_as_in_one_process(name, servers):
    with LocalServers(servers=servers, workers=2) as job:
        results = run_ranks(trained, 2, job.job, name)
    expected, state = alone(name, 2)
    for weights, known, decay, rate in results:
        assert [key for key in expected if not torch.equal(weights[key], expected[key])] == []
        assert same_states(known, state)
        assert "weight_decay: 0.0 before, 0.5 now" in decay
        assert "of 'last.weight' is 0.5 in this step" in rate


class Deep(nn.Module):
    """So many small tensors that those of a group travel as bundles."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(100))

    def forward(self, x):
        for layer in self.layers:
            x = x + 0.1 * torch.tanh(layer(x))
        return x


def of_many(model):
    groups = [
        {"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() == 1], "lr": 0.05},
    ]
    return torch.optim.Adam(groups, lr=0.01)


def many(rank, _world, job):
    """Train many tensors of two groups; halve the rate of one of them once."""
    model = Deep()
    optimizer = of_many(model)
    with store_of(job, rank) as store:
        model, optimizer = syncopate.distribute(model, optimizer, exchange=store)
        bundles = len(store._session.machine.bundles)
        for step in range(6):
            one_step(model, optimizer, step, [rank])
        return {key: value.clone() for key, value in model.state_dict().items()}, bundles


def one_step(model, optimizer, step, ranks):
    optimizer.zero_grad()
    if step == 3:
        optimizer.param_groups[1]["lr"] /= 2
    for rank in ranks:
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * step + rank))
        model(x).square().mean().backward()
    if len(ranks) > 1:
        for parameter in model.parameters():
            parameter.grad /= len(ranks)
    optimizer.step()


def test_many_small_tensors_of_a_group_travel_together():
    with LocalServers(servers=1, workers=2) as job:
        results = run_ranks(many, 2, job.job)
    torch.set_num_threads(1)
    model = Deep()
    optimizer = of_many(model)
    for step in range(6):
        one_step(model, optimizer, step, [0, 1])
    for weights, bundles in results:
        assert bundles == 2
        expected = model.state_dict()
        assert [key for key in expected if not torch.equal(weights[key], expected[key])] == []
