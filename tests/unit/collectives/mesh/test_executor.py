"""Tags of the executor: messages of collectives that differ in anything never meet."""

from __future__ import annotations

from dataclasses import replace

from syncopate.collectives.mesh.executor import _tag_base
from syncopate.schedules import registry


def test_collectives_that_differ_in_the_root_alone_have_other_tags() -> None:
    schedule = registry.build("all_reduce", "ring", 4)
    moved = replace(schedule, root=1)
    assert _tag_base(schedule, "8 float32", None) != _tag_base(moved, "8 float32", None)
