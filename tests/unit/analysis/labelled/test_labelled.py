"""Explain beside what is known of trainings that a machine of the tests played."""

from __future__ import annotations

import pytest

from tests.unit.analysis.labelled import faults as wrong
from tests.unit.analysis.labelled.cases import (
    NOTES,
    OTHER_NOTES,
    Case,
    drawn,
    drawn_otherwise,
    judged,
)
from tests.unit.analysis.labelled.faults import Fault
from tests.unit.analysis.labelled.trainings import Training

FSDP = Training(replicas=4, sharded=True, transfer_ms=3.0)
TENSOR = Training(replicas=2, parts=4)
ACCUMULATED = Training(replicas=4, micro_batches=4, layers=2, buckets=2)
PIPELINE = Training(replicas=1, stages=3, micro_batches=4, layers=2, buckets=1, layer_ms=4.0)
PIPELINE_OF_TWO = Training(replicas=4, stages=3, micro_batches=4, layers=2, buckets=1, layer_ms=4.0)
THREE_WAYS = Training(
    replicas=2, parts=2, stages=2, micro_batches=4, layers=2, buckets=1, layer_ms=4.0
)

KINDS: dict[str, tuple[Training, list[Fault]]] = {
    "a rank that comes late to the first gather": (FSDP, [wrong.late_input([2], 0.06)]),
    "all that come late to the first gather": (FSDP, [wrong.late_input((), 0.06)]),
    "a checkpoint before the first gather": (FSDP, [wrong.checkpoints(0, 0.1, 3, True)]),
    "a pause that is not noted before it": (FSDP, [wrong.checkpoints(0, 0.15, 3, False)]),
    "garbage collection before parts are added": (TENSOR, [wrong.collections(0.07, 0.2, True, 1)]),
    "a slow data-parallel group": (TENSOR, [wrong.slow_group([1, 5], 8.0, "all_reduce")]),
    "a slow link of a stage": (PIPELINE, [wrong.slow_end(2, 15.0)]),
    "a slow link in several groups": (THREE_WAYS, [wrong.slow_end(6, 12.0)]),
    "slow ranks of two tensor-parallel groups": (TENSOR, [wrong.slow([1, 6], 1.7)]),
    "a checkpoint beside tensor-parallel ranks": (TENSOR, [wrong.checkpoints(0, 0.2, 3, True)]),
    "late input of all stages": (PIPELINE, [wrong.late_input((), 0.08)]),
    "sends that stand in a queue": (THREE_WAYS, [wrong.congestion(8.0, 0.2, 5)]),
}
"""What explain once had wrong."""


HOW = ["tidy", "clocks 20 us off", "ends 10 us late", "whole passes"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind: str, how: str, tmp_path) -> None:
    training, faults = KINDS[kind]
    case = Case(0, kind, training, tuple(faults), how, NOTES[how](0))
    found = judged(case, tmp_path)
    assert found.abstains == ()
    assert (found.first, found.gain, found.blamed) == (True, True, True), found.said


UNTIDY: dict[str, tuple[Training, list[Fault], str]] = {
    "a slow link of messages that queue": (FSDP, [wrong.slow_end(1, 7.0)], "as called"),
    "a rank that others wait for in layers": (
        TENSOR, [wrong.slow([1], 2.4, ["backward"])], "small spans",
    ),
    "late input while buckets queue": (
        Training(replicas=2), [wrong.late_input([1], 0.03)], "small spans",
    ),
    "batches of tensor-parallel ranks": (
        TENSOR, [wrong.unequal(0.3, 3, lambda r: TENSOR.place(r)[1], 2, 1)], "tidy",
    ),
    "batches behind a slow rank": (
        ACCUMULATED, [wrong.unequal(0.3, 3, int, 4, 4), wrong.slow([2], 2.4, ["backward"])], "tidy",
    ),
    "a stage that is slow at times beside batches": (
        PIPELINE, [wrong.unequal(0.2, 3, lambda r: 0, 1, 4), wrong.now_and_then(2, 3.0, 3)], "tidy",
    ),
}  # fmt: skip
"""What explain had wrong of what tools note, and of batches beside other faults."""


