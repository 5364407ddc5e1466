"""Study: sweeps of a small training, whose every figure is held against its formula."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import syncopate
from syncopate.artifacts.cluster import Cluster, Interference
from syncopate.artifacts.results.whatif import BEST, DDP, Prices, WhatIf
from syncopate.artifacts.workload import Workload
from syncopate.costs.validated import BY_KIND
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.planning.planner import make_plan
from syncopate.planning.whatif.needed import CLOSE, _least
from syncopate.planning.whatif.study import Study, Terms
from syncopate.units import parse_link
from tests.unit import examples

CLUSTER = Cluster.preset("10gbe", 8)


def _workload(batch: str = "32") -> Workload:
    return replace(examples.workload(), metadata={"batch": batch} if batch else {})


@pytest.fixture(scope="module")
def swept() -> WhatIf:
    return syncopate.whatif(
        _workload(), CLUSTER, nodes="2..16", bandwidth="1g,10g,100g", gpu_speed=[1, 2]
    )


def test_every_combination_is_a_point(swept):
    assert swept.varied == ("nodes", "bandwidth", "gpu_speed")
    assert len(swept.points) == 4 * 3 * 2
    assert [point.setting.nodes for point in swept.points[::6]] == [2, 4, 8, 16]
    assert swept.complete


def test_figures_follow_from_the_prediction(swept):
    for point in swept.points:
        for one in (point.best, point.ddp):
            found = one.prediction
            samples = 32 * point.setting.ranks
            assert one.throughput == pytest.approx(samples / found.iteration_s)
            assert one.low_throughput == pytest.approx(samples / found.high_s)
            assert one.high_throughput == pytest.approx(samples / found.low_s)
            assert one.efficiency == pytest.approx(found.compute_s / found.iteration_s)
            assert found.low_s <= found.iteration_s <= found.high_s
            assert found.bound_s <= found.iteration_s * (1 + 1e-9)
        assert point.best.throughput >= point.ddp.throughput * (1 - 1e-3)


def test_a_point_is_what_the_planner_says_there(swept):
    point = next(one for one in swept.points if one.setting.nodes == 4)
    cluster = Cluster.preset("1gbe", 4)
    plan = make_plan(_workload(), cluster, "threshold", exchange="allreduce")
    assert point.ddp.prediction.iteration_s == pytest.approx(plan.prediction.iteration_s, rel=0.01)


def test_faster_links_never_make_an_iteration_longer(swept):
    by_rate = [
        [point.best.prediction.iteration_s for point in swept.points[first::2]] for first in (0, 1)
    ]
    for seconds in by_rate:
        for slow, fast in zip(seconds[::3], seconds[2::3], strict=True):
            assert fast <= slow


def test_today_is_the_cluster_given(swept):
    assert swept.base.setting.nodes == 8
    assert swept.base.setting.bandwidth_bytes_per_s == parse_link("10g")
    measured = syncopate.whatif(_workload(), examples.cluster(), nodes=[1, 2, 4])
    assert measured.base.setting.nodes == 2
    assert any("priced from links alone" in text for text in measured.assumptions)


def test_a_single_change_gains_what_its_own_sweep_says(swept):
    faster = syncopate.whatif(_workload(), CLUSTER, nodes=[8], gpu_speed=[2]).points[0]
    found = {change.kind: change for change in swept.changes}
    gain = faster.ddp.throughput / swept.base.ddp.throughput - 1
    assert found["compute"].gain == pytest.approx(gain)
    wider = syncopate.whatif(_workload(), CLUSTER, nodes=[8], bandwidth=["20g"]).points[0]
    assert found["links"].gain == pytest.approx(
        wider.ddp.throughput / swept.base.ddp.throughput - 1
    )
    late = syncopate.whatif(_workload(), CLUSTER, nodes=[8], pull_period=[4]).points[0]
    assert found["k"].iteration_s == pytest.approx(late.best.prediction.iteration_s)
    assert found["batch"].gain > 0


@pytest.mark.parametrize(("what", "value"), [("bandwidth", "1gbit"), ("latency", "1ms")])
def test_a_link_by_the_name_of_its_level_is_a_hosts_link(what, value):
    named = syncopate.whatif(_workload(), CLUSTER, levels={f"host.{what}": value})
    plain = syncopate.whatif(_workload(), CLUSTER, **{what: value})
    assert (named.sentences, named.changes, named.links) == (
        plain.sentences, plain.changes, plain.links,
    )  # fmt: skip
    assert replace(named.base.setting, levels=()) == plain.base.setting


def test_answers_for_a_level_of_another_rate_are_those_of_such_a_cluster():
    racks = CLUSTER.in_racks((4, 4), uplink_bytes_per_s=2e9)
    slow = CLUSTER.in_racks((4, 4), uplink_bytes_per_s=0.25e9)
    named = syncopate.whatif(_workload(), racks, levels={"rack.bandwidth": "2gbit"})
    given = syncopate.whatif(_workload(), slow)
    assert named.changes == given.changes
    assert named.links == given.links
    assert given.links[0].bandwidth_bytes_per_s > 0
    assert {change.kind: change.gain for change in given.changes}["links"] > 0.1


def test_from_the_best_plan_no_plan_is_a_change():
    found = syncopate.whatif(_workload(), CLUSTER, today=BEST)
    kinds = {change.kind for change in found.changes}
    assert kinds == {"sharded", "16 bits", "k", "local SGD", "links", "latency", "compute", "batch"}


@pytest.mark.parametrize(
    ("exchange", "how", "narrows"),
    [
        ("served", {"servers": 2}, False),
        ("served", {"algorithm": "served"}, False),
        ("served", {"servers": 2, "pull_period": 3}, False),
        ("fsdp", {}, False),
        ("rooted", {"algorithm": "lp"}, True),
        ("allreduce", {"algorithm": "lp"}, True),
        ("decoupled", {"algorithm": "ring"}, True),
    ],
)
def test_from_every_exchange_changes_are_those_that_it_has(exchange, how, narrows):
    found = syncopate.whatif(_workload(), CLUSTER, today=BEST, exchange=exchange, **how)
    kinds = {change.kind for change in found.changes}
    assert found.base.best.exchange == exchange
    assert ("16 bits" in kinds) == narrows
    assert {"sharded", "links", "latency", "compute", "batch"} <= kinds
    assert ({"k", "local SGD"} <= kinds) == ("pull_period" not in how)


def test_a_rank_that_takes_no_time_is_computation_alone():
    idle = _workload().scaled(0)
    prices = Prices(epoch_samples=1, gpu_hour=1.0)
    found = syncopate.whatif(idle, Cluster.preset("10gbe", 1), prices=prices)
    assert found.base.best.efficiency == 1
    assert found.base.epoch_cost == 0
    assert any("computation is 100% of an iteration" in text for text in found.sentences)


def test_an_overlap_that_the_model_measured_is_no_assumption():
    work = _workload()
    measured = replace(work, interference=Interference(compute_rate=0.9))
    said = [
        any("overlap is free" in text for text in syncopate.whatif(one, CLUSTER).assumptions)
        for one in (work, measured)
    ]
    assert said == [True, False]


def test_one_rank_has_nothing_to_communicate():
    found = syncopate.whatif(_workload(), Cluster.preset("10gbe", 1))
    assert found.base.best.efficiency == 1
    assert {change.kind for change in found.changes} == {"compute", "batch"}
    assert found.links == ()
    assert any(text.startswith("No other network, plan") for text in found.sentences)


@pytest.mark.parametrize("today", [DDP, BEST])
def test_the_link_that_keeps_the_efficiency_is_the_slowest_sold(swept, today):
    for needed in (one for one in swept.links if one.today == today):
        sold = ["1g", "2.5g", "5g", "10g", "25g", "40g", "50g", "100g"]
        at = syncopate.whatif(_workload(), CLUSTER, nodes=[needed.nodes], bandwidth=sold)
        keeps = [
            point.setting.bandwidth_bytes_per_s
            for point in at.points
            if point.by(today).efficiency >= 0.9
        ]
        assert needed.bandwidth_bytes_per_s == pytest.approx(min(keeps))
        if needed.least_bytes_per_s:
            assert needed.least_bytes_per_s <= min(keeps) * (1 + 1e-9)


def test_the_search_for_the_least_rate_ends_where_faster_links_keep_less():
    assert _least(lambda rate: rate >= 3, 1.0, 4.0) == pytest.approx(3, rel=CLOSE)
    assert _least(lambda rate: rate == 3, 1.0, 3.0) <= 4


def test_no_link_keeps_what_latency_alone_costs():
    late = syncopate.whatif(_workload(), CLUSTER, latency=["1s"], nodes=[8])
    assert {needed.bandwidth_bytes_per_s for needed in late.links} == {0.0}
    assert any("more than any link that is sold on 8 nodes" in text for text in late.sentences)


def test_an_epoch_costs_its_hours():
    prices = Prices(
        epoch_samples=3_600_000,
        gpu_hour=1.0,
        node_hour=0.5,
        link_hour={"10g": 0.1, "25g": 0.4},
        gpu_speed_hour={"2": 3.0},
        currency="EUR",
    )
    found = syncopate.whatif(
        _workload(), CLUSTER, prices=prices, bandwidth="10g,25g", gpu_speed=[1, 2]
    )
    for point, hour in zip(found.points, (1.6, 3.6, 1.9, 3.9), strict=True):
        hours = 3_600_000 / point.best.throughput / 3600
        assert point.epoch_cost == pytest.approx(hours * 8 * hour)
    assert found.currency == "EUR"
    cheapest = min(point.epoch_cost for point in found.points)
    assert any(f"{cheapest:.3g} EUR" in text for text in found.sentences)
    with pytest.raises(InvalidValueError, match="one of those with a price: 10g, 25g"):
        syncopate.whatif(_workload(), CLUSTER, prices=prices, bandwidth="100g")
    with pytest.raises(InvalidValueError, match="known where an epoch is to be priced"):
        syncopate.whatif(_workload(batch=""), CLUSTER, prices=prices)


def test_dearer_links_that_save_time_may_be_the_cheaper_ones():
    prices = Prices(epoch_samples=10**6, gpu_hour=10.0, link_hour={"1g": 0.0, "100g": 0.01})
    found = syncopate.whatif(_workload(), CLUSTER, prices=prices, bandwidth="1g", keep=0.1)
    assert {needed.link for needed in found.links} == {"100g"}


def test_without_a_batch_throughput_counts_iterations():
    found = syncopate.whatif(_workload(batch=""), CLUSTER)
    assert found.unit == "iterations/s of a rank"
    assert found.base.ddp.throughput == pytest.approx(8 / found.base.ddp.prediction.iteration_s)
    assert "batch" not in {change.kind for change in found.changes}


def test_second_profiles_may_stand_among_the_values():
    fast = _workload("64").scaled(0.5)
    found = syncopate.whatif(_workload(), CLUSTER, gpu_speed=[1, ("h100", fast)], batch=[32, fast])
    names = {(point.setting.profile, point.setting.batch) for point in found.points}
    assert names == {("", 32), ("", 64), ("h100", 32), ("h100", 64)}
    assert not any("in proportion to the batch" in text for text in found.assumptions)


def test_uncertain_inputs_make_wider_intervals_and_doubts():
    sure = syncopate.whatif(
        _workload(), CLUSTER, uncertain={"bandwidth": 0, "latency": 0, "compute": 0, "method": 0}
    )
    assert sure.base.best.prediction.low_s == sure.base.best.prediction.high_s
    assert sure.doubts == ()
    unsure = syncopate.whatif(_workload(), CLUSTER, uncertain={"bandwidth": 0.5})
    assert unsure.base.ddp.prediction.high_s > sure.base.ddp.prediction.high_s
    assert {(doubt.what, round(doubt.factor, 3)) for doubt in unsure.doubts} == {
        ("bandwidth", 0.667),
        ("bandwidth", 1.5),
        ("latency", 0.667),
        ("latency", 1.5),
        ("compute", 0.952),
        ("compute", 1.05),
    }
    assert BY_KIND["gpu"].source in unsure.interval


def test_an_input_that_turns_the_advice_is_named():
    # At 4 Gbit/s faster devices gain most; with links an eighth slower, sending less often does.
    found = syncopate.whatif(_workload(), CLUSTER, bandwidth=[5e8], uncertain={"bandwidth": 0.15})
    assert found.changes[0].kind == "compute"
    turned = {(doubt.what, doubt.advice) for doubt in found.doubts if doubt.changes}
    assert turned == {("bandwidth", "local SGD")}
    said = "Were bandwidth 13% less, the advice would be another: average weights every 8th step"
    assert any(text.startswith(said) for text in found.sentences)


def test_what_is_interrupted_keeps_what_was_done():
    study = Study(_workload(), CLUSTER, {"nodes": "2..16"}, Terms())

    def stop(what: str, done: float) -> None:
        if done >= 0.3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study.run(stop)
    found = study.result()
    assert (study.done, study.count) == (2, 4)
    assert not found.complete
    assert len(found.points) == 2
    assert found.changes == ()
    assert found.sentences[0].startswith("8 nodes at 10 Gbit/s")


def test_progress_comes_to_its_end_in_order():
    told: list[float] = []
    syncopate.whatif(
        _workload(), CLUSTER, nodes="2..16", progress=lambda what, done: told.append(done)
    )
    assert told == sorted(told)
    assert 0.9 < told[-1] <= 1


def test_the_same_question_has_the_same_answer(swept):
    again = syncopate.whatif(
        _workload(), CLUSTER, nodes="2..16", bandwidth="1g,10g,100g", gpu_speed=[1, 2]
    )
    assert again == swept


def test_it_is_written_and_read(swept, tmp_path):
    path = swept.save(tmp_path / "whatif.json")
    assert WhatIf.load(path) == swept


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ({"keep": 1.0}, InvalidValueError),
        ({"today": "horovod"}, UnknownNameError),
        ({"gpus": 4}, UnknownNameError),
        ({"batch": [_workload(), _workload()]}, InvalidValueError),
        ({"levels": {"rack": "1g"}}, InvalidValueError),
        ({"oversubscription": 2}, InvalidValueError),
        ({"levels": {"host.bandwidth": "4g"}, "bandwidth": "1g"}, InvalidValueError),
        ({"levels": {"host.latency": "4us"}, "latency": "1us"}, InvalidValueError),
    ],
)
def test_wrong_questions_are_refused(told, error):
    with pytest.raises(error):
        syncopate.whatif(_workload(), CLUSTER, **told)


@pytest.mark.parametrize(
    "told",
    [
        {"nodes": "8..64:4,65"},
        {"pull_period": [0, 4], "local_sgd": [0, 8]},
        {"exchange": "served,best", "servers": [2]},
        {"bandwidth": "10g,40g"},
    ],
)
def test_a_setting_that_cannot_be_is_refused_before_any_is_predicted(told):
    racks = CLUSTER.in_racks((4, 4), uplink_bytes_per_s=2e9)
    prices = Prices(epoch_samples=1_000_000, gpu_hour=1.5, link_hour={"10g": 0.02})
    with pytest.raises(InvalidValueError):
        Study(_workload(), racks, {"bandwidth": "10g"} | told, Terms(prices=prices))


def test_settings_outside_of_what_was_validated_are_named():
    found = syncopate.whatif(_workload(), CLUSTER, nodes=[8, 64])
    assert any("64 ranks lie outside of what was validated" in one for one in found.assumptions)
    on_cpu = replace(_workload(), metadata={"device": "cpu"})
    found = syncopate.whatif(on_cpu, CLUSTER, nodes=[8, 64])
    assert not any("validated" in one for one in found.assumptions)
