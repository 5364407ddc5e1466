"""Weights: tensors whose values are on their way, and the waits for them.

While the weights of a bucket travel, the class of its parameters is exchanged for a subclass with
``__torch_function__``: what torch is asked to do with such a parameter first waits until it is
current, and then goes on as if nothing had been. Once its weights are there a parameter is of its
own class again. So a layer waits when it computes and not before, wherever it is called from; and
so do ``state_dict``, ``deepcopy``, pickling, an averaged copy, a tied layer and ``parameter.data``.
Launching nothing, such a wait needs no other rank to come along.

[Note: compiled code]
torch.compile looks at the class of a parameter, and would compile again whenever it changed. So
where a compilation begins, all weights are waited for; and an exchange whose weights were still on
their way waits for them in the optimizer's step from then on. What is compiled then finds the same
classes in every step, at the cost of the overlap with the next forward.

TorchScript computes with the memory of its parameters, of any class. So where a model has a
scripted module, its steps wait from the start.

[Note: forks]
A forked child has the memory of its parent and none of its threads, so nothing arrives there. A
fork waits for all weights, so that a child may save or evaluate them.

[Note: what torch does not show]
A view taken before the step (``data = parameter.data``, a numpy array, a raw pointer) is memory,
and reading memory is not seen. ``model.syncopate.ready()`` waits for all weights.
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from syncopate.engine.torch_compat import on_compilation, without_overrides
from syncopate.errors import CollectiveError, EngineError


class Waiter(Protocol):
    """Knows when the weights of a bucket are there."""

    def wait(self) -> None:
        """Wait for them and :func:`release` their parameters."""


_waits: dict[int, Waiter] = {}
"""Identity of a parameter whose values are on their way -> what waits for them."""

_told: weakref.WeakSet[Any] = weakref.WeakSet()
"""Exchanges that hear of compilations."""

_noting = threading.RLock()
"""Held where a parameter's class and its entry in ``_waits`` change, in any thread."""

_classes: dict[tuple[type, type], type] = {}

_PROPERTIES = (
    "shape", "dtype", "device", "layout", "requires_grad", "grad", "is_leaf", "grad_fn", "ndim",
    "is_cuda", "is_sparse", "is_quantized", "is_meta", "_version", "output_nr",
    "_backward_hooks", "_post_accumulate_grad_hooks", "_base", "is_mkldnn", "is_nested",
    "is_sparse_csr", "is_mps", "itemsize", "nbytes", "retains_grad",
)  # fmt: skip
_METHODS = (
    "size", "dim", "numel", "stride", "element_size", "is_contiguous", "is_floating_point",
    "is_complex", "register_hook", "register_post_accumulate_grad_hook", "storage_offset",
    "requires_grad_", "__len__", "__hash__", "is_signed", "nelement", "ndimension", "_is_view",
    "is_conj", "is_neg", "is_inference",
)  # fmt: skip


def _without_values() -> frozenset[Any]:
    found: list[Any] = [getattr(Tensor, name) for name in _METHODS]
    for name in _PROPERTIES:
        attribute = getattr(Tensor, name)
        found += [attribute.__get__, attribute.__set__, attribute.__delete__]
    return frozenset(found)


WITHOUT_VALUES = _without_values()
"""Functions of torch that do not look at a tensor's values."""


