"""MPI: the collectives of an MPI library, for comparison, on the same buffers and ranks.

MPI counts its ranks itself, so it must have started them: ``mpirun -n 4 syncopate bench --against
mpi``. mpi4py is imported when MPI is asked for and never else.

MPI takes the fastest way it finds: shared memory between ranks of one host, where Gloo takes TCP.
What it was told by ``OMPI_MCA_...``, ``MPICH_...``, ``UCX_...`` or ``FI_...`` is kept with the
benchmark.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from syncopate.benchmarking.sweep import MPI_NEEDED, Sweep
from syncopate.collectives.communicator import Communicator
from syncopate.collectives.shards import lengths
from syncopate.errors import CalibrationError, InvalidValueError
from syncopate.schedules.base import chunk_offsets
from syncopate.schedules.conditions import conditions
from syncopate.units import format_count

_TYPES = {
    "float64": "DOUBLE",
    "float32": "FLOAT",
    "complex128": "C_DOUBLE_COMPLEX",
    "complex64": "C_FLOAT_COMPLEX",
    "int64": "INT64_T",
    "int32": "INT32_T",
    "int16": "INT16_T",
    "int8": "INT8_T",
    "uint8": "UINT8_T",
}
"""torch's name of each dtype that MPI can add -> MPI's."""


def load_mpi() -> Any:
    """Import ``mpi4py.MPI`` such that a rank which fails ends without its last, collective call.

    Left to itself mpi4py makes that call whenever a process ends, and a rank that failed would wait
    in it for ranks that wait for it. Without it ``mpirun`` sees that the rank broke off, and ends
    the others. A rank that succeeds calls ``MPI.Finalize()``.

    Raises:
        CalibrationError: mpi4py or the MPI library that it was built for is not installed.
    """
    try:
        import_module("mpi4py").rc.finalize = False
        return import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        # RuntimeError: mpi4py's wheels look for an MPI library when they are imported.
        raise CalibrationError(f"MPI cannot be used here: {error}; {MPI_NEEDED}") from None


class MpiPeer:
    """The collectives of MPI on the ranks of a communicator; every rank must make one.

    Args:
        communicator: the ranks.
        sweep: what will be measured.

    Raises:
        CalibrationError: no MPI on some rank, or MPI started other ranks than these.
        InvalidValueError: MPI cannot add the sweep's dtype.
    """

    def __init__(self, communicator: Communicator, sweep: Sweep) -> None:
        reduces = conditions(sweep.collective).reduces
        if reduces and sweep.dtype not in _TYPES:
            rule = f"one that MPI can add: {', '.join(_TYPES)}; or leave mpi out of --against"
            raise InvalidValueError("dtype", sweep.dtype, rule)
        self._mpi = _agreed(communicator)
        # MPI may count the same ranks in another order.
        self._comm = self._mpi.COMM_WORLD.Split(0, communicator.rank)
        self._root = sweep.root
        self._type = getattr(self._mpi, _TYPES[sweep.dtype]) if reduces else self._mpi.BYTE
        self.run: Callable[[torch.Tensor], None] = getattr(self, f"_{sweep.collective}")

    @property
    def version(self) -> str:
        """The library's name and version."""
        first = str(self._mpi.Get_library_version()).splitlines()[0].replace("\x00", "")
        return " ".join(first.split(", ")[0].split())

    def close(self) -> None:
        """Give up the MPI communicator; collective."""
        self._comm.Free()

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        self._comm.Allreduce(self._mpi.IN_PLACE, self._buffer(tensor), op=self._mpi.SUM)

    def _reduce(self, tensor: torch.Tensor) -> None:
        mine = self._buffer(tensor)
        if self._comm.rank == self._root:
            self._comm.Reduce(self._mpi.IN_PLACE, mine, op=self._mpi.SUM, root=self._root)
        else:
            self._comm.Reduce(mine, None, op=self._mpi.SUM, root=self._root)

    def _broadcast(self, tensor: torch.Tensor) -> None:
        self._comm.Bcast(self._buffer(tensor), root=self._root)

    def _all_gather(self, tensor: torch.Tensor) -> None:
        view = tensor.view(torch.uint8).numpy()
        width = tensor.element_size()
        offsets = tuple(n * width for n in chunk_offsets(tensor.numel(), self._comm.size))
        counts = lengths(offsets)
        if len(set(counts)) == 1:
            self._comm.Allgather(self._mpi.IN_PLACE, [view, counts[0], self._type])
        else:
            whole = [view, (counts, offsets[:-1]), self._type]
            self._comm.Allgatherv(self._mpi.IN_PLACE, whole)

    def _reduce_scatter(self, tensor: torch.Tensor) -> None:
        # In place MPI leaves a shard at the buffer's beginning, so it has to be copied either way.
        offsets = chunk_offsets(tensor.numel(), self._comm.size)
        counts = lengths(offsets)
        rank = self._comm.rank
        total = torch.empty(counts[rank], dtype=tensor.dtype)
        shard = self._buffer(total)
        if len(set(counts)) == 1:
            self._comm.Reduce_scatter_block(self._buffer(tensor), shard, op=self._mpi.SUM)
        else:
            self._comm.Reduce_scatter(self._buffer(tensor), shard, counts, op=self._mpi.SUM)
        tensor[offsets[rank] : offsets[rank + 1]].copy_(total)

    def _buffer(self, tensor: torch.Tensor) -> list[Any]:
        view = tensor.view(torch.uint8) if self._type == self._mpi.BYTE else tensor
        return [view.numpy(), self._type]


def _agreed(communicator: Communicator) -> Any:
    """Import MPI on every rank and find the same ranks there, or raise on all of them."""
    mpi, problem = None, ""
    try:
        mpi = load_mpi()
    except CalibrationError as error:
        problem = str(error)
    found = (mpi.COMM_WORLD.size, mpi.COMM_WORLD.rank) if mpi is not None else (0, 0)
    everyone = communicator.all_gather_object((problem, found))
    for rank, (trouble, _) in enumerate(everyone):
        if trouble:
            raise CalibrationError(f"rank {rank}: {trouble}")
    size = communicator.world_size
    places = [place for _, (_, place) in everyone]
    if any(seen != size for _, (seen, _) in everyone) or sorted(places) != list(range(size)):
        seen = everyone[0][1][0]
        raise CalibrationError(
            f"MPI's world has {format_count(seen, 'rank')} and this benchmark {size}: MPI must "
            f"start the ranks itself, `mpirun -n {size} syncopate bench --against mpi`, with the "
            "mpirun of the library that mpi4py uses"
        )
    return mpi
