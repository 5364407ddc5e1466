"""Tables of rows over real processes and sockets: the same rows as one process with torch."""

from __future__ import annotations

import signal
import time

import msgspec
import numpy as np
import pytest
import torch

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.protocol.rules import SGD, Adagrad, Adam, Rules
from syncopate.protocol.table import Constant, Normal, Table, Uniform
from tests.multiprocess.paramserver.servers import CALM, LocalServers, wait_for

ROWS, WIDTH, STEPS = 400, 6, 6
KINDS = {
    "sgd": (SGD(lr=0.1), torch.optim.SGD),
    "adagrad": (Adagrad(lr=0.1), torch.optim.Adagrad),
    "adam": (Adam(lr=0.1), torch.optim.SparseAdam),
}
LARGE = Table(rows=10**9, width=WIDTH, initial=Normal(std=0.1, seed=3))


def first_table():
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))


def batch(step, worker, rows=ROWS):
    """Return ids with duplicates, in any order, and gradients; worker 1 has none in step 3."""
    generator = np.random.default_rng(100 * step + worker)
    count = 0 if (step, worker) == (3, 1) else 60
    ids = generator.zipf(1.3, count) % rows
    values = generator.normal(size=(count, WIDTH)).astype(np.float32)
    return torch.from_numpy(ids), torch.from_numpy(values)


def train(store, optimizer=None, steps=STEPS, wait_s=0.0):
    """Push and pull rows; return the whole table, and what the optimizer remembers."""
    table = first_table() if not store.rank else torch.full((ROWS, WIDTH), -1.0)
    store.init_rows("t", table, optimizer)
    assert torch.equal(table, first_table())
    seen = []
    for step in range(steps):
        ids, values = batch(step, store.rank)
        pushed = store.push_rows("t", ids, values, lr=0.1 / (step + 1))
        pulled = store.pull_rows("t", ids.to(torch.int32))
        pushed.wait()
        pulled.wait()
        seen.append(pulled.out)
        time.sleep(wait_s)
    store.pull_rows("t", torch.arange(ROWS), table).wait()
    return table, store.table_state("t"), seen


def sparse(ids, values):
    shape = (ROWS, WIDTH)
    return torch.sparse_coo_tensor(ids[None], values, shape, check_invariants=True).coalesce()


def alone(kind, workers, steps=STEPS):
    """Return the table of one process with torch, and what each worker should have pulled."""
    weight = torch.nn.Parameter(first_table())
    optimizer = kind([weight], lr=0.1)
    seen = [[] for _ in range(workers)]
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        total, touched = torch.zeros(ROWS, WIDTH), torch.zeros(ROWS, dtype=torch.bool)
        for worker in range(workers):
            ids, values = batch(step, worker)
            total = total + sparse(ids, values).to_dense()
            touched[ids] = True
        total /= workers
        rows = touched.nonzero()[:, 0]
        weight.grad = sparse(rows, total[rows])
        optimizer.step()
        for worker in range(workers):
            seen[worker].append(weight.detach()[batch(step, worker)[0]].clone())
    return weight.detach(), optimizer.state[weight], seen


@pytest.mark.parametrize(
    ("name", "workers", "servers"),
    [("sgd", 2, 1), ("sgd", 3, 3), ("adagrad", 2, 2), ("adam", 2, 3)],
)
def test_synchronous_rows_are_bitwise_those_of_one_process(name, workers, servers):
    rule, kind = KINDS[name]
    with LocalServers(workers=workers, servers=servers) as job:
        results = [child.result() for child in job.start(train, rule)]
        assert job.ended() is None
    table, state, seen = alone(kind, workers)
    for worker, (found, known, pulled) in enumerate(results):
        assert torch.equal(found, table)
        assert all(torch.equal(*pair) for pair in zip(pulled, seen[worker], strict=True))
        assert torch.equal(known["weights"], table)
        assert known["ids"].tolist() == list(range(ROWS))
        for ours, theirs in (("sum", "sum"), ("mean", "exp_avg"), ("square", "exp_avg_sq")):
            assert (ours in known) == (theirs in state)
            assert ours not in known or torch.equal(known[ours], state[theirs])


def train_beside_tensors(store, rows_first):
    """Train a tensor and a large table at once."""
    dense = torch.zeros(5)
    if not rows_first:
        store.init({"w": dense})
    store.init_rows("t", LARGE)
    store.init_rows("other", Table(rows=7, width=2, initial=Constant(4.0)))
    if rows_first:
        store.init({"w": dense})
    far = torch.tensor([[5, 999_999_999], [5, 123_456_789]])
    before = store.pull_rows("t", far)
    before.wait()
    assert len(store.table_state("t")["ids"]) == 0
    store.push("w", torch.ones(5))
    store.push_rows("t", far, torch.ones(2, 2, WIDTH))
    store.push_rows("other", torch.tensor([store.rank]), torch.ones(1, 2))
    after, other = store.pull_rows("t", far), store.pull_rows("other", torch.arange(3))
    for handle in (store.pull("w", dense), after, other):
        handle.wait()
    held = store.table_state("t")
    return before.out, after.out, held["ids"].tolist(), other.out, dense


