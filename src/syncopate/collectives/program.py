"""Program: what one rank does, step by step, to run a schedule on a buffer of a given size.

[Note: order of a program] A program is a straight line of instructions without branches.

* All receives of a round are posted before the rank waits for anything in that round, and earlier
  where the place they land in is free: a message whose receive is posted leaves at once, any other
  needs a round trip first. A post made ahead of its round never waits for anything.
* A send is issued as soon as the data it carries is there, even while other receives of the round
  before are still open. It reads the buffer until it was waited for, so it is waited for before
  anything is written over its data, and otherwise at the end.
* A reduction lands in scratch and is added right after it arrived. A copy lands in its place,
  unless a send of the same round still reads that place.
* Transfers are cut into blocks, so that one block is added while the next is on its way, and goes
  on to the next rank meanwhile.

There is no deadlock: suppose all ranks have finished all rounds before r. Each posts its receives
of round r and issues its sends of round r before it waits in round r; so all of them complete.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from syncopate.schedules.base import Schedule, chunk_offsets
from syncopate.units import MIB

MAX_BLOCKS = 32
"""Blocks per transfer at most: enough to overlap, few enough to compile and run quickly."""

_ROOMY_BYTES = MIB
_DOUBLE_BYTES = 8 * MIB


class Op(IntEnum):
    """What an instruction does."""

    POST = 0  # post the receive `work` into `region` from `peer`
    SEND = 1  # issue the send `work` of `region` to `peer`
    AWAIT_RECEIVE = 2
    AWAIT_SEND = 3
    ADD = 4  # region += source
    COPY = 5  # region = source


class Region(NamedTuple):
    """Elements ``[start, stop)`` of the buffer, or of the scratch memory."""

    scratch: bool
    start: int
    stop: int

    def meets(self, other: Region) -> bool:
        """Say whether the two share an element."""
        return self.scratch == other.scratch and self.start < other.stop and other.start < self.stop


_NOWHERE = Region(False, 0, 0)


class Instruction(NamedTuple):
    """One step of a program; the fields that its ``op`` does not use are empty."""

    op: Op
    work: int = -1
    region: Region = _NOWHERE
    source: Region = _NOWHERE
    peer: int = -1
    tag: int = 0


@dataclass(frozen=True)
class Program:
    """The instructions of one rank.

    Attributes:
        instructions: in order.
        works: number of sends and receives; an instruction's ``work`` counts them from 0.
        scratch_numel: elements of scratch memory it needs.
    """

    instructions: tuple[Instruction, ...]
    works: int
    scratch_numel: int


@dataclass(eq=False)
class _Message:
    """One block of one transfer, as seen by one of its two ends."""

    index: int
    round: int
    sends: bool
    peer: int
    tag: int
    place: Region
    reduces: bool
    landing: Region = _NOWHERE
    started: bool = False
    over: bool = False


def compile_program(
    schedule: Schedule, rank: int, numel: int, itemsize: int, block_bytes: int
) -> Program:
    """Return what ``rank`` does to run ``schedule`` on ``numel`` elements.

    Args:
        schedule: what is to happen, in chunks.
        rank: whose program.
        numel: elements of the buffer; chunks without elements are not sent.
        itemsize: bytes per element.
        block_bytes: transfers longer than this are cut, into at most ``MAX_BLOCKS`` pieces. All
            ranks must use the same value.
    """
    messages = _messages(schedule, rank, numel, itemsize, block_bytes)
    by_round: dict[int, list[_Message]] = {}
    for message in messages:
        by_round.setdefault(message.round, []).append(message)
    rounds = [by_round[index] for index in sorted(by_round)]
    scratch_numel = _allocate(rounds, itemsize)
    return Program(tuple(_Compiler(rounds).run()), len(messages), scratch_numel)


def _messages(
    schedule: Schedule, rank: int, numel: int, itemsize: int, block_bytes: int
) -> list[_Message]:
    """Return the blocks that ``rank`` sends or receives, by round and then block by block.

    Both ends of a transfer count the blocks between them in the same order, which gives the tags.
    """
    offsets = chunk_offsets(numel, schedule.chunks)
    found: list[tuple[int, int, _Message]] = []
    tags: dict[tuple[int, bool], int] = {}
    for transfer in schedule.of_rank(rank):
        begin, end = offsets[transfer.start], offsets[transfer.stop]
        sends = transfer.src == rank
        peer = transfer.dst if sends else transfer.src
        wanted = -(-(end - begin) * itemsize // block_bytes)
        cuts = chunk_offsets(end - begin, min(max(wanted, 1), MAX_BLOCKS))
        for block, (start, stop) in enumerate(itertools.pairwise(cuts)):
            if start == stop:
                continue
            tag = tags.get((peer, sends), 0)
            tags[peer, sends] = tag + 1
            place = Region(False, begin + start, begin + stop)
            reduces = transfer.op == "reduce"
            message = _Message(0, transfer.round, sends, peer, tag, place, reduces)
            found.append((transfer.round, block, message))
    found.sort(key=lambda item: item[:2])
    for index, (_, _, message) in enumerate(found):
        message.index = index
    return [message for _, _, message in found]


def _allocate(rounds: list[list[_Message]], itemsize: int) -> int:
    """Choose where each receive lands; return the elements of scratch memory that takes.

    Little scratch gives every receive a place of its own, so that all can be posted at the start;
    more gives two consecutive rounds different places; the most is shared by all rounds.
    """
    needs = []
    for messages in rounds:
        sends = [message.place for message in messages if message.sends]
        need = 0
        for message in messages:
            if message.sends:
                continue
            message.landing = message.place
            if message.reduces or any(message.place.meets(place) for place in sends):
                size = message.place.stop - message.place.start
                message.landing = Region(True, need, need + size)
                need += size
        needs.append(need)
    widest = max(needs, default=0)
    roomy = sum(needs) * itemsize <= _ROOMY_BYTES
    double = 2 * widest * itemsize <= _DOUBLE_BYTES
    base = total = 0
    for position, (messages, need) in enumerate(zip(rounds, needs, strict=True)):
        if not roomy:
            base = widest * (position % 2) if double else 0
        for message in messages:
            if message.landing.scratch:
                _, start, stop = message.landing
                message.landing = Region(True, base + start, base + stop)
        total = max(total, base + need)
        base += need
    return total


class _Compiler:
    """Puts the messages of all rounds in order; see [Note: order of a program]."""

    def __init__(self, rounds: list[list[_Message]]) -> None:
        self._rounds = rounds
        self._code: list[Instruction] = []
        self._reading: list[_Message] = []  # sends issued and not yet waited for

    def run(self) -> list[Instruction]:
        for position, messages in enumerate(self._rounds):
            for message in messages:
                if not message.sends and not message.started:
                    self._await_readers(message.landing)
                    self._start(message)
            for message in messages:
                if message.sends and not message.started:
                    self._start(message)
            self._look_ahead(position)
            for message in messages:
                if not message.sends:
                    self._receive(message)
                    self._look_ahead(position)
        for message in self._reading:
            self._code.append(Instruction(Op.AWAIT_SEND, message.index, peer=message.peer))
        return self._code

    def _start(self, message: _Message) -> None:
        op, region = (Op.SEND, message.place) if message.sends else (Op.POST, message.landing)
        self._code.append(
            Instruction(op, message.index, region, peer=message.peer, tag=message.tag)
        )
        message.started = True
        if message.sends:
            self._reading.append(message)

    def _receive(self, message: _Message) -> None:
        self._code.append(Instruction(Op.AWAIT_RECEIVE, message.index, peer=message.peer))
        if message.landing.scratch:
            self._await_readers(message.place)
            op = Op.ADD if message.reduces else Op.COPY
            self._code.append(Instruction(op, region=message.place, source=message.landing))
        message.over = True

    def _await_readers(self, region: Region) -> None:
        for message in [sent for sent in self._reading if sent.place.meets(region)]:
            self._code.append(Instruction(Op.AWAIT_SEND, message.index, peer=message.peer))
            self._reading.remove(message)

    def _look_ahead(self, position: int) -> None:
        """Start what the rounds after ``position`` can do already, without waiting."""
        open_here = [m for m in self._rounds[position] if not m.sends and not m.over]
        if position == 0 and len(self._code) and not any(m.over for m in self._rounds[0]):
            self._post_scratch_everywhere()
        if position + 1 == len(self._rounds):
            return
        following = self._rounds[position + 1]
        for message in following:
            if (
                message.sends
                and not message.started
                and not any(message.place.meets(other.place) for other in open_here)
            ):
                self._start(message)
        readers = self._reading + [m for m in following if m.sends and not m.started]
        for message in following:
            if message.sends or message.started:
                continue
            busy = any(
                message.landing.meets(other.place) or message.landing.meets(other.landing)
                for other in open_here
            )
            if not busy and not any(message.landing.meets(other.place) for other in readers):
                self._start(message)

    def _post_scratch_everywhere(self) -> None:
        """Post every receive whose landing place no other receive shares."""
        receives = [m for messages in self._rounds for m in messages if not m.sends]
        landings = [m.landing for m in receives if m.landing.scratch]
        spans = sorted((landing.start, landing.stop) for landing in landings)
        if any(a[1] > b[0] for a, b in itertools.pairwise(spans)):
            return
        for message in receives:
            if message.landing.scratch and not message.started:
                self._start(message)
