"""Averaged: every rank steps by itself, and weights are averaged every so many steps: local SGD.

During the warm-up this is the allreduce exchange, and its numbers are DDP's. From then on no
gradient is exchanged: ``parameter.grad`` is this rank's own. Each ``period``-th step ends with the
average of all ranks' weights: bucket by bucket, by the recipes and on the channels of the plan, in
the memory where gradients travelled before, and in the weights' own type (Lin et al. 2020).

[Note: whose state] Optimizers keep state of their own on every rank, such as momenta, and averages
do not touch it. What is saved, and what all ranks go on with under another plan, is rank 0's.

[Note: steps are the slowest optimizer's] Steps are counted in the groups of the optimizers, as with
a delay. Of several that train one model the one that took the fewest counts, so that an average is
taken when all of them have come by.

[Note: buffers of one's own] From one average to the next every rank goes on with its own buffers,
such as the statistics of batch normalisation. With the average it gets rank 0's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from syncopate.engine.buckets import BucketBuffers, FlatBuffer, Message
from syncopate.engine.checkpoint import copied
from syncopate.engine.checks.agreement import explaining
from syncopate.engine.exchange import groups, parts
from syncopate.engine.exchange.delay.iterations import expect_iterations, iterations_of
from syncopate.engine.exchange.layout import Launched, Layout, arrived
from syncopate.engine.exchange.model_buffers import InForward
from syncopate.engine.exchange.notes import unsaid
from syncopate.engine.exchange.parts import Missing, Stepped
from syncopate.engine.exchange.proxies.whole_gradients import WholeGradients
from syncopate.engine.exchange.push.gathering import Gathering
from syncopate.engine.exchange.push.reduced import Reduced
from syncopate.engine.model.hooks import on_loading
from syncopate.engine.trailer import Note, Said
from syncopate.errors import EngineError


class Averages:
    """When ranks step by themselves, and what makes their weights the average.

    Attributes:
        apart: whether the ranks' weights or buffers differ.
    """

    def __init__(self, layout: Layout) -> None:
        assert layout.plan.local_sgd is not None
        self._layout, self._method = layout, layout.plan.local_sgd
        expect_iterations(layout.optimizers)
        self.apart = False

    @property
    def local(self) -> bool:
        """Whether each rank trains by itself in the iteration that runs."""
        return self._method.is_local(min(map(iterations_of, self._layout.optimizers)))

    def is_due(self, optimizer: Optimizer) -> bool:
        """Say whether the step of ``optimizer``, which is counted, ends with an average."""
        optimizers = self._layout.optimizers
        counts = [iterations_of(one) for one in optimizers]
        before = [n - (one is optimizer) for n, one in zip(counts, optimizers, strict=True)]
        if self._method.is_local(min(before)):
            self.apart = True
        # [Note: steps are the slowest optimizer's]
        return min(counts) > min(before) and self._method.averages_after(min(counts))

    @torch.no_grad()
    def average(self) -> list[Launched]:
        """Make weights the average of all ranks', and buffers rank 0's; return what was launched.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        notes, buffers = self._layout.notes, self._layout.buffers
        self._free_gradients()
        notes.write(Note())
        with explaining():
            launched = [(part, self._sum(part)) for part in self._layout.parts]
            for part, messages in launched:
                for one in messages:
                    arrived(one.handle)
                    if not _averaged_before(one.message):
                        one.message.gradients.mul_(self._layout.scale)
                self._give(part)
            notes.deliver()
            if notes.hear().appeared:
                buffers.wake()
            buffers.refresh(self._layout.communicator)
        self.apart = False
        return [one for _, messages in launched for one in messages]

    def _free_gradients(self) -> None:
        """Move gradients that still lie in a bucket out of it: weights are summed up there."""
        for trainable, place in zip(self._layout.trainables, self._layout.grads, strict=True):
            if trainable.parameter.grad is place:
                trainable.parameter.grad = place.clone()

    def _sum(self, part: FlatBuffer) -> list[Launched]:
        """Launch the sum of the weights whose gradients ``part`` held."""
        torch._foreach_copy_(part.views, [each.parameter.data for each in part.trainables])
        launched = []
        for message in part.messages:
            scaled = partial(message.gradients.mul_, self._layout.scale)
            handle = self._layout.communicator.run(
                message.push,
                message.wire,
                bounds=message.bounds,
                before=scaled if _averaged_before(message) else None,
                async_op=True,
            )
            # What carries weights is a pull, in the record of a step.
            launched.append(Launched(part, replace(message, pull=message.push), handle))
        return launched

    def _trained(self, part: FlatBuffer) -> list[tuple[Tensor, Tensor]]:
        """Return the parameters of ``part`` that some optimizer updates, each with its place."""
        trained = groups.trained_ids(*self._layout.optimizers)
        pairs = zip((each.parameter for each in part.trainables), part.views, strict=True)
        return [(parameter, place) for parameter, place in pairs if id(parameter) in trained]

    def _give(self, part: FlatBuffer) -> None:
        """Copy the averages to the parameters that optimizers update; leave all others alone."""
        if pairs := self._trained(part):
            parameters, places = map(list, zip(*pairs, strict=True))
            torch._foreach_copy_(parameters, places)

    def written(self) -> bool:
        """Say whether the script wrote to the weights since they became the average."""
        pairs = [pair for part in self._layout.parts for pair in self._trained(part)]
        return not all(torch.equal(parameter, place) for parameter, place in pairs)


