"""Blocks by name, what stays gathered, and plans of units that are refused."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from syncopate.artifacts.plan import FSDP, Bucket, Plan
from syncopate.artifacts.sharding import Sharding, blocks
from syncopate.errors import InvalidValueError
from syncopate.recipe import Recipe


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["0.weight", "2.bias"], ["0", "2"]),
        (["words.weight", "blocks.0.up.weight", "norm.weight"], ["words", "blocks.0", "norm"]),
        (["model.embed.weight", "model.layers.1.mlp.2.weight"], ["model.embed", "model.layers.1"]),
        (["net.pos", "net.h.0.ln.weight", "scale"], ["", "net.h.0", ""]),
        (["encoder.a.weight", "encoder.b.c.weight"], ["encoder", "encoder"]),
        (["gradient 3 (5x7)", "bucket 1 part 0", "bucket 1 part 1"], None),
    ],
)
def test_blocks_are_read_off_names(names: list[str], wanted: list[str] | None) -> None:
    expected = wanted or ["gradient 3 (5x7)", "bucket 1", "bucket 1"]
    assert blocks(names) == dict(zip(names, expected, strict=True))


@pytest.mark.parametrize(
    ("prefetch", "kept", "wanted"),
    [
        (1, (3,), 1 + 5 + 6),  # the root unit and two neighbours
        (2, (3,), 1 + 4 + 5 + 6),
        (1, (0, 3), 1 + 5 + 6),  # what forward comes to last is gathered then anyway
        (1, (2, 3), 1 + 6 + 4 + 5),
        (1, (0, 1, 2, 3), 16),
    ],
)
def test_the_most_that_is_gathered_at_once(
    prefetch: int, kept: tuple[int, ...], wanted: int
) -> None:
    sizes = [4, 5, 6, 1]
    assert Sharding(prefetch=prefetch, kept=kept).held_bytes(sizes) == wanted


def plan(**told: Any) -> Plan:
    unit = {
        "push": Recipe("reduce_scatter", "ring", channel=1),
        "pull": Recipe("all_gather", "ring"),
    }
    given = {
        "model": "m",
        "fingerprint": "",
        "world_size": 4,
        "policy": "by hand",
        "buckets": tuple(Bucket(tensors=(name,), nbytes=8, **unit) for name in "ab"),
        "exchange": FSDP,
        "channels": 2,
        "sharding": Sharding(kept=(1,)),
    }
    return Plan(**(given | told))


def test_a_plan_of_units_is_read_as_it_was_written(tmp_path: Any) -> None:
    made = plan(sharding=Sharding(prefetch=3, kept=(0, 1), ranks=2))
    made.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == made


@pytest.mark.parametrize(
    ("told", "what"),
    [
        ({"sharding": None}, "sharding"),
        ({"exchange": "sharded"}, "sharding"),
        ({"wire_dtype": "bfloat16"}, "wire_dtype"),
        ({"pull_order": (0, 1)}, "pull_order"),
        ({"sharding": Sharding(kept=(2,))}, "kept of sharding"),
        ({"sharding": Sharding(kept=(1, 0))}, "kept of sharding"),
        ({"sharding": Sharding(ranks=3)}, "ranks of sharding"),
        ({"buckets": (replace(plan().buckets[0], elements=(0, 1)), plan().buckets[1])}, "elements"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(told: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidValueError, match=f"^{what} "):
        plan(**told)


@pytest.mark.parametrize(("told", "what"), [({"prefetch": 0}, "prefetch"), ({"ranks": 1}, "ranks")])
def test_a_sharding_that_cannot_be_is_refused(told: dict[str, int], what: str) -> None:
    with pytest.raises(InvalidValueError, match=f"^{what} of sharding"):
        Sharding(**told)
