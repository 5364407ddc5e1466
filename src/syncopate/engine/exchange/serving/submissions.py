"""Submissions: what this rank sends to servers and asks of them, and what they have of it.

Gradients are sent as their bucket becomes ready, while backward goes on. A server updates a tensor
as soon as it has every rank's gradient of it, at the learning rate that came with them. The
optimizer's step asks for the new weights, those first that the next forward needs first, and
updates nothing of this model itself.

The tensors of a bucket are one submission, under the parameters' names and in the order of memory,
so that servers know nothing of plans.

[Note: a step that failed]
Where one rank's backward raises, servers have taken some gradients of that step and not others, and
they cannot be taken back. So all ranks refuse to go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable

import torch
from torch import Tensor

from syncopate.collectives.store import StoreHandle
from syncopate.engine.buckets import FlatBuffer, Message
from syncopate.engine.exchange.flat_weights import FlatWeights
from syncopate.engine.exchange.groups import trained_ids
from syncopate.engine.exchange.layout import Launched, Layout, nothing
from syncopate.errors import EngineError


class Transfer:
    """What one flat buffer sends to servers or receives, on its way."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._handles: list[StoreHandle] = []
        self.started_s = self.launched_s = time.perf_counter()

    def add(self, handle: StoreHandle) -> None:
        """Note a part of it."""
        self._handles.append(handle)

    @property
    def finished_s(self) -> float:
        """When it was over, by ``time.perf_counter``; as it began until then."""
        return max((each.finished_s for each in self._handles), default=0.0) or self.started_s

    def done(self) -> bool:
        """Say whether it is over, well or badly, without blocking."""
        return all(each.done() for each in self._handles)

    def wait(self) -> None:
        """Return when it is over.

        Raises:
            ParameterServerError: it will never be.
        """
        for handle in self._handles:
            handle.wait()


