"""Module: the class that a distributed model becomes.

The model stays the object it was: its class is exchanged for a subclass, as FSDP2 does it, so that
``isinstance``, attributes, ``state_dict`` keys and everything else are untouched, and there is no
wrapper to reach through.

[Note: The class shows as the user's own] Other code looks at a model's class: to write its name
into a configuration, to build another model of it, to copy, to pickle, to script, to export. So the
subclass has the name, the place and the text of the class it stands for; what is built of it is of
the original class; and what it adds gives way to what the user's class or model has under the
same name. Hooks on the module, the other public way in, would leave the class alone, but they are
copied, pickled and scripted with the model.

[Note: The model without communication] ``model.module`` is a second object with the *same*
``__dict__``: the same parameters, buffers, submodules, hooks and mode. Its class differs in the
call, which meets no other rank. So one rank alone may evaluate by it, as by DDP's ``.module``.

[Note: Weights that share a storage] Where ranks own parts of the weights, these lie one behind the
other in a few buffers. What writes files takes tensors of one storage for tied ones (safetensors
keeps one of them) or writes all of the storage (``torch.save``). So what ``state_dict`` returns is
the same memory, with a storage of each tensor's own.
"""

from __future__ import annotations

import copyreg
import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Collection, Container, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MethodType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack

from syncopate.engine.torch_compat import is_tracing, is_transformed, not_traced
from syncopate.errors import EngineError

_ENGINE = "_syncopate_engine"
_SWITCH = "require_backward_grad_sync"
_classes: dict[tuple[type, Any], type] = {}
"""The original class, and how it is called -> the class that stands for it."""


class _Engine(Protocol):
    """What a distributed module calls of an engine, which is not known here."""

    synchronises: bool

    @property
    def spread(self) -> bool: ...
    def paused(self) -> AbstractContextManager[None]: ...
    def join(
        self, *, divide_by_initial_world_size: bool, throw_on_early_termination: bool
    ) -> AbstractContextManager[None]: ...
    def ready(self) -> None: ...
    def forward_begins(self, training: bool) -> bool: ...
    def forward_ends(self, output: Any) -> None: ...
    def forward_leaves(self) -> None: ...
    def forward_alone(self) -> None: ...
    def forward_bypassed(self, output: Any) -> None: ...


class _Held:
    """An engine in a model's ``__dict__``; copies of that dictionary, however made, have None.

    Attributes:
        engine: the engine.
        bypass: the model without communication, once it was asked for.
    """

    def __init__(self, engine: _Engine) -> None:
        self.engine = engine
        self.bypass: Any = None

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> Any:
        return type(None), ()


class DistributedModule:
    """Mixed into the class of a distributed model; tells it from others."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle and copy as the model it was, without the engine."""
        original = original_class(type(self))
        plain: Any = object.__new__(original)
        plain.__dict__.update(self.__dict__)
        plain.__dict__.pop(_ENGINE, None)
        reduced = plain.__reduce_ex__(protocol)
        if reduced[0] is copyreg.__newobj__:  # type: ignore[attr-defined]
            # Pickle insists that what __newobj__ makes has the class of what is pickled.
            make = copyreg._reconstructor  # type: ignore[attr-defined]
            return (make, (original, object, None), *reduced[2:])
        return reduced


class _SameClass(type):
    """The class of the classes that distributed models get: they build and know the original's."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return original_class(cls)(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, original_class(cls))

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, original_class(cls))


class _Call:
    """The ``__call__`` of a distributed model; torch.export traces the original's."""

    def __init__(self, call: Callable[..., Any], original: type) -> None:
        self._call = call
        self._original = original

    def __get__(self, model: Any, owner: type | None = None) -> Any:
        call = self._original.__call__ if torch.compiler.is_exporting() else self._call
        return call if model is None else MethodType(call, model)


class _Offered:
    """An attribute that gives way to what the model itself has under its name."""

    def __init__(self, get: Callable[[Any], Any]) -> None:
        self._get = get
        self._name = get.__name__
        self.__doc__ = get.__doc__

    def __get__(self, model: Any, owner: type | None = None) -> Any:
        if model is None:
            return self
        for kept in ("_modules", "_parameters", "_buffers"):
            if self._name in model.__dict__[kept]:
                return model.__dict__[kept][self._name]
        return self._get(model)


