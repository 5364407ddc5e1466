"""Plans of units on the command line."""

from __future__ import annotations

import json

import pytest

from syncopate.artifacts.plan import FSDP, Plan
from syncopate.artifacts.timeline import Timeline

MODEL = "--model decoder-1b --device h100 --network 100gbe --nodes 4 --gpus-per-node 4"


def words(text: str) -> str:
    return " ".join(text.split())


def test_a_plan_of_units_says_what_to_wrap_and_is_simulated(run) -> None:
    code, out, err = run(f"plan {MODEL} --exchange fsdp -o plan.json")
    assert code == 0, err
    plan = Plan.load("plan.json")
    assert plan.sharding is not None
    assert (plan.exchange, plan.world_size) == (FSDP, 16)
    assert plan.prediction is not None
    assert plan.prediction.low_s is None  # nothing was measured of it
    assert f"shared by all ranks; gathered {plan.sharding.prefetch} unit" in words(out)
    assert "of weights gathered at once" in words(out)
    assert "the model itself, with words, kept" in words(out)
    assert "against" in words(out)
    code, out, err = run(f"simulate {MODEL} -p plan.json --iterations 2 -o timeline.json")
    assert code == 0, err
    assert "predicted iteration" in out
    timeline = Timeline.load("timeline.json")
    assert timeline.metadata["exchange"] == FSDP
    assert float(timeline.columns.end_s.max()) == pytest.approx(2 * plan.prediction.iteration_s)
    code, out, err = run("explain timeline.json")
    assert code == 0, err


def test_memory_limits_what_is_gathered(run) -> None:
    held = {}
    for memory in ("1.2GB", "2GB"):
        code, out, err = run(f"plan {MODEL} --exchange fsdp --memory {memory} --json -o p.json")
        assert code == 0, err
        plan = Plan.load("p.json")
        assert plan.sharding is not None
        held[memory] = plan.sharding.held_bytes([bucket.nbytes for bucket in plan.buckets])
        assert {one["exchange"] for one in json.loads(out)} == {FSDP}
    assert held["1.2GB"] <= 1.2e9 < held["2GB"] <= 2e9
    code, _, err = run(f"plan {MODEL} --exchange fsdp --memory 1MB")
    assert code == 2
    assert "memory_bytes is 1000000; it must be at least" in words(err)


def test_groups_of_ranks(run) -> None:
    code, out, err = run(f"plan {MODEL} --exchange fsdp --shard-ranks 4 -o plan.json")
    assert code == 0, err
    plan = Plan.load("plan.json")
    assert plan.sharding is not None
    assert plan.sharding.ranks == 4
    assert "shared by groups of 4 ranks" in words(out)
    code, _, err = run(f"plan {MODEL} --exchange fsdp --shard-ranks 3")
    assert code == 2
    assert "as many as inner levels join (4 of" in words(err)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--exchange sharded --memory 1GB", "--memory is '1GB'; it must be left out without"),
        ("--shard-ranks 4", "left out without --exchange fsdp"),
        ("--exchange fsdp --channels 1", "2 with the fsdp exchange"),
        ("--exchange fsdp --wire-dtype bfloat16", "mp_policy"),
        ("--exchange fsdp --servers 2", "left out without --exchange served"),
        ("--exchange fsdp --pull-period 4", "only sharded and served pull weights late"),
        ("--exchange fsdp --algorithm rign", "unknown algorithm 'rign'"),
    ],
)
def test_what_does_not_go_together_is_refused(run, line, said) -> None:
    code, _, err = run(f"plan -w workload.json -c cluster.json {line}")
    assert code == 2
    assert said in words(err)
