"""Limits: the times, sizes and windows of a parameter server."""

from __future__ import annotations

import math

import msgspec

from syncopate.errors import InvalidValueError
from syncopate.units import KIB, MIB

HEADER_BYTES = 4 * MIB
"""The largest header."""

CONTROL_BYTES = 64 * KIB
"""The largest message to a scheduler: none carries a tensor."""

DECLARE_BYTES = MIB
"""What a declaration has of slices, about: that of more is said in parts."""


STUCK_S = 30.0
"""How long a peer may take nothing of what is sent to it, until its connection is made anew."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time limits and capacities of a process of the job.

    Attributes:
        heartbeat_s: between two signs of life.
        silence_s: after this much silence a process is lost.
        join_s: how long to wait for all processes to come.
        restart_s: how long a process that may come back has to do so, from when it counts as
            silent: a server that keeps its state on disk, or one that was stopped or cut off.
        retry_s: after this long without an answer a server is asked whether a message came, and
            sent it again if not. Where answers take less time, it is asked sooner: after a 20th
            of it, and after an 800th where a message was lost before. It doubles up to eight times
            as long.
        slice_bytes: larger tensors are cut.
        payload_bytes: no payload may be larger; slices neither.
    """

    heartbeat_s: float = 0.5
    silence_s: float = 6.0
    join_s: float = 300.0
    restart_s: float = 60.0
    retry_s: float = 2.0
    slice_bytes: int = 4 * MIB
    payload_bytes: int = 64 * MIB

    @property
    def given_up_s(self) -> float:
        """After this much silence a process that may come back is given up."""
        return self.silence_s + self.restart_s

    def require_valid(self) -> Limits:
        """Return these limits.

        Raises:
            InvalidValueError: one of them is out of range.
        """
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not value > 0:
                raise InvalidValueError(name, value, "greater than 0")
        if self.silence_s < 2 * self.heartbeat_s:
            rule = f"at least twice heartbeat_s ({self.heartbeat_s:g})"
            raise InvalidValueError("silence_s", self.silence_s, rule)
        if self.slice_bytes > self.payload_bytes:
            rule = f"at most payload_bytes ({self.payload_bytes})"
            raise InvalidValueError("slice_bytes", self.slice_bytes, rule)
        return self


def was_cut_off(reached_s: float) -> bool:
    """Say whether a connection vanished because of the network, and not because its process died.

    The system closes the connections of a process that dies, at once. One that nothing comes
    through is closed after :data:`STUCK_S`.

    Args:
        reached_s: after how much silence there was a connection for the last time.
    """
    return STUCK_S / 2 < reached_s < math.inf
