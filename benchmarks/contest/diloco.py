"""DiLoCo by torchft, where that is installed: local steps, then an outer step on their mean.

Douillard et al. 2023 (arXiv:2311.08105). Every rank takes H inner steps with gradients of its own.
Then all go back to where they began, and the outer optimizer steps with the mean of how far each of
them had come; from there all go on.

Streaming DiLoCo (Douillard et al. 2025, arXiv:2501.18512) cuts the model into fragments, each of
which has its outer step at another time, every H steps. Its mean is under way while ranks take some
steps more; of these a share stays. What is set:

- outer optimizer, of the paper: SGD with Nesterov momentum 0.9 and a learning rate of 0.7;
- inner optimizer: the caller's, whose state stays each rank's own;
- synchronous steps by ``DistributedDataParallel`` before, as many as the caller says;
- torchft's own all-reduce over Gloo, of all tensors in one bucket: of its two ways the faster one;
- a lighthouse on rank 0 and a manager on every rank, each of them a replica of one process, with
  torchft's own settings; a synchronous quorum before every outer step, as its DiLoCo demands. A
  step that is not committed ends the training.

Buffers (batch normalisation) stay each rank's own.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

OUTER_LR, OUTER_MOMENTUM = 0.7, 0.9
TIMEOUT = timedelta(seconds=120)
"""Of the quorum and of every collective."""


class DiLoCo(NamedTuple):
    """How to train.

    Attributes:
        period: H, the inner steps before every outer one.
        warm_up: synchronous steps before.
        adamw_lr: of AdamW, which then takes the inner steps, as in the paper; None for what takes
            all other variants' steps.
        fragments: of the model; the period is a multiple of it.
        overlap: tau, the inner steps while a mean is under way; below period / fragments.
        kept: alpha, the share of a rank's own weights in what it goes on with.
    """

    period: int
    warm_up: int = 0
    adamw_lr: float | None = None
    fragments: int = 1
    overlap: int = 0
    kept: float = 0.0


def why_not() -> str:
    """Return why torchft is not to be had, and what helps; empty where it is."""
    os.environ.setdefault("RUST_LOG", "error")  # a line for every message otherwise
    logging.getLogger("torchft").setLevel(logging.ERROR)
    try:
        for part in ("", ".coordination", ".local_sgd", ".manager", ".process_group"):
            importlib.import_module(f"torchft{part}")
    except ImportError as error:
        if error.name == "torchft":
            return "torchft is not installed: pip install torchft"
        return f"torchft cannot be imported: {error}"
    return ""


def fragments_of(model: nn.Module, count: int) -> list[nn.ParameterList]:
    """Return the parameters in so many runs, about equally large where no tensor is too large."""
    parameters = list(model.parameters())
    found = [nn.ParameterList() for _ in range(count)]
    whole, reached = sum(each.numel() for each in parameters), 0
    for each in parameters:
        found[count * reached // whole].append(each)
        reached += each.numel()
    return found


def _own_address() -> str:
    """Return the address of this host that the others reach it by."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), 9))  # sends nothing
        found: str = probe.getsockname()[0]
        return found


@contextmanager
def lighthouse(host: str) -> Iterator[str]:
    """Yield the address of a lighthouse, which rank 0 keeps until all have left this block."""
    from torchft.coordination import LighthouseServer  # noqa: PLC0415 - may not be installed

    with ExitStack() as stack:
        told = [""]
        if dist.get_rank() == 0:
            server = LighthouseServer(bind="0.0.0.0:0", min_replicas=dist.get_world_size())
            stack.callback(server.shutdown)
            port = server.address().rsplit(":", 1)[1]
            told = [f"http://{host}:{port}"]
        dist.broadcast_object_list(told)
        yield told[0]
        dist.barrier()


