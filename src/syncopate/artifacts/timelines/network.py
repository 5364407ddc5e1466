"""Network: the interface by which a replay asks what a message takes."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Message(NamedTuple):
    """What a message is, as far as its price depends on it.

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
    """What a message takes, seconds.

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
        """What to call it in reports."""

    @property
    def world_size(self) -> int:
        """For how many ranks it is; 0: for any number."""

    @property
    def pool(self) -> float:
        """What the links of all parameter servers carry together, over the link of one worker."""

    def price(self, message: Message) -> Price:
        """Return what a message takes.

        Raises:
            UnknownNameError: a collective that has no price.
            InvalidValueError: it carries fewer than 0 bytes.
        """
