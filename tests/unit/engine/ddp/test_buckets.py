"""The buckets of a plan as DDP can have them, beside what torch itself makes of their limits."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from syncopate.artifacts.plan import Bucket, Plan
from syncopate.artifacts.timelines.gradients import name_of
from syncopate.engine.buckets import Trainable
from syncopate.engine.ddp.buckets import Message, PlannedBuckets, nearest
from syncopate.errors import PlanError
from syncopate.recipe import Recipe

_assigned: Any = dist._compute_bucket_assignment_by_size


def trainables(*numels: int) -> list[Trainable]:
    """Parameters ``p0``, ``p1``, .. of so many elements, in order of definition."""
    return [
        Trainable(index, f"p{index}", nn.Parameter(torch.zeros(numel)))
        for index, numel in enumerate(numels)
    ]


def bucket(numel: int, *names: str, **told: Any) -> Bucket:
    push = Recipe("all_reduce", told.pop("algorithm", "ring"), channel=told.pop("channel", 0))
    return Bucket(tensors=names, nbytes=4 * numel, push=push, **told)


def plan(*buckets: Bucket, **told: Any) -> Plan:
    return Plan(
        model="test",
        fingerprint="0",
        world_size=2,
        policy="by hand",
        buckets=buckets,
        channels=2,
        **told,
    )


def as_torch_cuts(
    limits: list[int], tensors: list[torch.Tensor], order: list[int]
) -> list[set[int]]:
    """Return which tensors torch puts into each bucket, going through them in ``order``."""
    if order == list(range(len(tensors))):
        found, _ = _assigned(tensors, limits, [False] * len(tensors))
    else:
        ordered = [tensors[place] for place in order]
        found, _ = _assigned(ordered, limits, [False] * len(tensors), order)
    return [set(each) for each in found]


numels = st.lists(st.integers(1, 50), min_size=1, max_size=12)


@given(numels=numels, data=st.data())
def test_limits_give_the_plan_s_buckets_in_ready_order(numels, data):
    held = trainables(*numels)
    order = data.draw(st.permutations(range(len(numels))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(numels)))) | {0, len(numels)})
    groups = [order[start:stop] for start, stop in pairwise(cuts)]
    asked = plan(*(bucket(sum(numels[p] for p in g), *(f"p{p}" for p in g)) for g in groups))
    planned = PlannedBuckets(asked, held)
    limits = planned.limits(rebuilt=True)
    tensors = [one.parameter.detach() for one in held]
    assert as_torch_cuts(limits, tensors, list(order)) == [set(group) for group in groups]
    found = [[held[p].parameter for p in group] for group in groups]
    assert planned.difference(found, rebuilt=True) == ""


@given(numels=numels, data=st.data())
def test_without_cutting_anew_buckets_end_as_near_as_definitions_allow(numels, data):
    held = trainables(*numels)
    names = [one.name for one in reversed(held)]
    sizes = list(reversed(numels))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(numels)))) | {0, len(numels)})
    asked = plan(*(bucket(sum(sizes[a:b]), *names[a:b]) for a, b in pairwise(cuts)))
    limits = PlannedBuckets(asked, held).limits(rebuilt=False)
    found = as_torch_cuts(limits, [one.parameter.detach() for one in held], [*range(len(held))])
    expected = [{int(name[1:]) for name in one.tensors} for one in asked.buckets]
    assert found[::-1] == expected


@given(sizes=numels, wanted=numels)
def test_the_nearest_buckets_hold_all_and_are_whole(sizes, wanted):
    found = nearest(sizes, wanted)
    assert sum(found) == sum(sizes)
    assert all(found)
    ends = set(accumulate(sizes))
    assert set(accumulate(found)) <= ends
    for end in list(accumulate(wanted))[:-1]:
        near = min(abs(cut - end) for cut in (0, *ends))
        assert any(abs(cut - end) == near for cut in (0, *accumulate(found)))


def test_a_bucket_travels_as_that_of_the_plan_with_most_of_its_bytes():
    held = trainables(10, 30, 20)
    asked = plan(
        bucket(20, "p2", algorithm="native"), bucket(40, "p1", "p0", channel=1), order=(1, 0)
    )
    planned = PlannedBuckets(asked, held)
    flat = torch.zeros(60)
    recipes = [bucket.push.in_order((1, 0)) for bucket in asked.buckets]
    assert planned.messages(0, flat[:20]) == [Message(recipes[0], 0, 20)]
    assert planned.messages(80, flat[:40]) == [Message(recipes[1], 0, 40)]
    assert planned.messages(40, flat[:30]) == [Message(recipes[1], 0, 30)]
    assert recipes[1].options == {"order": (1, 0)}


def test_parts_of_a_tensor_are_messages_of_its_bucket_alone():
    held = trainables(10, 8)
    parts = [bucket(4, "p1", elements=(0, 4)), bucket(4, "p1", elements=(4, 8), channel=1)]
    planned = PlannedBuckets(plan(*parts, bucket(10, "p0")), held)
    assert [group.nbytes for group in planned.groups] == [32, 40]
    assert planned.limits(rebuilt=True) == [32, 40]
    recipes = [part.push for part in parts]
    found = planned.messages(0, torch.zeros(8))
    assert found == [Message(recipes[0], 0, 4), Message(recipes[1], 4, 8)]
    assert planned.messages(0, torch.zeros(18)) == [Message(Recipe("all_reduce", "ring"), 0, 18)]


def test_a_difference_is_told_in_sizes_and_with_its_reason():
    held = trainables(256, 512)
    planned = PlannedBuckets(plan(bucket(512, "p1"), bucket(256, "p0")), held)
    found = [[held[0].parameter, held[1].parameter]]
    assert planned.difference(found, rebuilt=True) == (
        "0 of its 1 bucket are the plan's: it has 3.0 KiB where the plan has 2.0 KiB, 1.0 KiB; "
        "gradients became ready in another order than the plan's"
    )


def test_recordings_are_matched_by_shapes_and_bytes():
    held = trainables(3, 5)
    names = name_of(0, (5,)), name_of(1, (3,))
    planned = PlannedBuckets(plan(bucket(5, names[0]), bucket(3, names[1])), held)
    assert planned.limits(rebuilt=True) == [20, 12]
    assert planned.difference([[held[1].parameter], [held[0].parameter]], rebuilt=True) == ""
    messages = plan(bucket(4, "bucket 0"), bucket(4, "bucket 1"))
    assert PlannedBuckets(messages, held).limits(rebuilt=True) == [20, 12]
    twice = plan(bucket(5, name_of(0, (5,))), bucket(5, name_of(1, (5,))))
    with pytest.raises(
        PlanError, match=r"of the shape of its 'gradient 1 \(5\)' the model has few"
    ):
        PlannedBuckets(twice, held)
    fewer = plan(bucket(5, name_of(0, (5,))))
    with pytest.raises(PlanError, match="its gradients have 20 bytes, and the model's have 32"):
        PlannedBuckets(fewer, held)
    with pytest.raises(PlanError, match="its gradients have 36 bytes"):
        PlannedBuckets(plan(bucket(9, "bucket 0")), held)
