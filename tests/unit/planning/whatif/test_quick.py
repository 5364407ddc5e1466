"""Quick: plans of points are the full search's, or a percent behind, and follow their settings."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster, Interference
from syncopate.artifacts.level import Level
from syncopate.artifacts.plan import ALLREDUCE, DECOUPLED, LIKE_DDP, SERVED, SHARDED
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.flows import curve
from syncopate.costs.flows.curve import CLOSE
from syncopate.costs.model.training import exchange_costs, plan_costs
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.planning.planner import make_plan
from syncopate.planning.question import predict
from syncopate.planning.whatif import quick
from syncopate.planning.whatif.machines import setting_of

CLUSTER = Cluster.preset("10gbe", 8)
SETTING = setting_of(CLUSTER)

NEAR = 0.01


def _workload(device: str = "cuda") -> Workload:
    """Return forty gradients of 4 KB to 4 MB, sixty milliseconds of computation."""
    tensors = tuple(
        GradientTensor(
            name=f"layer{i}.weight",
            numel=(1_000, 50_000, 200_000, 1_000_000)[i % 4],
            backward_s=1e-3,
            forward_s=0.5e-3,
        )
        for i in range(40)
    )
    return Workload(
        model="forty layers",
        tensors=tensors,
        forward_s=20e-3,
        backward_s=40e-3 * (1 + 1e-9),
        metadata={"device": device},
    )


@pytest.mark.parametrize("interference", [Interference(), Interference(compute_rate=0.8)])
@pytest.mark.parametrize("network", ["1gbe", "10gbe", "100gbe"])
def test_plans_are_within_a_percent_of_the_full_search(network, interference):
    workload = _workload()
    cluster = replace(Cluster.preset(network, 8), interference=interference)
    found = quick.planned(workload, cluster, setting_of(cluster)).prediction
    full_s = min(
        make_plan(workload, cluster, "optimal", exchange=one).prediction.iteration_s
        for one in LIKE_DDP
    )
    assert found.iteration_s <= (1 + NEAR) * full_s


def test_plans_where_no_two_ranks_do_the_same_play_little_and_say_the_same(monkeypatch):
    """Sixteen nodes of five GPUs: prices of halving and doubling are jagged there."""
    levels = (
        Level(name="device", size=5, latency_s=5e-6, bandwidth_bytes_per_s=1.2e10),
        Level(name="node", size=16, latency_s=4.5e-5, bandwidth_bytes_per_s=1.175e9),
    )
    cluster = Cluster(name="odd", levels=levels, reduction_s_per_byte=5e-12)
    workload, sizes, real = _workload(), [], curve.play

    def counted(several, nbytes, **more):
        sizes.extend(n for traffic, n in zip(several, nbytes, strict=True) if len(traffic) > 300)
        return real(several, nbytes, **more)

    monkeypatch.setattr(curve, "play", counted)
    plain, best = quick.ddp(workload, cluster), quick.planned(workload, cluster, SETTING)
    slower = replace(cluster, reduction_s_per_byte=1e-11)
    shifted = predict(workload, plain, slower)
    assert len(sizes) < 40
    monkeypatch.undo()
    everywhere = exchange_costs(cluster, workload.nbytes, ALLREDUCE, quick.NCCL)
    expected = make_plan(workload, cluster, "threshold", exchange=ALLREDUCE, costs=everywhere)
    assert plain.buckets == expected.buckets
    assert plain.expected_s == pytest.approx(expected.expected_s, rel=CLOSE)
    again = predict(workload, plain, slower, plan_costs(slower, workload.nbytes, plain))
    assert shifted.iteration_s == pytest.approx(again.iteration_s, rel=CLOSE)
    found = make_plan(workload, cluster, quick.QUICK, exchange=best.exchange, channels=1)
    assert best.expected_s == pytest.approx(found.expected_s, rel=CLOSE)


def test_what_a_model_measured_of_overlap_decides_as_that_of_a_cluster_does():
    workload, cluster = _workload(), Cluster.preset("1gbe", 8)
    measured = Interference(compute_rate=0.3, collective_stretch=2.0)
    setting = replace(setting_of(cluster), exchange=ALLREDUCE)
    found = quick.planned(replace(workload, interference=measured), cluster, setting)
    expected = quick.planned(workload, replace(cluster, interference=measured), setting)
    assert found.buckets == expected.buckets
    assert found.prediction == expected.prediction


def test_the_best_is_among_exchanges_whose_programs_are_ddps():
    slow = Cluster.preset("1gbe", 8)
    assert quick.planned(_workload(), slow, setting_of(slow)).exchange == DECOUPLED
    alone = Cluster.preset("1gbe", 1)
    assert quick.planned(_workload(), alone, setting_of(alone)).exchange == ALLREDUCE


@pytest.mark.parametrize("exchange", [ALLREDUCE, SHARDED, SERVED])
def test_a_setting_may_name_the_exchange(exchange):
    plan = quick.planned(_workload(), CLUSTER, replace(SETTING, exchange=exchange))
    assert plan.exchange == exchange


def test_a_setting_may_name_policy_algorithm_and_type():
    setting = replace(SETTING, policy="wfbp", algorithm="ring", exchange=ALLREDUCE)
    plan = quick.planned(_workload(), CLUSTER, setting)
    assert (plan.policy, len(plan.buckets)) == ("wfbp", 40)
    assert {bucket.push.algorithm for bucket in plan.buckets} == {"ring"}
    assert quick.planned(_workload(), CLUSTER, replace(SETTING, wire_dtype="bfloat16")).wire_dtype


def test_late_weights_are_a_setting():
    late = quick.planned(_workload(), CLUSTER, replace(SETTING, pull_period=4))
    assert (late.exchange, late.delay.k) == (SHARDED, 4)
    local = quick.planned(_workload(), CLUSTER, replace(SETTING, local_sgd=8))
    assert (local.exchange, local.local_sgd.period) == (ALLREDUCE, 8)
    served = replace(SETTING, exchange=SERVED, pull_period=2, servers=3)
    plan = quick.planned(_workload(), CLUSTER, served)
    assert (plan.exchange, plan.delay.k) == (SERVED, 2)
    assert {bucket.push.options["servers"] for bucket in plan.buckets} == {3}


def test_more_servers_are_faster_until_workers_links_are_full():
    seconds = [
        quick.planned(
            _workload(), CLUSTER, replace(SETTING, exchange=SERVED, servers=count)
        ).prediction.iteration_s
        for count in (1, 4, 8)
    ]
    assert seconds[0] > seconds[1] > seconds[2]


@pytest.mark.parametrize(
    "wrong",
    [
        {"pull_period": 4, "exchange": ALLREDUCE},
        {"pull_period": 4, "local_sgd": 8},
        {"local_sgd": 8, "exchange": SHARDED},
        {"servers": 2},
    ],
)
def test_settings_that_do_not_go_together_are_refused(wrong):
    with pytest.raises(InvalidValueError):
        quick.planned(_workload(), CLUSTER, replace(SETTING, **wrong))


def test_unknown_names_are_refused():
    for wrong in ({"policy": "magic"}, {"algorithm": "rign"}):
        with pytest.raises(UnknownNameError):
            quick.planned(_workload(), CLUSTER, replace(SETTING, **wrong))


def test_ddp_travels_by_the_backend_of_the_device():
    large = Cluster.preset("100gbe", 512)
    gloo, nccl = quick.ddp(_workload("cpu"), large), quick.ddp(_workload("cuda"), large)
    assert {bucket.push.algorithm for bucket in gloo.buckets} == {"ring"}
    assert {bucket.push.algorithm for bucket in nccl.buckets} == {"halving_doubling"}
    assert nccl.prediction.iteration_s < gloo.prediction.iteration_s
    assert [bucket.tensors for bucket in gloo.buckets] == [b.tensors for b in nccl.buckets]
    small = quick.ddp(_workload("cuda"), Cluster.preset("100gbe", 1))
    assert small.prediction.iteration_s == pytest.approx(60e-3)
