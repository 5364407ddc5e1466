"""Plan: partition, prediction, fit to a model and a world size, and what it refuses."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from msgspec import structs

from syncopate.errors import ArtifactError, InvalidValueError, PlanError, UnknownNameError
from syncopate.plan import Bucket, Plan, Prediction
from syncopate.workload import fingerprint
from tests.unit import strategies

MODEL = (("a", 4, "float32"), ("b", 3, "float32"))


NBYTES = {"a": 16, "b": 12}


def _bucket(*tensors, **rest):
    nbytes = sum(NBYTES.get(name, 4) for name in tensors)
    return Bucket(**{"tensors": tensors, "nbytes": nbytes, "algorithm": "ring", **rest})


def _plan(*buckets, **changes):
    fields = {"model": "m", "world_size": 4, "policy": "optimal"}
    return Plan(**{**fields, "fingerprint": fingerprint(MODEL), "buckets": buckets, **changes})


@given(strategies.plans())
def test_round_trip(plan):
    assert Plan.from_json(plan.to_json()) == plan


def test_options_are_written_where_there_are_some():
    plan = _plan(
        _bucket("a", options={"blocks": 8, "stages": ("ring", "recursive")}),
        Bucket(tensors=("b",), nbytes=12, algorithm="native"),
        order=(1, 0, 3, 2),
    )
    written = json.loads(plan.to_json())
    assert [bucket.get("options") for bucket in written["buckets"]] == [
        {"blocks": 8, "stages": ["ring", "recursive"]},
        None,
    ]
    assert Plan.from_json(plan.to_json()) == plan
    one, native = (bucket.all_options(plan.order) for bucket in plan.buckets)
    assert one == {"blocks": 8, "stages": ("ring", "recursive"), "order": (1, 0, 3, 2)}
    assert native == {}
    own = _bucket("a", options={"order": (3, 2, 1, 0)})
    assert own.all_options(plan.order) == {"order": (3, 2, 1, 0)}
    assert own.all_options() == own.options


def test_a_plan_written_before_there_were_options_still_loads():
    fields = json.loads(_plan(_bucket("a")).to_json())
    del fields["order"]
    fields["buckets"] = [{"tensors": ["a"], "nbytes": 16, "algorithm": "ring", "channel": 0}]
    plan = Plan.from_json(json.dumps(fields))
    assert plan == _plan(_bucket("a"))
    assert plan.buckets[0].all_options(plan.order) == {}


def test_the_distance_to_the_bound():
    times = {"compute_s": 1.0, "communication_s": 1.0, "exposed_s": 0.1}
    assert Prediction(iteration_s=2.1, bound_s=2.0, **times).above_bound == pytest.approx(0.05)
    assert Prediction(iteration_s=2.1, bound_s=0.0, **times).above_bound == 0.0


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (_plan, "at least one bucket"),
        (lambda: _plan(_bucket()), "at least one name"),
        (lambda: _plan(_bucket("a", "a")), "disjoint"),
        (lambda: _plan(_bucket("a"), _bucket("b", "a")), "buckets is 'a'.*disjoint"),
        (lambda: _plan(_bucket("a"), world_size=0), "world_size is 0"),
        (lambda: _plan(_bucket("a"), channels=0), "channels is 0"),
        (lambda: _plan(_bucket("a", channel=1)), r"channel of bucket 0 is 1.*in 0\.\.0"),
        (lambda: _plan(_bucket("a"), pull_period=2), "pull_period is 2"),
        (lambda: _plan(_bucket("a"), order=(0, 1)), r"order is \(0, 1\).*ranks 0\.\.3"),
        (
            lambda: Bucket(tensors=("a",), nbytes=1, algorithm="native", options={"blocks": 2}),
            "options of a bucket is .*none for 'native'",
        ),
        (lambda: Bucket(tensors=("a",), nbytes=-1, algorithm="ring"), "nbytes of a bucket is -1"),
        (
            lambda: Prediction(
                iteration_s=-1.0, compute_s=0, communication_s=0, exposed_s=0, bound_s=0
            ),
            "iteration_s is -1.0",
        ),
    ],
)
def test_nonsense_is_refused(build, complaint):
    with pytest.raises(InvalidValueError, match=complaint):
        build()


def test_an_unknown_exchange_is_refused():
    with pytest.raises(UnknownNameError, match="unknown exchange 'gossip'; known: allreduce"):
        _plan(_bucket("a"), exchange="gossip")


def test_a_plan_fits_its_own_model_in_any_order():
    _plan(_bucket("a", "b")).require_fit(reversed(MODEL), 4)


@pytest.mark.parametrize(
    ("model", "world_size", "complaint"),
    [
        (MODEL, 8, "for 4 ranks; 8 are running. Plan again"),
        (MODEL[:1], 4, r"another model \(m\): the model lacks 'b'"),
        ((*MODEL, ("c", 1, "float32")), 4, r"the plan lacks 'c' \(\+0 more\)"),
        ((("a", 5, "float32"), MODEL[1]), 4, "the same names with other sizes or dtypes"),
        ((("a", 4, "float16"), MODEL[1]), 4, "the same names with other sizes or dtypes"),
        ((("x", 4, "float32"), ("y", 3, "float32")), 4, "lacks 'a' .* lacks 'x' .*Profile this"),
    ],
)
def test_a_plan_fits_nothing_else(model, world_size, complaint):
    with pytest.raises(PlanError, match=complaint):
        _plan(_bucket("a", "b")).require_fit(model, world_size)


@pytest.mark.parametrize(
    ("buckets", "complaint"),
    [
        ([_bucket("a")], r"damaged: the plan lacks 'b' \(\+0 more\). Plan again"),
        ([_bucket("b")], "damaged: the plan lacks 'a'"),
        ([_bucket("a", "b", "c")], r"damaged: the model lacks 'c' \(\+0 more\)"),
        ([_bucket("a"), _bucket("c")], "the model lacks 'c' .*; the plan lacks 'b'"),
        ([_bucket("a"), _bucket("b", nbytes=16)], "bucket 1 says 16 bytes, its 1 tensors have 12"),
        ([_bucket("a", "b", nbytes=0)], "bucket 0 says 0 bytes, its 2 tensors have 28"),
    ],
)
def test_a_plan_whose_fingerprint_fits_is_looked_into(buckets, complaint):
    with pytest.raises(PlanError, match=complaint):
        _plan(*buckets).require_fit(MODEL, 4)


def test_a_tensor_in_two_places_is_refused_however_the_plan_comes_about():
    plan = _plan(_bucket("a"), _bucket("b"))
    with pytest.raises(InvalidValueError, match=r"buckets is 'a'.*disjoint"):
        structs.replace(plan, buckets=(*plan.buckets, plan.buckets[0]))
    fields = json.loads(plan.to_json())
    fields["buckets"][1]["tensors"] = ["b", "a"]
    with pytest.raises(ArtifactError, match=r"buckets is 'a'.*disjoint"):
        Plan.from_json(json.dumps(fields))