@contextmanager
def managed() -> Iterator[Any]:
    """Yield torchft's manager of this rank, connected to all others; it is ended with the block."""
    from torchft.manager import Manager  # noqa: PLC0415 - may not be installed
    from torchft.process_group import ProcessGroupGloo  # noqa: PLC0415 - may not be installed

    host, rank = _own_address(), dist.get_rank()
    with ExitStack() as stack:
        address = stack.enter_context(lighthouse(host))
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        group = ProcessGroupGloo(timeout=TIMEOUT)
        stack.callback(group.shutdown)
        manager = Manager(
            pg=group,
            load_state_dict=None,
            state_dict=None,
            min_replica_size=dist.get_world_size(),
            use_async_quorum=False,
            timeout=TIMEOUT,
            quorum_timeout=TIMEOUT,
            rank=0,
            world_size=1,
            store_addr=host,
            store_port=store.port,
            lighthouse_addr=address,
            replica_id=f"rank_{rank}",
            hostname=host,
            init_sync=False,  # all begin with the same weights
            max_retries=0,
        )
        stack.callback(manager.shutdown)
        manager.start_quorum()  # connects, before any clock runs
        yield manager
        dist.barrier()  # no rank's manager goes while others are at their last step


class Trained:
    """A model in training; call it once a step, in the place of the model.

    Args:
        model: the same on all ranks.
        optimizer: takes the inner steps, and those before.
        how: period and warm-up.
        manager: of torchft.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, how: DiLoCo, manager: Any
    ) -> None:
        self.model, self.how = model, how
        self.outer_steps = 0
        self._optimizer, self._manager = optimizer, manager
        self._synchronous = DistributedDataParallel(model)
        self._steps = 0
        self._outer_weights: list[Tensor] = []
        self._stack = ExitStack()

    def __call__(self, inputs: Tensor) -> Any:
        """Return what the model makes of ``inputs``."""
        if self._steps == self.how.warm_up:
            self._begin()
        self._steps += 1
        synchronous = self._steps <= self.how.warm_up
        return (self._synchronous if synchronous else self.model)(inputs)

    def _begin(self) -> None:
        from torchft import local_sgd  # noqa: PLC0415 - may not be installed

        parameters = list(self.model.parameters())
        self._outer_weights = [each.detach().clone() for each in parameters]
        places = dict(zip(parameters, self._outer_weights, strict=True))
        fragments: list[nn.Module] = []
        outers: list[torch.optim.Optimizer] = []
        for fragment in fragments_of(self.model, self.how.fragments):
            own = list(fragment.parameters())
            outer = torch.optim.SGD(own, lr=OUTER_LR, momentum=OUTER_MOMENTUM, nesterov=True)
            outer.register_step_post_hook(
                partial(self._stepped, [places[each] for each in own], own)
            )
            fragments.append(fragment)
            outers.append(outer)
        diloco = local_sgd.DiLoCo(
            self._manager,
            fragments,
            self._optimizer,
            outers,  # a common one would step by what other fragments have for gradients
            sync_every=self.how.period,
            use_bucketization=True,
            fragment_sync_delay=self.how.overlap,
            fragment_update_alpha=self.how.kept,
        )
        self._stack.enter_context(diloco)

    def _stepped(self, places: list[Tensor], parameters: list[nn.Parameter], *_: Any) -> None:
        self.outer_steps += 1
        torch._foreach_copy_(places, [each.detach() for each in parameters])

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """In the block the model has the weights of the last outer steps; it is not to be trained.

        Before the first one those are where all began.
        """
        parameters = list(self.model.parameters())
        own = [each.detach().clone() for each in parameters]
        with torch.no_grad():
            torch._foreach_copy_(parameters, self._outer_weights or own)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(parameters, own)

    def end(self) -> None:
        """Take no more outer steps."""
        self._stack.close()


@contextmanager
def training(model: nn.Module, optimizer: torch.optim.Optimizer, how: DiLoCo) -> Iterator[Trained]:
    """Yield what trains ``model``, on all ranks of the default group; see :class:`Trained`.

    Raises:
        RuntimeError: by torchft, from the step at which it could not go on.
    """
    with managed() as manager:
        trained = Trained(model, optimizer, how, manager)
        try:
            yield trained
        finally:
            trained.end()
