"""Forward order: in which order forward needs the parameters of a model.

A module needs its parameters as it begins. Hooks note that, once for each parameter; they look at
no values, so that they wait for nothing, and compiled code leaves them out. A TorchScript module
takes no hooks: its parameters are noted as the module around it begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from syncopate.profiling.state import trainable


class ForwardOrder:
    """Hooks on a model for the length of a ``with`` block.

    Args:
        model: whose trainable parameters count.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(parameter): name for name, parameter in trainable(model).items()}
        self._modules = [
            module
            for module in model.modules()
            if not _is_scripted(module) and any(map(self._known, _own(module)))
        ]
        self._seen: dict[str, None] = {}
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        # A later hook may run the module by itself; what it needs is noted before.
        self._handles = [
            module.register_forward_pre_hook(self._begins, prepend=True) for module in self._modules
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters whose modules ran, in the order in which these began first."""
        return tuple(self._seen)

    def forget(self) -> None:
        """Begin anew."""
        self._seen.clear()

    def _known(self, parameter: object) -> bool:
        return id(parameter) in self._names

    def _begins(self, module: nn.Module, _: Any) -> None:
        if not torch.compiler.is_compiling():
            self._seen |= dict.fromkeys(self._names[id(p)] for p in _own(module) if self._known(p))


def _own(module: nn.Module) -> Iterator[object]:
    """Yield what a module has as its own parameters, those of scripted children included."""
    yield from module._parameters.values()
    for child in module.children():
        if _is_scripted(child):
            yield from child.parameters()


def _is_scripted(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule)
