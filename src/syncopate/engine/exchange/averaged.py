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

from syncopate.engine.buckets import BucketBuffers, FlatBuffer, Message
from syncopate.engine.checkpoint import copied
from syncopate.engine.checks.agreement import explained
from syncopate.engine.exchange.allreduce import AllReduce
from syncopate.engine.exchange.base import Launched, Missing, Note, arrived
from syncopate.engine.exchange.delay.late import expect_iterations, iterations_of
from syncopate.engine.exchange.delay.loading import Watch
from syncopate.engine.tail import Said, Tail
from syncopate.errors import CollectiveError, EngineError
from syncopate.plan import Plan


class Averaged(AllReduce):
    """The ``allreduce`` exchange of a plan with local SGD; arguments as :class:`Exchange`'s."""

    averages_in_step = True

    def _prepare(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        super()._prepare(optimizers)
        self._optimizers = tuple(optimizers)
        expect_iterations(optimizers)
        self._averages: list[Launched] = []
        # Whether the ranks' weights or buffers differ, and whether an average is due.
        self._apart, self._due = False, False

    def _allocate(self, plan: Plan) -> tuple[tuple[BucketBuffers, ...], Tail]:
        assert plan.local_sgd is not None
        self._method = plan.local_sgd
        return super()._allocate(plan)

    def _take_over(self) -> None:
        super()._take_over()
        self._watch = Watch(self._module_buffers.model, self)

    def loaded(self) -> None:
        """Note that somebody loaded weights, the same on every rank."""
        self._apart = False

    @property
    def _local(self) -> bool:
        """Whether each rank trains by itself in the iteration that runs."""
        return self._method.is_local(min(map(iterations_of, self._optimizers)))

    # -- forward and backward -------------------------------------------------------------------

    @property
    def meets_in_forward(self) -> bool:
        """Whether the model has buffers to exchange, and the warm-up goes on."""
        return super().meets_in_forward and not self._local

    def refresh_buffers(self) -> None:
        """See [Note: buffers of one's own]."""
        self._make_up_for_step()
        if self._local:
            self._apart = True
        else:
            super().refresh_buffers()

    def forget(self) -> None:
        """Forget what was launched before, but show the averages of the step that is over."""
        super().forget()
        self.pulls, self._averages = self._averages, []

    def gather(self, bucket: BucketBuffers) -> None:
        """Bring the gradients of ``bucket`` into their places, where they are exchanged."""
        if not self._local:
            super().gather(bucket)

    def push(self, bucket: BucketBuffers, note: Note | None = None, *, empty: bool = False) -> None:
        """Launch the all-reduce of ``bucket`` in the warm-up, and nothing afterwards."""
        if not self._local:
            super().push(bucket, note, empty=empty)

    def wait(self) -> Said:
        """Wait for every bucket, if any was launched."""
        if self._local:
            return Said([], [0] * self.communicator.world_size, False)
        return super().wait()

    def missing(self, indices: Sequence[int]) -> Missing:
        """Return them in the warm-up; a gradient of this rank's own stays as it is."""
        return () if self._local else super().missing(indices)

    # -- the optimizer's step -------------------------------------------------------------------

    def step_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """Note whether this step ends with an average."""
        self._make_up_for_step()
        counts = [iterations_of(one) for one in self._optimizers]
        before = [n - (one is optimizer) for n, one in zip(counts, self._optimizers, strict=True)]
        if self._method.is_local(min(before)):
            self._apart = True
        # [Note: steps are the slowest optimizer's]
        self._due = min(counts) > min(before) and self._method.averages_after(min(counts))

    def step_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """Average the weights, where it is their turn.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        self._make_up_for_step()

    def _make_up_for_step(self) -> None:
        """Take the average that is due; after a step that raised here, with the weights it left."""
        if self._due:
            self._due = False
            self._averages += self._average()

    # -- averages -------------------------------------------------------------------------------

    @torch.no_grad()
    def _average(self) -> list[Launched]:
        """Make weights the average of all ranks', and buffers rank 0's; return what was launched.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        self._free_gradients()
        self._tail.fill()
        parts = [part for bucket in self.buckets for part in bucket.parts]
        try:
            launched = [(part, self._sum(part)) for part in parts]
            for part, messages in launched:
                for one in messages:
                    arrived(one.handle)
                    if not _averaged_before(one.message):
                        one.message.gradients.mul_(self._scale)
                self._give(part)
            self._tail.deliver()
            if self._tail.said().appeared:
                self._module_buffers.wake()
            self._module_buffers.refresh(self.communicator)
        except CollectiveError as error:
            raise explained(error) from error
        self._apart = False
        return [one for _, messages in launched for one in messages]

    def _free_gradients(self) -> None:
        """Let gradients that are still where the warm-up left them have memory of their own."""
        for trainable, place in zip(self._trainables, self.grads, strict=True):
            if trainable.parameter.grad is place:
                trainable.parameter.grad = place.clone()

    def _sum(self, part: FlatBuffer) -> list[Launched]:
        """Launch the sum of the weights whose gradients ``part`` held."""
        torch._foreach_copy_(part.views, [each.parameter.data for each in part.trainables])
        launched = []
        for message in part.messages:
            scaled = partial(message.gradients.mul_, self._scale)
            handle = self.communicator.run(
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
        trained = {
            id(parameter)
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        pairs = zip((each.parameter for each in part.trainables), part.views, strict=True)
        return [(parameter, place) for parameter, place in pairs if id(parameter) in trained]

    def _give(self, part: FlatBuffer) -> None:
        """Copy averages to the parameters; what nobody updates stays as it is, to the last bit."""
        if pairs := self._trained(part):
            parameters, places = map(list, zip(*pairs, strict=True))
            torch._foreach_copy_(parameters, places)

    # -- weights of each rank's own -------------------------------------------------------------

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """Let parameters hold the average of all ranks' weights in the block, and rank 0's buffers.

        All ranks enter and leave it. What is written to weights inside, the same on every rank,
        stays.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        self._make_up_for_step()
        if not self._apart:
            yield
            return
        own = [each.parameter.detach().clone() for each in self._trainables]
        buffers = [tensor.clone() for tensor in self._module_buffers.tensors]
        self._average()
        written = False
        try:
            yield
            flag = own[0].new_tensor([self._written()], dtype=torch.float32)
            self.communicator.all_reduce(flag)
            written = bool(flag)
        finally:
            if not written:
                self._put(own, buffers)
                self._apart = True

    def _written(self) -> bool:
        pairs = [
            pair for bucket in self.buckets for part in bucket.parts for pair in self._trained(part)
        ]
        return not all(torch.equal(parameter, place) for parameter, place in pairs)

    @torch.no_grad()
    def _put(self, weights: Sequence[Tensor], buffers: Sequence[Tensor]) -> None:
        """Give parameters and buffers these values."""
        for trainable, values in zip(self._trainables, weights, strict=True):
            trainable.parameter.copy_(values)
        for tensor, values in zip(self._module_buffers.tensors, buffers, strict=False):
            tensor.copy_(values)

    def alike(self, states: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return rank 0's, where each rank has its own; see [Note: whose state]."""
        if not self._local:
            return states
        found: list[dict[str, Any]] = self.communicator.broadcast_object(states)
        return found

    def leave(self) -> None:
        """Give every rank the average of the weights, and rank 0's buffers and state."""
        self._watch.remove()
        self._make_up_for_step()
        if self._apart:
            self._average()
        if self._local:
            held = [copied(optimizer.state_dict()) for optimizer in self._optimizers]
            for optimizer, state in zip(self._optimizers, self.alike(held), strict=True):
                optimizer.load_state_dict(state)
        super().leave()

    # -- to go on where another process left ----------------------------------------------------

    def local_state(self) -> dict[str, Any]:
        """Return this rank's own weights, buffers and optimizer state; empty in the warm-up.

        Copies in the CPU's memory.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        self._make_up_for_step()
        if not self._local:
            return {}
        weights = {each.name: each.parameter.detach() for each in self._trainables}
        found: dict[str, Any] = {
            "rank": self.communicator.rank,
            "world_size": self.communicator.world_size,
            "parts": [{"weights": weights}],
            "buffers": self._module_buffers.tensors,
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "apart": self._apart,
        }
        return {key: copied(value) for key, value in found.items()}

    def load_local_state(self, state: Mapping[str, Any]) -> None:
        """Go on with what :meth:`local_state` returned, after model and optimizer were loaded.

        Raises:
            EngineError: it is another rank's, or of another rank count, model or delay.
        """
        if not state.get("parts"):
            return
        names = [each.name for each in self._trainables]
        here = (self.communicator.rank, self.communicator.world_size, len(self._optimizers))
        told = (state.get("rank"), state.get("world_size"), len(state.get("optimizers", ())))
        weights = state["parts"][0]["weights"]
        if here != told or set(weights) != set(names):
            raise EngineError(
                f"this local state is of (rank, world size, optimizers) {told} and {len(weights)} "
                f"parameters; here are {here} and {len(names)}. Give each rank its own, saved with "
                "local SGD; or go on without: each rank then goes on from the average"
            )
        self._put([weights[name] for name in names], state["buffers"])
        for optimizer, held in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(held)
        self._apart = bool(state["apart"])


def _averaged_before(message: Message) -> bool:
    """Whether a sum of the weights could overflow."""
    return message.wire.dtype == torch.float16
