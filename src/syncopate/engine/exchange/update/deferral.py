"""Deferral: a step defers updates until their gradients have arrived.

[Note: deferred steps]
An optimizer's step notes its hyper-parameters, and the flights that bring its gradients. When a
flight arrives, its parameters are updated: before the first layer that needs one of them, in the
thread of forward. A copy of the optimizer does it (``optimizers.py``, [Note: a copy of the
optimizer]), whose parameters are others on the same memory, each with its average as gradient. The
step itself updates parameters whose gradients have already arrived. An optimizer that is not known
to update each parameter by itself takes its whole step at once, when all flights have arrived.

[Note: first steps]
The first step of an optimizer on a parameter, and the first with other flags (``foreach``,
``maximize``, a momentum that is not zero any more), waits for all flights and is the optimizer's
own. So what torch refuses it refuses in the step, and entries of the state come in the order in
which it makes them.

[Note: memory that others hold]
Reads of a parameter and of ``optimizer.state`` are noticed; reads of their memory are not. So a
step is not deferred where something else holds the memory of a parameter or of its state: a
``state_dict`` that the script keeps, a view, a numpy array (``proxies/state.py``). Memory that a
script takes after the step has waited for it.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from syncopate.engine import console
from syncopate.engine.exchange.groups import parameters_of
from syncopate.engine.exchange.layout import Layout
from syncopate.engine.exchange.optimizers import copy_for, kind_of, step_with
from syncopate.engine.exchange.parts import Stepped, Update
from syncopate.engine.exchange.proxies import state as proxies
from syncopate.engine.exchange.proxies import weights
from syncopate.engine.exchange.pull.flights import Flights, Waiter
from syncopate.engine.torch_compat import storage_holders, without_overrides
from syncopate.errors import EngineError

_told: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Models whose trainings were told that the script holds memory."""


