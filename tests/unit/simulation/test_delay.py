"""Iterations whose weights are pulled every k-th time: played, predicted, and chosen among."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from formulas.ssd_sgd import Times, steady_iteration_s
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.bound import plan_bound_s
from syncopate.costs.model.served import served_costs
from syncopate.delay import Delay
from syncopate.errors import InvalidValueError
from syncopate.planning import make_plan, predict
from syncopate.simulation import fluid, iteration
from syncopate.simulation.delay import delays, gains, limits, proposed, with_delay
from syncopate.simulation.iteration import IDEAL, play_period, play_several, play_traffic
from syncopate.simulation.timeline import simulate
from tests.unit import examples
from tests.unit.simulation.test_exchanges import traffics
from tests.unit.simulation.workloads import workloads


@given(st.data(), st.integers(1, 4))
def test_on_one_channel_the_local_update_waits_and_nothing_before(
    data: st.DataObject, k: int
) -> None:
    work = data.draw(workloads())
    traffic = data.draw(traffics(work))
    played = play_period(work, traffic, Delay(k=k))
    arrived_s = sum(pull.duration_s for pull in traffic.pulls)
    computed_s = work.forward_s + work.backward_s
    for index, one in enumerate(played):
        end_s = 0.0 if index else arrived_s
        for push in traffic.pushes:
            end_s = max(end_s, push.ready_s) + push.duration_s
        assert one.backward_end_s == pytest.approx(computed_s)
        assert one.waits_s == ()
        # Its own weights are as many as all shards together.
        update_s = traffic.update_s + work.update_s
        assert one.update_s == pytest.approx(update_s)
        assert one.iteration_s == pytest.approx(max(computed_s, end_s) + update_s)
        assert len(one.pull_ends_s) == (0 if index else len(traffic.pulls))
    assert len(played) == k


@given(st.data(), st.integers(1, 3), st.integers(2, 4))
def test_what_goes_behind_holds_up_no_push(data: st.DataObject, channels: int, k: int) -> None:
    work = data.draw(workloads())
    traffic = data.draw(traffics(work, channels))
    count = data.draw(st.integers(0, len(traffic.pulls)))
    behind = dataclasses.replace(traffic, behind=count)
    played = play_period(work, behind, Delay(k=k))
    assert len(played[0].pull_ends_s) == len(traffic.pulls)
    last_push_s = max((push.ready_s for push in traffic.pushes), default=0.0)
    for bucket in traffic.pulled[len(traffic.pulled) - count :]:
        assert played[0].pull_starts_s[bucket] >= last_push_s - 1e-9
    if channels == 1 and count == len(traffic.pulls):
        # Nothing before its pushes: the first iteration is as one without a pull.
        alone = play_period(work, dataclasses.replace(traffic, pulls=()), Delay(k=k))[0]
        assert played[0].ends_s == pytest.approx(alone.ends_s)
        assert played[0].iteration_s == pytest.approx(alone.iteration_s)
        # And each layer of the second waits for its weights.
        waited_s = sum(end_s - start_s for start_s, end_s in played[1].waits_s)
        late_s = max((end_s for end_s in played[0].pull_ends_s), default=0.0)
        assert waited_s <= max(late_s - played[0].iteration_s, 0.0) + 1e-9
    elif not count:
        assert played == play_period(work, traffic, Delay(k=k))


def test_the_last_pulls_go_behind_where_forward_is_too_short_for_all() -> None:
    work, cluster = _work(), _cluster(0.6)
    plan = make_plan(work, cluster, exchange="sharded", channels=1)
    found = with_delay(plan, Delay(k=4), work, cluster)
    before = predict(work, replace(found, pulled_behind=0), cluster)
    assert 0 < found.pulled_behind < len(found.buckets)
    assert found.prediction is not None
    assert found.prediction.iteration_s < 0.99 * before.iteration_s
    assert found.prediction == predict(work, found, cluster)
    played = simulate(work, found, cluster, iterations=6)
    assert sum(span.lane == "pull" for span in played.spans if span.rank == 0) == len(plan.buckets)
    for k, rule in ((1, "glu"), (4, "none")):
        still = with_delay(plan, Delay(k=k, local_update=rule), work, cluster)
        assert still.pulled_behind == 0
        with pytest.raises(InvalidValueError, match="pulled_behind"):
            replace(still, pulled_behind=1)
    with pytest.raises(InvalidValueError, match="pulled_behind"):
        replace(found, pulled_behind=len(found.buckets) + 1)


@given(st.data(), st.integers(1, 3), st.integers(2, 4))
def test_on_cpus_pushes_end_behind_the_step_and_before_the_next_backward(
    data: st.DataObject, channels: int, k: int
) -> None:
    work = data.draw(workloads())
    on_cpu = replace(work, metadata={"device": "cpu"})
    traffic = data.draw(traffics(work, channels))
    behind = play_period(on_cpu, traffic, Delay(k=k))
    for one, after in pairwise(behind):
        assert one.update_s == work.update_s
        for end_s in one.ends_s:  # which the next backward waits for, and no step
            stood_s = max((end for _, end in after.waits_s), default=0.0)
            backward_s = max(float(after.wall_s(work.forward_s)), stood_s)
            assert end_s <= one.iteration_s + backward_s + 1e-9
        computed_s = work.forward_s + work.backward_s + work.update_s
        waited_s = sum(end_s - start_s for start_s, end_s in one.waits_s)
        if one is not behind[0]:
            assert one.iteration_s == pytest.approx(computed_s + waited_s)
    if channels == 1:
        at_once = play_period(work, traffic, Delay(k=k))
        lasts_s, lasted_s = (sum(one.iteration_s for one in each) for each in (behind, at_once))
        assert lasts_s <= lasted_s + 1e-9
    for rule in ("glu", "none"):
        delay = Delay(k=1, local_update=rule)
        assert play_period(on_cpu, traffic, delay) == play_period(work, traffic, delay)


@given(st.data(), st.integers(1, 3))
def test_without_a_local_rule_forward_waits_as_ever(data: st.DataObject, channels: int) -> None:
    work = data.draw(workloads())
    traffic = data.draw(traffics(work, channels))
    first, second = play_period(work, traffic, Delay(k=2, local_update="none"))
    assert first == play_traffic(work, traffic)
    assert play_period(work, traffic, Delay(k=1, local_update="none")) == (first,)
    assert second.pull_ends_s == second.waits_s == ()
    assert second.update_s == first.update_s


@given(st.data(), st.integers(1, 3), st.integers(1, 3))
def test_periods_follow_one_another_alike(data: st.DataObject, channels: int, k: int) -> None:
    work = data.draw(workloads())
    traffic = data.draw(traffics(work, channels))
    several = play_several(work, traffic, IDEAL, 3 * k, Delay(k=k))
    period = play_period(work, traffic, Delay(k=k))
    assert several[0].pull_ends_s == ()
    for index, one in enumerate(several[1:], start=1):
        assert one.iteration_s == pytest.approx(period[index % k].iteration_s)
        assert len(one.pull_ends_s) == len(period[index % k].pull_ends_s)


def _work(update_s: float = 0.01) -> Workload:
    tensors = tuple(
        GradientTensor(name=f"w{index}", numel=1_000_000, backward_s=0.02) for index in range(8)
    )
    return Workload(
        model="layers", tensors=tensors, forward_s=0.08, backward_s=0.16, update_s=update_s
    )


def _cluster(rate: float) -> Cluster:
    """Four hosts whose links take ``rate`` times as long as forward and backward for a push."""
    cluster = Cluster.preset("10gbe", 4)
    level = cluster.levels[0]
    bandwidth = 0.75 * _work().nbytes / (rate * 0.24)
    return replace(cluster, levels=(replace(level, bandwidth_bytes_per_s=bandwidth),))


def test_a_prediction_is_that_of_the_period_and_never_below_the_bound() -> None:
    work, cluster = _work(), _cluster(0.9)
    plan = make_plan(work, cluster, exchange="sharded", channels=1)
    assert plan.prediction is not None
    found = delays(plan, work, cluster)
    assert [one.pull_period for one in found] == list(range(1, 9))
    previous_s = float("inf")
    for one in found:
        prediction = one.prediction
        assert prediction is not None
        assert predict(work, one, cluster) == prediction
        assert prediction.iteration_s <= previous_s * (1 + 1e-9)
        assert prediction.iteration_s >= prediction.bound_s
        assert prediction.bound_s == pytest.approx(
            plan_bound_s(cluster, plan.buckets, prediction.compute_s, pull_period=one.pull_period)
        )
        previous_s = prediction.iteration_s
    assert found[-1].prediction is not None
    assert found[-1].prediction.iteration_s < 0.8 * plan.prediction.iteration_s
    assert found[-1].prediction.bound_s < plan.prediction.bound_s
    for one in found[:2]:
        played = simulate(work, one, cluster, iterations=8)
        pulled = {span.iteration for span in played.spans if span.lane == "pull"}
        assert pulled == set(range(one.pull_period, 8, one.pull_period))
        assert not any(span.name == "wait for weights" for span in played.spans)


def test_the_smallest_period_within_noise_is_proposed_and_none_where_it_gains_nothing() -> None:
    work = _work()
    slow, fast = _cluster(0.9), _cluster(0.05)
    plan = make_plan(work, slow, exchange="sharded", channels=1)
    plans = (plan, *delays(plan, work, slow))
    chosen = proposed(plans)
    times_s = [one.prediction.iteration_s for one in plans if one.prediction]
    assert chosen.pull_period > 1
    assert times_s[plans.index(chosen)] <= 1.05 * min(times_s)
    assert all(t > 1.05 * min(times_s) for t in times_s[: plans.index(chosen)])
    assert gains(plan, plans[1:]) == ""
    plan = make_plan(work, fast, exchange="sharded", channels=1)
    late = delays(plan, work, fast)
    assert proposed((plan, *late)) is plan
    assert "no k gains more than the 5%" in gains(plan, late)
    assert "Train without --pull-period" in gains(plan, late)


def test_where_pushes_alone_outlast_computation_it_is_said_and_what_to_do() -> None:
    work, cluster = _work(), _cluster(1.5)
    plan = make_plan(work, cluster, exchange="sharded")
    said = limits(plan, work, cluster)
    assert "no k changes that" in said
    assert "bfloat16" in said
    narrow = make_plan(work, cluster, exchange="sharded", wire_dtype="bfloat16")
    assert limits(narrow, work, cluster) == ""
    assert limits(plan, work, _cluster(0.9)) == ""
    wider = limits(make_plan(work, _cluster(2.5), exchange="sharded", wire_dtype="bfloat16"),
                   work, _cluster(2.5))  # fmt: skip
    assert "bfloat16" not in wider
    assert "larger batches" in wider


def _served(rate: float, policy: str, servers: int = 4) -> tuple[Cluster, Plan]:
    """Four hosts and their servers, whose links take ``rate`` times the computation for a push."""
    cluster = Cluster.preset("10gbe", 4)
    bandwidth = _work().nbytes / (rate * 0.24)
    level = replace(cluster.levels[0], bandwidth_bytes_per_s=bandwidth, latency_s=0.0)
    cluster = replace(cluster, levels=(level,))
    costs = served_costs(cluster, servers)
    return cluster, make_plan(_work(0.0), cluster, policy, exchange="served", costs=costs)


@pytest.mark.parametrize("rate", [0.3, 0.7, 0.9, 1.5])
@pytest.mark.parametrize("policy", ["single", "wfbp"])
def test_servers_take_no_longer_than_the_paper_s_timeline_on_one_link(
    rate: float, policy: str
) -> None:
    work, (cluster, plan) = _work(0.0), _served(rate, policy)
    ready = {tensor.name: at for tensor, at in zip(work.tensors, work.ready_s, strict=True)}
    last = [max(ready[name] for name in bucket.tensors) for bucket in plan.buckets]
    backward_s = [b - a for a, b in pairwise((work.forward_s, *last))]
    message_s = [bucket.nbytes / work.nbytes * rate * 0.24 for bucket in plan.buckets]
    times = Times(work.forward_s, backward_s[::-1], message_s[::-1], message_s[::-1])
    for one in delays(plan, work, cluster):
        prediction, k = one.prediction, one.pull_period
        assert prediction is not None
        # Pushes and pulls have a direction each here, and share a link in the paper.
        busy_s = max(times.computed_s, rate * 0.24)
        assert busy_s <= prediction.iteration_s * (1 + 1e-9)
        assert prediction.iteration_s <= steady_iteration_s(times, k) * (1 + 1e-6)
        assert prediction.bound_s == pytest.approx(busy_s)
    played = simulate(work, plan.delayed(Delay(k=3)), cluster, iterations=9)
    assert {span.iteration for span in played.spans if span.lane == "pull"} == {3, 6}


def test_a_timeline_shows_where_backward_waits_for_pushes() -> None:
    work, (cluster, plan) = _work(0.0), _served(1.5, "wfbp")
    spans = simulate(work, plan.delayed(Delay(k=3)), cluster, iterations=6).spans
    mine = sorted(
        (one.start_s, one.end_s, one.name)
        for one in spans
        if one.rank == 0 and one.lane in ("forward", "backward", "wait")
    )
    assert "wait for pushes" in {name for _, _, name in mine}
    assert all(begin_s >= end_s - 1e-9 for (_, end_s, _), (begin_s, _, _) in pairwise(mine))
    computed_s = sum(end_s - start_s for start_s, end_s, name in mine if "wait" not in name)
    assert computed_s == pytest.approx(6 * 0.24)


def test_without_a_local_rule_and_every_step_servers_take_what_they_do_synchronously() -> None:
    work, (cluster, plan) = _work(0.01), _served(0.7, "wfbp")
    plan = with_delay(plan, Delay(k=1, local_update="none"), work, cluster)
    assert plan.prediction is not None
    synchronous = predict(work, plan.delayed(None), cluster)
    assert plan.prediction.iteration_s == pytest.approx(synchronous.iteration_s)


def test_what_no_period_hides_from_servers_is_said() -> None:
    cluster, plan = _served(1.5, "single")
    assert "no k changes that: larger batches" in limits(plan, _work(), cluster)
    cluster, plan = _served(0.9, "single", servers=2)
    assert "more servers than 2" in limits(plan, _work(), cluster)
    assert limits(_served(0.9, "single")[1], _work(), cluster) == ""


def test_other_exchanges_have_no_delay() -> None:
    work, cluster = _work(), _cluster(0.9)
    with pytest.raises(InvalidValueError, match="only sharded and served pull weights late"):
        with_delay(make_plan(work, cluster, exchange="allreduce"), Delay(k=2), work, cluster)


@pytest.mark.parametrize("exchange", ["sharded", "served"])
@pytest.mark.parametrize("k", [21, 22, 33, 34])
def test_of_a_long_period_the_middle_is_played_once(monkeypatch, exchange, k):
    cluster = Cluster.preset("1gbe", 4)
    plan = make_plan(examples.workload(), cluster, "threshold", exchange=exchange)
    whole = predict(examples.workload(), plan.delayed(Delay(k=k)), cluster)
    lengths = []

    def counted(pieces, *told):
        lengths.append(len(pieces))
        return fluid.run(pieces, *told)

    monkeypatch.setattr(iteration, "_PLAYED", 10)
    monkeypatch.setattr(iteration, "run", counted)
    shorter = predict(examples.workload(), plan.delayed(Delay(k=k)), cluster)
    assert shorter.iteration_s == pytest.approx(whole.iteration_s, rel=1e-9)
    assert shorter.communication_s == pytest.approx(whole.communication_s, rel=1e-9)
    of_few = lengths.copy()
    predict(examples.workload(), plan.delayed(Delay(k=k + 10_000)), cluster)
    assert lengths == 2 * of_few
    with pytest.raises(InvalidValueError, match="k of a delay is 1000001; it must be at most"):
        predict(examples.workload(), plan.delayed(Delay(k=1_000_001)), cluster)