class _Switch:
    """``model.require_backward_grad_sync``: whether gradients of forwards to come are exchanged.

    Scripts that accumulate gradients set it where they could enter ``no_sync``.
    """

    def __get__(self, model: Any, owner: type | None = None) -> Any:
        return self if model is None else syncopate(model).synchronises

    def __set__(self, model: Any, on: bool) -> None:
        syncopate(model).synchronises = bool(on)


def syncopate(model: Any) -> _Engine:
    """Return the engine that exchanges this model's gradients: ``model.syncopate``."""
    held: _Held = model.__dict__[_ENGINE]
    return held.engine


def module(model: Any) -> Any:
    """Return the model without communication, as DDP's ``.module`` is: ``model.module``.

    Its forward meets no other rank, and gradients of its outputs stay this rank's own, as those of
    ``no_sync`` do. See [Note: The model without communication].
    """
    held: _Held = model.__dict__[_ENGINE]
    if held.bypass is None:
        cls = _class_for(original_class(type(model)), _bypassing)
        held.bypass = object.__new__(cls)
        held.bypass.__dict__ = model.__dict__
    return held.bypass


def no_sync(model: Any) -> Any:
    """Return ``model.no_sync``: gradients of forwards in its block accumulate locally.

    The first forward and backward outside exchange the sum, as with DDP.
    """

    @contextmanager
    def no_sync() -> Iterator[None]:
        with syncopate(model).paused():
            yield

    return no_sync


