"""Network: the interface by which a replay asks what a message takes."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Message(NamedTuple):
    """The fields of a message on which its price depends.

    Attributes:
        collective: such as ``"all_reduce"``; ``"send"`` and ``"receive"`` go to and come from
            parameter servers where there are any, and are messages of two ranks elsewhere.
        algorithm: as recorded, such as ``"ring"``; empty or unknown: the backend's own.
        nbytes: that it carries.
        ranks: that take part; empty: all.
    """

    collective: str
    algorithm: str
    nbytes: int
    ranks: tuple[int, ...] = ()


class Price(NamedTuple):
    """The time of a message, seconds.

    Attributes:
        startup_s: the part of it in which it needs no link.
        bytes_s: the rest, while it has its links for itself.
        crowded_s: the rest where all ranks send as much to servers, or receive it, at once.
    """

    startup_s: float
    bytes_s: float
    crowded_s: float

    @property
    def alone_s(self) -> float:
        """All of it, while it has its links for itself."""
        return self.startup_s + self.bytes_s


class Network(Protocol):
    """A network on which a recorded run can be played."""

    @property
    def name(self) -> str:
        """Its name in reports."""

    @property
    def world_size(self) -> int:
        """For how many ranks it is; 0: for any number."""

    @property
    def pool(self) -> float:
        """The rate of all servers' links together, over that of one worker's link."""

    def price(self, message: Message) -> Price:
        """Return the time of a message.

        Raises:
            UnknownNameError: a collective that has no price.
            InvalidValueError: it carries fewer than 0 bytes.
        """
