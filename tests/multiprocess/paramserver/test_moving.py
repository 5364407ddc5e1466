"""A job moves to other servers between two steps: its weights are those of one that stayed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

from syncopate.errors import InvalidValueError, ParameterServerError
from syncopate.paramserver.launch import free_port
from syncopate.paramserver.status import status
from syncopate.protocol.rules import SGD, Adagrad, Adam, Rules
from syncopate.protocol.table import Normal, Table
from tests.multiprocess.paramserver.killable import (
    LIMITS,
    Killable,
    gradients,
    require_alike,
)
from tests.multiprocess.paramserver.servers import wait_for

STEPS = 9
SSGD = Rules(mode="ssgd", optimizer=Adam(lr=0.05))
TABLE = Table(rows=500, width=4, initial=Normal(std=0.1, seed=3))


class _Place(Killable):
    """A job to which, and from which, one moves."""

    @property
    def address(self):
        return f"127.0.0.1:{self.job.port}"

    def is_over(self):
        """Say whether the job here came to a good end, as its scheduler has it on disk."""
        return msgspec.json.decode((self.folder / "scheduler/scheduler.json").read_bytes())["over"]

    def servers(self):
        """Return where the scheduler here says that its servers are."""
        nodes = status(self.job).standing.nodes
        return {node.rank: node.address for node in nodes if node.role == "server"}

    def end(self):
        """Wait until scheduler and servers have ended well."""
        for name, child in self.children.items():
            if not name.startswith("worker"):
                child.result()


def _halting(store, at, folder):
    """Let a worker halt before it calls the method ``at`` while it moves, until it may go on."""
    function = getattr(store, at)

    def halts(*args):
        if not (folder / "halts").exists():
            (folder / "halts").touch()
            wait_for((folder / "goes").exists)
        return function(*args)

    setattr(store, at, halts)


def _train(store, moves, halt=None):
    """Train a model of a large tensor and many small ones, and a table; move before some steps."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(24, 24) for _ in range(20)))
    weights = {name: p.detach() for name, p in model.named_parameters()}
    groups = {"0.weight": SGD(lr=0.01, momentum=0.9)}
    store.init(weights, groups if store.rules.clip_norm is None else None)
    if store.rules.clip_norm is None:
        store.init_rows("user", TABLE, Adagrad(lr=0.1))
    counts = [store.num_servers]
    for step in range(store.step, STEPS):
        if step in moves:
            if halt is not None and store.rank == halt[0]:
                _halting(store, *halt[1:])
            store.move(moves[step])
            assert store.step == step
            counts.append(store.num_servers)
        if step >= 2:
            store.set_learning_rate(0.01)
        pushed = [store.push_many(gradients(model, step, store.rank))]
        if store.rules.clip_norm is None:
            own = torch.Generator().manual_seed(step + store.rank)
            ids = torch.randint(500, (20,), generator=own)
            rows = store.pull_rows("user", ids)
            rows.wait()
            pushed += [store.push_rows("user", ids, rows.out * 0.5)]
        pulled = store.pull_many(weights)
        for handle in (*pushed, pulled):
            handle.wait()
    state = {f"{n} {k}": t for n, each in store.state().items() for k, t in each.items()}
    if store.rules.clip_norm is None:
        state |= store.table_state("user")
    return counts, weights | state


@pytest.fixture(scope="module", params=["", "clipped"])
def undisturbed(request, tmp_path_factory):
    """Rules, and what a job has at its end that stays where it is."""
    rules = msgspec.structs.replace(SSGD, clip_norm=0.5) if request.param else SSGD
    with _Place(tmp_path_factory.mktemp("stays"), 2) as stays:
        stays.work(rules, _train, {})
        (_, found), other = stays.results()
        require_alike(found, other[1])
    return rules, found


def test_a_job_that_moves_has_the_bits_of_one_that_stays(tmp_path, undisturbed):
    rules, expected = undisturbed
    with (
        _Place(tmp_path / "one", 2) as one,
        _Place(tmp_path / "two", 3) as two,
        _Place(tmp_path / "three", 1) as three,
    ):
        one.work(rules, _train, {4: two.address, 7: three.address})
        for counts, found in one.results():
            assert counts == [2, 3, 1]
            require_alike(found, expected)
        for place in (one, two, three):
            place.end()


@pytest.fixture
def places(tmp_path):
    """Two servers, and three others that a job of those may move to."""
    with _Place(tmp_path / "one", 2) as one, _Place(tmp_path / "two", 3) as two:
        yield one, two


def _moves(places, rules, folder, rank, at):
    """Let a job move, and return when worker ``rank`` halts before it calls ``at``."""
    one, two = places
    one.work(rules, _train, {4: two.address}, (rank, at, folder))
    wait_for((folder / "halts").exists)


@pytest.mark.parametrize(
    "moment",
    [
        (0, "pull_many"),
        (0, "_enter"),
        (0, "_begin"),
        (1, "_begin"),
        (0, "push_many"),
        (1, "push_many"),
    ],
)
def test_all_that_is_killed_goes_on_where_the_job_is(tmp_path, places, undisturbed, moment):
    rules, expected = undisturbed
    one, two = places
    _moves(places, rules, tmp_path, *moment)
    one.kill()
    two.kill()
    place, _other = (two, one) if one.is_over() else (one, two)
    place.begin()
    place.work(rules, _train, {})
    for counts, found in place.results():
        assert counts == [place.job.servers]
        require_alike(found, expected)
    if moment[0] == 0:
        assert (place is two) == (moment[1] == "push_many")


