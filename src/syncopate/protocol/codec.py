"""Codec: messages as bytes, and which bytes are refused.

A message is one frame of msgpack, decoded strictly, and for those that carry a tensor a second
frame with its bytes as they lie in memory. Nothing is pickled.
"""

from __future__ import annotations

import msgspec

from syncopate.protocol import messages as msg
from syncopate.protocol.limits import HEADER_BYTES
from syncopate.protocol.messages import Refusal

ToScheduler = msg.Register | msg.Heartbeat | msg.Leave | msg.Failed | msg.Status | msg.Stands
FromScheduler = (
    msg.Standing
    | msg.Roster
    | msg.Heartbeat
    | msg.Lost
    | msg.Left
    | msg.Moved
    | msg.Taken
    | msg.Again
    | msg.Finish
    | msg.Abort
    | msg.Refused
)
_OfTables = msg.DeclareTable | msg.PushRows | msg.BeginRows | msg.PullRows | msg.PullTable
ToServer = (
    msg.Hello
    | msg.Declare
    | msg.Push
    | msg.Skip
    | msg.Begin
    | msg.Query
    | msg.Pull
    | msg.PullState
    | msg.Norm
    | _OfTables
)
FromServer = (
    msg.Welcome
    | msg.HelloWanted
    | msg.Ack
    | msg.Weights
    | msg.State
    | msg.Rows
    | msg.TableState
    | msg.Share
    | msg.Refused
)

_ENCODER = msgspec.msgpack.Encoder()
_DECODERS: dict[object, msgspec.msgpack.Decoder[msg.Message]] = {
    kinds: msgspec.msgpack.Decoder(kinds)
    for kinds in (ToScheduler, FromScheduler, ToServer, FromServer)
}


def encode(message: msg.Message) -> bytes:
    """Return the frame of ``message``."""
    return _ENCODER.encode(message)


def decode(kinds: object, frame: bytes | memoryview) -> msg.Message:
    """Return the message in ``frame``.

    Args:
        kinds: which messages may come: :data:`ToScheduler`, :data:`FromScheduler`,
            :data:`ToServer` or :data:`FromServer`.
        frame: what came.

    Raises:
        Refusal: it is none of them, damaged, or too long.
    """
    if len(frame) > HEADER_BYTES:
        raise Refusal(msg.OVERSIZED, f"a header of {len(frame)} bytes; at most {HEADER_BYTES}")
    try:
        return _DECODERS[kinds].decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(msg.MALFORMED, f"not a message: {error}") from None
