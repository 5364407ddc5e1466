"""torch's inside: all that the engine takes of torch beyond its documented interface.

One place, so that a new torch is tried by one file of tests (``test_torch_compat.py``), which fails
where a name is gone or does something else. Tried with torch 2.13.0; ``make test-torch`` tries
others. What each is for:

* ``graph_task_id``: which backward runs, to tell one from the next and from a checkpoint's second
  forward. Hooks are called without it.
* ``at_end_of_backward``: a callback of the engine that runs when a backward is over, on its thread.
  DDP ends its backward by it. There is no public one.
* ``active_ddp``: the DistributedDataParallel whose forward runs, so that none is put around ours.
* ``without_overrides``: a block in which tensors that wait for their values do not wait: what reads
  no value.
* ``is_tracing``, ``is_transformed``: whether a trace or ``torch.func`` computes, which exchange
  nothing. ``not_traced``: a block that a trace does not hold.
* ``storage_holders``: how many hold a memory: whether a view of it is kept.
* ``step_hooks``: of an optimizer, in their order, which decides who sees whole gradients.
* ``unscale``: what ``GradScaler`` calls on gradients.
* ``on_compilation``: a call before something is compiled, which reads weights.
* ``finished_work``: what a collective returns to torch, of a process group in Python.

Beside these, classes of a model and of parameters are exchanged by ``__class__``
(``model/module.py``, ``exchange/proxies/weights.py``), which is Python's own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import _distributed_c10d
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

__all__ = [
    "NO_BACKWARD",
    "active_ddp",
    "at_end_of_backward",
    "finished_work",
    "graph_task_id",
    "is_tracing",
    "is_transformed",
    "not_traced",
    "on_compilation",
    "step_hooks",
    "storage_holders",
    "unscale",
    "without_overrides",
]

NO_BACKWARD = -1
"""What ``graph_task_id`` returns outside of every backward."""

_create_work_from_future: Any = getattr(_distributed_c10d, "_create_work_from_future")  # noqa: B009
_set_tracing_state: Any = getattr(torch._C, "_set_tracing_state")  # noqa: B009
graph_task_id: Callable[[], int] = torch._C._current_graph_task_id
without_overrides: Callable[[], Any] = torch._C.DisableTorchFunctionSubclass
is_tracing: Callable[[], bool] = torch._C._is_tracing
unscale: Any = torch._amp_foreach_non_finite_check_and_unscale_


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Call ``callback`` when the backward that runs is over."""
    Variable._execution_engine.queue_callback(callback)


def active_ddp() -> DistributedDataParallel | None:
    """Return the DistributedDataParallel in whose forward this is called."""
    found: DistributedDataParallel | None
    found = DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-untyped-call]
    return found


def finished_work(result: Any) -> Any:
    """Return the ``Work`` of a collective that is over, with its result."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return _create_work_from_future(future)


def is_transformed() -> bool:
    """Say whether a trace or a transform of ``torch.func`` computes."""
    return is_tracing() or torch._C._functorch.peek_interpreter_stack() is not None


@contextmanager
def not_traced() -> Iterator[None]:
    """Keep what happens inside out of the trace that is being made, if there is one."""
    state = torch._C._get_tracing_state()
    _set_tracing_state(None)
    try:
        yield
    finally:
        _set_tracing_state(state)


def storage_holders(storage: torch.UntypedStorage) -> int:
    """Return how many hold ``storage``: each tensor on it counts, and ``storage`` itself."""
    count: int = torch._C._storage_Use_Count(storage._cdata)
    return count


def step_hooks(
    optimizer: torch.optim.Optimizer,
) -> tuple[OrderedDict[int, Any], OrderedDict[int, Any]]:
    """Return the hooks before and after a step of ``optimizer``, in the order of their calls."""
    held: Any = optimizer
    return held._optimizer_step_pre_hooks, held._optimizer_step_post_hooks


def on_compilation(callback: Callable[[Any], None]) -> None:
    """Have ``callback`` called before each compilation, once, also where the compiler was reset."""
    # Loading it takes seconds, and the first optimizer has loaded it by now.
    from torch._dynamo.callback import callback_handler, on_compile_start  # noqa: PLC0415

    if callback not in callback_handler.start_callbacks:
        on_compile_start(callback)