@pytest.mark.parametrize("killed", [(0, "server 1"), (1, "server 1"), (0, "scheduler")])
@pytest.mark.parametrize("at", ["_enter", "_begin"])
def test_a_server_or_scheduler_that_is_killed_meanwhile_comes_back(
    tmp_path, places, undisturbed, killed, at
):
    rules, expected = undisturbed
    _moves(places, rules, tmp_path, 0, at)
    where, name = killed
    before = places[where].servers()
    places[where].kill(name)
    places[where].begin(name)
    if name != "scheduler":  # the job may be over without it: it is to come back before that
        wait_for(lambda: places[where].servers() != before)
    (tmp_path / "goes").touch()
    for counts, found in places[0].results():
        assert counts == [2, 3]
        require_alike(found, expected)
    for place in places:
        place.end()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_is_killed_meanwhile_ends_both_jobs_and_all_goes_on_where_it_is(
    tmp_path, places, undisturbed, rank
):
    rules, expected = undisturbed
    one, two = places
    _moves(places, rules, tmp_path, rank, "_begin")
    one.kill(f"worker {rank}")
    assert f"worker {rank} was" in two.children["scheduler"].refusal()
    assert one.children["scheduler"].outcome()[0] in {"refused", "result"}
    assert one.children[f"worker {1 - rank}"].outcome()[0] == "refused"
    place = two if one.is_over() else one
    place.begin()
    place.work(rules, _train, {})
    for counts, found in place.results():
        assert counts == [place.job.servers]
        require_alike(found, expected)


def _goes_on(store, refusals):
    """Try to move to each of these addresses, or to the one that is in a file by then."""
    total = torch.zeros(30)
    store.init({"sum": total})
    # Only who waits for the other job is hasty: a busy machine may take long to bring this one up.
    store._limits = msgspec.structs.replace(store._limits, join_s=4.0)
    for told, why in refusals.items():
        address = told
        if isinstance(told, Path):
            wait_for(told.exists)
            address = told.read_text()
            store._limits = LIMITS
        with pytest.raises(ParameterServerError, match=why):
            store.move(address)
    store.push("sum", torch.ones(30)).wait()
    store.pull("sum", total).wait()
    return total


def test_a_job_goes_on_where_it_is_if_the_other_servers_do_not_come(tmp_path):
    hasty, address = msgspec.structs.replace(LIMITS, join_s=10.0), tmp_path / "address"
    with _Place(tmp_path / "one", 2) as one:
        one.work(Rules(optimizer=SGD(lr=1.0)), _goes_on, {address: "2 of 3 servers"})
        wait_for(lambda: status(one.job).standing.complete)
        with _Place(tmp_path / "two", 3, hasty) as two:
            two.kill("server 2")
            (tmp_path / "new").write_text(two.address)
            (tmp_path / "new").rename(address)
            for total in one.results():
                assert torch.equal(total, torch.full((30,), -1.0))
            one.end()


def _count(store, address, folder):
    total = torch.zeros(3000)
    store.init({"sum": total})
    for step in range(10 * (store.rank + 1)):
        if step == 5 * (store.rank + 1):
            store.move(address)
        store.push("sum", torch.ones(3000))
    store.push("sum", torch.ones(3000)).wait()
    (folder / str(store.rank)).touch()
    wait_for((folder / str(1 - store.rank)).exists)
    store.pull("sum", total).wait()
    return store.step, store.num_servers, total


def test_each_asynchronous_push_counts_once(tmp_path, places):
    one, two = places
    one.work(Rules(mode="asgd", optimizer=SGD(lr=1.0)), _count, two.address, tmp_path)
    for step, servers, total in one.results():
        assert (step, servers) == (0, 3)
        assert torch.equal(total, torch.full((3000,), -32.0))


def _moves_twice(store, addresses, dtype):
    total, ones = torch.zeros(3000, dtype=dtype), torch.ones(3000, dtype=dtype)
    store.init({"sum": total})
    store.push("sum", ones).wait()
    store.push("sum", ones).wait()
    for address in addresses:
        store.move(address)
        assert store.step == 2
    store.push("sum", ones).wait()
    store.pull("sum", total).wait()
    return store.num_servers, total


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_job_moves_twice_between_two_steps(tmp_path, places, dtype):
    with _Place(tmp_path / "three", 1) as three:
        addresses = (places[1].address, three.address)
        places[0].work(Rules(optimizer=SGD(lr=1.0)), _moves_twice, addresses, dtype)
        for servers, total in places[0].results():
            assert servers == 1
            assert torch.equal(total, torch.full((3000,), -3.0, dtype=dtype))
        for place in (*places, three):
            place.end()


def test_a_job_goes_on_where_no_job_lets_it_in(tmp_path):
    with _Place(tmp_path, 2) as one:
        refused = {one.address: "the job is complete", f"127.0.0.1:{free_port()}": "no scheduler"}
        one.work(Rules(optimizer=SGD(lr=1.0)), _goes_on, refused)
        for total in one.results():
            assert torch.equal(total, torch.full((30,), -1.0))
        one.end()


def _refused(store, address):
    store.init({"sum": torch.zeros(3)})
    with pytest.raises(InvalidValueError) as refused:
        store.move(address)
    with pytest.raises(InvalidValueError, match="HOST:PORT"):
        store.move("nowhere")
    return str(refused.value)


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (Rules(mode="dc-asgd"), "servers keep weights of each worker"),
        (Rules(mode="asgd", staleness=2), "would wait for those that have stopped"),
    ],
)
def test_what_cannot_be_moved_is_refused(tmp_path, rules, why):
    with _Place(tmp_path, 1) as one:
        one.work(rules, _refused, "127.0.0.1:1")
        assert all(why in said for said in one.results())