class WarmUpPush(parts.Push):
    """All-reduces gradients in the warm-up, and nothing afterwards."""

    def __init__(self, layout: Layout) -> None:
        self._averages, self._reduced = layout.shared(Averages), Reduced(layout)
        self._ranks = layout.communicator.world_size
        layout.lend(layout.shared(Gathering), "wanted", lambda: not self._averages.local)

    def push(self, bucket: BucketBuffers, note: Note | None = None, *, empty: bool = False) -> None:
        """Launch the all-reduce of ``bucket`` in the warm-up, and nothing afterwards."""
        if not self._averages.local:
            self._reduced.push(bucket, note, empty=empty)

    def wait(self) -> Said:
        """Wait for every bucket, if any was launched."""
        return unsaid(self._ranks) if self._averages.local else self._reduced.wait()


class OwnGradients(WholeGradients):
    """Every rank has every average in the warm-up, and its own gradient afterwards."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._averages = layout.shared(Averages)

    def missing(self, indices: Sequence[int]) -> Missing:
        """Return the parameters with their gradients in the warm-up, and none afterwards."""
        return () if self._averages.local else super().missing(indices)


class OwnSteps(parts.Update):
    """Every rank updates all weights by itself, and some of its steps end with an average."""

    def __init__(self, layout: Layout) -> None:
        self._averages = layout.shared(Averages)
        self._due: Optimizer | None = None

    def begin(self, optimizer: Optimizer) -> None:
        """Note whether this step ends with an average."""
        self._due = optimizer if self._averages.is_due(optimizer) else None

    def end(self, optimizer: Optimizer) -> Stepped | None:
        """Return the step if an average is due."""
        return self.interrupted()

    def interrupted(self, optimizer: Optimizer | None = None) -> Stepped | None:
        """Return the step if an average is due; one that raised counts with the weights it left."""
        due, self._due = self._due, None
        return None if due is None else Stepped(due)


class AveragedWeights(parts.Pull):
    """Steps that are due end with the average of all ranks' weights."""

    in_step = True

    def __init__(self, layout: Layout) -> None:
        self._averages, self._traffic = layout.shared(Averages), layout.traffic
        self._launched: list[Launched] = []

    def launch(self, stepped: Stepped) -> None:
        """Average the weights, and wait for it."""
        self._launched += self._averages.average()

    def forget(self) -> None:
        """Record the averages of the step that is over as pulls of this iteration."""
        self._traffic.pulls, self._launched = self._launched, []


class OwnBuffers(InForward):
    """See [Note: buffers of one's own]."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._averages = layout.shared(Averages)

    @property
    def meets_in_forward(self) -> bool:
        """Whether the model has buffers to exchange, and the warm-up goes on."""
        return super().meets_in_forward and not self._averages.local

    def forward_begins(self) -> None:
        """Exchange buffers with all ranks in the warm-up."""
        if self._averages.local:
            self._averages.apart = True
        else:
            super().forward_begins()

    def _puts(self) -> bool:
        """Put what came in place at once: a rank's own steps may follow."""
        return True


