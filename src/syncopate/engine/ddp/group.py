"""Group: the process group of a DDP that trains by a plan, over the collectives of this package.

Beside its buckets DDP exchanges little, and seldom: parameters and buffers as it is made, buffers
before a forward, the buckets that rank 0 has cut, which parameters were used, and in ``join()`` who
has run out of inputs. Over Gloo a rank that is lost would be noticed there by its neighbours alone,
and named by none; over a communicator it is named within seconds, by all.

torch knows the group by a backend of its own, ``"syncopate_ddp"``, beside the public
``"syncopate"`` of :mod:`syncopate.c10d`: that one has every collective, and connections and a life
of its own, while this one borrows what the DDP has, also NCCL's. Collectives that DDP has no need
of are not there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from syncopate.collectives import Communicator
from syncopate.collectives.request import DTYPES
from syncopate.engine.model.state import broadcast_tensors
from syncopate.engine.torch_compat import finished_work
from syncopate.errors import EngineError, UnknownNameError

BACKEND = "syncopate_ddp"
"""What torch calls it."""

_REDUCTIONS: dict[Any, Callable[[Tensor], Tensor]] = {
    dist.ReduceOp.SUM: lambda rows: rows.sum(0),
    dist.ReduceOp.AVG: lambda rows: rows.mean(0),
    dist.ReduceOp.MAX: lambda rows: rows.amax(0),
    dist.ReduceOp.MIN: lambda rows: rows.amin(0),
    dist.ReduceOp.PRODUCT: lambda rows: rows.prod(0),
}


def _uncompiled(method: Callable[..., Any]) -> Any:
    """Keep torch.compile out of a method, which DDP calls in a forward."""
    return torch.compiler.disable(method)  # type: ignore[no-untyped-call]


class CommunicatorGroup(dist.ProcessGroup):
    """A process group of torch whose collectives are a communicator's, as long as that lives.

    Each is over when its call returns, and raises ``CollectiveError`` where a rank is lost or late.
    """

    def __init__(self, communicator: Communicator) -> None:
        super().__init__(communicator.rank, communicator.world_size)  # type: ignore[call-arg]
        self._alive = weakref.ref(communicator)

    @property
    def _communicator(self) -> Communicator:
        found = self._alive()
        if found is None:
            raise EngineError("the DistributedDataParallel that this process group is of is gone")
        return found

    def getBackendName(self) -> str:  # noqa: N802  (torch's name)
        """Return what torch calls it."""
        return BACKEND

    @_uncompiled
    def allreduce(self, tensors: Tensor | Sequence[Tensor], options: Any = None) -> Any:
        """Combine each tensor over the ranks, in place; DDP also gives a single one."""
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        operation = dist.ReduceOp.SUM if options is None else options.reduceOp
        reduction = next((one for op, one in _REDUCTIONS.items() if operation == op), None)
        if reduction is None:
            known = [str(op) for op in _REDUCTIONS]
            raise UnknownNameError("reduction", str(operation), known, BACKEND)
        for tensor in tensors:
            flat = tensor.detach()
            if operation == dist.ReduceOp.SUM and flat.is_contiguous() and flat.dtype in DTYPES:
                self._communicator.all_reduce(flat)
            else:
                flat.copy_(reduction(torch.stack(self._gathered(flat))))
        return finished_work(list(tensors))

    @_uncompiled
    def broadcast(self, tensors: Sequence[Tensor], options: Any = None) -> Any:
        """Overwrite each tensor by that of a rank, by default of rank 0."""
        source = 0 if options is None else options.rootRank
        broadcast_tensors(self._communicator, [one.detach() for one in tensors], source)
        return finished_work(list(tensors))

    @_uncompiled
    def allgather(
        self, outputs: Sequence[Sequence[Tensor]], tensors: Sequence[Tensor], options: Any = None
    ) -> Any:
        """Give every rank every rank's tensors."""
        del options
        for places, tensor in zip(outputs, tensors, strict=True):
            for place, found in zip(places, self._gathered(tensor), strict=True):
                place.detach().copy_(found)
        return finished_work([list(places) for places in outputs])

    @_uncompiled
    def barrier(self, options: Any = None) -> Any:
        """Return when every rank has come here."""
        del options
        self._communicator.barrier()
        return finished_work([])

    def _gathered(self, tensor: Tensor) -> list[Tensor]:
        found: list[Tensor] = self._communicator.all_gather_object(tensor.detach().cpu())
        return found


def group_of(communicator: Communicator) -> dist.ProcessGroup:
    """Return a group over a communicator of all ranks of the job; all of them call it.

    Raises:
        RuntimeError: not every rank arrived in time.
    """
    alive = weakref.ref(communicator)

    def made(*_: object) -> CommunicatorGroup:
        found = alive()
        assert found is not None
        return CommunicatorGroup(found)

    dist.Backend.register_backend(BACKEND, made, devices=["cpu", "cuda"])
    group: dist.ProcessGroup = dist.new_group(backend=BACKEND)
    return group
