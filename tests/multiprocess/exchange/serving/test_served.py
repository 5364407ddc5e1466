"""The served exchange: real servers, real ranks, and the training of one process."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext

import msgspec
import pytest
import torch
from torch import nn

import syncopate
from syncopate.engine.exchange.flat_weights import FlatWeights
from syncopate.engine.readiness import Readiness
from syncopate.engine.selfplan.ddp_buckets import first_plan
from syncopate.errors import SyncopateError
from syncopate.protocol.rules import Rules
from syncopate.recipe import Recipe
from tests.children import HANGS_S
from tests.multiprocess.exchange.cases import begin_anew, failing_backward
from tests.multiprocess.harness import run_ranks
from tests.multiprocess.paramserver.servers import QUICK, LocalServers

STEPS = 20
BATCH = 8
LR = 0.002

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=LR),
    "momentum": lambda p: torch.optim.SGD(p, lr=LR, momentum=0.9, weight_decay=1e-2, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
}


class Net(nn.Module):
    """Frozen, normalised and rarely used parts, and one that is gathered beside backward."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(6, 32)
        self.frozen = nn.Linear(32, 32)
        self.frozen.requires_grad_(False)
        self.norm = nn.BatchNorm1d(32)
        self.middle = nn.Linear(32, 32)
        self.rare = nn.Linear(32, 32)
        self.wide = nn.Linear(32, 20_000)
        self.last = nn.Linear(20_000, 3)

    def forward(self, x, rare=False):
        x = torch.relu(self.middle(self.norm(self.frozen(self.first(x)))))
        return self.last(self.wide(self.rare(x) if rare else x))


def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(BATCH, 6, generator=generator)


def loss_of(model, x, rare=False):
    return model(x, rare=rare).square().mean()


def backward(model, step, rank, accumulate=1, aside=nullcontext):
    """Gradients of several batches, all but the last ``aside``; some parameters are rarely reached.

    Those are reached on one rank in some steps, and in others nowhere.
    """
    for micro in range(accumulate - 1):
        with aside():
            loss_of(model, batch(1000 + micro + step, rank)).backward()
    loss_of(model, batch(step, rank), rare=step % 4 == 1 and rank == 1).backward()


def store_of(job, rank):
    return syncopate.KVStore(Rules(), job=msgspec.structs.replace(job, rank=rank), limits=QUICK)


def prepared(job, rank, name, **options):
    model = Net().eval()
    model.train()
    model.norm.eval()
    optimizer = OPTIMIZERS[name](model.parameters())
    store = store_of(job, rank)
    return store, *syncopate.distribute(model, optimizer, exchange=store, **options)


def finer(plan):
    """Return a plan of a bucket for each tensor, of which the last one pushed is pulled last."""
    sizes = {name: p.nbytes for name, p in Net().named_parameters()}
    buckets = [
        msgspec.structs.replace(bucket, tensors=(name,), nbytes=sizes[name])
        for bucket in plan.buckets
        for name in bucket.tensors
    ]
    order = tuple(range(len(buckets)))
    return msgspec.structs.replace(plan, buckets=tuple(buckets), pull_order=order)


def trained(rank, _world, job, name, accumulate):
    """Return the weights, whether weights were on their way after each step, and the rate."""
    store, model, optimizer = prepared(job, rank, name)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    waiting = []
    with store:
        for step in range(STEPS):
            if step == STEPS // 2:
                model.syncopate.install(finer(model.syncopate.plan))
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            backward(model, step, rank, accumulate, model.no_sync)
            optimizer.step()
            schedule.step()
            waiting.append(type(model.last.weight) is not nn.Parameter)
        weights = {key: value.clone() for key, value in model.state_dict().items()}
        assert not any(optimizer.state.values())
        whole = model.syncopate.state_dict(optimizer, everywhere=True)["optimizer"]["state"]
        with model.syncopate.whole_state(optimizer):
            assert same_states(optimizer.state_dict()["state"], whole)
        assert not any(optimizer.state.values())
    return weights, waiting, optimizer.param_groups[0]["lr"], whole