@pytest.mark.parametrize("rows_first", [False, True])
def test_a_table_of_a_thousand_million_rows_is_made_of_those_that_are_touched(rows_first):
    found = []
    for servers in (1, 2):
        with LocalServers(workers=2, servers=servers) as job:
            results = [c.result() for c in job.start(train_beside_tensors, rows_first)]
            assert job.ended() is None
        found += results
    first = found[0]
    assert all(torch.equal(one[0], first[0]) and torch.equal(one[1], first[1]) for one in found)
    before, after, held, other, dense = first
    assert before.shape == (2, 2, WIDTH)
    assert torch.equal(before[0, 0], before[1, 0])
    assert len(torch.unique(before)) == 3 * WIDTH
    # Row 5 was there twice, and the mean of two workers is one worker's.
    changes = torch.tensor([[2.0, 1.0], [2.0, 1.0]])[:, :, None].expand(2, 2, WIDTH)
    assert torch.equal(after, before.sub(changes, alpha=0.1))
    assert held == [5, 123_456_789, 999_999_999]
    assert torch.equal(other, torch.tensor([[3.95] * 2, [3.95] * 2, [4.0] * 2]))
    assert torch.equal(dense, torch.full((5,), -0.1))


def asynchronous(store, pulls_every):
    """Push rows at once, and pull them now and then."""
    store.init_rows("t", Table(rows=50, width=2), SGD(lr=1.0))
    for step in range(12):
        pushed = store.push_rows("t", torch.tensor([store.rank, 9]), torch.ones(2, 2))
        if step % pulls_every == 0:
            pulled = store.pull_rows("t", torch.tensor([store.rank, 9]))
            pulled.wait()
            # All that this worker pushed is in it; of the others' what has come.
            assert torch.equal(pulled.out[0], torch.full((2,), -float(step + 1)))
            assert pulled.out[1, 0] <= -(step + 1)
    pushed.wait()
    return store.rank


@pytest.mark.parametrize("pulls_every", [1, 4])
@pytest.mark.parametrize("staleness", [None, 2])
def test_asynchronous_pushes_are_updates_by_themselves(pulls_every, staleness):
    rules = Rules(mode="asgd", staleness=staleness)
    with LocalServers(workers=2, servers=2, rules=rules) as job:
        assert [child.result() for child in job.start(asynchronous, pulls_every)] == [0, 1]
        assert job.ended() is None


def delayed(store):
    """Push in every step, pull in every fourth."""
    store.init_rows("t", first_table())
    found = []
    for step in range(8):
        ids, values = batch(step, store.rank)
        store.push_rows("t", ids, values, lr=0.1 / (step + 1))
        if step % 4 == 3:
            pulled = store.pull_rows("t", torch.arange(ROWS))
            pulled.wait()
            found.append(pulled.out)
    return found


def test_rows_that_are_pulled_late_have_all_pushes_in_them():
    with LocalServers(workers=2, servers=2) as job:
        results = [child.result() for child in job.start(delayed)]
    expected = [alone(torch.optim.SGD, 2, steps)[0] for steps in (4, 8)]
    for found in results:
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def misuse(store):
    """Return what a worker's mistakes are answered with."""
    said = []

    def refused(kind, call, *args, **kwargs):
        with pytest.raises(kind) as caught:
            call(*args, **kwargs)
        said.append(str(caught.value))

    store.init_rows("t", Table(rows=5, width=2))
    one = torch.ones(1, 2)
    refused(UnknownNameError, store.push_rows, "x", torch.tensor([1]), one)
    refused(InvalidValueError, store.push_rows, "t", torch.tensor([5]), one)
    refused(InvalidValueError, store.pull_rows, "t", torch.tensor([-1]))
    refused(InvalidValueError, store.pull_rows, "t", torch.tensor([1.0]))
    refused(InvalidValueError, store.pull_rows, "t", [1])
    refused(InvalidValueError, store.push_rows, "t", torch.tensor([1]), torch.ones(1, 3))
    refused(InvalidValueError, store.push_rows, "t", torch.tensor([1]), one.double())
    refused(InvalidValueError, store.push_rows, "t", torch.tensor([1, 2]), torch.ones(4))
    refused(InvalidValueError, store.pull_rows, "t", torch.tensor([1]), torch.ones(2, 2))
    refused(InvalidValueError, store.init_rows, "t", Table(rows=5, width=2))
    refused(InvalidValueError, store.init_rows, "u", torch.ones(5))
    refused(InvalidValueError, store.init_rows, "u", Table(rows=0, width=2))
    refused(InvalidValueError, store.init_rows, "u", one, SGD(lr=0.1, momentum=0.9))
    refused(InvalidValueError, store.init_rows, "u", one, Adam(weight_decay=0.1))
    refused(UnknownNameError, store.init_rows, "u", one.to(torch.float16))
    refused(
        InvalidValueError, store.init_rows, "u", Table(rows=3, width=2, initial=Uniform(0, 1e999))
    )
    nothing = store.pull_rows("t", torch.empty(0, 3, dtype=torch.int64))
    nothing.wait()
    assert nothing.out.shape == (0, 3, 2)
    return said