class Pending:
    """Mixed into the class of a tensor whose values are on their way."""

    _original: type
    """The class that it has otherwise."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in WITHOUT_VALUES:
            with without_overrides():
                return func(*args, **(kwargs or {}))
        for tensor in tensors_in((args, kwargs or {})):
            if isinstance(tensor, Pending):
                _await(tensor)
        return func(*args, **(kwargs or {}))

    # A parameter's own methods look at its class before they look at its values.

    def __deepcopy__(self, memo: Any) -> Any:
        _await(self)
        return copy.deepcopy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        _await(self)
        return self.__reduce_ex__(protocol)


def _await(tensor: Any) -> None:
    """Wait for the values of ``tensor``; its class is its own afterwards."""
    if (waiter := _waits.get(id(tensor))) is not None:
        waiter.wait()
    with _noting:
        if _waits.get(id(tensor)) is waiter:  # and no other step has begun meanwhile
            release([tensor])


def current(tensor: Tensor) -> Tensor:
    """Wait for the values of ``tensor``, if they are on their way, and return it."""
    if isinstance(tensor, Pending):
        _await(tensor)
    return tensor


def waiter_of(tensor: Tensor) -> Waiter | None:
    """Return what waits for the values of ``tensor``, where they are on their way."""
    return _waits.get(id(tensor))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors among the arguments of a function of torch, however nested."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def with_plain(value: Any, kind: type, plain: Callable[[Any], Tensor]) -> Any:
    """Return arguments of a function of torch with ``plain(it)`` for each tensor of ``kind``."""
    if isinstance(value, kind):
        return plain(value)
    if isinstance(value, list | tuple) and any(isinstance(t, Tensor) for t in tensors_in(value)):
        return type(value)(with_plain(part, kind, plain) for part in value)
    if isinstance(value, dict):
        return {key: with_plain(part, kind, plain) for key, part in value.items()}
    return value


def for_each(names: Iterable[str]) -> dict[Any, Callable[..., None]]:
    """Return torch's function of lists for each method, and what calls the method tensor by tensor.

    Args:
        names: of methods in place; those without such a function are left out.
    """

    def one_by_one(method: Callable[..., Any]) -> Callable[..., None]:
        def handler(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> None:
            for place, tensor in enumerate(tensors):
                own = [arg[place] if isinstance(arg, list | tuple) else arg for arg in args]
                method(tensor, *own, **kwargs)

        return handler

    lists = {name: f"_foreach_{name}" for name in names}
    return {
        getattr(torch, of_lists): one_by_one(getattr(Tensor, name))
        for name, of_lists in lists.items()
        if hasattr(torch, of_lists)
    }


def read_below_torch(model: nn.Module) -> bool:
    """Say whether something reads weights unseen ([Note: compiled code]).

    That is a scripted module; or a parameter of a class that is asked first what torch does with it
    and with others, some of which may be on their way.
    """
    return any(scripted_modules(model)) or any(asked_parameters(model))


def scripted_modules(model: nn.Module) -> Iterator[str]:
    """Yield the names of TorchScript modules, with the model's own class for the model itself."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            yield name or type(model).__name__


def asked_parameters(model: nn.Module) -> Iterator[str]:
    """Yield the names of parameters whose class is asked first what torch does with them."""
    return (name for name, each in model.named_parameters() if _is_asked(type(each)))


def _is_asked(kind: type) -> bool:
    """Say whether a class of parameters has a ``__torch_function__`` of its own."""
    defined = next(each for each in kind.__mro__ if "__torch_function__" in vars(each))
    return defined not in (nn.Parameter, Tensor)


def renew(parameters: Sequence[nn.Parameter]) -> Sequence[nn.Parameter]:
    """Let graphs of before a step notice that ``parameters`` are others now; return them."""
    torch.autograd.graph.increment_version(parameters)
    return parameters


def expect(tensors: Iterable[Tensor], waiter: Waiter, kind: type[Pending] = Pending) -> None:
    """Let every look at ``tensors`` wait for ``waiter``.

    Args:
        tensors: whose values are on their way.
        waiter: waits for them.
        kind: what is mixed into their classes until then.
    """
    on_compilation(_compilation_begins)
    for tensor in tensors:
        original = tensor._original if isinstance(tensor, Pending) else type(tensor)
        if (kind, original) not in _classes:
            body = {
                "__module__": original.__module__,
                "__qualname__": original.__qualname__,
                "_original": original,
            }
            meta: Any = type(original)
            _classes[kind, original] = meta(original.__name__, (kind, original), body)
        with _noting:
            _waits[id(tensor)] = waiter
            tensor.__class__ = _classes[kind, original]


def release(tensors: Iterable[Tensor]) -> None:
    """Note that ``tensors`` are current."""
    with _noting:
        for tensor in tensors:
            if isinstance(tensor, Pending):
                tensor.__class__ = tensor._original
                _waits.pop(id(tensor), None)


def tell_of_compilers(party: Any) -> None:
    """Call ``party.compilation_begins()`` whenever a compilation begins, while it lives."""
    _told.add(party)
    on_compilation(_compilation_begins)


def _compilation_begins(_: object) -> None:
    """See [Note: compiled code]."""
    for party in list(_told):
        party.compilation_begins()
    for waiter in list(_waits.values()):
        with contextlib.suppress(EngineError):  # of a model that is gone; looks at it raise it
            waiter.wait()


def _fork_begins() -> None:
    """See [Note: forks]."""
    for waiter in list(_waits.values()):
        # The next look in this process raises it.
        with contextlib.suppress(CollectiveError, EngineError):
            waiter.wait()
    _noting.acquire()


os.register_at_fork(
    before=_fork_begins, after_in_parent=_noting.release, after_in_child=_noting.release
)
