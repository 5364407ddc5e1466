"""Messages: what was said arrives, and what was not said is refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.protocol import messages as msg
from syncopate.protocol.limits import HEADER_BYTES
from syncopate.protocol.messages import Refusal
from syncopate.protocol.piece import Slice, TableSlice
from syncopate.protocol.rules import SGD, Adagrad, Adam, Rules
from syncopate.protocol.table import Normal, Table

TABLE = Table(rows=10**9, width=4, initial=Normal(std=0.1, seed=3))
SLICES = (Slice(0, "w", "float32", 0, 4), Slice(1, "w", "float32", 4, 4))
STANDING = msg.NodeStanding("server", 0, "here", 0.5, "tcp://h:1", msg.Figures(1, 2, 3, 4, 5))
ALL = [
    (msg.ToScheduler, msg.Register(2, "job", "server", "token", "tcp://h:1", 2, "run", True)),
    (msg.ToScheduler, msg.Heartbeat("token")),
    (msg.ToScheduler, msg.Heartbeat("token", msg.Figures(step=3, queued=1))),
    (msg.ToScheduler, msg.Status("job")),
    (msg.ToScheduler, msg.Leave("token")),
    (msg.ToScheduler, msg.Failed("token", "why")),
    (msg.FromScheduler, msg.Roster("run", 1, ("tcp://h:1",), ("a", "b"))),
    (msg.FromScheduler, msg.Heartbeat("")),
    (msg.FromScheduler, msg.Standing(True, 1, 2, (STANDING,))),
    (msg.FromScheduler, msg.Lost(3, 6.5)),
    (msg.FromScheduler, msg.Left(3)),
    (msg.FromScheduler, msg.Moved(0, "tcp://h:2")),
    (msg.FromScheduler, msg.Finish()),
    (msg.FromScheduler, msg.Abort("why")),
    (msg.FromScheduler, msg.Refused("why")),
    (msg.ToServer, msg.Hello("run", 1, "token")),
    (msg.ToServer, msg.Declare("digest", Rules(optimizer=SGD(lr=0.5, momentum=0.9)), SLICES)),
    (msg.ToServer, msg.Declare("digest", Rules(mode="asgd", optimizer=Adam()), SLICES)),
    (
        msg.ToServer,
        msg.DeclareTable(
            TableSlice(
                Slice(2**30, "t", "float32", 0, 4 * 10**9, TABLE), Rules(optimizer=Adagrad())
            )
        ),
    ),
    (msg.ToServer, msg.Push(4, 7, 0.25)),
    (msg.ToServer, msg.PushRows(2**30, 7, 0.25, 1, 2, False)),
    (msg.ToServer, msg.BeginRows(2**30, 0, state=("sum",), steps=4)),
    (msg.ToServer, msg.PullRows(2**30, 7, 12, -3, 100)),
    (msg.ToServer, msg.PullTable(2**30, 7, 12, 0, 100, 50)),
    (msg.ToServer, msg.Begin(4, 0, None, ("steps", "mean"))),
    (msg.ToServer, msg.PullState(4, 7, 12)),
    (msg.ToServer, msg.Query(4, 1)),
    (msg.ToServer, msg.Pull(4, 7, 12, -3)),
    (msg.FromServer, msg.Welcome("boot", True)),
    (msg.FromServer, msg.HelloWanted()),
    (msg.FromServer, msg.Ack(4, -1, -1)),
    (msg.FromServer, msg.Weights(4, 7, 12)),
    (msg.FromServer, msg.State(4, 7, 12, ("momentum",))),
    (msg.FromServer, msg.Rows(2**30, 7, 12)),
    (msg.FromServer, msg.TableState(2**30, 7, 12, 1000, 4, ("sum",))),
    (msg.FromServer, msg.Abort("why")),
    (msg.FromServer, msg.Refused("why")),
]


def _heirs(kind):
    """Return the kinds of messages that ``kind`` is the base of, all of them."""
    return {kind}.union(*map(_heirs, kind.__subclasses__()))


MESSAGES = _heirs(msg.Message) - {msg.Message}
KINDS = (msg.ToScheduler, msg.FromScheduler, msg.ToServer, msg.FromServer)


@pytest.mark.parametrize(("kinds", "message"), ALL, ids=lambda v: type(v).__name__)
def test_a_message_arrives_as_it_was_sent(kinds, message):
    assert msg.decode(kinds, msg.encode(message)) == message


def test_every_message_is_tried():
    assert {type(message) for _, message in ALL} == MESSAGES


def _read(kinds, frame):
    """Return the message's type, or why it is none."""
    try:
        return type(msg.decode(kinds, frame))
    except Refusal as refusal:
        return refusal.kind


@given(data=st.binary(max_size=200), kinds=st.sampled_from(KINDS))
def test_any_bytes_are_a_message_or_refused(data, kinds):
    assert _read(kinds, data) in {msg.MALFORMED, *MESSAGES}


@given(case=st.sampled_from(ALL), data=st.data())
def test_damaged_messages_are_messages_or_refused(case, data):
    frame = bytearray(msg.encode(case[1]))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] = data.draw(st.integers(0, 255))
    cut = bytes(frame[: data.draw(st.integers(0, len(frame)))])
    assert _read(case[0], cut) in {msg.MALFORMED, *MESSAGES}


@pytest.mark.parametrize(
    "body",
    [
        ["Push", 4],
        ["Push", -1, 3, None],
        ["Push", 2**62, 3, None],
        ["Push", 1, -1, None],
        ["Push", 1, 3, "0.1"],
        ["Push", 1, 3, None, "more"],
        ["Pull", 1, 3, 4, 2**31],
        ["Hello", "run", 2**16, "token"],
        ["Hello", "run", 0, "t" * 65],
        ["Unheard", 1],
        ["Abort", "not for servers"],
        {"key": 1},
    ],
)
def test_values_out_of_their_range_are_refused(body):
    with pytest.raises(Refusal, match="not a message"):
        msg.decode(msg.ToServer, msgspec.msgpack.encode(body))


def test_a_header_that_is_too_long_is_refused():
    with pytest.raises(Refusal) as refused:
        msg.decode(msg.ToServer, bytes(HEADER_BYTES + 1))
    assert refused.value.kind == msg.OVERSIZED


def test_deep_nesting_is_refused():
    with pytest.raises(Refusal):
        msg.decode(msg.ToServer, b"\x91" * 100_000 + b"\xc0")
