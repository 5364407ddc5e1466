"""Group: a process group of torch's whose collectives travel over our links.

torch calls its methods by name, from Python and from C++, with lists of tensors and an object of
options. Each call becomes one collective of a communicator of its own, which keeps their order,
also of those that are under way at the same time, and names the ranks that fail.

[Note: results of all ranks] What a collective leaves undefined on some ranks, such as a reduction
to one, is worked on in memory of its own there: the tensors of torch's stay as they were.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from syncopate.artifacts.cluster import Cluster
from syncopate.c10d import sparse
from syncopate.c10d.collectives import Planner, swap
from syncopate.c10d.identity import Identity
from syncopate.c10d.messages import Message, Messages
from syncopate.c10d.reductions import Reduction
from syncopate.c10d.rows import Rows, require_writable
from syncopate.c10d.torch_compat import reduction_of, uncompiled
from syncopate.c10d.works import GroupError, Submitted, Together, naming
from syncopate.collectives import transport
from syncopate.collectives.communicator import Communicator
from syncopate.collectives.health.blame import name_ranks
from syncopate.collectives.runner import Runner
from syncopate.collectives.shards import Form
from syncopate.errors import CollectiveError, InvalidValueError
from syncopate.ranks import BACKEND

Body = Callable[[Runner | None], None]
"""Carries out a collective on the channel's thread."""


def made(options: Any, given: Any) -> Group:
    """Return a group for what torch tells its backends.

    Args:
        options: torch's ``DistributedBackendOptions``.
        given: the ``pg_options`` of the caller: a cluster to choose algorithms by, or None.

    Raises:
        InvalidValueError: other ``pg_options``.
        CollectiveError: not every rank came.
    """
    if given is not None and not isinstance(given, Cluster):
        rule = f"None or a syncopate.Cluster, by which the backend {BACKEND!r} chooses algorithms"
        raise InvalidValueError("pg_options", given, rule)
    return Group(options, given)


