"""Plans of units: what is merged, gathered ahead and kept, and how much is gathered at once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import syncopate
from syncopate.artifacts.cluster import Cluster, Level
from syncopate.artifacts.plan import FSDP, Plan
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.engine.checks.fit import require_fit
from syncopate.errors import EngineError, InvalidValueError, UnknownNameError
from syncopate.planning import POLICIES, compare, make_plan, predict
from syncopate.planning.fsdp.planner import make_fsdp_plan
from syncopate.planning.registry import Policy


def workload(count: int = 12, numel: int = 1_000_000, device: str = "cuda") -> Workload:
    """Return an embedding, blocks of two tensors, and a head, in ready order."""
    names = ["words.weight"]
    names += [f"blocks.{index}.{part}.weight" for index in range(count) for part in ("up", "down")]
    names.append("head.weight")
    tensors = [
        GradientTensor(name=name, numel=numel, backward_s=2e-3, forward_s=1e-3) for name in names
    ]
    return Workload(
        model="blocks",
        tensors=tuple(reversed(tensors)),
        forward_s=1e-3 * len(names),
        backward_s=2e-3 * len(names),
        metadata={"device": device},
    )


def cluster(latency_s: float = 20e-6, bandwidth: float = 10e9, ranks: int = 8) -> Cluster:
    return Cluster.flat(ranks, latency_s=latency_s, bandwidth_bytes_per_s=bandwidth)


def held(plan: Plan) -> int:
    assert plan.sharding is not None
    return plan.sharding.held_bytes([bucket.nbytes for bucket in plan.buckets])


def iteration_s(plan: Plan) -> float:
    assert plan.prediction is not None
    return plan.prediction.iteration_s


def test_a_unit_holds_whole_blocks_and_the_last_is_the_root() -> None:
    made = make_fsdp_plan(workload(3), cluster(), "wfbp")
    assert [bucket.tensors for bucket in made.buckets] == [
        ("head.weight",),
        ("blocks.2.down.weight", "blocks.2.up.weight"),
        ("blocks.1.down.weight", "blocks.1.up.weight"),
        ("blocks.0.down.weight", "blocks.0.up.weight"),
        ("words.weight",),
    ]
    assert made.exchange == FSDP
    assert {bucket.pull.channel for bucket in made.buckets if bucket.pull} == {0}
    assert {bucket.push.channel for bucket in made.buckets} == {1}


def test_parameters_beside_blocks_belong_to_the_root() -> None:
    tensors = tuple(
        GradientTensor(name=name, numel=4) for name in ("layers.1.w", "layers.0.w", "scale")
    )
    work = Workload(model="m", tensors=tensors, forward_s=1.0, backward_s=1.0)
    made = make_fsdp_plan(work, cluster(), "wfbp")
    assert [bucket.tensors for bucket in made.buckets] == [
        ("layers.1.w",),
        ("layers.0.w",),
        ("scale",),
    ]


def test_a_model_of_one_block_is_one_unit() -> None:
    tensors = (GradientTensor(name="w", numel=4), GradientTensor(name="v", numel=4))
    work = Workload(model="m", tensors=tensors, forward_s=1.0, backward_s=1.0)
    for policy in ("optimal", "single"):
        made = make_fsdp_plan(work, cluster(), policy)
        assert [bucket.tensors for bucket in made.buckets] == [("w", "v")]


def test_slow_starts_merge_blocks() -> None:
    quick = make_fsdp_plan(workload(), cluster(latency_s=1e-6), memory_bytes=10**9)
    slow = make_fsdp_plan(workload(), cluster(latency_s=1e-3), memory_bytes=10**9)
    assert len(slow.buckets) < len(quick.buckets)


def test_the_search_is_never_behind_a_policy_or_a_neighbour() -> None:
    for latency_s, bandwidth in ((20e-6, 10e9), (1e-3, 1e9), (1e-3, 50e9)):
        machines = cluster(latency_s, bandwidth)
        plans = compare(workload(), machines, exchange=FSDP)
        assert [plan.policy for plan in plans] == [
            n for n, row in POLICIES.items() if not row.chooses
        ]
        best = make_fsdp_plan(workload(), machines, memory_bytes=max(map(held, plans)))
        assert all(iteration_s(best) <= 1.001 * iteration_s(plan) for plan in plans)


def test_memory_is_the_limit_of_what_is_gathered_at_once() -> None:
    work, machines, found = workload(), cluster(bandwidth=1e9), []
    least = make_fsdp_plan(work, machines, "wfbp", prefetch=1, reshard=True)
    for memory in (held(least), 40_000_000, 80_000_000, work.nbytes):
        made = make_fsdp_plan(work, machines, memory_bytes=memory)
        assert held(made) <= memory
        found.append(iteration_s(made))
    assert all(later <= 1.001 * earlier for earlier, later in pairwise(found))
    assert found[-1] < found[0]
    with pytest.raises(InvalidValueError, match=f"at least {held(least)} "):
        make_fsdp_plan(work, machines, memory_bytes=held(least) - 1)


def test_without_a_limit_a_quarter_of_the_weights_is_gathered() -> None:
    for count in (2, 12, 30):
        work = workload(count)
        usual = held(make_fsdp_plan(work, cluster(), "wfbp", prefetch=1, reshard=True))
        assert held(make_fsdp_plan(work, cluster())) <= max(work.nbytes // 4, usual)


def test_resharding_can_be_said() -> None:
    slow = cluster(bandwidth=1e9)
    again = make_fsdp_plan(workload(), slow, reshard=True)
    kept = make_fsdp_plan(workload(), slow, reshard=False)
    assert again.sharding is not None
    assert kept.sharding is not None
    assert again.sharding.kept == (len(again.buckets) - 1,)
    assert kept.sharding.kept == tuple(range(len(kept.buckets)))
    assert held(kept) == workload().nbytes
    assert iteration_s(kept) < iteration_s(again)


def test_a_plan_is_predicted_as_it_was_planned() -> None:
    two = Cluster(
        name="hosts of four",
        levels=(
            Level(name="device", size=4, latency_s=1e-6, bandwidth_bytes_per_s=100e9),
            Level(name="host", size=2, latency_s=20e-6, bandwidth_bytes_per_s=10e9),
        ),
    )
    for made in (
        make_fsdp_plan(workload(), two),
        make_fsdp_plan(workload(), two, shard_ranks=4),
        make_plan(workload(), two, "wfbp", exchange=FSDP),
        make_plan(workload(), two, "single", exchange=FSDP, algorithm="ring"),
    ):
        assert predict(workload(), made, two) == made.prediction
        assert made.prediction is not None
        assert made.prediction.iteration_s >= made.prediction.bound_s


def test_groups_within_hosts_take_the_weights_off_the_slow_links() -> None:
    two = Cluster(
        name="hosts of eight",
        levels=(
            Level(name="device", size=8, latency_s=1e-6, bandwidth_bytes_per_s=200e9),
            Level(name="host", size=8, latency_s=20e-6, bandwidth_bytes_per_s=1e9),
        ),
    )
    flat = make_fsdp_plan(workload(), two)
    grouped = make_fsdp_plan(workload(), two, shard_ranks=8)
    assert grouped.sharding is not None
    assert grouped.sharding.ranks == 8
    # Twice the bytes of a reduce-scatter pass the links between hosts, in place of three times.
    assert iteration_s(grouped) < iteration_s(flat)


def test_policies_of_ones_own_cut_blocks() -> None:
    pairs = Policy("pairs", lambda p: (*range(2, p.length, 2), p.length), "two blocks", "a test")
    made = make_fsdp_plan(workload(4), cluster(), pairs)
    assert [len(bucket.tensors) for bucket in made.buckets] == [3, 4, 2, 1]


@pytest.mark.parametrize(
    ("told", "error", "what"),
    [
        ({"channels": 1}, InvalidValueError, "channels"),
        ({"wire_dtype": "bfloat16"}, InvalidValueError, "wire_dtype"),
        ({"algorithm": "rign"}, UnknownNameError, "rign"),
        ({"costs": {}}, UnknownNameError, "reduce_scatter"),
    ],
)
def test_what_units_do_not_have_is_refused(
    told: dict[str, Any], error: type[Exception], what: str
) -> None:
    with pytest.raises(error, match=what):
        make_plan(workload(), cluster(), exchange=FSDP, **told)


def test_the_ready_models_have_plans_of_units() -> None:
    work = syncopate.workload_of("decoder-1b", "h100")
    made = make_fsdp_plan(work, Cluster.preset("100gbe", 8))
    assert len(made.buckets) > 2
    # The head has the embedding's weights: both are the root's.
    assert made.buckets[-1].tensors == ("words.weight",)
    assert "against" in made.reason


def test_a_setting_of_whatif_can_be_of_units() -> None:
    study = syncopate.whatif(workload(), cluster(), nodes=[2, 4], exchange=FSDP)
    assert {point.best.exchange for point in study.points} == {FSDP}


def test_no_engine_of_ours_trains_it() -> None:
    with pytest.raises(EngineError, match=r"syncopate\.fsdp2"):
        require_fit(make_fsdp_plan(workload(), cluster()), [], [], 8)
