"""The parameter server over real processes and sockets: the same weights as one process."""

from __future__ import annotations

import signal
import time

import pytest
import torch

from syncopate.errors import InvalidValueError, ParameterServerError, UnknownNameError
from syncopate.paramserver import session
from syncopate.paramserver.storage import optimizers
from syncopate.protocol.messages import REPLAYED
from syncopate.protocol.rules import SGD, Adam, Rules
from tests.multiprocess.paramserver.servers import LocalServers

STEPS = 6
SHAPES = {"conv": (7, 3, 3), "bias": (5,), "large": (3, 500_000), "none": (0,), "scalar": ()}
"""The large one is cut into two slices; the others are one each."""


def weights():
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def gradient(name, step, worker):
    seed = hash((step, worker, list(SHAPES).index(name))) % 2**31
    return torch.randn(SHAPES[name], generator=torch.Generator().manual_seed(seed))


def train(store, steps=STEPS, schedule=False, together=False):
    """Push and pull everything ``steps`` times; the values that workers start with differ."""
    tensors = weights()
    if store.rank:
        tensors = {name: torch.full_like(tensor, -1) for name, tensor in tensors.items()}
    store.init(tensors)
    for step in range(steps):
        if schedule:
            store.set_learning_rate(0.1 / (step + 1))
        gradients = {name: gradient(name, step, store.rank) for name in tensors}
        if together:
            handles = [store.push_many(gradients, 1), store.pull_many(tensors, 2)]
        else:
            handles = [store.push(name, g, i) for i, (name, g) in enumerate(gradients.items())]
            handles += [store.pull(name, out, -i) for i, (name, out) in enumerate(tensors.items())]
        for handle in handles:
            handle.wait()
            assert handle.done()
    return {name: tensor.clone() for name, tensor in tensors.items()}


def alone(rules, workers, steps=STEPS, schedule=False):
    """Return the weights of one process that adds the gradients in the workers' order."""
    tensors = weights()
    for name, tensor in tensors.items():
        state = {}
        for step in range(steps):
            total = gradient(name, step, 0)
            for worker in range(1, workers):
                total += gradient(name, step, worker)
            total /= workers
            lr = 0.1 / (step + 1) if schedule else None
            optimizers.step(rules.optimizer, lr, tensor.view(-1), total.view(-1), state)
    return tensors


def same(found, expected):
    return all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("optimizer", "workers", "servers", "schedule"),
    [
        (SGD(lr=0.1, momentum=0.9, weight_decay=1e-4), 3, 2, True),
        (Adam(lr=0.01, weight_decay=0.01), 2, 3, False),
        (SGD(lr=0.1), 1, 1, False),
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_synchronous_training_is_bitwise_that_of_one_process(
    optimizer, workers, servers, schedule, together
):
    rules = Rules(optimizer=optimizer)
    with LocalServers(workers=workers, servers=servers, rules=rules) as job:
        results = [child.result() for child in job.start(train, STEPS, schedule, together)]
        assert job.ended() is None
        refused = [server.result() for server in job.servers]
    expected = alone(rules, workers, schedule=schedule)
    assert all(same(found, expected) for found in results)
    # On a busy machine an answer may come late, and a push again; nothing else may be refused.
    assert all(set(reasons) <= {REPLAYED} for reasons in refused)


def push_more_than_fits(store):
    """Push without waiting, with room for two pushes at a time."""
    session.QUEUE_BYTES = 2 * 40_000
    weights = torch.zeros(10_000)
    store.init({"w": weights})
    gradients = [torch.full((10_000,), float(i)) for i in range(30)]
    handles = [store.push("w", gradient) for gradient in gradients]
    assert all(handle.done() for handle in handles[:-10])
    store.pull("w", weights).wait()
    return weights


def test_a_push_waits_where_too_much_is_under_way():
    rules = Rules(mode="asgd", optimizer=SGD(lr=1.0))
    with LocalServers(servers=1, workers=1, rules=rules) as job:
        found = job.start(push_more_than_fits)[0].result()
    assert torch.equal(found, torch.full((10_000,), -float(sum(range(30)))))


def _interrupt(*_):
    raise InterruptedError


def wait_twice(store, interrupted):
    """Push and pull; rank 0's wait is interrupted, and only then rank 1 pushes."""
    weights = torch.zeros(3)
    store.init({"w": weights})
    while store.rank and not interrupted.exists():
        time.sleep(0.01)
    store.push("w", torch.ones(3))
    pulled = store.pull("w", weights)
    if not store.rank:
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(InterruptedError):
            pulled.wait()
        assert not pulled.done()
        interrupted.touch()
    pulled.wait()
    return weights.tolist()


def test_who_is_interrupted_may_wait_again(tmp_path):
    rules = Rules(optimizer=SGD(lr=1.0))
    with LocalServers(servers=1, workers=2, rules=rules) as job:
        workers = job.start(wait_twice, tmp_path / "interrupted")
        assert [worker.result() for worker in workers] == [[-1.0] * 3] * 2
        assert job.ended() is None


def misuse(store):
    """Return what a worker's mistakes are answered with."""
    said = []

    def refused(kind, call, *args):
        with pytest.raises(kind) as error:
            call(*args)
        said.append(str(error.value))

    refused(InvalidValueError, store.push, "w", torch.ones(3))
    refused(UnknownNameError, store.init, {"w": torch.ones(3, dtype=torch.bool)})
    refused(InvalidValueError, store.init, {})
    strided = torch.zeros(6)[::2]
    store.init({"w": strided})
    refused(InvalidValueError, store.init, {"w": torch.ones(3)})
    refused(UnknownNameError, store.push, "v", torch.ones(3))
    refused(InvalidValueError, store.push, "w", torch.ones(4))
    refused(InvalidValueError, store.pull, "w", torch.ones(3, dtype=torch.float64))
    refused(InvalidValueError, store.set_learning_rate, -1)
    refused(InvalidValueError, store.push_many, {})
    store.set_learning_rate(0.5)
    store.push("w", torch.arange(6.0)[::2]).wait()
    store.pull("w", strided).wait()
    assert strided.tolist() == [0, -1, -2]
    store.close()
    store.close()
    refused(ParameterServerError, store.push, "w", torch.ones(3))
    return said


def test_mistakes_are_refused_and_do_no_harm():
    with LocalServers(servers=1, workers=1) as job:
        said = job.start(misuse)[0].result()
        assert job.ended() is None
    assert said == [
        "key is 'w'; it must be declared with init() first",
        "unknown dtype 'bool' for w; known: float64, float32, bfloat16, float16, complex128, "
        "complex64, int64, int32, int16, int8, uint8",
        "tensors is []; it must be at least one, each with a name of its own",
        "init is 'called again'; it must be called once",
        "unknown key 'v'; known: w",
        "w is '4 of float32'; it must be 3 elements of float32, as init() was given",
        "w is '3 of float64'; it must be 3 elements of float32, as init() was given",
        "lr is -1; it must be at least 0",
        "tensors is 'none'; it must be one or more",
        "this store is closed",
    ]
