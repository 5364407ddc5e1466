"""Overheads of a parameter server, on messages whose answers are known."""

from __future__ import annotations

import pytest

from syncopate.analysis.serving import (
    Message,
    Messages,
    bytes_per_iteration,
    distribution,
    overheads,
    served_phases,
)
from syncopate.errors import InvalidValueError


def worker(node, iteration, pushes, answers, at_s=0.0):
    """Return the messages of an iteration of a worker; the lists are times by key."""
    found = []
    for key, (pushed, answered) in enumerate(zip(pushes, answers, strict=True)):
        times = ((True, True, pushed), (True, False, pushed + 0.1))
        times += ((False, True, pushed + 0.2), (False, False, answered))
        for push, sends, time_s in times:
            found.append(Message(node, push, sends, key, iteration, "s0", at_s + time_s, 8))
    return found


def server(node, iteration, key, messages):
    """Return messages of a server: (push, sends, worker, time)."""
    return [
        Message(node, push, sends, key, iteration, f"w{peer}", time_s)
        for push, sends, peer, time_s in messages
    ]


def test_phases_are_the_papers():
    before = worker("w0", -1, [0.0, 0.0], [1.0, 2.0])
    # Computes from 2 to 7, of which 5 to 7 beside pushes; the last answer comes at 10.
    now = worker("w0", 0, [5.0, 7.0], [8.5, 10.0])
    (phase,) = served_phases([*now, *before])
    assert (phase.rank, phase.iteration) == (0, 0)
    assert phase.computation_only_s == 3
    assert phase.overlapped_s == 2
    assert phase.communication_s == 5
    assert phase.computation_s == 5
    assert phase.duration_s == 8
    assert phase.phase_overlap_ratio == 2 / (3 + 5)
    assert phase.idle_s == 0


def test_an_iteration_that_is_not_whole_has_no_phases():
    before = worker("w1", 3, [0.0], [1.0])
    assert served_phases([*before, *worker("w1", 5, [5.0], [6.0])]) == ()
    cut = [m for m in worker("w1", 4, [5.0], [6.0]) if m.push or m.sends]
    assert served_phases([*before, *cut]) == ()
    assert served_phases([]) == ()


def test_workers_wait_from_the_first_answer_to_the_last():
    (wait,) = overheads(worker("w0", 0, [0.0, 0.0, 0.0], [4.0, 1.5, 3.0]))
    assert wait == ("wait", "w0", 0, 2.5, -1, "")
    assert overheads(worker("w0", -1, [0.0], [1.0])) == ()


PUSHES = [(True, False, 0, 1.0), (True, False, 1, 4.0), (True, False, 2, 2.0)]


def test_servers_wait_for_workers_update_and_search():
    answers = [(True, True, 0, 4.5), (True, True, 1, 4.75), (True, True, 2, 5.0)]
    pulls = [(False, False, 1, 6.0), (False, True, 1, 6.25)]
    found = overheads(server("s0", 7, 3, [*PUSHES, *answers, *pulls]))
    assert found == (
        ("synchronization", "s0", 7, 3.0, 3, ""),
        ("update", "s0", 7, 0.5, 3, ""),
        ("search", "s0", 7, 0.25, 3, "w1"),
    )


def test_servers_that_do_not_wait_update_at_every_push():
    answers = [(True, True, 0, 1.5), (True, True, 1, 4.25), (True, True, 2, 3.0)]
    found = overheads(server("s1", 0, 0, [*PUSHES, *answers]), synchronous=False)
    assert [(one.peer, one.seconds) for one in found if one.kind == "update"] == [
        ("w0", 0.5),
        ("w1", 0.25),
        ("w2", 1.0),
    ]


def test_a_distribution_has_the_moments_of_its_values():
    found = distribution([1.0, 2.0, 6.0])
    assert found[:2] == (3, 3.0)
    assert found.deviation == pytest.approx((14 / 3) ** 0.5)
    assert (found.least, found.median, found.most) == (1.0, 2.0, 6.0)
    assert distribution([5.0]).deviation == 0
    assert distribution([5.0])[3:] == (5.0,) * 5
    # 21 values: every percentile of 5 is one of them; between them it is read off the line.
    twenty = distribution([float(value) for value in reversed(range(21))])
    assert (twenty.low, twenty.median, twenty.high) == (1.0, 10.0, 19.0)
    assert distribution([0.0, 10.0]).low == pytest.approx(0.5)
    assert distribution([0.0, 10.0]).median == 5.0
    with pytest.raises(InvalidValueError, match="values is"):
        distribution([])


def test_bytes_of_an_iteration_are_means_over_iterations():
    first = worker("w0", -1, [0.0], [1.0])
    counted = [m for at in (0, 1) for m in worker("w0", at, [0.0, 0.0], [1.0, 1.0])]
    longer = counted[0]._replace(nbytes=10)
    found = bytes_per_iteration([*first, longer, *counted[1:]])
    kinds = {"push_sent": 17.0, "push_received": 16.0, "pull_sent": 16.0, "pull_received": 16.0}
    assert found == {"w0": kinds}


def test_columns_of_messages_say_the_same_as_the_messages():
    messages = [m for at in (2, 0, -1, 1) for m in worker("w0", at, [at, at + 1], [at + 3, at + 2])]
    messages += server("s0", 1, 3, [*PUSHES, (True, True, 1, 4.75)]) * 2000
    packed = Messages.of(messages)
    assert list(packed) == messages
    assert (packed[-1], list(packed[3:9:2])) == (messages[-1], messages[3:9:2])
    assert [type(value) for value in packed[0]] == [type(value) for value in messages[0]]
    assert sum(getattr(packed, field).itemsize for field in packed.DTYPES) < 40
    assert [one.iteration for one in served_phases(packed)] == [0, 1, 2]
    assert overheads(packed)[:3] == tuple(("wait", "w0", at, 1.0, -1, "") for at in range(3))
    assert len(Messages.of([])) == len(overheads([])) == 0


def test_an_iteration_that_was_cut_off_between_two_answers_has_no_phases():
    before, now = worker("w0", 0, [0.0, 0.0], [1.0, 2.0]), worker("w0", 1, [5.0, 6.0], [8.0, 9.0])
    assert len(served_phases([*before, *now])) == 1
    cut = [m for m in now if m.push or m.sends or m.key == 0]
    assert len(cut) == len(now) - 1
    assert served_phases([*before, *cut]) == ()
