"""Served: parameter servers hold the weights and update them; this rank sends and receives.

Gradients are sent as their bucket becomes ready, while backward goes on. A server updates a tensor
as soon as it has every rank's gradient of it, at the learning rate that came with them. The
optimizer's step asks for the new weights, those first that the next forward needs first, and
updates nothing of this model itself; whoever looks at a parameter waits for it
(``exchange/seen/weights.py``).

The tensors of a bucket are sent one behind the other, under the parameters' names and in the order
of memory, so that servers know nothing of plans.

[Note: a gradient that was sent]
Servers have taken it, and this rank never sees the average. So ``parameter.grad`` may be zeroed or
set to None, and everything else that would look at its values, or change them, is refused: clipping
norms, a gradient scaler. For the same reason a step follows each backward that is synchronised, and
at the learning rate at which it was sent.

[Note: a gradient that nobody has]
A parameter that this rank's backward did not reach holds back only its own gradient, which becomes
zeros if another rank reached it. Where nobody did, nobody sends, and its weights stay as they are.

[Note: a step that failed]
Where one rank's backward raises, servers have taken some gradients of that step and not others, and
nobody can take them back. So all ranks refuse to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from syncopate.engine.buckets import BucketBuffers, FlatBuffer, Message
from syncopate.engine.exchange.base import ASIDE_BYTES, Launched, arrived
from syncopate.engine.exchange.optimizer_state import OwnedState
from syncopate.engine.exchange.owned import Owned
from syncopate.engine.exchange.seen import gradients
from syncopate.engine.exchange.seen.gradients import PartialGradient
from syncopate.engine.exchange.seen.weights import WITHOUT_VALUES, tensors_in
from syncopate.engine.exchange.serving.servers import (
    Servers,
    Transfer,
    trained_indices,
    whole_of,
)
from syncopate.engine.tail import Said
from syncopate.errors import EngineError

_ZEROING = (Tensor.zero_, torch._foreach_zero_)

_ALLOWED = frozenset(
    (
        *WITHOUT_VALUES,
        *_ZEROING,
        *gradients.DESCRIPTIONS,
        *gradients.LIKE,
        Tensor.untyped_storage,
        Tensor.detach,
        Tensor.detach_,
        Tensor.data.__get__,  # type: ignore[attr-defined]
    )
)
"""What may be done with a gradient that was sent; see [Note: a gradient that was sent]."""


class SentGradient(PartialGradient):
    """What ``parameter.grad`` is once servers have the gradient."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in WITHOUT_VALUES:
            for gradient in tensors_in((args, kwargs or {})):
                if isinstance(gradient, SentGradient):
                    gradient._require(func)
        return super().__torch_function__(func, types, args, kwargs)

    def _require(self, func: Any) -> None:
        """Refuse what servers would have to do; let nothing change that is on its way."""
        exchange: Any = self.owner()
        if exchange is None:
            return
        exchange.complete()
        if func in _ZEROING:
            exchange.settle(self)
        elif func not in _ALLOWED and exchange.averaged and id(self.whole) not in exchange.zeroed:
            raise EngineError(
                f"{getattr(func, '__name__', func)} was asked of the gradient of "
                f"{self.parameter_name!r}, which servers have taken: no rank has the average, and "
                "what is done to it here has no effect there (clipping, scaling). Do without, or "
                "train with exchange='sharded'"
            )


