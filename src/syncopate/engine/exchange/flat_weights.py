"""Flat weights: parameters as views of flat memory, laid out as that of their gradients.

So what a collective brings arrives where the model computes. Only looks wait for it: a
parameter whose weights are on their way says so by its class (``proxies/weights.py``).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from syncopate.engine.buckets import FlatBuffer, view_like
from syncopate.engine.exchange.layout import Layout, Work, arrived
from syncopate.engine.exchange.proxies import weights
from syncopate.engine.torch_compat import without_overrides


class FlatWeights:
    """The weights of an exchange in flat memory, and the collectives that bring them.

    Methods that wait for these raise CollectiveError where a rank is lost or late.

    Attributes:
        arriving: held while what brings weights is launched or waited for.
        compiled: whether every step waits for all weights; see ``weights``, [Note: compiled code].
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.arriving = threading.RLock()
        self.compiled = weights.read_below_torch(layout.buffers.model)
        self._parts = {id(part): part for part in layout.parts}
        self._flat: dict[int, Tensor] = {}
        self._views: list[Tensor] = [torch.empty(0)] * len(layout.trainables)
        self._pending: dict[int, list[Work]] = {}
        for part in layout.parts:
            flat = self._flat[id(part)] = torch.empty_like(part.gradients)
            for trainable, offset in part.offsets():
                view = view_like(trainable.parameter, flat, offset)
                view.copy_(trainable.parameter.data)
                trainable.parameter.data = self._views[trainable.index] = view
        weights.tell_of_compilers(self)

    def of(self, part: FlatBuffer) -> Tensor:
        """Return the weights whose gradients are in ``part``, flat."""
        return self._flat[id(part)]

    def view(self, index: int) -> Tensor:
        """Return the place of a parameter."""
        return self._views[index]

    def has_moved(self, index: int) -> bool:
        """Say whether a parameter was given other memory (``parameter.data = ...``)."""
        parameter = self._layout.trainables[index].parameter
        with without_overrides():  # its values may be on their way
            return parameter.data_ptr() != self._views[index].data_ptr()

    def take_in(self, keys: Collection[int]) -> None:
        """Wait for weights, and copy parameters with other memory back into ours.

        What is still on its way out must not change. Of other memory torch does not tell, and a
        step would update memory that the model no longer uses.

        Args:
            keys: identities of the flat buffers to look into.
        """
        for key in keys:
            self.arrive(key)
        for trainable in self._layout.trainables:
            part, _ = self._layout.places[trainable.index]
            if id(part) in keys and self.has_moved(trainable.index):
                view, parameter = self._views[trainable.index], trainable.parameter
                view.copy_(parameter.data)
                parameter.data = view

    # -- what is on its way ---------------------------------------------------------------------

    def expect(self, part: FlatBuffer, work: Work) -> None:
        """Let reads of the weights of a flat buffer wait for the collective that brings them."""
        with self.arriving:
            pending = self._pending.setdefault(id(part), [])
            pending.append(work)
            if len(pending) == 1:
                weights.expect(weights.renew(part.parameters), _Waiter(self, id(part)))

    def expected(self, part: FlatBuffer) -> bool:
        """Say whether weights of a flat buffer are on their way."""
        return id(part) in self._pending

    def arrive(self, key: int) -> None:
        """Wait for the weights of the flat buffer of the identity ``key``, in any thread."""
        with self.arriving:
            if pending := self._pending.get(key):
                self._await(pending, self._parts[key])
                if self._pending.get(key) is pending:  # else a signal handler has looked meanwhile
                    weights.release(self._parts[key].parameters)
                    del self._pending[key]

    def _await(self, works: Sequence[Work], part: FlatBuffer) -> None:
        """Wait for the collective of a flat buffer's weights, and record the wait."""
        began_s = time.perf_counter()
        for work in works:
            arrived(work)
        if part.gradients.is_cpu:  # on a device the stream waits, and not the host
            bucket = part.messages[0].bucket
            self._layout.traffic.waits.append((bucket, began_s, time.perf_counter()))

    def compilation_begins(self) -> None:
        """Let every step wait for all weights from now on, where some are on their way."""
        self.compiled = self.compiled or bool(self._pending)

    def ready(self) -> None:
        """Wait until every weight has come."""
        for key in list(self._pending):
            self.arrive(key)

    def renewed(self) -> None:
        """Let older autograd graphs notice that all parameters changed."""
        weights.renew([trainable.parameter for trainable in self._layout.trainables])

    def give_back(self) -> None:
        """Give every parameter memory of its own."""
        for trainable in self._layout.trainables:
            parameter = trainable.parameter
            parameter.data = parameter.data.clone(memory_format=torch.preserve_format)


class _Waiter:
    """Waits for the weights of a flat buffer, as long as the model or an optimizer lives."""

    def __init__(self, flat: FlatWeights, key: int) -> None:
        self._flat = weakref.ref(flat)
        self._key = key

    def wait(self) -> None:
        """Wait for them."""
        if (found := self._flat()) is not None:
            found.arrive(self._key)
