"""Deferral: which updates a step of the decoupled exchange leaves to flights.

[Note: first steps]
The first step of an optimizer on a parameter, and the first with other flags (``foreach``,
``maximize``), waits for all flights and is the optimizer's own. So what torch refuses it refuses in
the step, and entries of the state come in the order in which it makes them.

[Note: memory that others hold]
A look at a parameter is seen, and one at ``optimizer.state``; a look at their memory is not. So a
step does not wait to be taken where something else holds the memory of a parameter or of its state:
a ``state_dict`` that the script keeps, a view, an array of numpy (``seen/aliases.py``). What a
script takes behind the step has waited for it.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from syncopate.engine.buckets import Trainable
from syncopate.engine.exchange.deferred_steps import DeferredStep, WatchedState, raw_state
from syncopate.engine.exchange.flights import Flight, Waiter
from syncopate.engine.exchange.optimizers import kind_of
from syncopate.engine.exchange.seen import aliases, weights
from syncopate.errors import EngineError


class Carrier(Protocol):
    """The exchange that brings averages.

    Attributes:
        flights: those under way, by name.
        grads: per parameter what its gradient is.
        lock: held while a flight lands.
    """

    flights: dict[int, Flight]
    grads: list[Tensor]
    lock: Any

    def key_of(self, index: int) -> int:
        """Return the name of the flight that brings a gradient."""

    def memory_of(self, index: int) -> Tensor:
        """Return the place of an average, to look at which waits for nobody."""

    def arrive(self, key: int) -> None:
        """Wait for a flight and do what is to be done then, unless it has arrived."""

    def ready(self) -> None:
        """Wait for all flights."""


class Deferral:
    """Leaves steps of optimizers for later.

    Args:
        carrier: brings the averages.
        optimizers: whose steps.
        trainables: what they train, and the carrier brings the gradients of.
    """

    def __init__(
        self, carrier: Carrier, optimizers: Sequence[Optimizer], trainables: Sequence[Trainable]
    ) -> None:
        self._carrier = carrier
        self._optimizers = tuple(optimizers)
        self._trainables = trainables
        self._index = {id(trainable.parameter): trainable.index for trainable in trainables}
        self._stepper: Optimizer | None = None
        self._stepping = 0
        self._stepped: dict[int, set[Any]] = defaultdict(set)
        self._kinds: set[Any] = set()
        self._deferred: dict[int, list[int]] = {}
        self._compiled = False
        self._stand_ins: dict[int, nn.Parameter] = {}
        storages: dict[int, list[int]] = defaultdict(list)
        for trainable in trainables:
            storages[trainable.parameter.untyped_storage()._cdata].append(trainable.index)
        self._together = {key: tuple(of) for key, of in storages.items() if len(of) > 1}
        self._defers = {id(each): _updates_each_by_itself(each) for each in optimizers}
        self._watch()
        weights.tell_of_compilers(self)

    def _watch(self) -> None:
        """Let looks at the state of optimizers wait for their deferred steps."""
        self._hooks: list[RemovableHandle] = []
        for optimizer in self._optimizers:
            if self._defers[id(optimizer)]:
                WatchedState.install(optimizer, self._state_is_read)
                self._hooks += [
                    optimizer.register_load_state_dict_pre_hook(lambda *_: self._carrier.ready()),
                    optimizer.register_load_state_dict_post_hook(
                        lambda loaded: WatchedState.install(loaded, self._state_is_read)
                    ),
                ]

    def compilation_begins(self) -> None:
        """Let compilers find plain parameters and state; see ``weights``, [Note: compiled code]."""
        if self._carrier.flights or self._stepper is not None:
            self._compiled = True
            self.give_back()  # what is compiled may be the step
            self._carrier.ready()
        for optimizer in self._optimizers:
            WatchedState.remove(optimizer)

    def _state_is_read(self) -> None:
        """Wait for everything; not for what a step does to the parameters that it updates now."""
        if self._stepper is None or self._stepping != threading.get_ident():
            self._carrier.ready()

    def begin(self, optimizer: Optimizer) -> None:
        """Take their gradients from parameters whose step is left for later: it passes them by."""
        self.give_back()
        if self._compiled or not self._defers.get(id(optimizer)):
            self._carrier.ready()
            return
        deferred: dict[int, list[int]] = defaultdict(list)
        kinds: set[Any] = set()
        state = raw_state(optimizer)
        for group in optimizer.param_groups:
            flags = (value for value in group.values() if value is None or isinstance(value, bool))
            kinds.add(tuple(flags))
            for parameter in group["params"]:
                index = self._index.get(id(parameter))
                if index is None or parameter.grad is not self._carrier.grads[index]:
                    continue
                kinds.add(index)
                if (key := self._carrier.key_of(index)) not in self._carrier.flights:
                    continue
                if self._is_held(parameter, index) or aliases.is_held(state, parameter):
                    self._carrier.arrive(key)
                else:
                    deferred[key].append(index)
        self._kinds = kinds
        if not kinds <= self._stepped[id(optimizer)]:  # [Note: first steps]
            self._carrier.ready()
            return
        for index in chain(*deferred.values()):
            self._trainables[index].parameter.grad = None
        self._deferred = deferred
        self._stepper, self._stepping = optimizer, threading.get_ident()

    def _is_held(self, parameter: Tensor, index: int) -> bool:
        """Say whether something that nobody sees read is on the memory of a parameter."""
        with torch._C.DisableTorchFunctionSubclass():
            storage = parameter.untyped_storage()
            ours = self._together.get(storage._cdata, (index,))
            known = [self._stand_ins[each] for each in ours if each in self._stand_ins]
            there = sum(one.untyped_storage()._cdata == storage._cdata for one in known)
            return aliases.holders(storage) > len(ours) + int(there) + 1

    def end(self, optimizer: Optimizer) -> None:
        """Let flights update what the step left to them."""
        self._stepped[id(optimizer)] |= self._kinds
        if self._stepper is not optimizer:
            return
        deferred = self._deferred
        self.give_back()
        if not deferred:
            return
        if not isinstance(vars(optimizer)["state"], WatchedState):  # the script put another there
            WatchedState.install(optimizer, self._state_is_read)
        noted = dict(vars(optimizer))
        with self._carrier.lock:
            for key, indices in deferred.items():
                flight = self._carrier.flights.get(key)
                averages = {index: self._carrier.memory_of(index) for index in indices}
                step = DeferredStep(optimizer, noted, self._stand_in, set(indices), averages)
                if flight is None:  # it arrived meanwhile, by a look of another thread
                    step()
                    continue
                flight.actions.append(step)
                flight.steps = True
                parameters = [self._trainables[index].parameter for index in indices]
                torch.autograd.graph.increment_version(parameters)
                weights.expect(parameters, Waiter(self._carrier, key))
                flight.awaited += parameters

    def _stand_in(self, parameter: Tensor) -> tuple[int, nn.Parameter] | None:
        """Return the place of a parameter, and one on the same memory; None where it is not ours.

        It waits for nobody, and has a gradient of its own.
        """
        index = self._index.get(id(parameter))
        if index is None:
            return None
        known = self._stand_ins.get(index)
        with torch._C.DisableTorchFunctionSubclass():
            if known is None or known.data_ptr() != parameter.data_ptr():
                known = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
                self._stand_ins[index] = known
        return index, known

    def give_back(self) -> None:
        """Let parameters that a step was to pass by have their gradients again."""
        for index in chain(*self._deferred.values()):
            parameter = self._trainables[index].parameter
            if parameter.grad is None:
                parameter.grad = self._carrier.grads[index]
        self.forget()

    def forget(self) -> None:
        """Forget a step that raised: a script that goes on has zeroed its gradients."""
        self._stepper, self._deferred = None, {}

    def leave(self) -> None:
        """Give optimizers plain state."""
        for hook in self._hooks:
            hook.remove()
        for optimizer in self._optimizers:
            WatchedState.remove(optimizer)


def _updates_each_by_itself(optimizer: Optimizer) -> bool:
    """Say whether it is known that ``optimizer`` updates each parameter by itself."""
    try:
        kind_of(optimizer)
    except EngineError:
        return False
    return True
