"""Periodic pull: the parts of every exchange whose weights are pulled every k-th step.

[Note: whose buffers] From one pull to the next every rank goes on with its own buffers, such as the
statistics of batch normalisation, which belong to its own weights. With the pull it gets rank 0's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from torch.optim import Optimizer

from syncopate.engine.buckets import FlatBuffer, Message, in_turn
from syncopate.engine.checkpoint import copied
from syncopate.engine.exchange import groups, parts
from syncopate.engine.exchange.delay.deferred import Held
from syncopate.engine.exchange.delay.local import Local
from syncopate.engine.exchange.delay.rules import Hyper, hyper_of
from syncopate.engine.exchange.delay.stages import Masters, Stages
from syncopate.engine.exchange.flat_weights import FlatWeights
from syncopate.engine.exchange.layout import Layout
from syncopate.engine.exchange.model_buffers import InStep, agree
from syncopate.engine.exchange.proxies import weights
from syncopate.engine.exchange.pull.weights import Source
from syncopate.engine.exchange.push import gathering
from syncopate.engine.exchange.update.sharded_update import Beside
from syncopate.engine.model.hooks import on_loading
from syncopate.errors import EngineError

Ranges = Sequence[tuple[int, int, Hyper]]


class LocalUpdates(Beside):
    """Updates local weights by the local rule, once the global update may begin."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._stages, self._weights = layout.shared(Stages), layout.shared(FlatWeights)

    def updates(self, optimizer: Optimizer, stepping: frozenset[int]) -> None:
        """Begin the local update of the parameters of ``optimizer``."""
        delay = self._stages.delay
        if not delay.runs_ahead:
            return
        held = groups.parameters_of(optimizer)
        hypers = [hyper_of(delay, group) for group in optimizer.param_groups]
        known = {id(p): hyper for ps, hyper in zip(held, hypers, strict=True) for p in ps}
        here = self._stages.here
        keys = [id(part) for part in self._stages.parts if id(part) in stepping]
        self._begin([(here[key], self._ranges(here[key], known)) for key in keys if key in here])

    def _ranges(self, local: Local, known: Mapping[int, Hyper]) -> Ranges:
        """Return the ranges of a flat buffer that are updated, and their rules."""
        found: list[tuple[int, int, Hyper]] = []
        for trainable, offset in local.part.offsets():
            parameter, hyper = trainable.parameter, known.get(id(trainable.parameter))
            if hyper is None or parameter.grad is None:
                continue
            self._stages.masters.take_gradient(trainable)
            adjoins = bool(found) and found[-1][1:] == (offset, hyper)
            start = found.pop()[0] if adjoins else offset
            found.append((start, offset + parameter.numel(), hyper))
        return found

    def _begin(self, updated: Sequence[tuple[Local, Ranges]]) -> None:
        """Update local weights, on a thread where that may take long; reads of them wait."""
        if not updated:
            return
        parts = [local.part for local, _ in updated]
        behind = any(isinstance(pull, Held) for local, _ in updated for pull in local.arriving)
        lasts = behind or sum(part.nbytes for part in parts) >= gathering.ASIDE_BYTES
        if not (lasts and all(part.gradients.is_cpu for part in parts)):
            for local, ranges in updated:
                local.updating(ranges)()
            for part in parts:
                weights.renew(part.parameters)
            return
        aside = []
        for local, ranges in updated:
            local.working = Future()
            aside.append(partial(_run, local.updating(ranges), local.working))
            self._weights.expect(local.part, _Aside(local.working.result))
        # At once, for a thread that is woken for each would disturb the step.
        self._layout.thread("local").submit(in_turn, *aside)


class LatePulls(Source):
    """Pulls in every step of the warm-up, and then in every k-th.

    Args:
        layout: of the exchange.
        source: brings weights during the warm-up.
    """

    def __init__(self, layout: Layout, source: Callable[[Layout], Source]) -> None:
        self._stages, self._weights = layout.shared(Stages), layout.shared(FlatWeights)
        self._source = source(layout)

    def bring(self, part: FlatBuffer, message: Message) -> None:
        """Launch ``message``, when it is its turn."""
        local = self._stages.here.get(id(part))
        if local is None:
            self._source.bring(part, message)
        elif self._stages.pulls_now(part):
            self._bring_global(local, message)

    def _bring_global(self, local: Local, message: Message) -> None:
        masters, part = self._stages.masters, local.part
        if not self._stages.delay.runs_ahead:
            if not self._weights.expected(part):
                masters.give(local, local.weights)
            self._weights.expect(part, masters.pull(part, message, local.weights))
            return
        # The next local update waits for it.
        if self._stages.delay.k == 1:
            local.settle()  # it looks at the buffer that is to be filled
        if not local.fresh:
            masters.give(local, local.retrieved)
            local.fresh = True
        local.arriving.append(masters.pull(part, message, local.retrieved))

    def pushed(self) -> None:
        """Let the source know."""
        self._source.pushed()

    def launched(self) -> None:
        """Let the source know."""
        self._source.launched()