WORDS = [
    "unknown table 'x'; known: t",
    "an id of 't' is 5; it must be from 0 to 4",
    "an id of 't' is -1",
    "ids of 't' is 'float32'; it must be a tensor of int32 or int64",
    "ids of 't' is 'list'",
    "values of 't' is '(1, 3) of float32'; it must be 1 rows of 2 elements of float32",
    "values of 't' is '(1, 2) of float64'",
    "values of 't' is '(4,) of float32'",
    "out of 't' is '(2, 2) of float32'",
    "key is 't'; it must be the name of a new table",
    "the table 'u' is '(5,) of float32'",
    "rows is 0; it must be from 1",
    "momentum is 0.9; it must be 0 for a table of rows",
    "weight_decay is 0.1; it must be 0 for a table of rows",
    "unknown dtype 'float16' for a table of rows; known: float32, float64",
    "high is inf; it must be finite",
]


def test_mistakes_are_named():
    with LocalServers(workers=1, servers=2) as job:
        said = job.start(misuse)[0].result()
        assert job.ended() is None
    assert len(said) == len(WORDS)
    for sentence, words in zip(said, WORDS, strict=True):
        assert words in sentence


def declare(store, width):
    store.init_rows("t", Table(rows=5, width=width[store.rank]))


def test_workers_that_declare_other_tables_are_told():
    with LocalServers(workers=2, servers=1) as job:
        outcomes = [worker.outcome() for worker in job.start(declare, (2, 3))]
    said = [value for kind, value in outcomes if kind == "refused"]  # the first may be through
    assert any("all workers declare the same tables in the same order" in each for each in said)


def resumed(store, state):
    """Go on where ``state`` was, or begin and return it in the middle."""
    rule = KINDS["adam"][0]
    steps = range(3, STEPS) if state is not None else range(3)
    store.init_rows("t", first_table() if state is None else Table(ROWS, WIDTH), rule, state)
    for step in steps:
        ids, values = batch(step, store.rank)
        store.push_rows("t", ids, values, lr=0.1 / (step + 1)).wait()
    return store.table_state("t")


def test_another_job_with_other_servers_goes_on_with_the_same_bits():
    state = None
    for servers in (1, 3):
        with LocalServers(workers=2, servers=servers) as job:
            results = [child.result() for child in job.start(resumed, state)]
            assert job.ended() is None
        state = results[0]
    table, known, _ = alone(torch.optim.SparseAdam, 2)
    assert torch.equal(state["weights"], table)
    assert torch.equal(state["mean"], known["exp_avg"])
    assert int(state["steps"]) == known["step"] == STEPS


def large_push(store):
    """Push and pull more than one message holds."""
    store.init_rows("t", Table(rows=10**7, width=8), SGD(lr=1.0))
    ids = torch.randperm(60_000) * 100
    store.push_rows("t", ids, ids[:, None].expand(-1, 8).float()).wait()
    pulled = store.pull_rows("t", ids)
    pulled.wait()
    return torch.equal(pulled.out, -ids[:, None].expand(-1, 8).float())


def test_pushes_and_pulls_of_many_rows_travel_in_parts():
    limits = msgspec.structs.replace(CALM, slice_bytes=1 << 18)
    with LocalServers(workers=1, servers=2, limits=limits, faults="drop=0.05,seed=3") as job:
        assert job.start(large_push)[0].result()
        assert job.ended() is None


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_servers_that_are_killed_count_each_push_once(name, tmp_path):
    rule, kind = KINDS[name]
    with LocalServers(workers=2, servers=2, state=tmp_path) as job:
        workers = job.start(train, rule, STEPS, 0.2)
        for number in range(4):
            wait_for(lambda number=number: list((tmp_path / str(number % 2)).glob("segment-*")))
            time.sleep(0.3)
            job.servers[number % 2].kill(signal.SIGKILL)
            job.restart(number % 2)
        results = [worker.result() for worker in workers]
        assert job.ended() is None
    table, state, seen = alone(kind, 2)
    for worker, (found, known, pulled) in enumerate(results):
        assert torch.equal(found, table)
        assert all(torch.equal(*pair) for pair in zip(pulled, seen[worker], strict=True))
        if name == "adam":
            assert torch.equal(known["square"], state["exp_avg_sq"])


def test_lost_doubled_and_late_messages_change_nothing(tmp_path):
    faults = "drop=0.1,duplicate=0.1,delay=0.02,seed=5"
    rule, kind = KINDS["adagrad"]
    with LocalServers(workers=2, servers=2, state=tmp_path, faults=faults) as job:
        results = [child.result() for child in job.start(train, rule)]
        assert job.ended() is None
    table, _, _ = alone(kind, 2)
    assert all(torch.equal(found, table) for found, _, _ in results)
