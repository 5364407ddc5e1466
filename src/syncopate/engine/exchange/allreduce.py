"""Allreduce: every rank gets every average and updates all weights; nothing is pulled.

What the ranks say besides rides along behind the last bucket, where the sum arrives on all of them,
so that it costs no message of its own.

With a ``weight_sync_period`` rank 0's weights are broadcast every so many steps (LP, Algorithm 3);
where several optimizers train a model, each one's own after its own steps.
The all-reduces here are bit-identical on all ranks, so that this changes nothing as long as every
rank's optimizer computes alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from syncopate.engine.buckets import BucketBuffers, build_buckets, dtype_name
from syncopate.engine.checks.agreement import explained
from syncopate.engine.exchange.base import Exchange, Missing, arrived
from syncopate.engine.model.state import broadcast_tensors
from syncopate.engine.tail import Said, Tail
from syncopate.errors import CollectiveError
from syncopate.plan import Plan
from syncopate.recipe import wire_dtype_of


class AllReduce(Exchange):
    """The ``allreduce`` exchange; arguments as :class:`Exchange`'s."""

    ends_with_backward = True

    def _allocate(self, plan: Plan) -> tuple[tuple[BucketBuffers, ...], Tail]:
        self._period = plan.weight_sync_period
        self._steps: Counter[torch.optim.Optimizer] = Counter()
        by_name = {trainable.name: trainable for trainable in self._trainables}
        carrier = [by_name[name].parameter for name in plan.buckets[-1].tensors]
        # The tail rides with the last dtype of the last bucket.
        dtype = list(dict.fromkeys(map(dtype_name, carrier)))[-1]
        tail = Tail(
            len(self._trainables),
            self.communicator.rank,
            self.communicator.world_size,
            self._module_buffers,
            getattr(torch, wire_dtype_of(dtype, plan.wire_dtype)),
        )
        buckets = build_buckets(plan, self._trainables, tail.elements)
        tail.attach(buckets[-1].parts[-1].tail)
        return buckets, tail

    @property
    def meets_in_forward(self) -> bool:
        """Whether the model has buffers to exchange."""
        return self._module_buffers.exchanged

    def refresh_buffers(self) -> None:
        """Exchange buffers with all ranks, which begin a forward too."""
        try:
            self._module_buffers.refresh(self.communicator)
        except CollectiveError as error:
            raise explained(error) from error

    def adapt(self, entered: int | None = None) -> None:
        """Take leave of gradients that the script keeps."""
        self._let_go()

    def wait(self) -> Said:
        """Wait for every bucket, in launch order, averaging each while later ones travel."""
        for part, message, handle, *_ in self.pushes:
            arrived(handle)
            if not part.averaged_before:
                message.gradients.mul_(self._scale)
        self._tail.deliver()
        return self._tail.said()

    def missing(self, indices: Sequence[int]) -> Missing:
        """Return them with their gradients, which the sums will overwrite."""
        grads = [self._trainables[index].parameter.grad for index in indices]
        kept = [None if grad is None else grad.clone() for grad in grads]
        return list(zip(indices, kept, strict=True))

    def restore(self, missing: Missing) -> None:
        """Leave a gradient untouched that no rank reached; hand out the others."""
        reached = self._tail.reached()
        for index, before in missing:
            parameter, view = self._trainables[index].parameter, self.grads[index]
            if reached[index]:
                parameter.grad = view
            elif before is not None:
                view.copy_(before)

    def step_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """Broadcast rank 0's weights, where the plan says so and it is their turn.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        self._steps[optimizer] += 1
        if self._period and self._steps[optimizer] % self._period == 0:
            trained = {id(held) for group in optimizer.param_groups for held in group["params"]}
            weights = [
                trainable.parameter.data
                for trainable in self._trainables
                if id(trainable.parameter) in trained
            ]
            try:
                broadcast_tensors(self.communicator, weights, 0)
            except CollectiveError as error:
                raise explained(error) from error