@pytest.mark.parametrize("kind", UNTIDY)
def test_untidy(kind: str, tmp_path) -> None:
    training, faults, how = UNTIDY[kind]
    found = judged(Case(0, kind, training, tuple(faults), how, NOTES[how](0)), tmp_path)
    assert found.abstains == ()
    assert (found.first, found.gain, found.blamed) == (True, True, True), found.said


EIGHT = Training(replicas=8, iterations=16)
APART: dict[str, tuple[Training, list[Fault], str]] = {
    "two ranks that are slow by different factors": (
        EIGHT, [wrong.slow([1], 1.3), wrong.slow([6], 1.7)], "tidy",
    ),
    "a rank that is slow beside one with a slow backward": (
        PIPELINE_OF_TWO, [wrong.slow([1, 7], 1.8), wrong.slow([0], 1.25, ["backward"])], "tidy",
    ),
    "pauses of two ranks": (
        FSDP, [wrong.now_and_then(2, 2.05, 2), wrong.checkpoints(0, 0.08, 4, False)],
        "ends 1 ms late",
    ),
    "two slow ranks, one of them since midway": (
        EIGHT, [wrong.slow([2], 1.4), wrong.since(5, 2.0, 9)], "tidy",
    ),
    "a slow rank whose layers are one task": (FSDP, [wrong.slow([2], 2.2)], "as called"),
    "batches of many ranks": (
        Training(replicas=32), [wrong.unequal(0.25, 3, int, 32, 1)], "ends 1 ms late",
    ),
    "a slow rank among few unequal batches": (
        Training(replicas=4, iterations=8), [wrong.unequal(0.3, 3, int, 4, 1),
                                             wrong.slow([2], 2.4)], "tidy",
    ),
    "a slow backward among ranks with the same batches": (
        TENSOR, [wrong.unequal(0.35, 3, lambda r: TENSOR.place(r)[1], 2, 1),
                 wrong.slow([0], 1.67, ["backward"])], "clocks 20 us off",
    ),
    "transfers that take long in most iterations": (
        Training(replicas=3), [wrong.congestion(8.8, 0.55, 3)], "tidy",
    ),
    "pauses of any rank beside a checkpoint": (
        EIGHT, [wrong.collections(0.1, 0.07, False, 5), wrong.checkpoints(0, 0.13, 3, True)],
        "tidy",
    ),
    "a loader that stalls each eighth time": (EIGHT, [wrong.stalls(2, 0.3, 8)], "tidy"),
    "late input of a rank, and a slow backward of another": (
        EIGHT, [wrong.late_input([1], 0.04), wrong.slow([2], 1.8, ["backward"])], "tidy",
    ),
    "slow backward and late input of one rank": (
        EIGHT, [wrong.late_input([1], 0.03), wrong.slow([1], 1.5, ["backward"])], "tidy",
    ),
}  # fmt: skip
"""Faults beside others, of which explain once had most wrong."""


@pytest.mark.parametrize("kind", APART)
def test_faults_are_told_apart(kind: str, tmp_path) -> None:
    training, faults, how = APART[kind]
    found = judged(Case(0, kind, training, tuple(faults), how, NOTES[how](0)), tmp_path)
    assert found.abstains == ()
    assert (found.first, found.gain, found.blamed) == (True, True, True), found.said