@uncompiled
class Group(Identity):
    """A process group; see the module.

    Args:
        options: torch's: store, this rank, the ranks of the job in it, its name and time limit.
        cluster: what algorithms are chosen by; None to go by sizes.
    """

    def __init__(self, options: Any, cluster: Cluster | None) -> None:
        rank, size = options.group_rank, options.group_size
        super().__init__(options.store, rank, size)
        self._ranks = list(options.global_ranks_in_group) or list(range(size))
        self._rank, self._size = rank, size
        name = f"{BACKEND}/{options.group_id}"
        with transport.Roll(options.store, rank, self._ranks, name) as roll:
            timeout_s = options.timeout.total_seconds() or None
            self._communicator = Communicator(roll, timeout_s=timeout_s, cluster=cluster)
        self._planner = Planner(self._communicator, by_cluster=cluster is not None)
        self._together: list[Any] | None = None

    # -- the end of a group ------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Finish what was submitted, and close all connections; torch calls it to destroy."""
        self._communicator.close()

    def abort(self) -> None:
        """Make what is under way fail, here and on the other ranks, and close all connections."""
        detector = self._communicator.detector
        if detector is not None:
            detector.interrupt()
        self._communicator.close()

    def _start_coalescing(self, device: torch.device) -> None:
        self._together = []

    def _end_coalescing(self, device: torch.device) -> Together:
        works, self._together = self._together or [], None
        return Together(works)

    # -- collectives of one buffer ---------------------------------------------------------------

    def broadcast(self, tensors: Sequence[Tensor], opts: Any = None) -> Submitted:
        """Overwrite a tensor with that of the root."""
        root = self._root("broadcast", opts)
        rows = Rows("broadcast", tensors)
        planned = self._planner.planned("broadcast", rows.nbytes, root)

        def body(runner: Runner | None) -> None:
            row = rows.take()
            planned.run(runner, row)
            rows.put(row)

        return self._submit(f"{planned.recipe.label}, {rows.shape}", body, tensors, opts)

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Submitted:
        """Reduce tensors over the ranks, each with its like, on all of them."""
        if tensors[0].is_sparse:
            return self._sparse(tensors, opts)
        rows, reduction = self._reduced("all_reduce", tensors, opts)
        form = Form(reduction=reduction.name)
        planned = self._planner.planned("all_reduce", rows.nbytes, form=form)

        def body(runner: Runner | None) -> None:
            row = rows.take()
            planned.run(runner, reduction.before(row))
            reduction.after(row)
            rows.put(row)

        label = f"{planned.recipe.label}{reduction.label}, {rows.shape}"
        return self._submit(label, body, tensors, opts)

    def _sparse(self, tensors: Sequence[Tensor], opts: Any) -> Submitted:
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        for tensor in tensors:
            sparse.require_sum(tensor, reduction_of(op).name)

        def body(runner: Runner | None) -> None:
            for tensor in tensors:
                sparse.all_reduce(runner, self._planner, tensor)

        return self._submit(f"all_reduce of sparse {tensors[0].dtype}", body, tensors, opts)

    def reduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Submitted:
        """Reduce a tensor over the ranks into that of the root; the others' stay as they are."""
        root = self._root("reduce", opts)
        rows, reduction = self._reduced("reduce", tensors, opts)
        form = Form(reduction=reduction.name)
        planned = self._planner.planned("reduce", rows.nbytes, root, form)

        def body(runner: Runner | None) -> None:
            here = root == self._rank
            row = rows.take() if here else rows.copy()  # [Note: results of all ranks]
            planned.run(runner, reduction.before(row))
            if here:
                reduction.after(row)
                rows.put(row)

        label = f"{planned.recipe.label}{reduction.label}, {rows.shape}"
        return self._submit(label, body, tensors, opts)

    # -- gathers ---------------------------------------------------------------------------------

    def allgather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> Submitted:
        """Fill a tensor for each rank with that rank's; the ranks' may be of different sizes."""
        return self.allgather_coalesced([[each] for each in outputs[0]], inputs[:1], opts)

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> Submitted:
        """Fill a list of tensors for each rank with those of that rank."""
        if len(outputs) != self._size or any(len(each) != len(inputs) for each in outputs):
            given = [len(each) for each in outputs]
            rule = f"{self._size} lists of {len(inputs)}: for each rank as many as it gives"
            raise InvalidValueError("lengths of the output lists of all_gather", given, rule)
        own = Rows("all_gather", inputs)
        rows = [Rows("all_gather", each) for each in outputs]
        if rows[self._rank].numel != own.numel or rows[self._rank].dtype != own.dtype:
            rule = f"as long as this rank's input, {own.shape}"
            raise InvalidValueError("output of all_gather", rows[self._rank].shape, rule)
        whole = Rows("all_gather", [tensor for each in outputs for tensor in each])
        cuts = tuple(accumulate((each.numel for each in rows), initial=0))
        form = Form(None if len({each.numel for each in rows}) == 1 else cuts)
        planned = self._planner.planned("all_gather", whole.nbytes, form=form)

        def body(runner: Runner | None) -> None:
            row = whole.room()
            row[cuts[self._rank] : cuts[self._rank + 1]] = own.take()
            planned.run(runner, row)
            whole.put(row)

        results = [tensor for each in outputs for tensor in each]
        return self._submit(f"{planned.recipe.label}, {whole.shape}", body, results, opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Submitted:
        """Fill ``output`` with the ranks' ``input``, one after the other."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Submitted:
        """Do what :meth:`all_gather_single` does to several pairs, as one collective."""
        pairs = []
        for output, mine in zip(outputs, inputs, strict=True):
            whole, own = Rows("all_gather", [output]), Rows("all_gather", [mine])
            if whole.numel != self._size * own.numel or whole.dtype != own.dtype:
                rule = f"{self._size} times its input, {own.shape}"
                raise InvalidValueError("output tensor size of all_gather", whole.shape, rule)
            pairs.append((whole, own, self._planner.planned("all_gather", whole.nbytes)))

        def body(runner: Runner | None) -> None:
            for whole, own, planned in pairs:
                row, mine = whole.room(), own.take()
                place = row[self._rank * own.numel : (self._rank + 1) * own.numel]
                if place.data_ptr() != mine.data_ptr():
                    place.copy_(mine)
                planned.run(runner, row)
                whole.put(row)

        label = "; ".join(f"{planned.recipe.label}, {whole.shape}" for whole, _, planned in pairs)
        return self._submit(label, body, outputs, opts)

    def gather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> Submitted:
        """Fill a tensor for each rank, on the root, with that rank's."""
        root = self._root("gather", opts)
        own = Rows("gather", inputs[:1])
        into = self._list_of_root("gather", outputs, root)
        label = f"gather (root {root}), {own.shape}"

        def body(runner: Runner | None) -> None:
            rows = [each.room() for each in into]
            mine, nothing = own.take(), torch.empty(0, dtype=own.dtype)
            outgoing = [mine if peer == root else nothing for peer in range(self._size)]
            swap(runner, outgoing, rows or [nothing] * self._size, label)
            for each, row in zip(into, rows, strict=True):
                each.put(row)

        return self._submit(label, body, list(outputs[0]) if into else [], opts)

    def scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any = None
    ) -> Submitted:
        """Fill a tensor with the one that the root has for this rank."""
        root = self._root("scatter", opts)
        own = Rows("scatter", outputs[:1])
        given = self._list_of_root("scatter", inputs, root)
        label = f"scatter (root {root}), {own.shape}"

        def body(runner: Runner | None) -> None:
            row, nothing = own.room(), torch.empty(0, dtype=own.dtype)
            outgoing = [each.take() for each in given] or [nothing] * self._size
            incoming = [row if peer == root else nothing for peer in range(self._size)]
            swap(runner, outgoing, incoming, label)
            own.put(row)

        return self._submit(label, body, outputs, opts)

    # -- reduce-scatters -------------------------------------------------------------------------

    def reduce_scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any = None
    ) -> Submitted:
        """Reduce a tensor for each rank over the ranks, and leave each rank its own."""
        given, reduction = self._reduced("reduce_scatter", inputs[0], opts)
        own = Rows("reduce_scatter", outputs[:1])
        if len(inputs[0]) != self._size or own.numel != inputs[0][self._rank].numel():
            rule = f"{self._size} tensors, this rank's as long as its output, {own.shape}"
            sizes = [each.numel() for each in inputs[0]]
            raise InvalidValueError("sizes of the input list of reduce_scatter", sizes, rule)
        form = Form(None if given.equal else given.bounds, None, reduction.name)
        planned = self._planner.planned("reduce_scatter", given.nbytes, form=form)

        def body(runner: Runner | None) -> None:
            row = given.copy()
            planned.run(runner, reduction.before(row))
            share = row[given.bounds[self._rank] : given.bounds[self._rank + 1]]
            reduction.after(share)
            own.put(share)

        label = f"{planned.recipe.label}{reduction.label}, {given.shape}"
        return self._submit(label, body, outputs, opts)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Submitted:
        """Reduce ``input`` over the ranks, and leave each rank its equal part in ``output``."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Submitted:
        """Do what :meth:`reduce_scatter_single` does to several pairs, as one collective."""
        found = []
        for output, whole in zip(outputs, inputs, strict=True):
            given, reduction = self._reduced("reduce_scatter", [whole], opts)
            own = Rows("reduce_scatter", [output])
            if given.numel != self._size * own.numel or given.dtype != own.dtype:
                rule = f"{self._size} times its output, {own.shape}"
                raise InvalidValueError("input tensor size of reduce_scatter", given.shape, rule)
            form = Form(reduction=reduction.name)
            planned = self._planner.planned("reduce_scatter", given.nbytes, form=form)
            found.append((given, own, reduction, planned))

        def body(runner: Runner | None) -> None:
            for given, own, reduction, planned in found:
                row = given.copy()
                planned.run(runner, reduction.before(row))
                share = row[self._rank * own.numel : (self._rank + 1) * own.numel]
                reduction.after(share)
                own.put(share)

        label = "; ".join(
            f"{each[3].recipe.label}{each[2].label}, {each[0].shape}" for each in found
        )
        return self._submit(label, body, outputs, opts)

    # -- all-to-alls -----------------------------------------------------------------------------

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
    ) -> Submitted:
        """Send each rank its rows of ``input``, and fill ``output`` with theirs."""
        into = Rows("all_to_all", [output])
        given = Rows("all_to_all", [input])
        cuts = (
            self._splits("output", output, output_split_sizes),
            self._splits("input", input, input_split_sizes),
        )
        label = f"all_to_all, {given.dtype}"

        def body(runner: Runner | None) -> None:
            row = into.room()
            incoming, outgoing = torch.split(row, cuts[0]), torch.split(given.take(), cuts[1])
            swap(runner, outgoing, incoming, label)
            into.put(row)

        return self._submit(label, body, [output], opts)

    def alltoall(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Submitted:
        """Send each rank a tensor, and fill one for each rank with what comes from it."""
        for what, tensors in (("output", outputs), ("input", inputs)):
            if len(tensors) != self._size:
                rule = f"{self._size}: one tensor for each rank"
                raise InvalidValueError(f"length of the {what} list", len(tensors), rule)
        into = [Rows("all_to_all", [each]) for each in outputs]
        given = [Rows("all_to_all", [each]) for each in inputs]
        label = f"all_to_all, {given[0].dtype}"

        def body(runner: Runner | None) -> None:
            rows = [each.room() for each in into]
            swap(runner, [each.take() for each in given], rows, label)
            for each, row in zip(into, rows, strict=True):
                each.put(row)

        return self._submit(label, body, outputs, opts)

    # -- barriers and messages -------------------------------------------------------------------

    def barrier(self, opts: Any = None) -> Submitted:
        """Return when every rank has come here."""

        def body(runner: Runner | None) -> None:
            if runner is not None:
                runner.objects.barrier()

        return self._submit("barrier", body, [], opts)

    def monitored_barrier(
        self, timeout: datetime.timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Return when every rank has come here; rank 0 names who has not.

        ``torch.distributed.monitored_barrier`` calls that of Gloo's groups alone; call this one on
        the group itself.

        Args:
            timeout: how long to wait; that of the group when left out.
            wait_all_ranks: whether all that have not come are named, rather than the first.
        """
        limit = timeout or datetime.timedelta(seconds=self._communicator.timeout_s)
        if self._size > 1:
            self._messages.monitored_barrier(limit, all_ranks=wait_all_ranks)

    def send(self, tensors: Sequence[Tensor], peer: int, tag: int = 0) -> Message:
        """Start to send a tensor to rank ``peer`` of the group."""
        return self._messages.send(tensors[0], peer, tag)

    def recv(self, tensors: Sequence[Tensor], peer: int, tag: int = 0) -> Message:
        """Start to receive a tensor from rank ``peer`` of the group."""
        return self._messages.receive(tensors[0], peer, tag)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> Message:
        """Start to receive a tensor from any rank."""
        return self._messages.receive(tensors[0], None, tag)

    # Names that torch had before, and calls in places. Several tensors travel as one anyway.
    allreduce_coalesced = allreduce
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # -- in common -------------------------------------------------------------------------------

    @property
    def _messages(self) -> Messages:
        carrier, detector = self._communicator.carrier, self._communicator.detector
        if carrier is None or detector is None:
            if self._size == 1:
                raise InvalidValueError("message", "of a rank alone", "between two ranks")
            raise GroupError("message", "the group is destroyed")
        return Messages(carrier, detector, self._named)

    def _submit(self, label: str, body: Body, results: Sequence[Tensor], opts: Any) -> Submitted:
        """Hand a collective to the communicator; wait for it where the caller is to."""
        require_writable(label, results)
        self._sequence += 1
        later = opts is None or opts.asyncOp
        with naming(self._named):
            handle = self._communicator.perform(label, body, async_op=later)
        work = Submitted(handle, results, self._named)
        if self._together is not None:
            self._together.append(work)
        return work

    def _named(self, error: CollectiveError) -> GroupError:
        """Return an error of the group, which says how the job numbers the ranks at fault."""
        if isinstance(error, GroupError):
            return error
        reason = error.reason
        in_job = [self._ranks[rank] for rank in error.ranks]
        if in_job != list(error.ranks):
            reason += f" (ranks of the group; of the job: {name_ranks(in_job)})"
        return GroupError(error.collective, reason, error.ranks)

    def _reduced(self, what: str, tensors: Sequence[Tensor], opts: Any) -> tuple[Rows, Reduction]:
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        rows = Rows(what, tensors)
        return rows, Reduction(what, op, rows.dtype, self._size)

    def _list_of_root(self, what: str, lists: Sequence[Sequence[Tensor]], root: int) -> list[Rows]:
        """Return the tensors that only the root has, one for each rank; none on other ranks."""
        if root != self._rank:
            return []
        if len(lists) != 1 or len(lists[0]) != self._size:
            given = [len(each) for each in lists]
            raise InvalidValueError(f"list of {what}", given, f"one tensor per rank: {self._size}")
        return [Rows(what, [each]) for each in lists[0]]

    def _splits(self, what: str, tensor: Tensor, sizes: Sequence[int] | None) -> list[int]:
        """Return how many elements go to, or come from, each rank."""
        length = tensor.shape[0] if tensor.dim() else 1
        if not sizes:
            if length % self._size:
                rule = f"divisible by the {self._size} ranks, or split sizes given"
                raise InvalidValueError(f"rows of {what} of all_to_all", length, rule)
            sizes = [length // self._size] * self._size
        if len(sizes) != self._size or sum(sizes) != length:
            rule = f"{self._size} numbers that sum up to the {length} rows"
            raise InvalidValueError(f"{what} split sizes of all_to_all", list(sizes), rule)
        width = tensor.numel() // length if length else 0
        return [size * width for size in sizes]

    def _root(self, what: str, opts: Any) -> int:
        root: int = 0 if opts is None else opts.rootRank
        if not 0 <= root < self._size:
            rule = f"a rank of the group, in 0..{self._size - 1}"
            raise InvalidValueError(f"root of {what}", root, rule)
        return root
