"""Inventory: a model's parameters as they were distributed, and whether they still are.

The engine's hooks sit on parameter objects and its buffers have their dtypes and sizes. A layer
that is replaced, a checkpoint loaded with ``assign=True``, ``.double()`` or a block more leave it
with gradients that are not exchanged, so every forward looks first.

[Note: What a look costs]
``named_parameters()`` takes a millisecond for a thousand tensors. The look compares the modules'
own dictionaries with what they held, object by object and in C, which takes a seventh of that; only
when one differs are the parameters listed and the difference is named. A model that was only
rearranged, so that the same parameters stand elsewhere, is as good as before, and is noted anew.

[Note: Tensors that stand in]
``torch.func.functional_call`` puts plain tensors where parameters were for the length of a call.
Only parameters of their own are trained, so only those are refused.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor, nn

from syncopate.artifacts.plan import plain_name
from syncopate.engine.buckets import Trainable
from syncopate.errors import EngineError

_DTYPE = operator.attrgetter("dtype")
_REQUIRES_GRAD = operator.attrgetter("requires_grad")


class Inventory:
    """What is known of the parameters of ``model``.

    Args:
        model: as it is distributed.
        trainables: its parameters whose gradients are exchanged.
        ignored: names of parameters that may become anything.
        rows: parameters among them whose gradients are exchanged row by row.

    Attributes:
        model_name: the class of the model.
        parameters: identities of all its parameters.
        exchanged: identity of each exchanged parameter -> its name, without what ``torch.compile``
            puts into it.
    """

    def __init__(
        self,
        model: nn.Module,
        trainables: Sequence[Trainable],
        ignored: Collection[str] = (),
        rows: Sequence[Trainable] = (),
    ) -> None:
        self._model = model
        self.model_name = type(model).__name__
        self._rows = {id(t.parameter): t.name for t in rows}
        self._ignored = ignored
        self._trainables = tuple(trainables)
        self.exchanged = {id(t.parameter): plain_name(t.name) for t in trainables}
        self.parameters = set(self.exchanged)
        # An identity says something only while its object lives, so other parameters are kept.
        self._frozen: list[nn.Parameter] = []
        self._own: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            if id(parameter) not in self.parameters:
                self.parameters.add(id(parameter))
                (self._own if name in ignored else self._frozen).append(parameter)
        self._exchanged = [t.parameter for t in trainables]
        self._dtypes = [parameter.dtype for parameter in self._exchanged]
        self._numels = [parameter.numel() for parameter in self._exchanged]
        self._device = self._exchanged[0].device
        # torch.utils.swap_tensors would take the hooks away with the old tensor, and declines to
        # touch a tensor that has a weak reference.
        self._held = [weakref.ref(parameter) for parameter in self._exchanged]
        self._note()

    @property
    def owned(self) -> dict[int, str]:
        """Identity of each parameter whose gradient is exchanged, rows included, and its name."""
        return self.exchanged | self._rows

    def forget(self) -> None:
        """Let go of the model, whose parameters may be changed from now on."""
        self._held.clear()

    def _note(self) -> None:
        """Note down where everything stands ([Note: What a look costs])."""
        self._tables: list[dict[str, Any]] = []
        for module in self._model.modules():
            # Those of TorchScript are no dictionaries, and Python cannot put others there.
            found = (module._modules, module._parameters)
            self._tables += (table for table in found if isinstance(table, dict))
        self._sizes = [len(table) for table in self._tables]
        places = [(table, key, value) for table in self._tables for key, value in table.items()]
        self._owners = [table for table, _, _ in places]
        self._keys = [key for _, key, _ in places]
        self._values = [value for _, _, value in places]

    def require_unchanged(self) -> None:
        """Refuse a model whose trained parameters are not those that were distributed.

        Raises:
            EngineError: names one of them, what happened to it, and what to do.
        """
        exchanged = self._exchanged
        if not self._in_place() or any(map(_REQUIRES_GRAD, self._frozen)):
            self._look_closer()
        if (
            list(map(_DTYPE, exchanged)) != self._dtypes
            or list(map(Tensor.numel, exchanged)) != self._numels
            or exchanged[0].device != self._device
        ):
            self._refuse_converted()

    def _in_place(self) -> bool:
        return list(map(len, self._tables)) == self._sizes and all(
            map(operator.is_, map(dict.get, self._owners, self._keys), self._values)
        )

    def _look_closer(self) -> None:
        """Find out what differs; note the places down anew where nothing does that matters."""
        frozen, lost = set(map(id, self._frozen)), dict.fromkeys(self.exchanged.values())
        permanent, names = True, {}
        for full_name, parameter in self._model.named_parameters():
            name = names[id(parameter)] = plain_name(full_name)
            if id(parameter) in frozen and parameter.requires_grad:
                raise _changed(
                    f"{name!r} was frozen when distribute was called and is trained now, so the "
                    "plan does not hold its gradient",
                    "changing requires_grad",
                )
            if id(parameter) in self.parameters:
                lost.pop(self.exchanged.get(id(parameter), ""), None)
            elif not isinstance(parameter, nn.Parameter):
                # [Note: Tensors that stand in]
                lost.pop(name, None)
                permanent = False
            elif full_name in self._ignored:
                self.parameters.add(id(parameter))
                self._own.append(parameter)
            elif parameter.requires_grad:
                fate = "replaced" if name in self.exchanged.values() else "added"
                raise _changed(
                    f"{name!r} was {fate} after distribute was called, so the plan does not hold "
                    "its gradient",
                    "changing layers, or loading a state with assign=True",
                )
            else:
                self.parameters.add(id(parameter))
                self._frozen.append(parameter)
        if lost:
            raise _changed(
                f"{next(iter(lost))!r} was distributed and is not in the model any more",
                "removing layers",
            )
        if permanent:
            self.exchanged = {key: names[key] for key in self.exchanged}
            self._note()

    def _refuse_converted(self) -> None:
        for trainable, dtype, numel in zip(
            self._trainables, self._dtypes, self._numels, strict=True
        ):
            parameter = trainable.parameter
            then = f"{numel} elements of {dtype} on {self._device}"
            now = f"{parameter.numel()} elements of {parameter.dtype} on {parameter.device}"
            if then != now:
                raise _changed(
                    f"{trainable.name!r} was {then} when distribute was called and is {now} now, "
                    "so its gradient does not fit its bucket",
                    "converting or moving the model",
                )


def _changed(what: str, change: str) -> EngineError:
    return EngineError(f"{what}; call model.syncopate.detach() and distribute again after {change}")
