"""Whatever happens to messages and servers, every push counts once, in its order."""

from __future__ import annotations

from collections import Counter
from random import Random
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncopate.protocol import messages as msg
from syncopate.protocol.placement import bundle, layout
from syncopate.protocol.rules import Rules
from tests.unit.protocol.network import Habit, Trouble, World

TROUBLE = st.builds(
    Trouble,
    drop=st.sampled_from([0.0, 0.05, 0.3]),
    duplicate=st.sampled_from([0.0, 0.05, 0.3]),
    reorder=st.sampled_from([0.0, 0.1, 0.5]),
    crashes=st.integers(0, 4),
    closes=st.integers(0, 4),
    retry_s=st.just(1.0),
)
TOGETHER = st.sampled_from([None, 1.0, 0.9, 0.5])
"""How often much is pushed and pulled at once, and else slice by slice; None: no bundles."""

SIZES = {
    "workers": st.integers(1, 3),
    "servers": st.integers(1, 2),
    "rounds": st.integers(1, 5),
    "tables": st.sampled_from([0, 0, 1, 2]),
}


def run(rules, trouble, seed, together=None, **given):
    """Run a job to its end; return its world, and the updates of every slice."""
    least = 2 if together is not None else 64
    few = {"_LEAST": least, "LEAST_RUN": 1, "_MOST_PARTS": 4}
    with mock.patch.multiple(bundle, **few), mock.patch.object(layout, "LEAST_RUN", 1):
        apart, tables = given.pop("apart", True), given.pop("tables", 0)
        habit = Habit(given.pop("period", 1), together or 0.0, apart, tables)
        world = World(rules, trouble=trouble, random=Random(seed), habit=habit, **given)
        logs = world.run()
    keys = [*range(len(world.layout.slices)), *(table.slice.key for table in world.tables)]
    assert sorted(logs) == sorted(keys)
    assert all(server.failed == [] for server in world.servers)
    assert all(not server.staged for server in world.servers)
    return world, logs


def require_one_of_each(world, logs, sizes):
    """Require that every update has one push of each worker, and every pull the updates before."""
    versions = tuple(
        tuple((worker, version) for worker in range(sizes["workers"]))
        for version in range(1, sizes["rounds"] + 1)
    )
    assert all(log == versions for log in logs.values())
    assert all(log == versions[:done] for _, _, done, log in world.pulled)


@settings(max_examples=150)
@given(
    trouble=TROUBLE,
    seed=st.integers(0, 2**32),
    sizes=st.fixed_dictionaries(SIZES),
    together=TOGETHER,
)
def test_synchronous_updates_are_those_of_one_process(trouble, seed, sizes, together):
    require_one_of_each(*run(Rules(), trouble, seed, together, **sizes), sizes)


@settings(max_examples=150)
@given(
    trouble=TROUBLE,
    seed=st.integers(0, 2**32),
    staleness=st.sampled_from([None, 0, 1, 3]),
    sizes=st.fixed_dictionaries(SIZES),
    together=TOGETHER,
)
def test_asynchronous_pushes_count_once_in_their_order(trouble, seed, staleness, sizes, together):
    workers, rounds = sizes["workers"], sizes["rounds"]
    rules = Rules(mode="asgd", staleness=staleness)
    world, logs = run(rules, trouble, seed, together, **sizes)
    for log in logs.values():
        assert all(len(gradients) == 1 for gradients in log)
        for worker in range(workers):
            mine = [sequence for ((rank, sequence),) in log if rank == worker]
            assert mine == list(range(1, rounds + 1))
    for worker, _, done, log in world.pulled:
        counts = [sum(rank == other for ((rank, _),) in log) for other in range(workers)]
        assert counts[worker] == max(done, 0)
        assert staleness is None or counts[worker] - min(counts) <= staleness


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), drop=st.sampled_from([0.0, 0.2]), closes=st.integers(0, 3))
def test_servers_that_keep_nothing_on_disk_do_not_need_it_while_they_live(seed, drop, closes):
    trouble = Trouble(drop=drop, duplicate=0.2, reorder=0.3, closes=closes)
    _, logs = run(Rules(), trouble, seed, durable=False, workers=2, servers=2, rounds=4)
    assert all(len(log) == 4 for log in logs.values())


@pytest.mark.parametrize("mode", ["ssgd", "asgd", "dc-asgd"])
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize(("retry_s", "runs"), [(1e9, 20), (0.1, 4)], ids=["quick", "slow"])
def test_a_network_that_loses_nothing_needs_no_message_twice(mode, durable, retry_s, runs):
    """However slow it is: with the shorter time nearly every answer is late, many of them often."""
    rules, trouble = Rules(mode=mode), Trouble(retry_s=retry_s)
    for seed in range(runs):
        world, _ = run(rules, trouble, seed, durable=durable, workers=3, servers=2, rounds=4)
        assert all(not server.machine.refused for server in world.servers)
        assert all(not worker.refused for worker in world.workers)
        packets = Counter((p.worker, p.message) for p in world.sent if p.payload is not None)
        assert set(packets.values()) == {1}
        queries = sum(isinstance(p.message, msg.Query) for p in world.sent)
        assert (queries > 0) == (retry_s < 1)


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32), sizes=st.fixed_dictionaries(SIZES), period=st.integers(2, 4))
def test_a_pull_has_what_was_pushed_before_it_and_nothing_that_was_pushed_later(
    seed, sizes, period
):
    """Workers push on while they wait for a pull, as in SSD-SGD."""
    world, logs = run(Rules(), Trouble(), seed, period=period, **sizes)
    versions = next(iter(logs.values()))
    assert len(versions) == sizes["rounds"]
    assert all(log == versions[:done] for _, _, done, log in world.pulled)


@pytest.mark.parametrize("workers", [1, 3])
def test_what_is_pushed_and_pulled_together_stays_in_one_message_each(workers):
    world, _ = run(
        Rules(), Trouble(retry_s=1e9), 1, 1.0, workers=workers, servers=1, rounds=4, apart=False
    )
    slices, rounds = len(world.layout.slices), 4
    kinds = Counter(type(packet.message) for packet in world.sent)
    assert slices > 1
    assert kinds[msg.Push] == workers * rounds + 1
    assert kinds[msg.Pull] == kinds[msg.Weights] == workers * (rounds + 1)
