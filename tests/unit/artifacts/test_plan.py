"""Plan: partition, prediction, fit to a model and a world size, and what it refuses."""

from __future__ import annotations

import json
import pickle

import msgspec
import pytest
from hypothesis import given
from msgspec import structs

from syncopate.artifacts.plan import Bucket, Plan, Prediction, exchange_of, joined
from syncopate.artifacts.workload import fingerprint
from syncopate.delay import Delay
from syncopate.errors import ArtifactError, InvalidValueError, PlanError, UnknownNameError
from syncopate.recipe import Recipe
from tests.unit import strategies

MODEL = (("a", 4, "float32"), ("b", 3, "float32"))


NBYTES = {"a": 16, "b": 12}


def _bucket(*tensors, nbytes=None, pull=None, collective="all_reduce", **told):
    size = sum(NBYTES.get(name, 4) for name in tensors) if nbytes is None else nbytes
    push = Recipe(collective, "ring", **told)
    return Bucket(tensors=tensors, nbytes=size, push=push, pull=pull)


def _part(name, start, stop):
    return structs.replace(_bucket(name, nbytes=4 * (stop - start)), elements=(start, stop))


def _plan(*buckets, **changes):
    fields = {"model": "m", "world_size": 4, "policy": "optimal"}
    return Plan(**{**fields, "fingerprint": fingerprint(MODEL), "buckets": buckets, **changes})


def _half_pulled():
    pulled = structs.replace(
        _part("a", 0, 1), push=Recipe("reduce_scatter", "ring"), pull=Recipe("all_gather")
    )
    return _plan(pulled, _part("a", 1, 4), _bucket("b"), exchange="sharded")


def _rooted(push, pull, **changes):
    bucket = _bucket("a", collective="reduce", root=push, pull=Recipe("broadcast", root=pull))
    return _plan(bucket, exchange="rooted", **changes)


@given(strategies.plans())
def test_round_trip(plan):
    assert Plan.from_json(plan.to_json()) == plan


def test_a_copy_is_written_as_the_original_is():
    plan = _plan(_bucket("a"), Bucket(tensors=("b",), nbytes=12, push=Recipe("all_reduce")))
    written = plan.to_json()
    for copied in (pickle.loads(pickle.dumps(plan)), Plan.from_json(written)):
        assert copied.to_json() == written
    named = Recipe("all_reduce", "".join(["nat", "ive"]))
    assert msgspec.json.encode(named) == msgspec.json.encode(Recipe("all_reduce"))


def test_options_are_written_where_there_are_some():
    plan = _plan(
        _bucket("a", options={"blocks": 8, "stages": ("ring", "recursive")}),
        Bucket(tensors=("b",), nbytes=12, push=Recipe("all_reduce", "native")),
        order=(1, 0, 3, 2),
    )
    written = json.loads(plan.to_json())
    assert [bucket["push"].get("options") for bucket in written["buckets"]] == [
        {"blocks": 8, "stages": ["ring", "recursive"]},
        None,
    ]
    assert Plan.from_json(plan.to_json()) == plan
    one, native = (bucket.push.in_order(plan.order).options for bucket in plan.buckets)
    assert one == {"blocks": 8, "stages": ("ring", "recursive"), "order": (1, 0, 3, 2)}
    assert native == {}
    own = _bucket("a", options={"order": (3, 2, 1, 0)})
    assert own.push.in_order(plan.order).options == {"order": (3, 2, 1, 0)}
    assert own.push.in_order(()) == own.push


