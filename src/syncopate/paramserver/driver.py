"""Driver: which thread drives a worker's sockets, and the handles that wait for what comes.

[Note: who drives] Sockets and machine belong to one thread at a time: the one with the turn. A
caller that submits something takes the turn if it is free, and sends by itself. A caller that waits
takes it, and receives by itself: so a short push or pull needs no other thread, and no switch to
one and back. Where callers do something else, a thread in the background has the turn as long as
something is under way. It begins only after a moment without callers, so that it does not get in
the way of one that submits and then waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import zmq
from torch import Tensor

from syncopate.errors import ParameterServerError
from syncopate.paramserver.membership import TICK_S
from syncopate.paramserver.tensors import tensor_of
from syncopate.protocol.actions import Fill
from syncopate.protocol.messages import Push, PushRows, Weights
from syncopate.protocol.placement.bundle import Cut, Place

_POLL_S = 0.25
_MOMENT_S = 0.002
"""How long no thread has driven before the one in the background does."""


_NOTHING = torch.empty(0)


class Driven(NamedTuple):
    """What is driven.

    Attributes:
        over: says whether there is nothing more to drive.
        busy: says whether something is submitted or under way.
        submitted: does what was submitted, without waiting.
        step: does what was submitted, waits for so many seconds for something to come, and takes
            it in.
        wake: makes ``step`` return; any thread may.
        end: says the last words, and closes.
    """

    over: Callable[[], bool]
    busy: Callable[[], bool]
    submitted: Callable[[], None]
    step: Callable[[float], None]
    wake: Callable[[], None]
    end: Callable[[], None]


class Driver:
    """Lets one thread at a time drive."""

    def __init__(self, driven: Driven, name: str) -> None:
        """Drive in the background from now on, in a thread called ``name``."""
        self._driven = driven
        self._turn = threading.Lock()
        # The thread that has it waits for something, and has the turn or is about to.
        self._waiter = threading.Lock()
        self._times = 0
        self._asleep = False
        self._nudge = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self) -> None:
        """Let what was submitted be done: here, or by the thread with the turn."""
        if self._turn.acquire(blocking=False):
            try:
                if not self._driven.over():
                    self._driven.submitted()
            finally:
                self._turn.release()
            self._left()
        else:
            self._driven.wake()
            if not self._turn.locked():  # it may just have looked for the last time
                self._left()

    def drive(self, until: Callable[[], bool]) -> bool:
        """Drive until ``until()`` or the end; return False if it is over, or another waits so."""
        if self._driven.over() or not self._waiter.acquire(blocking=False):
            return False
        try:
            if self._turn.locked():
                self._driven.wake()
            with self._turn:
                while not self._driven.over() and not until():
                    self._driven.step(TICK_S)
        finally:
            self._waiter.release()
        self._left()
        return True

    def join(self) -> None:
        """Return when all is over and closed."""
        self._nudge.set()
        self._thread.join()

    def _left(self) -> None:
        """Let the thread in the background see to what is under way."""
        self._times += 1
        if self._asleep and (self._driven.busy() or self._driven.over()):
            self._nudge.set()

    def _run(self) -> None:
        try:
            self._go_on()
        finally:
            with self._turn:
                self._driven.end()

    def _go_on(self) -> None:
        driven, seen = self._driven, 0
        while not driven.over():
            waited_for = self._waiter.locked()
            if (driven.busy() or waited_for) and seen != self._times:
                seen = self._times
                time.sleep(_MOMENT_S)
            elif driven.busy() and not waited_for:
                with self._turn:
                    if not driven.over() and not self._waiter.locked():
                        driven.step(TICK_S)
            else:
                self._rest(waited_for)

    def _rest(self, waited_for: bool) -> None:
        """Sleep until something is under way and no thread drives; at times take in what came."""
        self._nudge.clear()
        self._asleep = True
        idle = self._waiter.locked() if waited_for else not self._driven.busy()
        slept = idle and not self._nudge.wait(TICK_S)
        self._asleep = False
        if slept and not waited_for and not self._waiter.locked():
            with self._turn:
                if not self._driven.over():
                    self._driven.step(0.0)


class Room:
    """Bytes that are under way."""

    def __init__(self) -> None:
        self._nbytes = 0
        self._changed = threading.Condition()

    def reserve(self, nbytes: int, most: int, over: Callable[[], bool]) -> None:
        """Wait until ``nbytes`` more are no more than ``most``, or it is over."""
        with self._changed:
            while not over() and self._nbytes > 0 and self._nbytes + nbytes > most:
                self._changed.wait(_POLL_S)
            self._nbytes += nbytes

    def release(self, nbytes: int) -> None:
        """Take note that ``nbytes`` are there."""
        with self._changed:
            self._nbytes -= nbytes
            self._changed.notify_all()


class Handle:
    """A push or pull that was submitted.

    Attributes:
        finished_s: when it was over, by ``time.perf_counter``; 0 until then.
        out: of a pull of rows, what they come to; complete once it is over.
    """

    def __init__(self, driver: Driver, parts: int, finish: Callable[[], None] | None) -> None:
        """Wait for ``parts`` slices, then call ``finish``."""
        self._driver = driver
        self._left = parts
        self._finish = finish
        self._guard: Callable[[], None] | None = None
        self._over = False
        # Held until it is over: an Event takes longer to make than all else that a handle does.
        self._waiting = threading.Lock()
        self._waiting.acquire()
        self._error: ParameterServerError | None = None
        self.finished_s = 0.0
        self.out = _NOTHING

    def finish(self, function: Callable[[], None]) -> None:
        """Call ``function`` when all slices are over; said before they are submitted."""
        assert self._finish is None
        self._finish = function

    def guard(self, function: Callable[[], None]) -> None:
        """Call ``function`` before each wait; it raises where that would not end."""
        self._guard = function

    def done(self) -> bool:
        """Say whether it is over, well or badly, without blocking."""
        return self._over

    def wait(self) -> None:
        """Return when it is over.

        Raises:
            ParameterServerError: it will never be; the message says why.
            InvalidValueError: with ``clip_norm`` other tensors of the step were not pushed.
        """
        if self._guard is not None and not self._over:
            self._guard()
        while not self._over:
            # A limit lets Ctrl-C through on every platform.
            if not self._driver.drive(self.done) and self._waiting.acquire(timeout=_POLL_S):
                self._waiting.release()  # for the next thread that waits
        if self._error is not None:
            raise self._error

    def part_done(self) -> None:
        """Take note that one slice is over."""
        self._left -= 1
        if self._left == 0 and not self._over:
            if self._finish is not None:
                self._finish()
            self.finished_s = time.perf_counter()
            self._end()

    def more(self, parts: int) -> None:
        """Wait for so many more."""
        self._left += parts

    def fail(self, error: ParameterServerError) -> None:
        """Take note that it will never be over."""
        if not self._over:
            self._error = error
            self._end()

    def _end(self) -> None:
        self._over = True
        self._waiting.release()


class Call(NamedTuple):
    """The work for the driving thread, and the waits for it."""

    function: Callable[[], None]
    handle: Handle | None = None


class Pushed(NamedTuple):
    """What a slice's push carries, which may have to be sent again.

    Attributes:
        data: its bytes.
        handle: that waits for it.
        parts: of a push of rows, the bytes of each of its parts.
    """

    data: Tensor
    handle: Handle
    parts: Sequence[Tensor] = ()

    def part(self, push: Push) -> Tensor:
        """Return the bytes of the part that ``push`` is."""
        return self.parts[push.part] if isinstance(push, PushRows) else self.data


Taken = Callable[[Tensor, Weights], object]
"""Called with the bytes that came, and the message that they came with."""


class Pulled(NamedTuple):
    """What takes the weights that a slice's pull brings.

    Attributes:
        take: it.
        handle: that waits for it.
        of_part: returns what takes those of a part, where it is a bundle that is cut meanwhile;
            None: it is no bundle.
        asked: the numbers of the rows that are pulled, as bytes; None: it is no pull of rows.
    """

    take: Taken
    handle: Handle
    of_part: Callable[[Place], Pulled] | None = None
    asked: Tensor | None = None


def filling(data: Tensor, handle: Handle) -> Pulled:
    """Return what copies the weights that come to the bytes ``data``."""
    return Pulled(
        lambda came, _: data.copy_(came),
        handle,
        lambda place: filling(data[place[1] : place[2]], handle),
    )


class Pending:
    """What a worker submitted and is not over.

    Attributes:
        calls: the work that is left.
        pushed: by slice and sequence number.
        pulled: by slice and request.
        room: the bytes of pushes.
    """

    def __init__(self) -> None:
        self.calls: deque[Call] = deque()
        self.pushed: dict[tuple[int, int], Pushed] = {}
        self.pulled: dict[tuple[int, int], Pulled] = {}
        self.room = Room()

    def split(self, cut: Cut) -> None:
        """Wait for the parts of a bundle, each by itself."""
        key, more = cut.key, len(cut.parts) - 1
        for number in [number for number in self.pushed if number[0] == key]:
            pushed = self.pushed.pop(number)
            pushed.handle.more(more)
            for part, begin, end in cut.places():
                self.pushed[part.key, number[1]] = Pushed(pushed.data[begin:end], pushed.handle)
        for number in [number for number in self.pulled if number[0] == key]:
            pulled = self.pulled.pop(number)
            assert pulled.of_part is not None
            pulled.handle.more(more)
            for place in cut.places():
                self.pulled[place[0].key, number[1]] = pulled.of_part(place)

    def arrived(self, fill: Fill, payload: zmq.Frame) -> None:
        """Let what a pull brought be taken."""
        pulled = self.pulled.pop((fill.answer.key, fill.answer.request))
        data = tensor_of(payload, torch.uint8)
        if fill.part is not None:
            data = data[fill.part[0] : fill.part[1]]
        pulled.take(data, fill.answer)
        pulled.handle.part_done()

    def fail(self, error: ParameterServerError) -> None:
        """Tell all waits that it will never be over."""
        for pushed in self.pushed.values():
            pushed.handle.fail(error)
        for pulled in self.pulled.values():
            pulled.handle.fail(error)
        while self.calls:
            handle = self.calls.popleft().handle
            if handle is not None:
                handle.fail(error)
        self.room.release(0)