class ServedState(OwnedState):
    """The state of an optimizer that servers keep.

    Args:
        args: those of :class:`OwnedState`.
        servers: they, who have been told what the optimizer knew.
    """

    def __init__(self, *args: Any, servers: Servers) -> None:
        super().__init__(*args)
        self._servers = servers
        self._lent: dict[Tensor, dict[str, Any]] = {}
        super().cut(servers.optimizer)

    def cut(self, optimizer: torch.optim.Optimizer) -> None:
        """Take state away, and refuse what servers would have to take over."""
        if self.is_cut(optimizer):
            return
        given = [optimizer.state.get(each.parameter) for each, _ in self._everything()]
        lent = [self._lent.get(each.parameter) for each, _ in self._everything()]
        self._lent = {}
        super().cut(optimizer)
        if any(one and one is not other for one, other in zip(given, lent, strict=True)):
            raise EngineError(
                f"the state of {type(optimizer).__name__} is on the servers, which have begun. "
                "Load model and optimizer before distribute()"
            )

    def gather(
        self, optimizer: torch.optim.Optimizer, *, keep: bool = True, device: str | None = None
    ) -> dict[Tensor, dict[str, Any]]:
        """Return what servers know, with all in it that this rank sent; asks no rank.

        Args and errors are those of :meth:`OwnedState.gather`.

        Raises:
            ParameterServerError: servers are lost.
        """
        self.finish()
        known = self._servers.store.state() if keep else {}
        found: dict[Tensor, dict[str, Any]] = {}
        for trainable, _ in self._everything():
            parameter, entries = trainable.parameter, known.get(trainable.name, {})
            if whole := whole_of(parameter, entries, device or parameter.device):
                found[parameter] = whole
        return found

    def make_whole(self, optimizer: torch.optim.Optimizer, *, plain: bool = False) -> None:
        """Give ``optimizer`` what servers know; see :meth:`OwnedState.make_whole`."""
        super().make_whole(optimizer, plain=plain)
        self._lent = dict(optimizer.state)

    def require_here(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse to look here for state that servers keep."""
        raise EngineError(
            f"the state of {type(optimizer).__name__} is on the servers, and its state_dict() has "
            "none to return. On every rank call model.syncopate.state_dict(optimizer), or save "
            "inside `with model.syncopate.whole_state(optimizer):`"
        )

    def make_all_whole(self) -> None:
        """Leave the state where it is; the optimizer begins anew without servers."""
        for known in self._cut:
            if (optimizer := known()) is not None:
                self._forget(optimizer)


class Served(Owned):
    """The ``served`` exchange.

    Args:
        args: those of :class:`Exchange`.
        servers: hold the weights.
    """

    state: ServedState

    gradient_kind = SentGradient

    def __init__(self, *args: Any, servers: Servers) -> None:
        self._servers = servers
        super().__init__(*args)

    def _share_of(self, message: Message) -> tuple[int, int]:
        return message.start, message.start

    def _take_over(self) -> None:
        self._under_way: dict[int, Transfer] = {}
        self._sent: set[int] = set()
        self._held_back: list[tuple[int, Transfer]] = []
        self._lr = 0.0
        self._trained = trained_indices(self._trainables, self._servers.optimizer)
        self._open = self._broken = False
        super()._take_over()
        turns = len(self._pulled_in)
        self._priority = {bucket: turns - turn for turn, bucket in enumerate(self._pulled_in)}
        self._flat_of: dict[int, tuple[Tensor, Tensor]] = {}
        for part in chain(*(bucket.parts for bucket in self.buckets)):
            numels = [trainable.parameter.numel() for trainable in part.trainables]
            gradients_of = torch.split(part.gradients, numels)
            weights_of = torch.split(self._weights[id(part)], numels)
            for trainable, *flat in zip(part.trainables, gradients_of, weights_of, strict=True):
                self._flat_of[trainable.index] = (flat[0], flat[1])
        names = {index: self._trainables[index].name for index in self._flat_of}
        parameters = {name: self._trainables[i].parameter for i, name in names.items()}
        weights = {names[i]: weight for i, (_, weight) in self._flat_of.items()}
        self._servers.declare(weights, parameters)
        self.state = ServedState(
            self.communicator, self.buckets, self.pieces, servers=self._servers
        )
        self.state.finish = self._require_closed
        self._versions = self._seen()

    def _seen(self) -> list[int]:
        """Return what tells when somebody writes to the weights."""
        return [trainable.parameter._version for trainable in self._trainables]

    # -- backward -------------------------------------------------------------------------------

    def adapt(self, entered: int | None = None) -> None:
        """Refuse to add to a gradient that servers have taken."""
        self._require_sound()
        self._absent = set()
        for trainable, view in zip(self._trainables, self.grads, strict=True):
            assert isinstance(view, PartialGradient)
            known = trainable.index in self._trained and self.averaged
            if not known or id(view.whole) in self.zeroed:
                continue
            if view.is_place_of(trainable.parameter.grad):
                raise EngineError(
                    f"the gradient of {trainable.name!r} is one that servers have taken, and this "
                    "backward would add to it; call zero_grad() before"
                )
        self.averaged = False
        self.zeroed.clear()

    def begin(self) -> None:
        """Forget what the iteration before launched, and refuse what servers cannot do."""
        super().begin()
        self._require_sound()
        if self._open:
            raise EngineError(
                "servers have taken the gradients of the backward before, and no step followed it. "
                "Call step() after each backward, and let gradients accumulate under no_sync()"
            )
        self._require_own_weights()
        self._servers.require_rule()

    def _open_step(self) -> None:
        """Begin to send, at the learning rate of now."""
        self._lr = self._servers.require_rule()
        self._servers.store.set_learning_rate(self._lr)
        self._open = True
        self._sent, self._held_back = set(), []
        self._trained = trained_indices(self._trainables, self._servers.optimizer)

    def _launch(self, bucket: BucketBuffers, *, empty: bool) -> None:
        if not bucket.index:
            self._open_step()
        for part in bucket.parts:
            self._settle(part)
            if empty:
                part.gradients.zero_()
            gathering = [] if empty else self._gathering(part)
            transfer = Transfer()
            self._under_way[id(part)] = transfer
            self.pushes.append(Launched(part, part.messages[0], transfer))
            send = partial(self._send, part, transfer, gathering)
            if gathering and part.gradients.is_cpu and part.nbytes >= ASIDE_BYTES:
                self._aside(send)
            else:
                send()

    @torch.no_grad()
    def _send(
        self, part: FlatBuffer, transfer: Transfer, gathering: Sequence[Callable[[], None]]
    ) -> None:
        """Bring the gradients of one flat buffer into their places, and send those there are."""
        for gather in gathering:
            gather()
        for trainable in part.trainables:
            if trainable.index in self._absent:  # [Note: a gradient that nobody has]
                self._held_back.append((trainable.index, transfer))
            else:
                self._send_one(trainable.index, transfer)

    def _send_one(self, index: int, transfer: Transfer) -> None:
        if index in self._trained:
            name, priority = self._trainables[index].name, self._turn(index)
            transfer.add(self._servers.store.push(name, self._flat_of[index][0], priority))
            self._sent.add(index)

    def _turn(self, index: int) -> int:
        """Return the priority of a parameter: what forward needs first comes first."""
        part = self._flat[self._part_of[index]]
        return self._priority[part.messages[0].bucket]

    def _settle(self, part: FlatBuffer) -> None:
        """Wait until the gradients of a flat buffer may change."""
        if (transfer := self._under_way.pop(id(part), None)) is not None:
            transfer.wait()

    def settle(self, gradient: PartialGradient) -> None:
        """Wait until ``gradient`` may change."""
        self._settle(self._around[id(gradient.whole)])

    def wait(self) -> Said:
        """Learn what the ranks said, and send what was held back where one of them has it."""
        arrived(self._note)
        self._hand_out()
        self._deliver()
        said = self._tail.said()
        self._broken = not said.is_sound
        reached = self._tail.reached()
        for index, transfer in self._held_back:
            if reached[index]:
                self._send_one(index, transfer)
        return said

    # -- the optimizer's step -------------------------------------------------------------------

    def step_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the parameters out of the groups of ``optimizer``, whose step is the servers'."""
        self._require_sound()
        self._require_sent()
        if self._open and (lr := self._servers.require_rule()) != self._lr:
            raise EngineError(
                f"the learning rate is {lr:g} in this step, and was {self._lr:g} when backward "
                "began to send its gradients to the servers; change it before backward"
            )
        super().step_begins(optimizer)

    def _finish_step(self) -> None:
        super()._finish_step()
        self._open = False
        self._sent = set()
        self._versions = self._seen()

    def _pull(self, part: FlatBuffer, message: Message) -> None:
        sent = [each.index for each in part.trainables if each.index in self._sent]
        if sent:
            self._expect(part, self._receive(part, message, self._weights[id(part)], sent))

    def _receive(
        self, part: FlatBuffer, message: Message, flat: Tensor, indices: Container[int]
    ) -> Transfer:
        """Ask for the weights ``indices`` of a flat buffer, and note it among the pulls.

        Args:
            part: the flat buffer.
            message: carries it.
            flat: as long as the flat buffer; each weight comes to its place there.
            indices: of parameters.
        """
        transfer, places = (
            Transfer(),
            torch.split(flat, [t.parameter.numel() for t in part.trainables]),
        )
        for trainable, place in zip(part.trainables, places, strict=True):
            index = trainable.index
            if index in indices:
                pulled = self._servers.store.pull(trainable.name, place, self._turn(index))
                transfer.add(pulled)
        self.pulls.append(Launched(part, message, transfer))
        return transfer

    def _receive_all(self) -> None:
        """Bring all weights into their places as the servers have them now, and wait for them.

        With what this rank pushed in them.

        Raises:
            EngineError: servers have taken gradients of a step that is not over.
            ParameterServerError: servers are lost.
        """
        self._require_closed()
        self.ready()
        flats = [(part, self._weights[id(part)]) for part in self._flat.values()]
        here = [self._receive(part, part.messages[0], flat, self._flat_of) for part, flat in flats]
        for transfer in here:
            transfer.wait()
        torch.autograd.graph.increment_version([each.parameter for each in self._trainables])
        self._versions = self._seen()

    def _require_closed(self) -> None:
        """Refuse to look at what servers have between a backward and its step."""
        if self._open:
            raise EngineError(
                "servers have taken the gradients of a backward, and no step followed it; look at "
                "what they have after step()"
            )

    # -- what servers cannot do -----------------------------------------------------------------

    def _require_sound(self) -> None:
        """Refuse to go on after a step that failed; see [Note: a step that failed]."""
        if self._broken:
            raise EngineError(
                "a backward failed in a step before, of which servers have taken some gradients "
                "and not others; start again, from weights that were saved before"
            )

    def _require_sent(self) -> None:
        """Refuse gradients that servers do not have, or have used already."""
        for trainable, view in zip(self._trainables, self.grads, strict=True):
            gradient = trainable.parameter.grad
            assert isinstance(view, PartialGradient)
            if gradient is None or trainable.index not in self._trained:
                continue
            if self._open and view.is_place_of(gradient):
                continue
            if id(view.whole) in self.zeroed and view.is_place_of(gradient):
                continue
            raise EngineError(
                f"the gradient of {trainable.name!r} is none that was sent to the servers since "
                "the last step: it was replaced, made under no_sync(), or is an old one. Step "
                "after a backward outside no_sync(), and call zero_grad() after each step"
            )

    def _require_own_weights(self) -> None:
        """Refuse weights that somebody wrote to: the servers' are others."""
        for trainable, version in zip(self._trainables, self._versions, strict=True):
            parameter = trainable.parameter
            moved = parameter.data_ptr() != self._places[trainable.index].data_ptr()
            if moved or parameter._version != version:
                raise EngineError(
                    f"the weights of {trainable.name!r} were written to since the last step, and "
                    "servers have others, which would come back. Load and change weights before "
                    "distribute()"
                )
