"""Checkpoint: the state of a training as one process would have it, under every exchange.

Where ranks own parts of parameters, an optimizer holds the state of this rank's parts alone. No
process could load that, so ``optimizer.state_dict()`` refuses, and names the call to make instead.
Loading is unchanged: every rank loads whole state, and keeps its own part.

[Note: several models, one optimizer]
An optimizer may train several distributed models, each with an exchange of its own. Its state is
whole when each of them has made its part whole. All ranks go through them in the order in which
the models were distributed.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from syncopate.delay import Delay, LocalSGD
from syncopate.engine.exchange.base import Exchange
from syncopate.engine.exchange.proxies.state import own
from syncopate.engine.exchange.update.optimizer_state import OwnedState
from syncopate.errors import EngineError, InvalidValueError


class _Engine(Protocol):
    """What checkpoints need of an engine, which is not known here."""

    exchange: Exchange | None
    delay: Delay | LocalSGD | None


_trained_by: weakref.WeakKeyDictionary[Optimizer, list[weakref.ref[_Engine]]] = (
    weakref.WeakKeyDictionary()
)
"""Optimizer -> the engines of the models that it trains, in the order of their making."""

_Copies = dict[tuple[Any, ...], Tensor]
"""Where a tensor is in memory, and how -> its copy."""


def watch(optimizer: Optimizer, engine: _Engine) -> list[RemovableHandle]:
    """Let ``optimizer`` save and load whole state only; return the hooks that see to it.

    What it is loaded from stays the script's alone.
    """
    own(optimizer)
    _trained_by.setdefault(optimizer, []).append(weakref.ref(engine))
    return [
        optimizer.register_state_dict_pre_hook(_refuse_pieces),
        optimizer.register_load_state_dict_post_hook(_cut),
    ]


def listed(optimizer: object) -> list[Optimizer]:
    """Return one optimizer, or several, as a list.

    Raises:
        InvalidValueError: something is no optimizer.
    """
    found: list[Any] = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
    for one in found:
        if not isinstance(one, Optimizer):
            raise InvalidValueError("optimizer", type(one).__name__, "a torch.optim.Optimizer")
    return found


def whole_state_dict(optimizer: Optimizer, *, keep: bool) -> dict[str, Any]:
    """Return the state of an optimizer in torch's format; all ranks call it.

    Args:
        optimizer: trains distributed models.
        keep: whether this rank wants it; the result is empty otherwise.

    Returns:
        Copies in the CPU's memory.

    Raises:
        CollectiveError: a rank is lost or late.
        EngineError: the ranks have different state.
    """
    gathered: dict[Tensor, dict[str, Any]] = {}
    for state in _states(optimizer):
        if state.is_cut(optimizer):
            gathered |= state.gather(optimizer, keep=keep, device="cpu")
    if not keep:
        return {}
    spread = {key for state in _states(optimizer) for key in state.keys}
    here = {key: value for key, value in optimizer.state.items() if id(key) not in spread}
    before = optimizer.state
    optimizer.state = defaultdict(dict, copied(here) | gathered)
    try:
        return optimizer.state_dict()
    finally:
        optimizer.state = before


@contextmanager
def whole(
    optimizers: Sequence[Optimizer], weights: Callable[[], AbstractContextManager[None]]
) -> Iterator[None]:
    """Let optimizers be plain ones in the block, with whole state; all ranks enter it.

    Args:
        optimizers: which.
        weights: returns a block in which their parameters hold what is to be saved.

    Raises:
        CollectiveError: a rank is lost or late.
        EngineError: the ranks have different state.
    """
    inside = [one for one in optimizers if not any(s.is_plain(one) for s in _states(one))]
    try:
        for optimizer in inside:
            for state in _states(optimizer):
                state.make_whole(optimizer, plain=True)
        with weights():
            yield
    finally:
        for optimizer in inside:
            for state in _states(optimizer):
                state.release(optimizer)


def _states(optimizer: Optimizer) -> list[OwnedState]:
    """Return where the state of ``optimizer`` may be in pieces, on every rank in this order."""
    engines = [engine() for engine in _trained_by.get(optimizer, ())]
    exchanges = [engine.exchange for engine in engines if engine is not None]
    states = [exchange.update.state for exchange in exchanges if exchange is not None]
    return [state for state in states if state is not None]


def counts(optimizer: Optimizer, engine: _Engine) -> bool:
    """Whether ``engine`` is the one that counts the steps of ``optimizer`` under a delay.

    Of several whose models it trains that is the first.
    """
    engines = [known() for known in _trained_by.get(optimizer, ())]
    delayed = [known for known in engines if known is not None and known.delay is not None]
    return delayed[:1] == [engine]


def forget(engine: _Engine) -> None:
    """Forget ``engine``, which has been detached."""
    for engines in _trained_by.values():
        engines[:] = [known for known in engines if known() is not engine]


def _refuse_pieces(optimizer: Optimizer) -> None:
    cut = [state for state in _states(optimizer) if state.is_cut(optimizer)]
    for state in cut:
        state.require_here(optimizer)
    if cut:
        raise EngineError(
            "this rank holds the state of its own parts of the parameters alone, so "
            f"{type(optimizer).__name__}.state_dict() cannot return a state that loads. "
            "On every rank call model.syncopate.state_dict(optimizer), or save inside `with "
            "model.syncopate.whole_state(optimizer):`"
        )


def _cut(optimizer: Optimizer) -> None:
    own(optimizer)
    for state in _states(optimizer):
        if not state.is_plain(optimizer):
            state.cut(optimizer)


def copied(value: Any, copies: _Copies | None = None) -> Any:
    """Return a copy in the CPU's memory; a tensor in several places is copied once."""
    copies = {} if copies is None else copies
    if isinstance(value, Tensor):
        key = (value.data_ptr(), value.dtype, value.shape, value.stride())
        if key not in copies or not value.numel():
            copies[key] = value.detach().to("cpu", copy=True)
        return copies[key]
    if isinstance(value, dict):
        return {key: copied(part, copies) for key, part in value.items()}
    if isinstance(value, list):
        return [copied(part, copies) for part in value]
    return value
