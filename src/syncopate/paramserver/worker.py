"""Worker: the key-value store that a training script uses."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor

from syncopate.errors import InvalidValueError
from syncopate.paramserver.driver import Handle, Pulled, Pushed, filling
from syncopate.paramserver.job import Job, job_from
from syncopate.paramserver.moving import moving
from syncopate.paramserver.narrow import Narrowing
from syncopate.paramserver.pieces import Declared, empty, filled, updated_by
from syncopate.paramserver.rows.tables import Tables, TableState, whole_table
from syncopate.paramserver.session import Session
from syncopate.paramserver.steps import Rates, Steps
from syncopate.paramserver.storage.optimizers import States, collecting, whole_state, with_state
from syncopate.protocol import messages as msg
from syncopate.protocol.limits import Limits
from syncopate.protocol.placement.bundle import Place
from syncopate.protocol.placement.piece import Slice
from syncopate.protocol.rules import OptimizerRule, Rules
from syncopate.protocol.slice import FIRST
from syncopate.protocol.table import Table

if TYPE_CHECKING:
    from syncopate.collectives.store import Store

_NOTHING = torch.empty(0, dtype=torch.uint8)


class KVStore:
    """This worker's view of the parameter server.

    Attributes:
        rank: of this worker.
        num_workers: how many there are by now; of servers ``num_servers``.
        rules: how the servers update.
        resumed: whether servers have weights already, because all processes were gone or this one
            has the place of a lost worker: :meth:`init` then gives this worker the servers' values.
        step: how many synchronous steps this worker's place had taken before it joined; 0 where the
            job begins anew, or updates are asynchronous.
    """

    def __init__(
        self,
        rules: Rules | None = None,
        *,
        job: Job | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Join the job; return when all servers and workers are there.

        Args:
            rules: how the servers update, the same on all workers; synchronous SGD without.
            job: where the scheduler is; without, as the environment says
                (:mod:`syncopate.paramserver.job`).
            limits: times and sizes.

        Raises:
            InvalidValueError, UnknownNameError: a value out of its range.
            ArtifactError: the key cannot be read.
            ParameterServerError: the job was not complete in time.
        """
        self._job = job = (job or job_from(os.environ, "worker")).require_valid()
        self.rules = job.told(rules or Rules()).require_valid()
        self._limits = (limits or Limits()).require_valid()
        self._declared: Declared | None = None
        self._rates = Rates()
        self._steps = Steps(())
        self._enter(Session(job.under(self.rules), self._limits))

    def _enter(self, session: Session) -> None:
        """Go on with the servers of a job that was joined."""
        self._session, narrow = session, self.rules.push_dtype
        self._narrowing = Narrowing(narrow) if narrow else None
        roster = session.roster
        self.rank, self.num_servers = roster.rank, len(roster.servers)
        session.count_workers(self._count)
        self.resumed = roster.incarnation.resumed
        self.step = roster.incarnation.taken(synchronous=self.rules.synchronous)
        self._tables = Tables(session, self._limits)

    def _count(self, workers: int) -> None:
        self.num_workers = workers

    def init(
        self,
        tensors: Mapping[str, Tensor],
        optimizer: OptimizerRule | Mapping[str, OptimizerRule] | None = None,
        state: States | None = None,
    ) -> None:
        """Give the servers worker 0's ``tensors``, and every worker the same values.

        Blocks until all workers have called it. In a job that is :attr:`resumed` servers keep what
        they have, and every worker gets that.

        Args:
            tensors: by the name that push and pull call them; overwritten with worker 0's values.
            optimizer: what the servers update by, instead of that of the rules. Or one for some
                tensors each, by name; the others are updated by that of the rules.
            state: what that remembers of some tensors, as :meth:`state` returned it; worker 0's
                counts.

        Raises:
            InvalidValueError: called twice, or there is none; or a value is out of its range.
            UnknownNameError: an element type that is not sent, or an optimizer of no tensor.
            ParameterServerError: the workers do not agree on names, types or sizes.
        """
        if self._declared is not None:
            raise InvalidValueError("init", "called again", "called once")
        rules, groups = updated_by(self.rules, optimizer, tensors)
        most = self._limits.slice_bytes
        self._declared = Declared(tensors, self.num_servers, most, rules, groups)
        self.rules = rules
        if rules.clip_norm is not None:
            self._steps = Steps(tensors)
        self._begin(self._declared, tensors, state or {})

    def _begin(self, declared: Declared, tensors: Mapping[str, Tensor], known: States) -> None:
        """Declare tensors; give the servers worker 0's, and every worker the same values."""
        self._session.declare(declared.layout, self.rules)
        handles = []
        if self.rank == FIRST and not self.resumed:
            if fresh := {name: t for name, t in tensors.items() if not known.get(name)}:
                handles.append(self._push(fresh, 0))
            handles += [self._first(n, t, known[n]) for n, t in tensors.items() if known.get(n)]
        handles.append(self.pull_many(tensors))
        for handle in handles:
            handle.wait()

    def push(self, key: str, tensor: Tensor | None, priority: int = 0) -> Handle:
        """Send a gradient in the background; see :meth:`push_many`."""
        return self.push_many({key: tensor}, priority)

    def push_many(self, tensors: Mapping[str, Tensor | None], priority: int = 0) -> Handle:
        """Send gradients in the background, in their order, as one submission.

        Its handle is done when servers have them, safe on disk where they keep state there.

        Args:
            tensors: by name, one or more, as declared; must not change until the handle is done.
                None, in mode ``ssgd``: this worker has no gradient of it, which counts as zeros;
                where no worker has one, the tensor stays as it is.
            priority: the highest goes first.

        Raises:
            UnknownNameError, InvalidValueError: no such tensor, or not as it was declared.
            ParameterServerError: the job is over.
        """
        handle = self._push(tensors, priority, self._narrowing)
        if self.rules.clip_norm is not None:
            self._steps.push(tensors)
            handle.guard(self._require_whole_where_durable)
        return handle

    def pull(self, key: str, out: Tensor, priority: int = 0) -> Handle:
        """Receive weights into ``out``; see :meth:`pull_many`."""
        return self.pull_many({key: out}, priority)

    def pull_many(self, outs: Mapping[str, Tensor], priority: int = 0) -> Handle:
        """Receive weights, with all in them that this worker pushed before, as one submission.

        In mode ``ssgd``: with exactly as many pushes of every worker. A worker that pushes on
        before the handle is done, and loses the connection to a server meanwhile, may get more.

        Args:
            outs: by name, one or more, as declared; not to be used until the handle is done.
            priority: the highest comes first.

        Raises: as :meth:`push_many`.
        """
        declared = self._ready(next(iter(outs), ""))
        slices = declared.slices(outs)
        pieces, finish = empty(declared.layout, slices, outs)
        handle, session = self._session.handle(len(slices)), self._session
        handle.finish(finish)
        handle.guard(self._steps.require_whole)

        def pull(piece: Slice, place: Place) -> None:
            part, begin, end = place
            data = pieces[piece.key][begin:end]
            session.pull(msg.Pull(part.key, 0, 0, priority), filling(data, handle))

        self._session.submit(slices, pull, handle)
        return handle

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return what the servers' optimizer remembers, with all that this worker pushed before.

        Returns:
            Per tensor that was updated: ``"momentum"``; or ``"mean"``, ``"square"`` (elements,)
            and ``"steps"`` (1,); and ``"mean_square"`` with delay compensation.

        Raises:
            InvalidValueError: :meth:`init` was not called.
            ParameterServerError: the job is over.
        """
        declared, found = self._ready("of all"), dict[int, dict[str, Tensor]]()
        layout, names = declared.layout, declared.names
        slices = layout.pieces(names)
        handle, session = self._session.handle(len(slices)), self._session
        handle.guard(self._steps.require_whole)

        def taking(place: Place) -> Pulled:
            take = collecting(place[0], layout.members(place[0]), found)
            return Pulled(take, handle, taking)

        def pull(_: Slice, place: Place) -> None:
            session.pull(msg.PullState(place[0].key, 0, 0), taking(place))

        self._session.submit(slices, pull, handle)
        handle.wait()
        states = {name: [found[piece.key] for piece in layout.of_tensor(name)] for name in names}
        return {name: whole_state(parts) for name, parts in states.items() if all(parts)}

    def init_rows(
        self,
        key: str,
        table: Tensor | Table,
        optimizer: OptimizerRule | None = None,
        state: TableState | None = None,
    ) -> None:
        """Give the servers a table of rows, such as an embedding's.

        The rows are spread over all servers, and a server keeps those that were pushed. Blocks
        until worker 0 has called it. All workers declare the same tables in the same order.

        Args:
            key: the name that pushes and pulls call it.
            table: all its rows, shape (rows, width), overwritten with worker 0's values. Or a
                :class:`~syncopate.protocol.table.Table`, whose rows are made when they are first
                touched.
            optimizer: what the servers update its rows by, instead of that of the rules: SGD
                without momentum, Adagrad, or Adam, which is torch's SparseAdam here.
            state: rows to begin with, as :meth:`table_state` returned them; worker 0's count.

        Raises:
            InvalidValueError: there is such a table, a value is out of its range, or the optimizer
                would change rows that no gradient names (momentum, weight decay).
            UnknownNameError: elements that rows cannot have.
            ParameterServerError: the workers do not agree on the table.

        Example:
            >>> store.init_rows("user", Table(rows=10**9, width=64))  # doctest: +SKIP
        """
        rules = self.rules.of(0)
        if optimizer is not None:
            rules = msgspec.structs.replace(rules, optimizer=optimizer)
        whole, given = None, state
        if isinstance(table, Tensor):
            whole, table, first = table, *whole_table(key, table)
            given = first | dict(state or {})
        self._tables.declare(key, table, rules)
        if self.rank == FIRST and not self.resumed:
            self._tables.begin(key, given).wait()
        self._tables.meet(key)
        if whole is not None and (self.rank != FIRST or self.resumed):
            self.pull_rows(key, torch.arange(table.rows), whole).wait()

    def push_rows(
        self,
        key: str,
        ids: Tensor,
        values: Tensor,
        priority: int = 0,
        *,
        lr: float | None = None,
        reached: bool = True,
    ) -> Handle:
        """Send gradients of some rows in the background.

        Each worker pushes a table once in every synchronous step, if need be no rows. The update
        is the mean over the workers; a row that a worker did not push counts as zeros of it.

        Args:
            key: of the table.
            ids: numbers of rows, of any shape, in any order, on any device; int32 or int64.
                Gradients of a row that comes several times are added in their order.
            values: shape (rows, width), or that of ``ids`` and the width; copied at once.
            priority: the highest goes first.
            lr: the learning rate; that of the optimizer where left out.
            reached: False where backward did not reach the table: an update for which no worker's
                did counts as no step of the optimizer.

        Returns:
            A handle that is done when servers have them, safe on disk where they keep state there.

        Raises:
            UnknownNameError: no such table.
            InvalidValueError: no such rows, or gradients of another shape or element type.
            ParameterServerError: the job is over.
        """
        self._session.require_going()
        return self._tables.push(key, ids, values, priority, lr, reached=reached)

    def pull_rows(
        self, key: str, ids: Tensor, out: Tensor | None = None, priority: int = 0
    ) -> Handle:
        """Receive some rows, with all in them that this worker pushed before.

        What MXNet's KVStore calls ``row_sparse_pull``. In mode ``ssgd`` as :meth:`pull_many`.

        Args:
            key: of the table.
            ids: numbers of rows, as :meth:`push_rows` takes them.
            out: what to receive them in, shape (rows, width); a new tensor where left out, of the
                shape of ``ids`` and the width.
            priority: the highest comes first.

        Returns:
            A handle whose ``out`` has the rows, in the order of ``ids``, when it is done.

        Raises: as :meth:`push_rows`.
        """
        self._session.require_going()
        return self._tables.pull(key, ids, out, priority)

    def table_state(self, key: str) -> dict[str, Tensor]:
        """Return the rows that servers keep, with all that this worker pushed before.

        Returns:
            ``"ids"`` (rows,), ascending; ``"weights"`` (rows, width); ``"steps"`` (1,): how many
            updates the optimizer counted; and what it remembers of each row: ``"sum"`` of Adagrad,
            ``"mean"`` and ``"square"`` of Adam, each (rows, width). :meth:`init_rows` takes it.

        Raises:
            UnknownNameError: no such table.
            ParameterServerError: the job is over.
        """
        self._session.require_going()
        return self._tables.held(key)

    def set_learning_rate(self, lr: float, keys: Iterable[str] | None = None) -> None:
        """Let the servers use ``lr`` for every push from now on.

        In mode ``ssgd`` the learning rate of the lowest rank counts.

        Args:
            lr: the learning rate.
            keys: of which tensors; all where left out.

        Raises:
            InvalidValueError: less than 0, or no number.
            UnknownNameError: no such tensor.
        """
        some = None if keys is None else list(keys)
        for key in some or ():
            self._ready(key).layout.of_tensor(key)
        self._rates.set(lr, some)

    def move(self, scheduler: str) -> None:
        """Go on with other servers, any number of them, which take all that those of now have.

        Called between two steps, on all workers after the same one; blocks until they have. The
        servers of before end. Worker 0 holds all weights and optimizer states in memory for it.

        Args:
            scheduler: where the scheduler of the other servers is, as ``HOST:PORT``; it has a job
                of the same name, key and number of workers, which no worker has joined.

        Raises:
            InvalidValueError: no such address; or mode ``dc-asgd``, or a ``staleness``.
            ParameterServerError: the other job was not complete in time, and this store goes on
                with the servers of now; or one of both failed meanwhile, and it ends.
        """
        self._steps.require_whole()
        before, tables, declared = self._session, self._tables, self._declared
        job = msgspec.structs.replace(self._job.at(scheduler), rank=self.rank).require_valid()
        with moving(before, job.under(self.rules), self._limits, self.rules) as after:
            weights = {} if declared is None else declared.empty()
            held, state = None, dict[str, dict[str, Tensor]]()
            if self.rank == FIRST:
                held = tables.all_held()
                if weights:
                    state = self.state()
                    self.pull_many(weights).wait()
            self._enter(after)
            if declared is not None:
                declared.lay_out(self.num_servers)
                self._begin(declared, weights, state)
            self._tables.brought(tables, held)
        self._job = job

    def close(self, timeout_s: float | None = None) -> None:
        """Wait until all pushes are over, and leave the job.

        Args:
            timeout_s: how long to wait; None: until it is over, or the job is.

        Raises:
            ParameterServerError: the job failed, or the time is over.
            InvalidValueError: with ``clip_norm`` some tensors of the last step were not pushed.
        """
        try:
            self._steps.require_whole()
        except InvalidValueError as error:
            self._session.give_up(str(error))
            raise
        self._session.close(timeout_s)

    def __enter__(self) -> KVStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Leave; after an exception at once, and end the job."""
        if kind is None:
            self.close()
        else:
            reason = f"worker {self.rank} raised {kind.__name__}: {error}"
            self._session.give_up(reason, own=True)

    @property
    def gradient_norm(self) -> float | None:
        """The norm of the newest mean gradient that is known, before it was clipped; None: of none.

        ``Rules.clip_norm`` lets it be known.
        """
        machine = self._session.machine
        return None if machine is None else machine.last_norm

    @property
    def refused(self) -> dict[str, int]:
        """How many messages were refused so far, by reason."""
        return self._session.refused

    def _require_whole_where_durable(self) -> None:
        """Refuse to wait until a push is on disk, which is after the step that it is in."""
        machine = self._session.machine
        if machine is not None and machine.durable:
            self._steps.require_whole()

    def _first(self, key: str, tensor: Tensor, state: Mapping[str, Tensor]) -> Handle:
        """Push the first value of a tensor, and what the optimizer remembers of it."""
        slices = self._ready(key).layout.of_tensor(key)
        known = self.rules.of(slices[0].group).state
        payloads = {p.key: with_state(p, tensor, state, known) for p in slices}
        handle, session = self._session.handle(len(slices)), self._session

        def begin(piece: Slice, _: Place) -> None:
            names, payload = payloads[piece.key]
            session.push(msg.Begin(piece.key, 0, None, names), 0, Pushed(payload, handle))

        self._session.submit(slices, begin, handle)
        return handle

    def _push(
        self,
        tensors: Mapping[str, Tensor | None],
        priority: int,
        narrowing: Narrowing | None = None,
    ) -> Handle:
        """Send tensors; in fewer bits than they have where something narrows them."""
        declared = self._ready(next(iter(tensors), ""))
        rates, slices, nbytes = dict[int, float | None](), list[Slice](), 0
        pieces: dict[int, Tensor] = {}
        for lr, some in self._rates.alike(tensors, self.rules):
            alike = declared.slices(some)
            rates |= dict.fromkeys((piece.key for piece in alike), lr)
            slices += alike
            there = {name: tensor for name, tensor in some.items() if tensor is not None}
            if there:
                given = filled(declared.layout, alike, there)
                if narrowing is not None:
                    given = {each.key: narrowing.encoded(each, given[each.key]) for each in alike}
                pieces |= given
                nbytes += sum(map(Tensor.numel, given.values()))
        handle, session = self._session.handle(len(slices), nbytes), self._session

        def push(piece: Slice, place: Place) -> None:
            part, begin, end = place
            kind, data = msg.Push, pieces.get(piece.key)
            if data is None:
                kind, data = msg.Skip, _NOTHING
            if part is not piece:  # else all of it, which may be narrowed
                data = data[begin:end]
            session.push(kind(part.key, 0, rates[piece.key]), priority, Pushed(data, handle))

        self._session.submit(slices, push, handle)
        return handle

    def _ready(self, key: str) -> Declared:
        self._session.require_going()
        if self._declared is None:
            raise InvalidValueError("key", key, "declared with init() first")
        return self._declared


if TYPE_CHECKING:
    _STORE: type[Store] = KVStore  # what the engine sees of it
