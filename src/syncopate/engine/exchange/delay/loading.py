"""Loading: weights are loaded into a model, through it or a module above or around it.

An exchange that keeps weights elsewhere than in the parameters has to be told. torch tells it by a
hook of the module, which copies of a model, however made, share; theirs do nothing.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from torch import nn
from torch.utils.hooks import RemovableHandle


class Loads(Protocol):
    """Gets a call when weights were loaded."""

    def loaded(self) -> None:
        """Note it."""


class Watch:
    """Tells an exchange when weights are loaded into ``model``, until it is removed.

    Args:
        model: whose ``load_state_dict`` is watched, and that of modules around it.
        exchange: is told; held weakly.
    """

    def __init__(self, model: nn.Module, exchange: Loads) -> None:
        held: Any = model
        self._handle: RemovableHandle = held.register_load_state_dict_post_hook(_Hook(exchange))

    def remove(self) -> None:
        """Watch no more."""
        self._handle.remove()


class _Hook:
    """Torch calls it after loading; a copy, made with the model, does nothing."""

    def __init__(self, exchange: Loads | None = None) -> None:
        self._exchange = None if exchange is None else weakref.ref(exchange)

    def __call__(self, module: nn.Module, incompatible: object) -> None:
        exchange = None if self._exchange is None else self._exchange()
        if exchange is not None:
            exchange.loaded()

    def __deepcopy__(self, memo: Any) -> _Hook:
        return _Hook()

    def __reduce__(self) -> Any:
        return _Hook, ()
