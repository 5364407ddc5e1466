"""Narrow: programs whose messages have fewer bits than the elements that they add.

[Note: narrow sums] A message carries what the sender has, rounded to the type on the wire; what
arrives is added in the buffer's own type. So a sum is rounded once for every hop that it travels,
and never by an addition.

[Note: the same bits everywhere] What a rank sends it keeps in the same bits: its own elements are
rounded along with the message. So two ranks that exchange partial sums add the same two numbers,
and one that hands a result out has what the others get. At the end of an all-reduce every element
that was added to after it was last sent is rounded too: only some of the ranks may have handed it
on. To round twice changes nothing.

Messages leave from, and land in, a copy of the buffer in the type of the wire, or in scratch memory
of that type.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np

from syncopate.collectives.mesh.program import Instruction, Memory, Op, Program, Region


def narrowed(program: Program, *, agree: bool) -> Program:
    """Return ``program`` with messages in the type of the wire; see the module.

    The result's messages are in ``Memory.WIRE`` and ``Memory.SCRATCH``, both of that type, and a
    ``COPY`` between one of them and the buffer changes the type.

    Args:
        program: whose messages are in the buffer and in scratch.
        agree: whether all ranks end with the same, as after an all-reduce.
    """
    return Program(tuple(_Narrowing(program).run(agree)), program.works, program.scratch_numel)


class _Narrowing:
    """Keeps track of what of the buffer is in the wire's memory, and what is rounded already.

    Args:
        program: to be narrowed.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        edges = {
            edge
            for step in program.instructions
            if step.region.memory is Memory.BUFFER
            for edge in step.region[1:]
        }
        self._edges = sorted(edges | {0})
        self._index = {edge: index for index, edge in enumerate(self._edges)}
        spans = max(len(self._edges) - 1, 0)
        self._there = np.zeros(spans, bool)  # in the wire's memory
        self._rounded = np.zeros(spans, bool)
        self._landing: dict[int, Region] = {}

    def run(self, agree: bool) -> Iterator[Instruction]:
        """Yield the instructions."""
        for step in self._program.instructions:
            region, place = step.region, self._place(step.region)
            if step.op is Op.SEND:
                yield from self._round(place)
                yield _in_wire(step)
            elif step.op is Op.POST and region.memory is Memory.BUFFER:
                self._there[place] = False
                self._landing[step.work] = region
                yield _in_wire(step)
            elif step.op is Op.AWAIT_RECEIVE and step.work in self._landing:
                yield step
                region = self._landing.pop(step.work)
                yield Instruction(Op.COPY, region=region, source=_on_wire(region))
                place = self._place(region)
                self._there[place] = self._rounded[place] = True
            else:
                yield step
                if step.op in (Op.ADD, Op.COPY):
                    self._there[place] = False
                    self._rounded[place] = step.op is Op.COPY
        if agree:
            self._there |= self._rounded
            yield from self._round(slice(0, len(self._there)))

    def _round(self, place: slice) -> Iterator[Instruction]:
        """Copy values into the wire's memory that are not there yet, and keep the others."""
        spans = range(len(self._there))[place]
        for there, run in groupby(spans, lambda span: bool(self._there[span])):
            if there:
                continue
            held = list(run)
            start, stop = self._edges[held[0]], self._edges[held[-1] + 1]
            region = Region(Memory.BUFFER, start, stop)
            yield Instruction(Op.COPY, region=_on_wire(region), source=region)
            if not self._rounded[held[0] : held[-1] + 1].all():
                yield Instruction(Op.COPY, region=region, source=_on_wire(region))
        self._there[place] = self._rounded[place] = True

    def _place(self, region: Region) -> slice:
        """Return which spans a region of the buffer covers; none for another memory's."""
        if region.memory is not Memory.BUFFER:
            return slice(0, 0)
        return slice(self._index[region.start], self._index[region.stop])


def _on_wire(region: Region) -> Region:
    return Region(Memory.WIRE, region.start, region.stop)


def _in_wire(step: Instruction) -> Instruction:
    """Return the beginning of a message with its data on the wire's side."""
    return Instruction(step.op, step.work, _on_wire(step.region), peer=step.peer, tag=step.tag)
