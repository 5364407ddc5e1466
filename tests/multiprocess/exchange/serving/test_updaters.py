"""A model that servers update by a class of one's own."""

from __future__ import annotations

import msgspec
import torch

import syncopate
from syncopate.protocol.rules import Rules, Updater
from tests.multiprocess.exchange.serving.test_served import Net, backward, refusal
from tests.multiprocess.harness import run_ranks
from tests.multiprocess.paramserver.servers import QUICK, LocalServers
from tests.multiprocess.paramserver.test_updaters import HERE, Lion

STEPS = 6
LION = Updater(name=f"{HERE}:Lion", lr=1.0, options={"beta2": 0.95}, state=("momentum", "steps"))


def net():
    model = Net()
    model.norm.eval()
    return model


class Groups(torch.optim.SGD):
    """Has groups, and is not asked for more."""


def grouped(model):
    first = list(model.first.parameters())
    ids = {id(each) for each in first}
    rest = [each for each in model.parameters() if id(each) not in ids]
    groups = [{"params": first, "beta2": 0.8}, {"params": rest, "lr": 0.002}]
    return Groups(groups, lr=0.01)


def trained(rank, _world, job):
    model = net()
    optimizer = grouped(model)
    found = msgspec.structs.replace(job, rank=rank)
    with syncopate.KVStore(Rules(optimizer=LION), job=found, limits=QUICK) as store:
        model, optimizer = syncopate.distribute(model, optimizer, exchange=store)
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(model, step, rank)
            optimizer.step()
            optimizer.param_groups[0]["lr"] *= 0.9
        whole = model.syncopate.state_dict(optimizer, everywhere=True)
        optimizer.param_groups[0]["beta2"] = 0.5
        optimizer.zero_grad()
        said = refusal(lambda: backward(model, 0, rank))
    return whole, said


def alone(world):
    torch.set_num_threads(1)  # as on the ranks
    model = net()
    optimizer = grouped(model)
    lions, states = [Lion(beta2=0.8), Lion(beta2=0.95)], {}
    for step in range(STEPS):
        found = []
        for rank in range(world):
            optimizer.zero_grad()
            backward(model, step, rank)
            found.append({id(p): p.grad for p in model.parameters()})
        for lion, group in zip(lions, optimizer.param_groups, strict=True):
            for parameter in group["params"]:
                there = [each[id(parameter)] for each in found]
                there = [grad for grad in there if grad is not None]
                if there:
                    mean = (sum(there[1:], there[0]) / world).view(-1)
                    state = states.setdefault(id(parameter), {})
                    lion.step(parameter.detach().view(-1), mean, state, group["lr"])
        optimizer.param_groups[0]["lr"] *= 0.9
    return model, [states.get(id(parameter)) for parameter in model.parameters()]


def test_servers_update_a_model_by_a_class_of_ones_own():
    with LocalServers(servers=2, workers=2, updaters=(LION.name,)) as job:
        results = run_ranks(trained, 2, job.job)
    model, states = alone(2)
    for whole, said in results:
        expected = model.state_dict()
        assert [k for k, v in whole["model"].items() if not torch.equal(v, expected[k])] == []
        known = whole["optimizer"]["state"]
        momenta = [each["momentum_buffer"].view(-1) for each in known.values()]
        wanted = [state["momentum"] for state in states if state]
        assert len(momenta) == len(wanted)
        assert all(any(torch.equal(one, other) for other in wanted) for one in momenta)
        assert "options: {'beta2': 0.8} before, {'beta2': 0.5} now" in said