def test_what_has_a_default_may_be_left_out():
    fields = json.loads(_plan(_bucket("a")).to_json())
    del fields["order"]
    push = {"collective": "all_reduce", "algorithm": "ring"}
    fields["buckets"] = [{"tensors": ["a"], "nbytes": 16, "push": push}]
    plan = Plan.from_json(json.dumps(fields))
    assert plan == _plan(_bucket("a"))
    assert plan.buckets[0].push.in_order(plan.order).options == {}


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
        (
            lambda: _plan(_bucket("a", channel=1)),
            r"channel of the push of bucket 0 is 1.*in 0\.\.0",
        ),
        (lambda: _plan(_bucket("a", channel=-1)), "channel of the push of bucket 0 is -1"),
        (lambda: _plan(_bucket("a", root=1)), "root of the push of bucket 0 is 1.*a root"),
        (lambda: _rooted(4, 4), r"root of the push of bucket 0 is 4.*in 0\.\.3"),
        (lambda: _rooted(1, 2), r"roots of bucket 0 is \[1, 2\].*sum updates"),
        (
            lambda: _plan(_bucket("a", collective="reduce"), exchange="sharded"),
            "reduce_scatter and all_gather, or all_reduce, which the sharded exchange runs",
        ),
        (_half_pulled, "pull of bucket 1 is 'a'.*exactly where bucket 0 has one"),
        (lambda: _plan(_bucket("a", pull=Recipe("broadcast"))), "which the allreduce exchange"),
        (lambda: _plan(_bucket("a"), weight_sync_period=-1), "weight_sync_period is -1"),
        (lambda: _rooted(1, 1, weight_sync_period=5), "weight_sync_period is 5.*rooted exchange"),
        (lambda: _plan(_bucket("a"), pull_period=2), "pull_period is 2"),
        (lambda: _plan(_bucket("a"), pull_order=(0,)), r"pull_order is \(0,\).*pulls nothing"),
        (lambda: _rooted(1, 1, pull_order=(1, 0)), r"pull_order is .*permutation of .* 0\.\.0"),
        (lambda: _plan(_bucket("a"), order=(0, 1)), r"order is \(0, 1\).*ranks 0\.\.3"),
        (
            lambda: _plan(_bucket("a"), order=(0, 1), world_size=10**15),
            r"order is \(0, 1\).*ranks 0\.\.9+",
        ),
        (
            lambda: _plan(
                Bucket(tensors=("a",), nbytes=16, push=Recipe("all_reduce", options={"blocks": 2}))
            ),
            "options of the push of bucket 0 is .*none for 'native'",
        ),
        (lambda: _part("a", 3, 3), r"elements of a bucket is \(3, 3\).*one past a last"),
        (lambda: _part("a", -1, 3), r"elements of a bucket is \(-1, 3\)"),
        (
            lambda: structs.replace(_bucket("a", "b"), elements=(0, 3)),
            r"tensors of a bucket is \('a', 'b'\).*a single name",
        ),
        (
            lambda: _plan(_part("a", 1, 4)),
            r"elements of bucket 0 is \(1, 4\).*begins at 0, where the parts before it end",
        ),
        (
            lambda: _plan(_part("a", 0, 2), _part("a", 3, 4)),
            r"elements of bucket 1 is \(3, 4\).*begins at 2",
        ),
        (
            lambda: _plan(_part("a", 0, 2), _bucket("b"), _part("a", 2, 4)),
            r"elements of bucket 2 is \(2, 4\).*begins at 0",
        ),
        (lambda: _plan(_part("a", 0, 4), _bucket("a")), "buckets is 'a'.*disjoint"),
        (
            lambda: Bucket(tensors=("a",), nbytes=-1, push=Recipe("all_reduce", "ring")),
            "nbytes of a bucket is -1",
        ),
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


def test_buckets_tell_their_exchange():
    shards = _bucket("a", collective="reduce_scatter", pull=Recipe("all_gather"))
    assert exchange_of([_bucket("a"), _bucket("b")]) == "allreduce"
    # Two exchanges have these collectives; the one whose programs are DDP's comes first.
    assert exchange_of([shards]) == "decoupled"
    assert exchange_of([shards], ("rooted", "sharded")) == "sharded"
    assert exchange_of([_bucket("a", collective="reduce", pull=Recipe("broadcast"))]) == "rooted"
    assert exchange_of([_bucket("b"), shards], ("sharded",)) == "sharded"
    rooted = _bucket("a", collective="reduce", pull=Recipe("broadcast"))
    with pytest.raises(
        InvalidValueError,
        match=r"all_reduce, reduce and broadcast'.*rooted \(reduce and broadcast\)",
    ):
        exchange_of([_bucket("b"), rooted])


def test_the_parts_of_a_tensor_are_buckets_of_their_own():
    plan = _plan(_part("a", 0, 1), _part("a", 1, 4), _bucket("b"))
    plan.require_fit(MODEL, 4)
    assert joined(plan.buckets) == [[0, 1], [2]]
    assert joined([_bucket("a"), _bucket("b")]) == [[0], [1]]
    written = json.loads(plan.to_json())["buckets"]
    assert [bucket.get("elements") for bucket in written] == [[0, 1], [1, 4], None]


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
        (
            [_part("a", 0, 2), _bucket("b")],
            "the parts of 'a' hold 2 elements, and it has 4. Plan again",
        ),
        ([_part("a", 0, 5), _bucket("b")], "the parts of 'a' hold 5 elements, and it has 4"),
        (
            [structs.replace(_part("a", 0, 4), nbytes=12), _bucket("b")],
            "bucket 0 says 12 bytes, its 1 tensors have 16",
        ),
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


def test_a_delay_pulls_every_bucket():
    pulled = structs.replace(
        _bucket("b", collective="reduce_scatter", channel=1), pull=Recipe("all_gather", "ring")
    )
    plan = _plan(_bucket("a"), pulled, exchange="sharded", channels=2)
    late = plan.delayed(Delay(k=2))
    assert [bucket.push.collective for bucket in late.buckets] == ["reduce_scatter"] * 2
    assert late.buckets[0].push.channel == 0
    assert late.buckets[0].pull == Recipe("all_gather", "ring")
    assert late.buckets[1] == plan.buckets[1]
    with pytest.raises(InvalidValueError, match=r"pull of bucket 0 is 'none'.*with a delay"):
        structs.replace(late, buckets=plan.buckets)
    waits = plan.delayed(Delay(k=1, local_update="none"))
    assert waits.buckets == plan.buckets