def same_states(one, other):
    """Whether two states of an optimizer have the same tensors, bit by bit."""
    entries = [
        {(i, k): v for i, held in each.items() for k, v in held.items() if v is not None}
        for each in (one, other)
    ]
    same = entries[0].keys() == entries[1].keys()
    return same and all(torch.equal(value, entries[1][key]) for key, value in entries[0].items())


def average(model, step, world, accumulate=1):
    """Give a model the mean of the ranks' gradients, added in their order."""
    found = []
    for rank in range(world):
        model.zero_grad()
        backward(model, step, rank, accumulate)
        found.append([parameter.grad for parameter in model.parameters()])
    for parameter, *grads in zip(model.parameters(), *found, strict=True):
        there = [grad for grad in grads if grad is not None]
        parameter.grad = sum(there[1:], there[0]) / world if there else None


def alone(name, world, accumulate):
    """Return the weights of one process that adds the ranks' gradients in their order."""
    torch.set_num_threads(1)  # as on the ranks
    model = Net()
    model.norm.eval()
    optimizer = OPTIMIZERS[name](model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    for step in range(STEPS):
        average(model, step, world, accumulate)
        optimizer.step()
        schedule.step()
    return model.state_dict(), optimizer.state_dict()["state"]


@pytest.mark.parametrize(
    ("name", "servers", "world", "accumulate"),
    [("sgd", 1, 2, 1), ("momentum", 2, 3, 1), ("adam", 2, 2, 2), ("adamw", 1, 2, 1)],
)
def test_servers_train_as_one_process_does(name, servers, world, accumulate):
    with LocalServers(servers=servers, workers=world) as job:
        results = run_ranks(trained, world, job.job, name, accumulate)
        assert job.ended() is None
    expected, state = alone(name, world, accumulate)
    assert all(value.isfinite().all() for value in expected.values())
    for weights, waiting, lr, known in results:
        assert same_states(known, state)
        assert [key for key in expected if not torch.equal(weights[key], expected[key])] == []
        assert any(waiting)  # a step returned before the weights were back
        assert lr == OPTIMIZERS[name]([torch.zeros(1)]).param_groups[0]["lr"] * 0.5**6


def stopped(rank, _world, first, second, name):
    """Return the weights of a training that goes on on other servers, and of one that does not."""
    store, model, optimizer = prepared(first, rank, name)

    def train(steps):
        for step in steps:
            optimizer.zero_grad()
            backward(model, step, rank)
            optimizer.step()

    with store:
        train(range(5))
        whole = model.syncopate.state_dict(optimizer, everywhere=True)
        train(range(5, 10))
        expected = {key: value.clone() for key, value in model.state_dict().items()}
    model = Net()
    model.norm.eval()
    optimizer = OPTIMIZERS[name](model.parameters())
    model.load_state_dict(whole["model"])
    optimizer.load_state_dict(whole["optimizer"])
    with store_of(second, rank) as store:
        model, optimizer = syncopate.distribute(model, optimizer, exchange=store)
        late = refusal(lambda: optimizer.load_state_dict(whole["optimizer"]))
        train(range(5, 10))
        found = {key: value.clone() for key, value in model.state_dict().items()}
    return found, expected, late


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_a_training_goes_on_on_other_servers_with_the_same_bits(name):
    with LocalServers(workers=2) as first, LocalServers(servers=1, workers=2) as second:
        for found, expected, late in run_ranks(stopped, 2, first.job, second.job, name):
            assert [key for key in expected if not torch.equal(found[key], expected[key])] == []
            assert "Load model and optimizer before distribute()" in late


def refusal(act):
    """Return what ``act`` is refused with."""
    try:
        act()
    except SyncopateError as error:
        return str(error)
    return ""


def everything_refused(said, expected):
    """Every refusal says what it is expected to say."""
    assert said.keys() == expected.keys()
    assert {what: text for what, text in said.items() if expected[what] not in text} == {}


IN_TRAINING = {
    "clip": "servers have taken",
    "scale": "servers have taken",
    "open": "look at what they have after step()",
    "lr": "0.001 in this step, and was 0.002",
    "again": "zero_grad() after each step",
    "added": "call zero_grad() before",
    "state": "is on the servers",
    "plan": "for good",
    "twice": "no step followed",
    "momentum": "'first.weight' momentum: 0.9 before, 0.5 now",
    "written": "'first.bias' were written to",
}


def refused_in_training(rank, _world, job):
    store, model, optimizer = prepared(job, rank, "momentum")
    said = {}
    with store:
        backward(model, 0, rank)
        said["clip"] = refusal(lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        said["scale"] = refusal(lambda: model.last.weight.grad.mul_(2))
        said["open"] = refusal(lambda: model.syncopate.state_dict(optimizer))
        optimizer.param_groups[0]["lr"] = LR / 2
        said["lr"] = refusal(optimizer.step)
        optimizer.param_groups[0]["lr"] = LR
        optimizer.step()
        said["again"] = refusal(optimizer.step)
        said["added"] = refusal(lambda: backward(model, 0, rank))
        said["state"] = refusal(optimizer.state_dict)
        other = msgspec.structs.replace(
            model.syncopate.plan,
            exchange="allreduce",
            buckets=tuple(
                msgspec.structs.replace(one, push=Recipe("all_reduce"), pull=None)
                for one in model.syncopate.plan.buckets
            ),
        )
        said["plan"] = refusal(lambda: model.syncopate.install(other))
        optimizer.zero_grad()
        backward(model, 1, rank)
        optimizer.zero_grad()
        said["twice"] = refusal(lambda: backward(model, 2, rank))
        optimizer.zero_grad()
        optimizer.step()
        optimizer.param_groups[0]["momentum"] = 0.5
        said["momentum"] = refusal(lambda: backward(model, 3, rank))
        optimizer.param_groups[0]["momentum"] = 0.9
        optimizer.zero_grad()
        with torch.no_grad():
            model.first.bias.add_(1)
        said["written"] = refusal(lambda: backward(model, 4, rank))
    return said


def test_what_servers_cannot_do_is_refused_in_training():
    with LocalServers(servers=1, workers=2) as job:
        for said in run_ranks(refused_in_training, 2, job.job):
            everything_refused(said, IN_TRAINING)


AT_START = {
    "class": "Adam, AdamW, SGD",
    "two": "servers do what one optimizer does, and 2 were given",
    "maximize": "maximize=True",
    "none": "give the optimizer, too",
    "no store": "exchange is 'served'; it must be the syncopate.KVStore itself",
    "nothing like it": "exchange is 7; it must be one of 'allreduce', 'decoupled', 'sharded', or a",
    "unknown": "'servers'; known: allreduce, decoupled, sharded, a syncopate.KVStore",
    "other": "left out beside a plan of the allreduce exchange",
    "plan alone": "exchange is not given; it must be the syncopate.KVStore itself",
    "name beside a plan": "left out beside a plan, which says it already",
    "policy": "left out with the served exchange",
    "loss": "on_worker_loss='abort'",
    "workers": "syncopate ps local",
}


def refused_at_start(rank, _world, job):
    model = Net()
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    said = {}
    with store_of(job, rank) as store:

        def start(optimizer=sgd, **options):
            return refusal(lambda: syncopate.distribute(model, optimizer, **options))

        said["class"] = start(torch.optim.RMSprop(model.parameters()), exchange=store)
        two = [torch.optim.SGD(each.parameters(), 0.1) for each in (model.first, model.last)]
        said["two"] = start(two, exchange=store)
        said["maximize"] = start(
            torch.optim.SGD(model.parameters(), 0.1, maximize=True), exchange=store
        )
        said["none"] = start(None, exchange=store)
        said["no store"] = start(exchange="served")
        said["nothing like it"] = start(exchange=7)
        said["unknown"] = start(exchange="servers")
        plan = first_plan("Net", [("w", 4, "float32")], 1)
        said["other"] = start(plan=plan, exchange=store)
        served = first_plan("Net", [("w", 4, "float32")], 1, "served", servers=1)
        said["plan alone"] = start(plan=served)
        said["name beside a plan"] = start(plan=served, exchange="served")
        said["policy"] = start(plan="optimal", exchange=store)
        store.rules = Rules(on_worker_loss="continue")
        said["loss"] = start(exchange=store)
        store.num_workers = 7
        said["workers"] = start(exchange=store)
    return said


def test_what_servers_cannot_do_is_refused_at_the_start():
    with LocalServers(servers=1, workers=1) as job:
        (said,) = run_ranks(refused_at_start, 1, job.job)
    everything_refused(said, AT_START)


def failed(rank, _world, job):
    """Rank 1's backward fails half-way; return what each rank is told from then on."""
    store, model, optimizer = prepared(job, rank, "sgd")
    said = []
    with store:

        def step():
            loss_of(model, batch(0, rank)).backward()
            optimizer.step()

        if rank:
            with failing_backward(model.wide):
                step()
        for _ in range(2):
            said.append(refusal(step))
    return said


def test_nobody_goes_on_after_a_backward_that_failed():
    with LocalServers(servers=1, workers=2) as job:
        first, second = run_ranks(failed, 2, job.job)
    assert "backward failed on rank 1" in first[0]
    begin_anew((first[1], *second))


def watched(rank, _world, job):
    """Record steps, give the model back, and see who has the weights."""
    store, model, optimizer = prepared(job, rank, "sgd")
    with store:
        model.syncopate.record()
        waits = []
        report = Readiness._report

        def reported(readiness):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(FlatWeights, "_await", lambda *_: waits.append(readiness.step.number))
                report(readiness)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Readiness, "_report", reported)
            for step in range(3):
                optimizer.zero_grad()
                loss_of(model, batch(step, rank)).backward()
                optimizer.step()
        assert waits == []  # the listener does not wait for weights that are not needed yet
        model.syncopate.ready()
        timeline = model.syncopate.timeline()
        whole = model.syncopate.state_dict(optimizer, everywhere=True)
        model.syncopate.detach()
        same = all(
            torch.equal(whole["model"][key], value) for key, value in model.state_dict().items()
        )
        before = model.last.weight.clone()
        optimizer.zero_grad()
        loss_of(model, batch(9, rank)).backward()
        optimizer.step()
        return same, not torch.equal(before, model.last.weight), timeline


def test_a_served_training_is_recorded_and_given_back():
    with LocalServers(servers=2, workers=2) as job:
        results = run_ranks(watched, 2, job.job)
    for same, moved, timeline in results:
        assert same
        assert moved
        lanes = [span.lane for span in timeline.spans]
        assert lanes.count("push") == lanes.count("pull") > 0


SCRIPT = """
import torch, syncopate
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with syncopate.KVStore() as store:
    model, optimizer = syncopate.distribute(model, optimizer, exchange=store)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    print(f"rank {rank} of {ranks}: {float(model.weight.detach().sum()):.6f}")
"""


def test_a_job_on_this_machine_has_ranks(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    line = [sys.executable, "-m", "syncopate", "ps", "local", "--servers", "2", "--workers", "2"]
    done = subprocess.run(
        [*line, "--", sys.executable, str(script)],
        check=False,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
    )
    assert done.returncode == 0, done.stderr
    said = sorted(one for one in done.stdout.splitlines() if one.startswith("rank "))
    assert [one.split(":")[0] for one in said] == ["rank 0 of 2", "rank 1 of 2"]
    assert len({one.split(":")[1] for one in said}) == 1
