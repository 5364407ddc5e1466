"""Limits: the times, sizes and windows of a parameter server."""

from __future__ import annotations

import msgspec

from syncopate.errors import InvalidValueError
from syncopate.units import KIB, MIB

HEADER_BYTES = 4 * MIB
"""The largest header."""

CONTROL_BYTES = 64 * KIB
"""The largest message to a scheduler: none carries a tensor."""

DECLARE_BYTES = MIB
"""What a declaration has of slices, about: that of more is said in parts."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time limits and capacities of a process of the job.

    Attributes:
        heartbeat_s: between two signs of life.
        silence_s: after this much silence a process is lost.
        join_s: how long to wait for all processes to come.
        restart_s: how long a lost server that keeps its state on disk may take to come back.
        retry_s: after this long without an answer a server is asked whether a message came, and
            sent it again if not; doubles up to eight times as long.
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
