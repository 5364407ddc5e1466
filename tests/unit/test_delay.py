"""Delay: what it refuses, where its warm-up ends, and that it goes with a plan."""

from __future__ import annotations

import pytest

from syncopate.artifacts.plan import Bucket, Plan
from syncopate.delay import Delay, LocalSGD, delay_of
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.recipe import Recipe


@pytest.mark.parametrize(("k", "wp"), [(1, 500), (2, 501), (3, 500), (4, 503), (5, 504)])
def test_the_default_warm_up_is_the_first_from_500_on_that_ends_with_a_period(k, wp):
    delay = Delay(k=k)
    assert delay.wp == wp
    assert (1 + delay.wp) % k == 0
    assert all((1 + shorter) % k for shorter in range(500, wp))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"k": 0}, "k of a delay is 0"),
        ({"k": True}, "k of a delay is True"),
        ({"k": 4, "warm_up": 500}, r"warm_up of a delay is 500.*\(1 \+ warm_up\) % k is 0.*k = 4"),
        ({"k": 1, "warm_up": -1}, "warm_up of a delay is -1"),
        ({"k": 1, "alpha": -1.0}, "alpha of a delay is -1.0"),
        ({"k": 1, "beta": float("nan")}, "beta of a delay is nan"),
        ({"k": 1, "loc_lr": -0.1}, "loc_lr of a delay is -0.1"),
        ({"k": 1, "square_decay": 1.0}, "square_decay of a delay is 1.0"),
    ],
)
def test_what_cannot_be_is_refused(given, says):
    with pytest.raises(InvalidValueError, match=says):
        Delay(**given)


def test_unknown_rules_are_refused_with_those_there_are():
    with pytest.raises(UnknownNameError, match=r"gul.*glu, sgd, dc-asgd-a, none"):
        Delay(k=2, local_update="gul")


def test_a_number_of_steps_stands_for_a_delay():
    assert delay_of(4) == Delay(k=4)
    assert delay_of(None) is None
    with pytest.raises(InvalidValueError, match="delay is 'often'"):
        delay_of("often")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"period": 0}, "period of LocalSGD is 0"),
        ({"period": True}, "period of LocalSGD is True"),
        ({"period": 2.0}, "period of LocalSGD is 2.0"),
        ({"period": 2, "warm_up": -1}, "warm_up of LocalSGD is -1"),
    ],
)
def test_what_cannot_be_of_local_sgd_is_refused(given, says):
    with pytest.raises(InvalidValueError, match=says):
        LocalSGD(**given)


def test_averages_come_every_period_after_the_warm_up():
    method = LocalSGD(period=4, warm_up=3)
    assert [method.is_local(taken) for taken in range(5)] == [False, False, False, True, True]
    assert [n for n in range(20) if method.averages_after(n)] == [7, 11, 15, 19]
    assert [n for n in range(4) if LocalSGD(period=1).averages_after(n)] == [1, 2, 3]
    assert delay_of(method) is method


def _plan(exchange="sharded", **fields):
    push, pull = ("reduce_scatter", Recipe("all_gather"))
    if exchange == "allreduce":
        push, pull = "all_reduce", None
    return Plan(
        model="test",
        fingerprint="0",
        world_size=2,
        policy="by hand",
        buckets=(Bucket(tensors=("a",), nbytes=8, push=Recipe(push), pull=pull),),
        exchange=exchange,
        **fields,
    )


def test_a_plan_keeps_the_delay_it_trains_with():
    delay = Delay(k=3, warm_up=2, local_update="dc-asgd-a", loc_lr=0.5, lambda_0=1.0)
    plan = _plan().delayed(delay)
    assert plan.pull_period == 3
    assert Plan.from_json(plan.to_json()) == plan
    # What another version takes for granted does not change what a saved plan does.
    assert b'"alpha": 2.0' in plan.to_json()
    assert plan.delayed(None) == _plan()


def test_a_plan_keeps_the_local_sgd_it_trains_with():
    local = LocalSGD(period=8, warm_up=100)
    plan = _plan("allreduce").delayed(local)
    assert (plan.local_sgd, plan.delay, plan.pull_period) == (local, None, 1)
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.delayed(None) == _plan("allreduce")
    assert plan.delayed(LocalSGD(period=2)).local_sgd == LocalSGD(period=2)
    with pytest.raises(InvalidValueError, match=r"local_sgd is .*period = 8.*sharded"):
        _plan().delayed(local)
    with pytest.raises(InvalidValueError, match=r"delay is .*allreduce"):
        plan.delayed(Delay(k=2))
    with pytest.raises(InvalidValueError, match=r"local_sgd is .*sharded"):
        _plan(delay=Delay(k=2), pull_period=2, local_sgd=local)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"exchange": "allreduce", "local_sgd": LocalSGD(period=2), "weight_sync_period": 3},
            "weight_sync_period is 3.*0 with local_sgd",
        ),
        ({"exchange": "allreduce", "delay": Delay(k=2), "pull_period": 2}, "delay is .*allreduce"),
        ({"delay": Delay(k=2)}, "pull_period is 1.*2, the delay's k"),
        ({"pull_period": 2}, "pull_period is 2.*1 without a delay"),
    ],
)
def test_a_plan_whose_delay_does_not_fit_is_refused(fields, says):
    with pytest.raises(InvalidValueError, match=says):
        _plan(**fields)