class LateBuffers(InStep):
    """Ranks meet in the steps that pull; see [Note: whose buffers]."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._stages = layout.shared(Stages)
        layout.lend(layout.notes, "puts", lambda: not self._stages.here)

    def forward_begins(self) -> None:
        """Put back what the ranks agreed on, unless buffers are this rank's own."""
        if not self._stages.own_buffers:
            super().forward_begins()

    def step_ends(self, stepped: parts.Stepped) -> None:
        """Agree on the buffers, where this step pulls."""
        stages = self._stages
        here = [part for part in stages.parts if id(part) in stepped.parts]
        stages.own_buffers = any(
            id(part) in stages.here and not stages.pulls_now(part) for part in here
        )
        if not stages.own_buffers:
            super().step_ends(stepped)


class LateWeights(parts.Local):
    """Each rank has weights of its own, and the masters have the global ones.

    Args:
        layout: of the exchange.
        masters: has the global weights.
    """

    def __init__(self, layout: Layout, masters: Callable[[Layout], Masters]) -> None:
        self._layout, self._stages = layout, layout.shared(Stages)
        self._weights = layout.shared(FlatWeights)
        self._masters = layout.shared(masters)
        layout.lend(self._stages, "masters", self._masters)
        # Weights that the script loads, the same on every rank, are the global ones.
        layout.ending.callback(on_loading(layout.buffers.model, self._stages.exit).remove)

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """Let the parameters hold the global weights in the block, and buffers be rank 0's.

        All ranks enter and leave it. Values that any rank writes to weights inside become the
        global ones.

        Raises:
            CollectiveError: a rank is lost or late.
            ParameterServerError: servers are.
            EngineError: weights were written to that servers hold.
        """
        with self._masters.guard():
            if not self._stages.here:
                yield
                return
            self._weights.ready()
            here = list(self._stages.here.values())
            kept = [local.weights.clone() for local in here]
            buffers = self._layout.buffers
            own = buffers.copies()
            self._masters.gather()
            if self._stages.own_buffers:
                agree(self._layout)
            written = False
            try:
                yield
                written = self._masters.written()
            finally:
                if self._stages.here and written:
                    self._stages.exit()
                elif self._stages.here:
                    for local, values in zip(here, kept, strict=True):
                        local.weights.copy_(values)
                    buffers.put_back(own)

    def leave(self) -> None:
        """Let parameters hold the global weights."""
        self._masters.gather()
        self._stages.exit()

    # -- to go on where another process left -----------------------------------------------------

    def local_state(self) -> dict[str, Any]:
        """Return this rank's own state: its local weights and their rule's memory.

        All ranks call it where pulls go behind pushes; else it asks no other rank. Empty in the
        warm-up. Copies in the CPU's memory.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        stages = self._stages
        stages.finish()
        self._weights.ready()
        return {
            "rank": self._layout.communicator.rank,
            "world_size": self._layout.communicator.world_size,
            "local_update": stages.delay.local_update,
            "parts": [stages.here[id(part)].state() for part in stages.parts if stages.here],
            "buffers": copied(self._layout.buffers.tensors) if stages.own_buffers else [],
        }

    def load_local_state(self, state: Mapping[str, Any]) -> None:
        """Load the result of :meth:`local_state`, after model and optimizer were loaded.

        Raises:
            EngineError: it is another rank's, or of another rank count, rule or plan.
        """
        stages, ranks = self._stages, self._layout.communicator
        here = (ranks.rank, ranks.world_size, stages.delay.local_update)
        told = (state.get("rank"), state.get("world_size"), state.get("local_update"))
        held = state.get("parts") or []
        fits = here == told and len(held) in (0, len(stages.parts))
        names = [{each.name for each in part.trainables} for part in stages.parts]
        if not fits or any(set(p["weights"]) != n for p, n in zip(held, names, strict=False)):
            raise EngineError(
                "this local state is of (rank, world size, local update) "
                f"{told} and {len(held)} buffers; here are {here} and {len(stages.parts)}. Give "
                "each rank its own, under the same plan; or go on without: the delay then begins "
                "anew from the global weights"
            )
        stages.exit()
        for part, known in zip(stages.parts, held, strict=False):
            stages.enter(part).load(known)
        saved = state.get("buffers") or []
        stages.own_buffers = bool(saved)
        for tensor, values in zip(self._layout.buffers.tensors, saved, strict=False):
            tensor.copy_(values)


def _run(update: Callable[[], None], working: Future[None]) -> None:
    """Update, and set the result or the error of ``working``."""
    try:
        update()
    except BaseException as error:  # raised again where it is waited for
        working.set_exception(error)
    else:
        working.set_result(None)


class _Aside(NamedTuple):
    """An update that runs aside, as what one waits for."""

    wait: Callable[[], None]
