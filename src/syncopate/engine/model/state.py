"""State: the module's buffers, and bringing tensors of every rank to one rank's values.

[Note: Whose buffers a forward begins with]
Every training forward outside ``no_sync`` begins with rank 0's buffers, unless gradients were
accumulated before it. Rank 0's values ride along at the end of each synchronised backward
(:mod:`syncopate.engine.trailer`), and every rank keeps a copy of them. What happens to a buffer
afterwards is found by comparing it with the copy, byte by byte:
an evaluation in training mode, a reset, a forward without a backward, a tensor of another shape or
none in its place. Version counters would not do, because batch normalisation does not count its
own writes. A rank puts its copy back where its own buffers differ, and needs no other rank for
that. What became of rank 0's buffers no other rank can know: rank 0 says it at the beginning of the
forward, in a broadcast of a few bytes, and what changed follows. So the usual step, whose buffers
rode along, pays that one small message, and large constants (masks, tables) never travel.

A forward that meets no other rank, an evaluation, begins with what rode along, if it is the first
one behind the step: so all ranks evaluate alike, as under DDP.

Inside ``no_sync`` nothing is exchanged, so that ranks may run different numbers of micro-batches
there. As under DDP the first of them begins with rank 0's buffers, those that rode along. From then
on a rank has its own, also in the forward that ends the accumulation; only what did not ride along
becomes rank 0's there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from syncopate.collectives import Communicator
from syncopate.schedules.registry import NATIVE
from syncopate.units import MIB

_CHUNK_BYTES = 32 * MIB


class Form(NamedTuple):
    """What a buffer is, apart from its values.

    Attributes:
        shape: its shape.
        dtype: its dtype.
        persistent: whether it is part of the ``state_dict``.
        alias: the name under which the same tensor stands earlier; empty when it stands only here.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    persistent: bool
    alias: str


Forms = dict[str, Form | None]
"""The buffers of a module by name; None where the name is registered and holds no tensor."""


class _Place(NamedTuple):
    """Where a module keeps one buffer: another tensor may be put there at any time."""

    module: nn.Module
    key: str

    @property
    def tensor(self) -> Tensor | None:
        return _held(self.module, self.key)


