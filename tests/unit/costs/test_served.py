"""Parameter servers: what their links cost, in plans, bounds and simulations."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster, Level
from syncopate.artifacts.plan import SERVED, Plan
from syncopate.costs.model.bound import plan_bound_s, served_s_per_byte
from syncopate.costs.model.served import served_costs
from syncopate.costs.model.training import exchange_costs
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.planning.planner import make_plan
from syncopate.planning.question import predict
from syncopate.recipe import Recipe
from syncopate.simulation import simulate
from tests.unit import examples

GB = 1e9


def hosts(ranks: int = 2, count: int = 4) -> Cluster:
    """Return hosts of some ranks: 10 GB/s inside, 1 GB/s between."""
    return Cluster(
        name="hosts",
        levels=(
            Level(name="device", size=ranks, latency_s=1e-6, bandwidth_bytes_per_s=10 * GB),
            Level(name="host", size=count, latency_s=1e-4, bandwidth_bytes_per_s=GB),
        ),
    )


@pytest.mark.parametrize(
    ("ranks", "servers", "expected"),
    [
        (2, 1, 8 / GB),  # one link takes all gradients
        (2, 4, 2 / GB),  # a host's link carries those of two ranks
        (2, 100, 2 / GB),
        (20, 8, 20 / GB),
        (1, 2, 2 / GB),
    ],
)
def test_the_busiest_link_decides(ranks, servers, expected):
    cluster = hosts(ranks, 4)
    assert served_s_per_byte(cluster, servers) == pytest.approx(expected)
    costs = served_costs(cluster, servers)
    for collective in ("send", "receive"):
        cost = costs[collective].of(SERVED).fixed({"servers": servers})
        assert float(cost(GB)) == pytest.approx(1e-4 + GB * expected)
        assert float(cost(0)) == 0


def test_there_are_as_many_servers_as_hosts_unless_told():
    found = exchange_costs(hosts(), 1000, SERVED)
    assert found["send"].bucket([1.0]).options == {"servers": 4}
    other = found["send"].of(SERVED).fixed({"servers": 1})
    assert float(other(GB)) == pytest.approx(1e-4 + 8)


def test_numbers_and_options_that_cannot_be_are_refused():
    with pytest.raises(InvalidValueError, match="servers"):
        served_costs(hosts(), 0)
    with pytest.raises(UnknownNameError, match="blocks"):
        served_costs(hosts(), 1)["send"].of(SERVED).fixed({"blocks": 1})
    with pytest.raises(UnknownNameError, match="ring"):
        exchange_costs(hosts(), 1000, SERVED, ("ring",))


def plan_of(servers: int | None = None, policy: str = "auto") -> Plan:
    cluster = examples.cluster()
    costs = None if servers is None else served_costs(cluster, servers)
    return make_plan(examples.workload(), cluster, policy, exchange=SERVED, costs=costs)


def test_a_plan_says_how_many_servers_and_what_they_make_of_it():
    few, many = plan_of(1), plan_of(8)
    assert few.exchange == SERVED
    assert few.prediction is not None
    assert many.prediction is not None
    assert few.prediction.iteration_s > many.prediction.iteration_s
    assert few.prediction.bound_s <= few.prediction.iteration_s
    options = {repr(recipe.options) for bucket in many.buckets for _, recipe in bucket.recipes}
    assert options == {"{'servers': 8}"}
    # A plan alone says what it takes: the number is not repeated.
    again = predict(examples.workload(), few, examples.cluster())
    assert again == few.prediction
    timeline = simulate(examples.workload(), few, examples.cluster(), iterations=3)
    lanes = [span.lane for span in timeline.spans]
    assert lanes.count("push") > lanes.count("pull") > 0


def test_auto_asks_for_no_servers_by_itself():
    cluster = examples.cluster()
    free = replace(
        cluster,
        levels=tuple(replace(level, bandwidth_bytes_per_s=1e6) for level in cluster.levels),
    )
    assert make_plan(examples.workload(), free, "auto").exchange != SERVED


def test_the_bound_is_that_of_one_direction():
    plan, cluster = plan_of(2), examples.cluster()
    nbytes = sum(bucket.nbytes for bucket in plan.buckets)
    assert plan_bound_s(cluster, plan.buckets, 0.0) == nbytes * served_s_per_byte(cluster, 2)
    assert plan_bound_s(cluster, plan.buckets, 1e9) == 1e9


def test_what_servers_know_nothing_of_is_in_no_plan():
    plan = plan_of(2, "wfbp")
    first, *rest = plan.buckets
    for changed, what in (
        ({"channels": 2}, "channels"),
        ({"wire_dtype": "bfloat16"}, "wire_dtype"),
        ({"order": tuple(reversed(range(plan.world_size)))}, "order"),
        ({"buckets": (replace(first, push=Recipe("send", "ring")), *rest)}, "algorithm"),
        ({"buckets": (replace(first, push=Recipe("send", SERVED)), *rest)}, "options"),
        ({"buckets": (replace(first, elements=(0, first.nbytes // 4)), *rest)}, "elements"),
    ):
        with pytest.raises(InvalidValueError, match=what):
            replace(plan, **changed)
    with pytest.raises(InvalidValueError, match="channels"):
        make_plan(examples.workload(), examples.cluster(), exchange=SERVED, channels=2)
    with pytest.raises(InvalidValueError, match="wire_dtype"):
        make_plan(examples.workload(), examples.cluster(), exchange=SERVED, wire_dtype="float16")