class OwnWeights(parts.Local):
    """Each rank has weights of its own, and their average is that of all ranks."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._averages = layout, layout.shared(Averages)
        layout.ending.callback(on_loading(layout.buffers.model, self.loaded).remove)

    def loaded(self) -> None:
        """Note that the script loaded weights, the same on every rank."""
        self._averages.apart = False

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """Let parameters hold the average of all ranks' weights in the block, and rank 0's buffers.

        All ranks enter and leave it. What is written to weights inside, the same on every rank,
        stays.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        if not self._averages.apart:
            yield
            return
        own = [each.parameter.detach().clone() for each in self._layout.trainables]
        buffers = self._layout.buffers.copies()
        self._averages.average()
        written = False
        try:
            yield
            flag = own[0].new_tensor([self._averages.written()], dtype=torch.float32)
            self._layout.communicator.all_reduce(flag)
            written = bool(flag)
        finally:
            if not written:
                self._put(own)
                self._layout.buffers.put_back(buffers)
                self._averages.apart = True

    @torch.no_grad()
    def _put(self, weights: Sequence[Tensor]) -> None:
        for trainable, values in zip(self._layout.trainables, weights, strict=True):
            trainable.parameter.copy_(values)

    def alike(self, states: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return rank 0's, where each rank has its own; see [Note: whose state]."""
        if not self._averages.local:
            return states
        found: list[dict[str, Any]] = self._layout.communicator.broadcast_object(states)
        return found

    def leave(self) -> None:
        """Give every rank the average of the weights, and rank 0's buffers and state."""
        if self._averages.apart:
            self._averages.average()
        if self._averages.local:
            optimizers = self._layout.optimizers
            held = [copied(optimizer.state_dict()) for optimizer in optimizers]
            for optimizer, state in zip(optimizers, self.alike(held), strict=True):
                optimizer.load_state_dict(state)

    # -- to go on where another process left ----------------------------------------------------

    def local_state(self) -> dict[str, Any]:
        """Return this rank's own weights, buffers and optimizer state; empty in the warm-up.

        Copies in the CPU's memory.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        if not self._averages.local:
            return {}
        weights = {each.name: each.parameter.detach() for each in self._layout.trainables}
        found: dict[str, Any] = {
            "rank": self._layout.communicator.rank,
            "world_size": self._layout.communicator.world_size,
            "parts": [{"weights": weights}],
            "buffers": self._layout.buffers.tensors,
            "optimizers": [optimizer.state_dict() for optimizer in self._layout.optimizers],
            "apart": self._averages.apart,
        }
        return {key: copied(value) for key, value in found.items()}

    def load_local_state(self, state: Mapping[str, Any]) -> None:
        """Load the result of :meth:`local_state`, after model and optimizer were loaded.

        Raises:
            EngineError: it is another rank's, or of another rank count, model or delay.
        """
        if not state.get("parts"):
            return
        names = [each.name for each in self._layout.trainables]
        here = (
            self._layout.communicator.rank,
            self._layout.communicator.world_size,
            len(self._layout.optimizers),
        )
        told = (state.get("rank"), state.get("world_size"), len(state.get("optimizers", ())))
        weights = state["parts"][0]["weights"]
        if here != told or set(weights) != set(names):
            raise EngineError(
                f"this local state is of (rank, world size, optimizers) {told} and {len(weights)} "
                f"parameters; here are {here} and {len(names)}. Give each rank its own, saved with "
                "local SGD; or go on without: each rank then goes on from the average"
            )
        self._put([weights[name] for name in names])
        for tensor, values in zip(self._layout.buffers.tensors, state["buffers"], strict=False):
            tensor.copy_(values)
        for optimizer, held in zip(self._layout.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(held)
        self._averages.apart = bool(state["apart"])


def _averaged_before(message: Message) -> bool:
    """Whether a sum of the weights could overflow."""
    return message.wire.dtype == torch.float16