def join(model: Any) -> Any:
    """Return ``model.join``: in its block ranks may run out of inputs at different times.

    A rank that leaves its loop goes on taking part in the others' exchanges, with zeros, until
    none trains; it then gets their parameters and buffers. Arguments as in DDP: divide sums of
    gradients by the number of all ranks or of those left; do nothing at all, where inputs are
    known to be even; raise on every rank when one runs out.
    """

    def join(
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> AbstractContextManager[None]:
        if not enable:
            return nullcontext()
        return syncopate(model).join(
            divide_by_initial_world_size=divide_by_initial_world_size,
            throw_on_early_termination=throw_on_early_termination,
        )

    return join


def join_hook(model: Any) -> Any:
    """Return ``model.join_hook``, which refuses torch's ``Join``."""

    def join_hook(**_: Any) -> None:
        raise EngineError(
            "a distributed model cannot be given to torch's Join; use `with model.join():`, which "
            "does the same for one model"
        )

    return join_hook


def register_comm_hook(model: Any) -> Any:
    """Return ``model.register_comm_hook``, which refuses: gradients travel as the plan says."""

    def register_comm_hook(state: object, hook: object) -> None:
        raise EngineError(
            f"the communication hook {getattr(hook, '__name__', hook)!r} cannot be used: gradients "
            "travel as the plan says. For 16-bit gradients on the wire, as bf16_compress_hook and "
            "fp16_compress_hook send them, train by a plan with wire_dtype='bfloat16' or 'float16' "
            "(docs/narrow.md); for other hooks train this model with DistributedDataParallel "
            "instead of distribute"
        )

    return register_comm_hook


_OFFERED = (syncopate, module, no_sync, join, join_hook, register_comm_hook)


def require_extensible(model: nn.Module) -> None:
    """Refuse a model that :func:`attach` could not make a distributed module.

    Raises:
        EngineError: its class cannot be extended (TorchScript).
    """
    original = type(model)
    _extend_class_of(model)
    model.__class__ = original


def attach(model: nn.Module, engine: _Engine) -> None:
    """Make ``model`` a distributed module with ``engine``.

    Raises:
        EngineError: its class cannot be extended (TorchScript).
    """
    _extend_class_of(model)
    model.__dict__[_ENGINE] = _Held(engine)


def _extend_class_of(model: nn.Module) -> None:
    original = type(model)
    try:
        model.__class__ = _class_for(original, _exchanging)
    except (TypeError, RuntimeError) as error:
        raise EngineError(
            f"a {original.__name__} cannot be distributed, its class does not allow it ({error}); "
            "distribute the eager module"
        ) from None


def _class_for(original: type, calling: Callable[[type], Callable[..., Any]]) -> type:
    if (original, calling) not in _classes:
        _classes[original, calling] = _extend(original, calling(original))
    return _classes[original, calling]


def _exchanging(original: type) -> Callable[..., Any]:
    """Return how a distributed model is called."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        engine = self.__dict__[_ENGINE].engine
        if not torch.is_grad_enabled() or is_transformed():
            if is_tracing():
                with not_traced():  # a trace holds what is there then, and no waits
                    engine.ready()
                    engine.forward_alone()
            elif not is_transformed():
                engine.forward_alone()
            return original.__call__(self, *args, **kwargs)
        outermost = engine.forward_begins(self.training)
        try:
            output = original.__call__(self, *args, **kwargs)
            if outermost:
                engine.forward_ends(output)
        finally:
            if outermost:
                engine.forward_leaves()
        return output

    return call


def _bypassing(original: type) -> Callable[..., Any]:
    """Return how a distributed model is called without communication."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        held = self.__dict__.get(_ENGINE)  # None once the model is detached
        if held is None or not torch.is_grad_enabled() or is_transformed():
            return original.__call__(self, *args, **kwargs)
        output = original.__call__(self, *args, **kwargs)
        held.engine.forward_bypassed(output)
        return output

    return call


def _extend(original: type, call: Callable[..., Any]) -> type:
    """Return the class that distributed models of class ``original`` get, called by ``call``."""

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        return original.__new__(original, *args, **kwargs)

    # torch.compile leaves this frame alone and compiles what it calls: the model's own forward.
    disabled = torch.compiler.disable(call, recursive=False)  # type: ignore[no-untyped-call]
    body = {
        "__call__": _Call(disabled, original),
        "__new__": new,
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "state_dict": _state_dict_of(original),
    }
    for get in _OFFERED:
        if not hasattr(original, get.__name__):
            body[get.__name__] = _Offered(get)
    if not hasattr(original, _SWITCH):
        body[_SWITCH] = _Switch()
    meta = type(original)
    same = _SameClass if meta is type else type(meta.__name__, (_SameClass, meta), {})
    made: type = same(original.__name__, (DistributedModule, original), body)
    return made


def _state_dict_of(original: type) -> Callable[..., Any]:
    """Return ``state_dict`` of a distributed model: see [Note: Weights that share a storage]."""

    @functools.wraps(original.state_dict)  # type: ignore[attr-defined]
    def state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original.state_dict(self, *args, **kwargs)  # type: ignore[attr-defined]
        held: _Held | None = self.__dict__.get(_ENGINE)
        if held is not None and held.engine.spread and isinstance(found, MutableMapping):
            _part(found, {p.untyped_storage().data_ptr() for p in self.parameters()})
        return found

    return state_dict


def _part(found: MutableMapping[str, Any], storages: Container[int]) -> None:
    """Give each tensor of a state that lies in one of ``storages`` a storage of its own."""
    parted: dict[Any, Tensor] = {}  # what is tied stays so
    for name, value in found.items():
        if type(value) is not Tensor or value.untyped_storage().nbytes() <= value.nbytes:
            continue
        if value.untyped_storage().data_ptr() in storages:
            place = (value.data_ptr(), value.dtype, value.shape, value.stride())
            if place not in parted:
                parted[place] = from_dlpack(value)
            found[name] = parted[place]


def detach(model: nn.Module) -> None:
    """Make ``model`` again what it was."""
    if model.__dict__.pop(_ENGINE, None) is not None:
        model.__class__ = original_class(type(model))


def original_class(cls: type) -> type:
    """Return the class that a distributed model had before."""
    return cls.__mro__[2]


_PLAIN: frozenset[type] = frozenset(
    (int, float, bool, complex, str, bytes, bytearray, range, type(None), torch.Size, torch.dtype)
)
"""Types of values that hold no tensor, and that a model may return a million of."""

_MOST_VISITS = 10_000
"""How many objects of one output are looked into.

A tensor beyond is no loss: its backward begins at its first ready gradient instead.
"""


def output_tensors(output: Any) -> list[Tensor]:
    """Return the tensors in what a model returned, however nested, each once."""
    if isinstance(output, Tensor):
        return [output]
    found: list[Tensor] = []
    seen: set[int] = set()
    pending = [output]
    while pending and len(seen) < _MOST_VISITS:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            found.append(value)
        else:
            parts = _parts(value)
            if not _PLAIN.issuperset(map(type, parts)):
                pending.extend(part for part in parts if type(part) not in _PLAIN)
    return found


def _parts(value: Any) -> Collection[Any]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset | deque):
        return value
    if isinstance(value, nn.Module | type):
        return ()
    if dataclasses.is_dataclass(value):
        return [getattr(value, item.name, None) for item in dataclasses.fields(value)]
    # Any other object that bundles tensors, such as a torch.distributions.Distribution.
    return vars(value).values() if hasattr(value, "__dict__") else ()