class Buffers:
    """The buffers of a model, and how they come to be rank 0's.

    Args:
        model: whose buffers; rank 0's and this rank's are alike in form.
        device: where the copies are kept, and what the communicator sends from.
        ignored: names of buffers that stay every rank's own.
        shared: whether any are exchanged at all.

    Attributes:
        model: as given.
        source: the rank whose values count.
        kept: the source's values, by name, as they were last agreed on.
        carried: names of those that ride along with the last bucket.
        late: whether those came, and wait in :attr:`kept` for the next forward.
        own: whether a forward has accumulated gradients with this rank's own since ranks agreed.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device | str = "cpu",
        ignored: Iterable[str] = (),
        *,
        shared: bool = True,
    ) -> None:
        self.source = 0
        self.carried: tuple[str, ...] = ()
        self.late = self.own = False
        self.kept: dict[str, Tensor] = {}
        self.model = model
        self._device = torch.device(device)
        self._ignored = frozenset(ignored)
        self._shared = shared
        self._places: dict[str, _Place] = {}
        self._flat: dict[str, Tensor] = {}
        self._forms: Forms = {}
        self._adopt(self._look())

    @property
    def tensors(self) -> list[Tensor]:
        """All buffers as they are now, each once."""
        tensors = (self._places[name].tensor for name in self.kept)
        return [tensor.data for tensor in tensors if tensor is not None]

    def copies(self) -> dict[str, Tensor]:
        """Return copies of this rank's buffers, by name."""
        found = ((name, self._fitting(name)) for name in self.kept)
        return {name: tensor.clone() for name, tensor in found if tensor is not None}

    def put_back(self, copies: Mapping[str, Tensor]) -> None:
        """Give this rank's buffers the values of :meth:`copies`, but for those of another form."""
        for name, values in copies.items():
            tensor = self._fitting(name) if name in self.kept else None
            if tensor is not None and (tensor.shape, tensor.dtype) == (values.shape, values.dtype):
                tensor.copy_(values)

    @property
    def loose(self) -> list[str]:
        """Names of buffers that do not travel with gradients: large ones, and of changing shape."""
        carried = set(self.carried)
        return [name for name in self.kept if name not in carried]

    @property
    def exchanged(self) -> bool:
        """Whether there is anything to exchange before a forward."""
        return bool(self._forms)

    @property
    def appeared(self) -> bool:
        """Whether a module that had no buffer at all has one now."""
        if self._forms or not self._shared:
            return False
        return _has_buffers(self.model) and bool(self._look())

    def refresh(
        self, communicator: Communicator, channel: int = 0, *, leave_own: bool = False
    ) -> None:
        """Begin a training forward: every rank calls it, and has the source's buffers afterwards.

        Args:
            communicator: joins the ranks.
            channel: where they agree.
            leave_own: leave carried buffers of a rank that has :attr:`own` ones as they are.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        leave_own = leave_own and self.own
        self.late = self.own = False
        if not self._forms or communicator.world_size == 1:
            return
        here = communicator.rank == self.source
        forms = self._look()
        relaid, *changed = self._ask(communicator, forms, channel)
        if relaid:
            self._adopt(communicator.broadcast_object(forms, self.source))
            names = list(self.kept)
        else:
            groups = [self.carried, *((name,) for name in self.loose)]
            flagged = zip(groups, changed, strict=True)
            names = [name for group, flag in flagged if flag for name in group]
        if here:
            self.take(names)
        tensors = [self.kept[name] for name in names]
        broadcast_tensors(communicator, tensors, self.source, channel)
        if not here:
            self._restore(forms, self.loose if leave_own else list(self.kept))

    def restore(self) -> None:
        """Give this rank's buffers the values last agreed on; no communication.

        Those that came, went or changed their form since did so on every rank, where the script
        runs under DDP, and are left as they are until ranks agree again.
        """
        if self._forms:
            forms = self._look()
            alike = [name for name in self.kept if forms.get(name) == self._forms[name]]
            self.put(alike, replace=True)

    def _restore(self, forms: Forms, names: Sequence[str]) -> None:
        """Give this rank's buffers ``names`` the source's values; where forms differ, all of it."""
        if forms != self._forms:
            self._conform(forms)
        else:
            self.put(names, replace=True)

    def put_late(self, *, own: bool = False) -> None:
        """Give this rank's buffers what came along with the last gradients, once.

        They are its :attr:`own` from then on, where ``own`` says so.
        """
        self.own = self.own or own
        if self.late:
            self.late = False
            self.put(self.carried)

    def wake(self) -> None:
        """Exchange buffers from now on: some :attr:`appeared` at the source."""
        self._forms = {"": None}

    def back_to_back(self, names: Sequence[str]) -> Tensor:
        """Keep the values of ``names``, of one dtype, in one flat memory; return it."""
        flat = torch.cat([self._flat[name] for name in names])
        parts = torch.split(flat, [self._flat[name].numel() for name in names])
        for name, part in zip(names, parts, strict=True):
            self._flat[name] = part
            self.kept[name] = part.view(self.kept[name].shape)
        return flat

    def take(self, names: Iterable[str]) -> None:
        """Keep the values that this rank's buffers ``names`` have now."""
        pairs = [(self.kept[name], self._fitting(name)) for name in names]
        fitting = [(kept, tensor) for kept, tensor in pairs if tensor is not None]
        if fitting:
            kept, tensors = zip(*fitting, strict=True)
            torch._foreach_copy_(list(kept), list(tensors))

    def put(self, names: Iterable[str], *, replace: bool = False) -> None:
        """Give this rank's buffers ``names`` the values that are kept.

        One of another form is left as it is, or replaced where ``replace`` says so.
        """
        tensors, values = [], []
        for name in names:
            tensor, kept = self._fitting(name), self.kept[name]
            if tensor is not None and not _overlaps(tensor):
                tensors.append(tensor)
                values.append(kept)
            elif replace:
                self._assign(name, kept.clone())
        if tensors:
            torch._foreach_copy_(tensors, values)

    def _ask(self, communicator: Communicator, forms: Forms, channel: int) -> list[int]:
        """Return what the source says changed: the forms, those carried, and each loose one."""
        loose = self.loose
        if communicator.rank == self.source:
            flags = [self._changed(names) for names in (self.carried, *((n,) for n in loose))]
            relaid = torch.as_tensor(forms != self._forms, device=self._device)
            said = torch.stack([relaid, *flags]).to(torch.uint8)
        else:
            said = torch.zeros(2 + len(loose), dtype=torch.uint8, device=self._device)
        # Our own links carry a few bytes several times as fast as Gloo does.
        algorithm = NATIVE if said.is_cuda else "mst"
        communicator.broadcast(said, self.source, algorithm=algorithm, channel=channel)
        answer: list[int] = said.tolist()
        return answer

    def _changed(self, names: Sequence[str]) -> Tensor:
        """Return whether the values of ``names`` are not those kept, on the device."""
        now: dict[torch.dtype, list[Tensor]] = {}
        before: dict[torch.dtype, list[Tensor]] = {}
        for name in names:
            tensor, kept = self._fitting(name), self.kept[name]
            if tensor is not None:
                now.setdefault(kept.dtype, []).append(tensor.reshape(-1))
                before.setdefault(kept.dtype, []).append(self._flat[name])
        flags = [
            _differ(_joined(now[dtype]).to(self._device), _joined(before[dtype])) for dtype in now
        ]
        if not flags:
            return torch.as_tensor(False, device=self._device)
        return torch.stack(flags).any()

    def _look(self) -> Forms:
        """Return the forms of this rank's buffers as they are, and note their places."""
        if not self._shared:
            return {}
        self._places = {}
        forms: Forms = {}
        first: dict[int, str] = {}
        for prefix, module in _modules(self.model):
            for key, tensor in module._buffers.items():
                name = prefix + key
                if name in self._ignored:
                    continue
                self._places[name] = _Place(module, key)
                if tensor is None:
                    forms[name] = None
                    continue
                alias = first.setdefault(id(tensor), name)
                persistent = key not in module._non_persistent_buffers_set
                forms[name] = Form(
                    tuple(tensor.shape), tensor.dtype, persistent, "" if alias == name else alias
                )
        return forms

    def _adopt(self, forms: Forms) -> None:
        """Note the source's forms, and make room for the values of those that are new."""
        known, self._forms = self._forms, forms
        kept, self.kept = self.kept, {}
        for name, form in forms.items():
            if form is None or form.alias:
                continue
            if known.get(name) == form:
                self.kept[name] = kept[name]
            else:
                self.kept[name] = torch.zeros(form.shape, dtype=form.dtype, device=self._device)
        self._flat = {name: kept.view(-1) for name, kept in self.kept.items()}
        # The last bucket has room for what it had room for: what changed its form rides no more.
        self.carried = tuple(n for n in self.carried if self.kept.get(n) is kept[n])

    def _fitting(self, name: str) -> Tensor | None:
        """Return this rank's buffer if it has the source's form.

        It shares memory but not the version counter: autograd may have saved the buffer for a
        backward that is still to come, and must not take the exchange for a modification.
        """
        place = self._places.get(name)
        tensor = None if place is None else place.tensor
        kept = self.kept[name]
        if tensor is None or tensor.shape != kept.shape or tensor.dtype != kept.dtype:
            return None
        return tensor.data

    def _conform(self, own: Forms) -> None:
        """Give this rank's buffers, of forms ``own``, the source's values and forms."""
        for name in self.kept:
            mine = own.get(name)
            if mine is not None and mine.alias:  # here, but not at the source
                self._assign(name, self.kept[name].clone())
        self.put(self.kept, replace=True)
        for name, form in self._forms.items():
            if form is None:
                self._assign(name, None)
            elif form.alias:
                self._assign(name, self._owner(form.alias))
        for name in own.keys() - self._forms.keys():
            place = self._places[name]
            place.module._buffers.pop(place.key, None)
            place.module._non_persistent_buffers_set.discard(place.key)

    def _owner(self, name: str) -> Tensor | None:
        path, _, key = name.rpartition(".")
        return _held(self.model.get_submodule(path), key)

    def _assign(self, name: str, tensor: Tensor | None) -> None:
        """Put ``tensor`` where the buffer ``name`` is; nowhere if its module is not here."""
        path, _, key = name.rpartition(".")
        try:
            module = self.model.get_submodule(path)
        except AttributeError:
            return
        before = _held(module, key)
        if tensor is not None and before is not None:
            tensor = tensor.to(before.device)
        form = self._forms[name]
        if key not in module._buffers and form is not None and not form.persistent:
            module._non_persistent_buffers_set.add(key)
        module._buffers[key] = tensor


