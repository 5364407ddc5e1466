"""Store: the parameter server as the engine sees it, so that neither imports the other.

:class:`~syncopate.paramserver.worker.KVStore` is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from syncopate.protocol.rules import OptimizerRule, Rules


class StoreHandle(Protocol):
    """A push or pull that was submitted.

    Attributes:
        finished_s: when it was over, by ``time.perf_counter``; 0 until then.
        out: of a pull of rows, what they come to.
    """

    finished_s: float
    out: Tensor

    def done(self) -> bool:
        """Say whether it is over, well or badly, without blocking."""

    def wait(self) -> None:
        """Return when it is over.

        Raises:
            ParameterServerError: it will never be.
        """


@runtime_checkable
class Store(Protocol):
    """Weights that servers keep: gradients are pushed to them, weights pulled from them.

    Attributes:
        num_workers: how many workers there are.
        num_servers: how many servers there are.
        rules: how the servers update.
    """

    num_workers: int
    num_servers: int
    rules: Rules

    def init(
        self,
        tensors: Mapping[str, Tensor],
        optimizer: OptimizerRule | Mapping[str, OptimizerRule] | None = None,
        state: Mapping[str, Mapping[str, Tensor]] | None = None,
    ) -> None:
        """Give the servers worker 0's ``tensors``, and every worker the same values.

        Blocks until all workers have called it. Once per job. The servers update by ``optimizer``,
        where one is given, and not by that of the rules, or by one for each name; ``state`` is what
        it remembers.
        """

    def state(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Return what the servers' optimizer remembers, with all that this worker pushed before.

        Per tensor that was updated, flat: ``"momentum"``; or ``"mean"``, ``"square"`` and
        ``"steps"``, one integer.
        """

    def push(self, key: str, tensor: Tensor | None, priority: int = 0) -> StoreHandle:
        """Send a gradient in the background; the highest priority goes first.

        Until the handle is done the tensor must not change.
        """

    def push_many(self, tensors: Mapping[str, Tensor | None], priority: int = 0) -> StoreHandle:
        """Send several gradients as one submission, in their order; see :meth:`push`.

        None, where updates wait for all workers: this one has no gradient.
        """

    def pull(self, key: str, out: Tensor, priority: int = 0) -> StoreHandle:
        """Receive weights into ``out``, with all in them that this worker pushed before.

        In synchronous modes: exactly as many pushes of every worker, unless this worker pushes on
        and loses its connection meanwhile. Until the handle is done ``out`` must not be used.
        """

    def pull_many(self, outs: Mapping[str, Tensor], priority: int = 0) -> StoreHandle:
        """Receive several weights as one submission, in their order; see :meth:`pull`."""

    def init_rows(
        self,
        key: str,
        table: Tensor,
        optimizer: OptimizerRule | None = None,
        state: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Give the servers worker 0's ``table`` of rows, and every worker the same values.

        ``state`` is what ``optimizer`` remembers of its rows.
        """

    def push_rows(
        self,
        key: str,
        ids: Tensor,
        values: Tensor,
        priority: int = 0,
        *,
        lr: float | None = None,
        reached: bool = True,
    ) -> StoreHandle:
        """Send gradients of some rows; once in a step, if need be of none."""

    def pull_rows(
        self, key: str, ids: Tensor, out: Tensor | None = None, priority: int = 0
    ) -> StoreHandle:
        """Receive some rows, which the handle has as ``out``."""

    def table_state(self, key: str) -> Mapping[str, Tensor]:
        """Return the rows that servers keep, and what the optimizer remembers of them."""

    def set_learning_rate(self, lr: float, keys: Iterable[str] | None = None) -> None:
        """Let the servers use ``lr`` for every push from now on, of all tensors or of some."""

    def close(self) -> None:
        """Wait until all pushes are over, and leave the job."""