FOUR = Training(replicas=4)
OTHERWISE: dict[str, tuple[Training, list[Fault], str]] = {
    "groups of one label": (TENSOR, [wrong.slow([6], 1.7)], "labels alike"),
    "groups of one stream": (TENSOR, [wrong.slow([6], 1.7)], "arrays"),
    "clocks that are off": (TENSOR, [wrong.slow([1], 1.7)], "clocks 5 ms off"),
    "clocks that are off, and messages of one length": (
        Training(replicas=8, micro_batches=4, layers=2, buckets=2), [wrong.slow([7], 2.0)],
        "clocks 5 ms off",
    ),
    "a file that ends in the midst of a step": (
        Training(replicas=2, micro_batches=4, layers=2, buckets=2, iterations=8),
        [wrong.slow([1], 2.3)], "arrays, one cut off",
    ),
    "evaluation beside a late rank": (
        FOUR, [wrong.evaluations(0.1, 4), wrong.now_and_then(2, 2.5, 4)], "objects",
    ),
    "a rank that is slow in every other iteration": (
        PIPELINE, [wrong.now_and_then(1, 2.0, 2)], "tidy",
    ),
    "pipelines of one label": (THREE_WAYS, [wrong.slow([3], 2.0)], "labels alike"),
    "groups that go in step": (TENSOR, [wrong.late_input([5], 0.06)], "arrays"),
    "two groups that are slow in step": (
        Training(replicas=4, parts=2, jitter=0.005, iterations=20), [wrong.slow([5, 3], 2.0)],
        "objects",
    ),
    "stages whose clocks are off": (THREE_WAYS, [wrong.slow([5], 2.0)], "clocks 5 ms off"),
    "stages whose clocks drift": (THREE_WAYS, [wrong.slow([5], 2.0)], "clocks drift"),
    "clocks of several groups that drift": (TENSOR, [wrong.late_input([0], 0.06)], "clocks drift"),
    "batches of which forward and backward are not told apart": (
        ACCUMULATED, [wrong.unequal(0.25, 3, int, 4, 4)], "objects",
    ),
}  # fmt: skip
"""What explain had wrong of other forms, and of what all ranks do at once."""


@pytest.mark.parametrize("kind", OTHERWISE)
def test_otherwise(kind: str, tmp_path) -> None:
    training, faults, how = OTHERWISE[kind]
    note, write = OTHER_NOTES[how](0)
    found = judged(Case(0, kind, training, tuple(faults), how, note, write), tmp_path)
    assert found.abstains == ()
    assert (found.first, found.gain, found.blamed) == (True, True, True), found.said


FIRST, GAINS = 0.95, 0.85
"""In so many cases the first cause is right, and so is what all causes gain together."""


@pytest.mark.parametrize("begin", [0, *range(28, 252, 56)])
def test_drawn_trainings(begin: int, tmp_path) -> None:
    """No rank is blamed where nothing is wrong; else the first cause is right, mostly the gain."""
    seeds = range(begin, begin + (56 if begin else 28))
    found = [judged(drawn(seed), tmp_path) for seed in seeds]
    told = [one for one in found if not one.may_abstain]
    wrong_first = [f"{one.case.title}: {one.said} {one.abstains}" for one in told if not one.first]
    wrong_gain = [f"{one.case.title}: {one.said}" for one in told if not one.gain]
    assert not [one.said for one in told if not one.case.faults and not (one.first and one.blamed)]
    assert len(wrong_first) <= (1 - FIRST) * len(told), "\n".join(wrong_first)
    assert len(wrong_gain) <= (1 - GAINS) * len(told), "\n".join(wrong_gain)


def test_ranks_of_which_none_matters_are_no_error(tmp_path) -> None:
    """Clocks of a healthy training drift: several ranks seem slow, and give nothing."""
    found = judged(drawn_otherwise(1024), tmp_path)
    assert (found.case.faults, found.first, found.blamed) == ((), True, True)


OTHERS, WRONG = 9, 1
"""Of so many cases of other forms so many have a wrong cause, or a wrong gain."""


def test_drawn_in_other_forms(tmp_path) -> None:
    found = [judged(drawn_otherwise(seed), tmp_path) for seed in range(OTHERS)]
    assert all(one.blamed for one in found)
    assert not [one.said for one in found if not one.case.faults and not one.first]
    wrong_ones = [f"{one.case.title}: {one.said}" for one in found if not (one.first and one.gain)]
    assert len(wrong_ones) <= WRONG, "\n".join(wrong_ones)
