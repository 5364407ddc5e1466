"""Deferred: a step returns before its pushes and the update of the global weights have ended.

A rank that trains on its own weights needs neither for its next forward. The next backward does,
because it fills the same buckets. So the step waits for no push, unless the script has read the
gradients before. A thread waits instead, averages this rank's sums, and updates its shards of the
global weights. Pulls of the step wait for that update. The order is that of Algorithms 1 and 2, and
the results are the same to the last bit.

[Note: a copy steps] The update is a step of a copy of the optimizer (``optimizers.py``, [Note: a
copy of the optimizer]), with this rank's pieces as parameters. The optimizer's own step meanwhile
finds no parameter of the model. Only steps of torch's own optimizers go on behind: these are known
to keep all they know in their state and their groups. A hook of the script's at the optimizer could
look for a result that is not there yet; with one the step ends before it returns.

[Note: a failure that is heard late] A rank goes on before it has the other ranks' reports on their
backward. They arrive by its next backward. If one failed, or never began, no rank updates or pulls
the global weights, and the step does not count on any rank. It is too late to refuse the step: a
rank that has not failed is warned, and its local update stays.

[Note: launching pulls] Pulls that no step waits for are launched behind the step, too, once
all ranks are known to be sound: they come behind its pushes, and before those of the next backward,
which waits for the end of the step. So a late rank holds up no other in one step. In a
model with buffers the ranks meet in a step that pulls, for it brings rank 0's buffers, and pulls
are launched in it.

[Note: behind the pushes] Pulls that are launched as a step ends come before the pushes of the next
backward. Where forward is too short for all of them, they hold those up. So the plan may have the
last of them go behind: they are launched with the last push, and arrive while the step and the
forward after it run, whose layers wait for the local update that begins with them. On a device all
are launched at once: its local updates take turns with the layers on one stream.

[Note: channels of their own] When that thread launches pulls is not known elsewhere; a collective
of the caller's may come first on one rank, and second on another. So these pulls have channels that
nothing else uses, as many as the plan has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain

import torch

from syncopate.engine.exchange.layout import Work
from syncopate.engine.exchange.optimizers import copy_for, step_of, step_with
from syncopate.engine.exchange.update.pieces import Piece
from syncopate.engine.step import Ran
from syncopate.engine.torch_compat import step_hooks
from syncopate.engine.trailer import Said


def may_go_on_behind(optimizer: torch.optim.Optimizer) -> bool:
    """Say whether its steps may go on behind; see [Note: a copy steps]."""
    before, after = step_hooks(optimizer)
    alone = len(before) == len(after) == 1
    return alone and step_of(type(optimizer)).__module__.startswith("torch.optim.")


def piece_step(
    optimizer: torch.optim.Optimizer, pieces: Sequence[Sequence[Piece]], given: set[int]
) -> Callable[[], None]:
    """Return one step of ``optimizer`` on this rank's pieces; see [Note: a copy steps].

    Args:
        optimizer: whose step; its groups have the values of now.
        pieces: per group what this rank owns of its parameters.
        given: of these, by identity of the parameter that the piece is of, those with a gradient.
    """
    copy = copy_for(optimizer, [[piece.parameter for piece in own] for own in pieces])
    averages = [
        (piece.parameter, piece.gradient)
        for piece in chain(*pieces)
        if id(piece.trainable.parameter) in given
    ]
    return partial(step_with, copy, averages)


class Held:
    """A pull that lets pushes pass; see [Note: behind the pushes].

    It is launched later, or by the first wait for it, on all ranks alike.
    """

    def __init__(self, launch: Callable[[], Work]) -> None:
        self._launch = launch
        self._handle: Work | None = None

    def launch(self) -> Work:
        """Launch it, unless it has been."""
        if self._handle is None:
            self._handle = self._launch()
        return self._handle

    def wait(self) -> None:
        """Wait for it.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        self.launch().wait()


class Due:
    """A pull that the end of a step launches; see [Note: launching pulls].

    Another thread may wait for it before the step has said when it is launched.

    Args:
        launch: launches it.
    """

    def __init__(self, launch: Callable[[], Ran]) -> None:
        self._launch = launch
        self._settled: Future[Ran | None] = Future()

    def settle(self, is_sound: Callable[[], bool]) -> None:
        """Launch it, or drop it after a step that is not sound; waits for it raise the errors."""
        try:
            self._settled.set_result(self._launch() if is_sound() else None)
        except BaseException as error:  # raised again where it is waited for
            self._settled.set_exception(error)

    def done(self) -> bool:
        """Say whether it is over, or never comes, without blocking."""
        return self._settled.done() and (self._handle is None or self._handle.done())

    def wait(self) -> None:
        """Wait for the end of the step, and for the pull.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        if (handle := self._settled.result()) is not None:
            handle.wait()

    @property
    def launched_s(self) -> float:
        """When it was launched, by ``time.perf_counter``; NaN before."""
        return math.nan if self._handle is None else self._handle.launched_s

    @property
    def started_s(self) -> float:
        """When it began, likewise."""
        return math.nan if self._handle is None else self._handle.started_s

    @property
    def finished_s(self) -> float:
        """When it was over, likewise."""
        return math.nan if self._handle is None else self._handle.finished_s

    @property
    def _handle(self) -> Ran | None:
        settled = self._settled
        return settled.result() if settled.done() and settled.exception() is None else None


class Ending:
    """The work that a step leaves behind it.

    Args:
        averages: waits for its pushes, makes averages, and returns what the ranks said.
        heard: whether that is known, and all is well.
    """

    def __init__(self, averages: Callable[[], Said], *, heard: bool) -> None:
        self.heard = heard
        self._averages = averages
        self._said: Future[Said] | None = None
        self._launched: Future[None] | None = None

    def go_on(self, executor: ThreadPoolExecutor, updates: Sequence[Callable[[], None]]) -> None:
        """Start it on the thread; after a sound step, then run the ``updates``, in order."""

        def end() -> Said:
            said = self._averages()
            for update in updates if said.is_sound else ():
                update()
            return said

        self._said = executor.submit(end)

    def launch(self, executor: ThreadPoolExecutor, pulls: Sequence[Due]) -> None:
        """Launch ``pulls`` on the thread once it is done, in order, after a sound step."""
        said = self._averaged()

        def launch() -> None:
            for pull in pulls:
                pull.settle(lambda: said.result().is_sound)

        self._launched = executor.submit(launch)

    def wait(self) -> Said:
        """Wait for it, and return the ranks' reports; waits for averages alone where no step came.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        said = self._averaged()
        if self._launched is not None:
            self._launched.result()
        return said.result()

    def _averaged(self) -> Future[Said]:
        if self._said is None:
            self._said = Future()
            self._said.set_result(self._averages())
        return self._said