def _held(module: nn.Module, key: str) -> Tensor | None:
    """Return the buffer ``key`` of ``module``; that of a TorchScript module is in no dictionary."""
    try:
        return module._buffers[key]
    except KeyError:
        return None


def _modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every module once, with what precedes the names of what it owns.

    ``named_modules`` does the same in a fixed order, and takes several times as long.
    """
    seen = {id(model)}
    pending = [("", model)]
    while pending:
        prefix, module = pending.pop()
        yield prefix, module
        for name, child in module._modules.items():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                pending.append((f"{prefix}{name}.", child))


def _has_buffers(model: nn.Module) -> bool:
    """Say whether any module has a buffer; every forward asks, so names are not made."""
    seen: set[int] = set()
    pending: list[nn.Module | None] = [model]
    while pending:
        module = pending.pop()
        if module is None or id(module) in seen:
            continue
        if module._buffers:
            return True
        if module._modules:
            seen.add(id(module))
            pending.extend(module._modules.values())
    return False


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()


def _differ(one: Tensor, other: Tensor) -> Tensor:
    """Return whether two flat tensors differ in any bit, on their device."""
    one, other = one.view(torch.uint8), other.view(torch.uint8)
    if one.is_cuda:
        return (one != other).any()
    # numpy compares bytes several times as fast as torch does on the CPU.
    return torch.as_tensor(not np.array_equal(one.numpy(), other.numpy()))


def _overlaps(tensor: Tensor) -> bool:
    """Say whether elements share memory, as in an expanded tensor, which cannot be written to."""
    if 0 not in tensor.stride():
        return False
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return any(length > 1 and stride == 0 for length, stride in pairs)


def broadcast_tensors(
    communicator: Communicator, tensors: Sequence[Tensor], source: int = 0, channel: int = 0
) -> None:
    """Overwrite ``tensors`` on every rank with the source's, bit by bit, of any dtype.

    Args:
        communicator: joins the ranks.
        tensors: the same shapes and dtypes on every rank, all on one device.
        source: the rank whose values count.
        channel: where they travel.

    Raises:
        CollectiveError: a rank is lost or late.
    """
    # Long elements first, so that each tensor's bytes begin where its dtype may.
    ordered = sorted(tensors, key=Tensor.element_size, reverse=True)
    with torch.no_grad():
        for chunk in _chunks(ordered):
            flat = torch.cat([_bytes(tensor) for tensor in chunk])
            communicator.broadcast(flat, src=source, channel=channel)
            if communicator.rank == source:
                continue
            pieces = torch.split(flat, [tensor.nbytes for tensor in chunk])
            came = zip(chunk, pieces, strict=True)
            values = [piece.view(tensor.dtype).view(tensor.shape) for tensor, piece in came]
            torch._foreach_copy_(chunk, values)


def _chunks(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    chunk: list[Tensor] = []
    nbytes = 0
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        if chunk and nbytes + tensor.nbytes > _CHUNK_BYTES:
            yield chunk
            chunk, nbytes = [], 0
        chunk.append(tensor)
        nbytes += tensor.nbytes
    if chunk:
        yield chunk


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
