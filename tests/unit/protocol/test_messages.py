"""Messages: what was said arrives, and what was not said is refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.protocol import codec
from syncopate.protocol import messages as msg
from syncopate.protocol.figures import Figures, NodeStanding
from syncopate.protocol.limits import HEADER_BYTES
from syncopate.protocol.messages import Refusal
from syncopate.protocol.placement.piece import Slice, TableSlice
from syncopate.protocol.rules import SGD, Adagrad, Adam, Rules, Updater
from syncopate.protocol.table import Normal, Table

TABLE = Table(rows=10**9, width=4, initial=Normal(std=0.1, seed=3))
OWN = Updater(name="a.b:C", lr=0.1, options={"x": 1, "y": True, "z": "s"}, state=("m",))
SLICES = (Slice(0, "w", "float32", 0, 4), Slice(1, "w", "float32", 4, 4))
STANDING = NodeStanding("server", 0, "here", 0.5, "tcp://h:1", Figures(1, 2, 3, 4, 5))
ALL = [
    (codec.ToScheduler, msg.Register(2, "job", "server", "token", "tcp://h:1", 2, "run", True)),
    (codec.ToScheduler, msg.Heartbeat("token")),
    (codec.ToScheduler, msg.Heartbeat("token", Figures(step=3, queued=1))),
    (codec.ToScheduler, msg.Status("job")),
    (codec.ToScheduler, msg.Leave("token")),
    (codec.ToScheduler, msg.Failed("token", "why")),
    (codec.ToScheduler, msg.Failed("token", "why", own=True)),
    (codec.ToScheduler, msg.Register(2, "job", "worker", "token", opens="more")),
    (codec.ToScheduler, msg.Stands("token", "b", None)),
    (codec.ToScheduler, msg.Stands("token", "b", 5, 4)),
    (codec.FromScheduler, msg.Roster("run", 1, ("tcp://h:1",), ("a", "b"))),
    (codec.FromScheduler, msg.Roster("run", 1, ("tcp://h:1",), ("a", "b"), lives=(0, 2))),
    (codec.FromScheduler, msg.Heartbeat("")),
    (codec.FromScheduler, msg.Taken(1, "b", 2)),
    (codec.FromScheduler, msg.Standing(True, 1, 2, (STANDING,))),
    (codec.FromScheduler, msg.Lost(3, 6.5)),
    (codec.FromScheduler, msg.Left(3)),
    (codec.FromScheduler, msg.Moved(0, "tcp://h:2")),
    (codec.FromScheduler, msg.Again()),
    (codec.FromScheduler, msg.Finish()),
    (codec.FromScheduler, msg.Abort("why")),
    (codec.FromScheduler, msg.Refused("why")),
    (codec.ToServer, msg.Hello("run", 1, "token")),
    (codec.ToServer, msg.Declare("digest", Rules(optimizer=SGD(lr=0.5, momentum=0.9)), SLICES)),
    (codec.ToServer, msg.Declare("digest", Rules(mode="asgd", optimizer=Adam()), SLICES)),
    (codec.ToServer, msg.Declare("digest", Rules(optimizer=OWN, groups=(Adam(),)), SLICES)),
    (
        codec.ToServer,
        msg.DeclareTable(
            TableSlice(
                Slice(2**30, "t", "float32", 0, 4 * 10**9, TABLE), Rules(optimizer=Adagrad())
            )
        ),
    ),
    (codec.ToServer, msg.Push(4, 7, 0.25)),
    (codec.ToServer, msg.Skip(4, 7, 0.25)),
    (codec.ToServer, msg.Norm(7, 1.5)),
    (codec.ToServer, msg.PushRows(2**30, 7, 0.25, 1, 2, False)),
    (codec.ToServer, msg.BeginRows(2**30, 0, state=("sum",), steps=4)),
    (codec.ToServer, msg.PullRows(2**30, 7, 12, -3, 100)),
    (codec.ToServer, msg.PullTable(2**30, 7, 12, 0, 100, 50)),
    (codec.ToServer, msg.Begin(4, 0, None, ("steps", "mean"))),
    (codec.ToServer, msg.PullState(4, 7, 12)),
    (codec.ToServer, msg.Query(4, 1)),
    (codec.ToServer, msg.Pull(4, 7, 12, -3)),
    (codec.FromServer, msg.Welcome("boot", True)),
    (codec.FromServer, msg.HelloWanted()),
    (codec.FromServer, msg.Ack(4, -1, -1)),
    (codec.FromServer, msg.Weights(4, 7, 12)),
    (codec.FromServer, msg.Share(7, 2.25)),
    (codec.FromServer, msg.State(4, 7, 12, ("momentum",))),
    (codec.FromServer, msg.Rows(2**30, 7, 12)),
    (codec.FromServer, msg.TableState(2**30, 7, 12, 1000, 4, ("sum",))),
    (codec.FromServer, msg.Refused("why")),
]


def _heirs(kind):
    """Return the kinds of messages that ``kind`` is the base of, all of them."""
    return {kind}.union(*map(_heirs, kind.__subclasses__()))


MESSAGES = _heirs(msg.Message) - {msg.Message}
KINDS = (codec.ToScheduler, codec.FromScheduler, codec.ToServer, codec.FromServer)


@pytest.mark.parametrize(("kinds", "message"), ALL, ids=lambda v: type(v).__name__)
def test_a_message_arrives_as_it_was_sent(kinds, message):
    assert codec.decode(kinds, codec.encode(message)) == message


def test_every_message_is_tried():
    assert {type(message) for _, message in ALL} == MESSAGES


def _read(kinds, frame):
    """Return the message's type, or why it is none."""
    try:
        return type(codec.decode(kinds, frame))
    except Refusal as refusal:
        return refusal.kind


@given(data=st.binary(max_size=200), kinds=st.sampled_from(KINDS))
def test_any_bytes_are_a_message_or_refused(data, kinds):
    assert _read(kinds, data) in {msg.MALFORMED, *MESSAGES}


@given(case=st.sampled_from(ALL), data=st.data())
def test_damaged_messages_are_messages_or_refused(case, data):
    frame = bytearray(codec.encode(case[1]))
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
        codec.decode(codec.ToServer, msgspec.msgpack.encode(body))


def test_a_header_that_is_too_long_is_refused():
    with pytest.raises(Refusal) as refused:
        codec.decode(codec.ToServer, bytes(HEADER_BYTES + 1))
    assert refused.value.kind == msg.OVERSIZED


def test_deep_nesting_is_refused():
    with pytest.raises(Refusal):
        codec.decode(codec.ToServer, b"\x91" * 100_000 + b"\xc0")