class Submissions:
    """What this rank sends to servers and asks of them.

    Attributes:
        trained: indices of the parameters that servers update.
        sent: indices of those whose gradients they have of the step that is open.
        open: whether they have gradients and no step followed.
        broken: whether a step failed of which they have some; see [Note: a step that failed].
        rates: the learning rates of the step that is open, by name.
        settled: what else is waited for before gradients of a flat buffer change.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout, self._servers = layout, layout.servers
        self._weights = layout.shared(FlatWeights)
        self.sent: set[int] = set()
        self.open = self.broken = False
        self.rates: dict[str, float] = {}
        self.trained = self._trained()
        self.settled: Callable[[FlatBuffer], None] = nothing
        self._leaving: dict[int, Transfer] = {}
        turns = len(layout.pulled_in)
        self._priority = {bucket: turns - turn for turn, bucket in enumerate(layout.pulled_in)}
        self._gradients: dict[int, Tensor] = {}
        weights: dict[str, Tensor] = {}
        for part in layout.parts:
            flat = self._weights.of(part)
            for trainable, gradient, weight in zip(
                part.trainables, _split(part, part.gradients), _split(part, flat), strict=True
            ):
                self._gradients[trainable.index] = gradient
                weights[trainable.name] = weight
        parameters = {t.name: t.parameter for part in layout.parts for t in part.trainables}
        self._servers.declare(weights, parameters)
        self.note_weights()

    def _trained(self) -> frozenset[int]:
        held, trainables = trained_ids(self._servers.optimizer), self._layout.trainables
        return frozenset(each.index for each in trainables if id(each.parameter) in held)

    def _turn(self, part: FlatBuffer) -> int:
        """Return the priority of a flat buffer: what forward needs first comes first."""
        return self._priority[part.messages[0].bucket]

    # -- gradients ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Refuse a backward whose gradients servers cannot take.

        Raises:
            EngineError: a step failed, or is open; weights were written to; the rule changed.
        """
        self.require_sound()
        if self.open:
            raise EngineError(
                "servers have taken the gradients of the backward before, and no step followed it. "
                "Call step() after each backward, and let gradients accumulate under no_sync()"
            )
        self.require_own_weights()
        self._servers.require_rules()

    def open_step(self) -> None:
        """Begin to send, at the learning rates of now."""
        self.rates = self._servers.require_rules()
        self._servers.set_rates(self.rates)
        self.open = True
        self.sent = set()
        self.trained = self._trained()

    def leave(self, part: FlatBuffer) -> Transfer:
        """Return the transfer that will send the gradients of a flat buffer, and record it."""
        transfer = self._leaving[id(part)] = Transfer()
        self._layout.traffic.pushes.append(Launched(part, part.messages[0], transfer))
        return transfer

    def send(self, part: FlatBuffer, transfer: Transfer, indices: Iterable[int]) -> None:
        """Send what servers update of the gradients ``indices`` of a flat buffer."""
        indices = [index for index in indices if index in self.trained]
        names = [self._layout.trainables[index].name for index in indices]
        if indices:
            gradients = [self._gradients[index] for index in indices]
            tensors = dict(zip(names, gradients, strict=True))
            transfer.add(self._servers.store.push_many(tensors, self._turn(part)))
            self.sent.update(indices)

    def skip_rest(self) -> None:
        """Tell servers that need whole steps which weights have no gradient in this one.

        Servers that clip take a step when they have heard of every weight. And where workers do
        not tell each other what they reached, each says so to the servers.
        """
        store, trainables = self._servers.store, self._layout.trainables
        if store.rules.clip_norm is not None or store.rules.keeps_before:
            rest = [each.name for each in trainables if each.index not in self.sent]
            if rest:
                store.push_many(dict.fromkeys(rest))

    def settle(self, part: FlatBuffer) -> None:
        """Wait until the gradients of a flat buffer may change."""
        if (transfer := self._leaving.pop(id(part), None)) is not None:
            transfer.wait()
        self.settled(part)

    # -- weights --------------------------------------------------------------------------------

    def ask(
        self, part: FlatBuffer, message: Message, flat: Tensor, indices: Container[int]
    ) -> Transfer:
        """Ask for the weights ``indices`` of a flat buffer, and note it among the pulls.

        Args:
            part: the flat buffer.
            message: carries it.
            flat: as long as the flat buffer; each weight comes to its place there.
            indices: of parameters.
        """
        transfer, places = Transfer(), zip(part.trainables, _split(part, flat), strict=True)
        asked = {each.name: place for each, place in places if each.index in indices}
        if asked:
            transfer.add(self._servers.store.pull_many(asked, self._turn(part)))
        self._layout.traffic.pulls.append(Launched(part, message, transfer))
        return transfer

    def ask_all(self, part: FlatBuffer, message: Message, flat: Tensor) -> Transfer:
        """Ask for all weights of a flat buffer; see :meth:`ask`."""
        return self.ask(part, message, flat, self._gradients)

    def receive_all(self) -> None:
        """Bring all weights into their places as the servers have them now, and wait for them.

        With what this rank pushed in them.

        Raises:
            EngineError: servers have taken gradients of a step that is not over.
            ParameterServerError: servers are lost.
        """
        self.require_closed()
        self._weights.ready()
        parts = self._layout.parts
        here = [self.ask_all(part, part.messages[0], self._weights.of(part)) for part in parts]
        for transfer in here:
            transfer.wait()
        self._weights.renewed()
        self.note_weights()

    def close_step(self) -> None:
        """End the step that is open."""
        self.open = False
        self.sent = set()
        self.note_weights()

    # -- what servers cannot do -----------------------------------------------------------------

    def note_weights(self) -> None:
        """Note that the weights are as servers have them, or are to become so."""
        self._versions = self._seen()

    def _seen(self) -> list[int]:
        """Return what tells when the script writes to the weights."""
        return [trainable.parameter._version for trainable in self._layout.trainables]

    @property
    def written(self) -> bool:
        """Whether the script wrote to the weights."""
        return self._versions != self._seen()

    def require_own_weights(self) -> None:
        """Refuse weights that the script wrote to: the servers' are others."""
        for trainable, version in zip(self._layout.trainables, self._versions, strict=True):
            moved = self._weights.has_moved(trainable.index)
            if moved or trainable.parameter._version != version:
                raise EngineError(
                    f"the weights of {trainable.name!r} were written to since the last step, and "
                    "the servers' weights would overwrite that. Load and change weights before "
                    "distribute()"
                )

    def require_sound(self) -> None:
        """Refuse to go on after a step that failed; see [Note: a step that failed]."""
        if self.broken:
            raise EngineError(
                "a backward failed in a step before, of which servers have taken some gradients "
                "and not others; start again, from weights that were saved before"
            )

    def require_closed(self) -> None:
        """Refuse to look at what servers have between a backward and its step."""
        if self.open:
            raise EngineError(
                "servers have taken the gradients of a backward, and no step followed it; look at "
                "what they have after step()"
            )

    def require_rate(self) -> None:
        """Refuse a step at other learning rates than its gradients were sent with."""
        now = self._servers.require_rules() if self.open else {}
        for name, lr in self.rates.items():
            if now.get(name, lr) != lr:
                raise EngineError(
                    f"the learning rate of {name!r} is {now[name]:g} in this step, and was {lr:g} "
                    "when backward began to send its gradients to the servers; change it before "
                    "backward"
                )


def _split(part: FlatBuffer, flat: Tensor) -> tuple[Tensor, ...]:
    """Return the ranges of ``flat`` of the parameters of a flat buffer."""
    return torch.split(flat, [trainable.parameter.numel() for trainable in part.trainables])
