"""Counters: messages, bytes and staleness of a node, and what heartbeats say of it."""

from __future__ import annotations

from syncopate.metrics.prometheus import rendered
from syncopate.paramserver.wire.counters import Counters
from syncopate.protocol import messages as msg
from syncopate.protocol.figures import Figures


def values(counters):
    """Return the samples of a node's metrics by name and labels."""
    lines = rendered(counters.metrics()).decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_messages_and_bytes_are_counted_by_kind_and_way():
    counters = Counters(msg.WORKER)
    counters.rank = 2
    counters.sent(0, msg.Push(7, 1), 100)
    counters.sent(0, msg.Push(7, 2), 50)
    counters.received(0, msg.Weights(7, 1, 1), 80)
    counters.received(0, None, 3)
    found = values(counters)
    mine = 'role="worker",rank="2",kind="{}",way="{}"'
    assert found[f"syncopate_ps_messages_total{{{mine.format('Push', 'sent')}}}"] == "2"
    assert found[f"syncopate_ps_bytes_total{{{mine.format('Push', 'sent')}}}"] == "150"
    assert found[f"syncopate_ps_bytes_total{{{mine.format('Weights', 'received')}}}"] == "80"
    assert found[f"syncopate_ps_messages_total{{{mine.format('unreadable', 'received')}}}"] == "1"
    assert found['syncopate_ps_step{role="worker",rank="2"}'] == "2"


def test_staleness_is_how_many_updates_came_between_weights_and_push():
    counters = Counters(msg.SERVER)
    counters.rank = 0
    counters.sent(b"w0", msg.Weights(7, 0, 1), 8)
    counters.sent(b"w1", msg.Weights(7, 0, 1), 8)
    counters.received(b"w0", msg.Push(7, 1), 8)  # with the newest weights
    counters.updated(7, 1)
    counters.received(b"w1", msg.Push(7, 1), 8)  # one update behind
    counters.updated(7, 2)
    counters.updated(7, 3)
    counters.received(b"w1", msg.Push(7, 2), 8)  # three behind
    counters.received(b"w2", msg.Push(7, 1), 8)  # it never got any
    found = values(counters)
    mine = 'role="server",rank="0"'
    assert found[f"syncopate_ps_stale_pushes_total{{{mine}}}"] == "3"
    assert found[f"syncopate_ps_stale_updates_total{{{mine}}}"] == "4"
    assert found[f"syncopate_ps_stale_updates_most{{{mine}}}"] == "3"


def test_heartbeats_say_how_far_a_node_is_and_what_it_keeps():
    counters = Counters(msg.SERVER, lambda: {"malformed": 2, "early": 1})
    counters.kept = lambda: (3, 4096)
    counters.queued = lambda: 5
    counters.waiting = lambda: 7
    counters.updated(7, 9)
    mine = 'role="server",rank="-1"'
    assert values(counters)[f"syncopate_ps_waiting_gradients{{{mine}}}"] == "7"
    assert counters.figures() == Figures(9, 3, 4096, 5, 3)
    assert (
        values(counters)['syncopate_ps_refused_total{role="server",rank="-1",reason="early"}']
        == "1"
    )


def test_a_scheduler_says_who_is_here():
    counters = Counters("scheduler")
    counters.here = lambda: {"server": 1, "worker": 4}
    assert values(counters)['syncopate_ps_nodes{role="worker"}'] == "4"