class DeferredStep:
    """One step of an optimizer on some parameters; see [Note: deferred steps].

    Args:
        optimizer: whose step.
        noted: its attributes when it stepped.
        stand_in: returns of a parameter its index and the parameter that stands for it.
        gradients: per index of a parameter to update its gradient.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        noted: Mapping[str, Any],
        stand_in: Callable[[Tensor], tuple[int, nn.Parameter] | None],
        gradients: Mapping[int, Tensor],
    ) -> None:
        # The script may give the optimizer another state before this is done.
        self._state = proxies.raw_state(optimizer)
        self._pairs: list[tuple[Tensor, nn.Parameter, Tensor]] = []
        standing: list[list[nn.Parameter]] = []
        for parameters in parameters_of(optimizer):
            found = [(each, stand_in(each)) for each in parameters]
            own = [
                (p, one[1], gradients[one[0]]) for p, one in found if one and one[0] in gradients
            ]
            self._pairs += own
            standing.append([parameter for _, parameter, _ in own])
        self._copy = copy_for(optimizer, standing, noted)

    def __call__(self) -> None:
        """Update the parameters, on any thread."""
        state = self._state
        known: dict[Tensor, Any] = {
            stand_in: state[p] for p, stand_in, _ in self._pairs if p in state
        }
        self._copy.state = defaultdict(dict, known)
        try:
            step_with(self._copy, [(stand_in, gradient) for _, stand_in, gradient in self._pairs])
        finally:
            for parameter, stand_in, _ in self._pairs:
                if stand_in in self._copy.state:
                    state[parameter] = self._copy.state[stand_in]


class DeferredUpdate(Update):
    """Every rank updates all weights, in part where a forward needs them."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._flights = layout, layout.shared(Flights)
        self._stepper: Optimizer | None = None
        self._stepping = 0
        self._stepped: dict[int, set[Any]] = defaultdict(set)
        self._kinds: set[Any] = set()
        self._deferred: dict[int, list[int]] = {}
        self._compiled = False
        # What reads parameters unseen has them from the step on.
        self._opaque = weights.read_below_torch(layout.buffers.model)
        self._stand_ins: dict[int, nn.Parameter] = {}
        storages: dict[int, list[int]] = defaultdict(list)
        for trainable in layout.trainables:
            storages[trainable.parameter.untyped_storage()._cdata].append(trainable.index)
        self._together = {key: tuple(of) for key, of in storages.items() if len(of) > 1}
        self._defers = {id(each): _updates_each_by_itself(each) for each in layout.optimizers}
        self._watch()
        weights.tell_of_compilers(self)

    def _watch(self) -> None:
        """Let looks at the state of optimizers wait for their deferred steps."""
        ready, read, ending = self._flights.ready, self._state_is_read, self._layout.ending
        for optimizer in self._layout.optimizers:
            if self._defers[id(optimizer)]:
                ending.callback(proxies.unwatch, optimizer, read)
                proxies.watch(optimizer, read)
                for hook in (
                    optimizer.register_load_state_dict_pre_hook(lambda *_: ready()),
                    optimizer.register_load_state_dict_post_hook(
                        lambda loaded: proxies.watch(loaded, read)
                    ),
                ):
                    ending.callback(hook.remove)

    def compilation_begins(self) -> None:
        """Let compilers find plain parameters and state; see ``weights``, [Note: compiled code]."""
        if self._flights.any() or self._stepper is not None:
            self._compiled = True
            self.put_back()  # what is compiled may be the step
            self._flights.ready()
        for optimizer in self._layout.optimizers:
            proxies.unwatch(optimizer, self._state_is_read)

    def _state_is_read(self) -> None:
        """Wait for all flights, unless a step reads the state of parameters that it updates now."""
        if self._stepper is None or self._stepping != threading.get_ident():
            self._flights.ready()

    def begin(self, optimizer: Optimizer) -> None:
        """Take the gradients off parameters with deferred updates, so that this step skips them."""
        self.put_back()
        if self._compiled or self._opaque or not self._defers.get(id(optimizer)):
            self._flights.ready()
            return
        deferred: dict[int, list[int]] = defaultdict(list)
        kinds: set[Any] = set()
        held = ""
        state = proxies.raw_state(optimizer)
        for group in optimizer.param_groups:
            kinds.add(_flags(group))
            for parameter in group["params"]:
                index = self._layout.index.get(id(parameter))
                if index is None or parameter.grad is not self._layout.grads[index]:
                    continue
                kinds.add(index)
                key = self._flights.key_of(index)
                if self._flights.get(key) is None:
                    continue
                if self._is_held(parameter, index):
                    held = held or f"the memory of {self._layout.trainables[index].name!r}"
                elif proxies.is_held(state, parameter):
                    name = self._layout.trainables[index].name
                    held = held or f"the optimizer's state of {name!r}"
                else:
                    deferred[key].append(index)
                    continue
                self._flights.arrive(key)
        self._kinds = kinds
        if not kinds <= self._stepped[id(optimizer)]:  # [Note: first steps]
            self._flights.ready()
            return
        self._say_held(held)
        for index in chain(*deferred.values()):
            self._layout.trainables[index].parameter.grad = None
        self._deferred = deferred
        self._stepper, self._stepping = optimizer, threading.get_ident()

    def _say_held(self, what: str) -> None:
        """Log once which memory held by the script makes steps wait; empty: none does."""
        model = self._layout.buffers.model
        if what and model not in _told:
            _told.add(model)
            rank = self._layout.communicator.rank
            console.log(
                f"something beside the model holds {what} on rank {rank} (a state_dict() that the "
                "script keeps, a view, an array of numpy), so steps wait for its gradient, which "
                "could travel behind the next forward; keep a copy instead (said once)"
            )

    def _is_held(self, parameter: Tensor, index: int) -> bool:
        """Say whether a view or array that the engine cannot watch shares a parameter's memory."""
        with without_overrides():
            storage = parameter.untyped_storage()
            ours = self._together.get(storage._cdata, (index,))
            known = [self._stand_ins[each] for each in ours if each in self._stand_ins]
            there = sum(one.untyped_storage()._cdata == storage._cdata for one in known)
            return storage_holders(storage) > len(ours) + int(there) + 1

    def end(self, optimizer: Optimizer) -> Stepped | None:
        """Leave the deferred updates to the flights that bring their gradients."""
        self._stepped[id(optimizer)] |= self._kinds
        if self._stepper is optimizer:
            self._defer(optimizer)
        return None

    def _defer(self, optimizer: Optimizer) -> None:
        deferred = self._deferred
        self.put_back()
        if not deferred:
            return
        proxies.watch(optimizer, self._state_is_read)  # the script may have put another there
        noted = dict(vars(optimizer))
        with self._flights.lock:
            for key, indices in deferred.items():
                flight = self._flights.get(key)
                averages = {index: self._flights.memory_of(index) for index in indices}
                step = DeferredStep(optimizer, noted, self._stand_in, averages)
                if flight is None:  # it arrived meanwhile, by a look of another thread
                    step()
                    continue
                flight.actions.append(step)
                flight.steps = True
                parameters = [self._layout.trainables[index].parameter for index in indices]
                weights.expect(weights.renew(parameters), Waiter(self._flights, key))
                flight.awaited += parameters

    def _stand_in(self, parameter: Tensor) -> tuple[int, nn.Parameter] | None:
        """Return the place of a parameter, and one on the same memory; None where it is not ours.

        It waits for nothing, and has a gradient of its own.
        """
        index = self._layout.index.get(id(parameter))
        if index is None:
            return None
        known = self._stand_ins.get(index)
        with without_overrides():
            if known is None or known.data_ptr() != parameter.data_ptr():
                known = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
                self._stand_ins[index] = known
        return index, known

    def put_back(self) -> None:
        """Give parameters with deferred updates their gradients back."""
        for index in chain(*self._deferred.values()):
            parameter = self._layout.trainables[index].parameter
            if parameter.grad is None:
                parameter.grad = self._layout.grads[index]
        self._forget()

    def forward_begins(self) -> None:
        """Forget a step that raised: a script that goes on has zeroed its gradients."""
        self._forget()

    def _forget(self) -> None:
        self._stepper, self._deferred = None, {}


def _flags(group: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what decides which state a step makes: flags, and which numbers are zero."""
    values = (value for value in group.values() if isinstance(value, int | float | None))
    return tuple(v if v is None or isinstance(v, bool) else v == 0 for v in values)


def _updates_each_by_itself(optimizer: Optimizer) -> bool:
    try:
        kind_of(optimizer)
    except EngineError:
        return False
    return True
