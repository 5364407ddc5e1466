"""Workers die and other processes take their places: every push counts once, whatever happens."""

from __future__ import annotations

from random import Random
from unittest import mock

from hypothesis import event, given, settings
from hypothesis import strategies as st

from syncopate.protocol.placement import bundle, layout
from syncopate.protocol.rules import Rules
from tests.unit.protocol.mortal import EndedError, MortalWorld
from tests.unit.protocol.network import Habit
from tests.unit.protocol.test_exactly_once import (
    SIZES,
    TOGETHER,
    TROUBLE,
    require_one_of_each,
)

MORTAL = st.fixed_dictionaries(SIZES | {"deaths": st.integers(1, 5), "durable": st.booleans()})


def run(rules, trouble, seed, together=None, **given):
    """Run a job to its end; return its world, and the updates of every slice."""
    if not given["durable"]:
        trouble = trouble._replace(crashes=0)
    least = 2 if together is not None else 64
    few = {"_LEAST": least, "LEAST_RUN": 1, "_MOST_PARTS": 4}
    with mock.patch.multiple(bundle, **few), mock.patch.object(layout, "LEAST_RUN", 1):
        habit = Habit(1, together or 0.0, True, given.pop("tables", 0))
        world = MortalWorld(rules, trouble=trouble, random=Random(seed), habit=habit, **given)
        logs = world.run()
    assert all(server.failed == [] for server in world.servers)
    return world, logs


@settings(max_examples=200)
@given(
    trouble=TROUBLE,
    seed=st.integers(0, 2**32),
    sizes=MORTAL,
    together=TOGETHER,
)
def test_a_synchronous_step_has_one_push_of_each_worker(trouble, seed, sizes, together):
    rules = Rules(on_worker_loss="wait")
    try:
        found = run(rules, trouble, seed, together, **sizes)
    except EndedError:  # a server died as it cut a bundle, and a worker in the same step
        assert sizes["durable"]
        assert trouble.crashes
        assert together is not None
        event("ended with a sentence")
        return
    require_one_of_each(*found, sizes)


@settings(max_examples=200)
@given(
    trouble=TROUBLE,
    seed=st.integers(0, 2**32),
    sizes=MORTAL,
)
def test_an_asynchronous_push_that_was_acknowledged_counts_once(trouble, seed, sizes):
    sizes = sizes | {"tables": 0}
    rules = Rules(mode="asgd", on_worker_loss="wait")
    world, logs = run(rules, trouble, seed, **sizes)
    for rank in range(sizes["workers"]):
        world.note_counts(rank)
    for key, log in logs.items():
        assert all(len(gradients) == 1 for gradients in log)
        for worker in range(sizes["workers"]):
            mine = [sequence for ((rank, sequence),) in log if rank == worker]
            first = mine[0] if mine else 1  # one that had pushed nothing counts as the slowest
            assert mine == list(range(first, first + len(mine)))
            over, sent = world.counts[worker, key]
            assert over <= len(mine) <= sent
