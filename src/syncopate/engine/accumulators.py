"""Accumulators: hooks that run when a gradient is final, behind every hook of the user.

Autograd adds to ``parameter.grad`` in a node of its graph, the parameter's *accumulator*. A hook on
that node runs after the hooks on the parameter (``register_hook``,
``register_post_accumulate_grad_hook``), whenever those were registered. So what a user's hook makes
of a gradient is what is exchanged, as with DDP, whose reducer hooks the same node.

[Note: What keeps a node alive]
A parameter refers to its accumulator weakly, and an accumulator to its parameter strongly. Without
another reference to the node, the hook would go with the first graph. :class:`Accumulators` has it.

[Note: Another node]
``parameter.data = value`` of another dtype or on another device makes autograd forget the
accumulator, also where a second assignment takes it back. Looking at the node takes autograd two
microseconds a parameter, so it is looked at where the parameter has other memory than before. An
address alone does not tell that, for memory is used again: while there is a weak reference to
a storage, the storage is either alive or says that it has expired.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.hooks import RemovableHandle

Hook = Callable[[object, object], None]
"""Called with what autograd gives every hook of a node; unused here."""


class Accumulators:
    """The accumulators of ``parameters``, each with the one of ``hooks`` at its place."""

    def __init__(self, parameters: Sequence[Tensor], hooks: Sequence[Hook]) -> None:
        self._parameters = list(parameters)
        self._hooks = list(hooks)
        self._nodes: list[Any] = [accumulator(parameter) for parameter in self._parameters]
        self._handles: list[RemovableHandle] = [
            node.register_hook(hook) for node, hook in zip(self._nodes, self._hooks, strict=True)
        ]
        self._note()

    def _note(self) -> None:
        """Note which memory the parameters have."""
        self._storages = [
            StorageWeakRef(each.untyped_storage())  # type: ignore[no-untyped-call]
            for each in self._parameters
        ]
        self._counted = [storage.cdata for storage in self._storages]
        self._addresses = list(map(Tensor.data_ptr, self._parameters))

    def renew(self) -> None:
        """Hook the accumulators that parameters have now ([Note: Another node])."""
        if list(map(Tensor.data_ptr, self._parameters)) == self._addresses and not any(
            map(torch.UntypedStorage._expired, self._counted)
        ):
            return
        frozen = False
        for place, parameter in enumerate(self._parameters):
            if not parameter.requires_grad:
                frozen = True  # it shows no node, and may have another one
            elif (node := accumulator(parameter)) is not self._nodes[place]:
                self._handles[place].remove()
                self._nodes[place] = node
                self._handles[place] = node.register_hook(self._hooks[place])
        if not frozen:
            self._note()

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._parameters, self._nodes, self._handles = [], [], []
        self._note()


def accumulator(parameter: Tensor) -> Any:
    """Return the node that adds to the gradient of ``parameter``, frozen or not."""
    frozen = not parameter.requires_grad
    with torch.inference_mode(False), torch.enable_grad():
        if frozen:
            parameter.requires_grad_()
        function = parameter.view_as(parameter).grad_fn
        if frozen:
            parameter.requires_grad_(False)
    assert function is not None
    return function.next_functions[0][0]
