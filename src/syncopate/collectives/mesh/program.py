"""Program: what one rank does, step by step, to run a schedule on a buffer of a given size.

[Note: order of a program] A program is a straight line of instructions without branches.

* Receives are posted in the order in which they are waited for, as far ahead as memory and the
  places they land in allow: a message whose receive is posted leaves at once, any other needs a
  round trip first.
* A send is issued as soon as the data it carries is there, even while other receives of the round
  before are still open. It reads the buffer until it was waited for, so it is waited for before
  anything is written over its data, and otherwise at the end.
* A receive is announced to its sender through the same connection as the messages to that rank. So
  receives are posted before long sends to the same rank, whose bytes would hold the news back.
* Long messages leave one round after the other: those to another rank only once the earlier ones
  are through. Side by side they would share the link, the urgent one with the one that has time,
  and meet other ranks' messages at the receiver's port, which loses packets.
* A reduction lands in scratch and is added right after it arrived. A copy lands in its place,
  unless a send of the same round still reads that place.
* Transfers are cut into blocks (:mod:`syncopate.schedules.blocks`), so that one block is added
  while the next is on its way, and goes on to the next rank meanwhile.

There is no deadlock. Suppose all ranks have finished all rounds before r. On entering round r a
rank posts its next receives and issues its sends of round r, and for that waits for nothing but
sends of earlier rounds, which are through, since their receivers have finished those rounds. In
round r it waits for its receives, one after the other, each posted before and sent already; and
for a send of round r only where a receive of the same round overwrites what it reads, in which
case all ranks had room to post all their receives of the round at once.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from syncopate.schedules.base import Schedule, chunk_offsets
from syncopate.schedules.blocks import BLOCK_BYTES, block_count
from syncopate.schedules.conditions import element_offsets
from syncopate.units import KIB, MIB

_WINDOW_BYTES = 8 * MIB
"""Scratch memory that long reductions land in, turn by turn."""

_ROOMY_BYTES = MIB
"""Scratch memory up to which every reduction has a place of its own, and is posted at the start."""

_LONG_BYTES = 64 * KIB
"""Messages from this length on are held back for one another."""

_MOST_OPEN = 16
"""Receives posted ahead of their round, and sends of earlier rounds not waited for, at most."""


class Op(IntEnum):
    """What an instruction does; messages begin first, then waits, then work on memory."""

    POST = 0  # post the receive `work` into `region` from `peer`
    SEND = 1  # issue the send `work` of `region` to `peer`
    AWAIT_RECEIVE = 2
    AWAIT_SEND = 3
    ADD = 4  # region += source
    COPY = 5  # region = source


class Memory(IntEnum):
    """What a program works on."""

    BUFFER = 0  # the caller's
    SCRATCH = 1  # where messages land that do not land in their place
    WIRE = 2  # the buffer as it travels, of a narrowed program alone


class Region(NamedTuple):
    """Elements ``[start, stop)`` of some memory."""

    memory: Memory
    start: int
    stop: int

    def meets(self, other: Region) -> bool:
        """Say whether the two share an element."""
        return self.memory == other.memory and self.start < other.stop and other.start < self.stop


_NOWHERE = Region(Memory.BUFFER, 0, 0)


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

    round: int
    sends: bool
    peer: int
    tag: int
    place: Region
    reduces: bool
    long: bool
    index: int = 0
    position: int = 0  # of its round among the rounds that this rank takes part in
    scratch: bool = False
    landing: Region = _NOWHERE
    started: bool = False
    over: bool = False


def compile_program(
    schedule: Schedule,
    rank: int,
    numel: int,
    itemsize: int,
    block_bytes: int = BLOCK_BYTES,
    *,
    bounds: tuple[int, ...] | None = None,
) -> Program:
    """Return what ``rank`` does to run ``schedule`` on ``numel`` elements.

    Args:
        schedule: what is to happen, in chunks.
        rank: whose program.
        numel: elements of the buffer; chunks without elements are not sent.
        itemsize: bytes per element.
        block_bytes: length of the longest block of a transfer. All ranks must use the same.
        bounds: where the shards begin, as for
            :func:`~syncopate.schedules.conditions.element_offsets`.
    """
    offsets = element_offsets(schedule, numel, bounds)
    messages = _messages(schedule, rank, offsets, itemsize, block_bytes)
    rounds = [list(group) for _, group in itertools.groupby(messages, lambda m: m.round)]
    for position, members in enumerate(rounds):
        for message in members:
            message.position = position
    slots, slot_numel = _scratch(rounds, itemsize)
    code = _Compiler(rounds, slots, slot_numel).run()
    return Program(tuple(code), len(messages), slots * slot_numel)


def _messages(
    schedule: Schedule, rank: int, offsets: tuple[int, ...], itemsize: int, block_bytes: int
) -> list[_Message]:
    """Return the blocks that ``rank`` sends or receives, by round and then block by block.

    Both ends of a transfer count the blocks between them in the same order, which gives the tags.
    """
    found: list[tuple[int, int, _Message]] = []
    tags: dict[tuple[int, bool], int] = {}
    for transfer in schedule.of_rank(rank):
        begin, end = offsets[transfer.start], offsets[transfer.stop]
        sends = transfer.src == rank
        peer = transfer.dst if sends else transfer.src
        reduces = transfer.op == "reduce"
        cuts = chunk_offsets(end - begin, block_count((end - begin) * itemsize, block_bytes))
        for block, (start, stop) in enumerate(itertools.pairwise(cuts)):
            if start == stop:
                continue
            tag = tags.get((peer, sends), 0)
            tags[peer, sends] = tag + 1
            place = Region(Memory.BUFFER, begin + start, begin + stop)
            long = (stop - start) * itemsize >= _LONG_BYTES
            message = _Message(transfer.round, sends, peer, tag, place, reduces, long)
            found.append((transfer.round, block, message))
    found.sort(key=lambda item: item[:2])
    for index, (_, _, message) in enumerate(found):
        message.index = index
    return [message for _, _, message in found]


def _scratch(rounds: list[list[_Message]], itemsize: int) -> tuple[int, int]:
    """Mark the receives that land in scratch; return how many fit there at once, and their size.

    All receives of a round fit that have to be posted before its sends.
    """
    slot_numel = count = at_once = 0
    for messages in rounds:
        sends = [message for message in messages if message.sends]
        targets = {message.peer for message in sends}
        landing = []
        first = False
        for message in messages:
            if message.sends:
                continue
            conflict = any(message.place.meets(sent.place) for sent in sends)
            message.scratch = message.reduces or conflict
            first |= message.scratch and (conflict or message.peer in targets)
            if message.scratch:
                landing.append(message.place.stop - message.place.start)
        count += len(landing)
        slot_numel = max(slot_numel, *landing, 0)
        at_once = max(at_once, len(landing)) if first else at_once
    if count * slot_numel * itemsize <= _ROOMY_BYTES:
        return count, slot_numel
    window = max(_WINDOW_BYTES // (slot_numel * itemsize), 2)
    return min(max(window, at_once), count), slot_numel


class _Compiler:
    """Puts the messages of all rounds in order; see [Note: order of a program].

    Args:
        rounds: the messages of each round that this rank takes part in.
        slots: receives that scratch has room for.
        slot_numel: elements that each of them may have.
    """

    def __init__(self, rounds: list[list[_Message]], slots: int, slot_numel: int) -> None:
        self._rounds = rounds
        self._here = 0
        self._code: list[Instruction] = []
        self._reading: list[_Message] = []  # sends issued and not yet waited for
        self._receives = deque(m for messages in rounds for m in messages if not m.sends)
        self._open: list[_Message] = []  # receives posted and not yet over
        self._free = deque(range(slots))
        self._slot_numel = slot_numel

    def run(self) -> list[Instruction]:
        for position, messages in enumerate(self._rounds):
            self._here = position
            self._post()
            self._send(messages)
            self._look_ahead()
            for message in messages:
                if not message.sends:
                    self._receive(message)
                    self._look_ahead()
        for message in self._reading:
            self._code.append(Instruction(Op.AWAIT_SEND, message.index, peer=message.peer))
        return self._code

    def _look_ahead(self) -> None:
        """Start what the following rounds can do already."""
        self._post()
        if self._here + 1 < len(self._rounds):
            self._send(self._rounds[self._here + 1])

    def _start(self, message: _Message) -> None:
        op, region = (Op.SEND, message.place) if message.sends else (Op.POST, message.landing)
        self._code.append(
            Instruction(op, message.index, region, peer=message.peer, tag=message.tag)
        )
        message.started = True
        (self._reading if message.sends else self._open).append(message)

    def _send(self, messages: list[_Message]) -> None:
        """Issue the sends among ``messages``, of this round or the next, whose data is there."""
        for message in messages:
            if not message.sends or message.started:
                continue
            if message.position > self._here:
                if self._lacks_data(message):
                    continue
                if message.long and self._is_early(message):
                    return
            if message.long:
                self._hold_back(message)
            self._start(message)

    def _lacks_data(self, message: _Message) -> bool:
        return any(
            not other.sends and not other.over and other.place.meets(message.place)
            for other in self._rounds[self._here]
        )

    def _is_early(self, message: _Message) -> bool:
        """Say whether a long send of the next round has to wait for that round."""
        beside = any(
            sent.long and sent.peer != message.peer and sent.position == self._here
            for sent in self._reading
        )
        before_its_post = any(
            receive.peer == message.peer and receive.position <= message.position
            for receive in itertools.islice(self._receives, _MOST_OPEN)
        )
        return beside or before_its_post

    def _hold_back(self, message: _Message) -> None:
        """Wait for the long sends of earlier rounds to other ranks, and for those too many."""
        older = [sent for sent in self._reading if sent.long and sent.position < self._here]
        surplus = len(older) - _MOST_OPEN
        for rank, sent in enumerate(older):
            if rank < surplus or sent.peer != message.peer:
                self._await_send(sent)

    def _post(self) -> None:
        """Post the next receives, in order, as long as they can land and are not too many."""
        while self._receives:
            message = self._receives[0]
            ahead = message.position > self._here
            if ahead and message.long and len(self._open) >= _MOST_OPEN:
                return
            if not self._land(message):
                return
            self._receives.popleft()
            self._start(message)

    def _land(self, message: _Message) -> bool:
        """Choose where ``message`` lands; say whether it can land there now."""
        if message.scratch:
            if not self._free:
                return False
            begin = self._free.popleft() * self._slot_numel
            size = message.place.stop - message.place.start
            message.landing = Region(Memory.SCRATCH, begin, begin + size)
            return True
        message.landing = message.place
        if any(message.place.meets(other.place) for other in self._open):
            return False
        for messages in self._rounds[self._here : message.position]:
            if any(m.sends and not m.started and m.place.meets(message.place) for m in messages):
                return False
        readers = [sent for sent in self._reading if sent.place.meets(message.place)]
        if any(sent.position >= self._here for sent in readers):
            return False
        for sent in readers:
            self._await_send(sent)
        return True

    def _receive(self, message: _Message) -> None:
        if not message.started:
            self._post()
        self._code.append(Instruction(Op.AWAIT_RECEIVE, message.index, peer=message.peer))
        if message.scratch:
            for sent in [sent for sent in self._reading if sent.place.meets(message.place)]:
                self._await_send(sent)
            op = Op.ADD if message.reduces else Op.COPY
            self._code.append(Instruction(op, region=message.place, source=message.landing))
            self._free.append(message.landing.start // self._slot_numel)
        message.over = True
        self._open.remove(message)

    def _await_send(self, sent: _Message) -> None:
        self._code.append(Instruction(Op.AWAIT_SEND, sent.index, peer=sent.peer))
        self._reading.remove(sent)
