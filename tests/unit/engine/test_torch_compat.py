"""torch's inside: each name that the engine takes of it does what the engine takes it for.

``make test-torch VERSIONS="..."`` runs this file with other versions of torch.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import syncopate
from syncopate.engine import torch_compat as compat

PRIVATE = re.compile(
    r"torch\._(?:C|dynamo|amp|functorch)|_execution_engine|_get_active_ddp|\._optimizer_step_p"
)


def test_no_other_module_of_the_engine_reaches_inside():
    room = Path(syncopate.__file__).parent / "engine"
    found = [
        f"{path.relative_to(room)}:{number}"
        for path in sorted(room.rglob("*.py"))
        if path.name != "torch_compat.py"
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if PRIVATE.search(line) and "``" not in line
    ]
    assert found == []


def test_every_backward_has_an_id_of_its_own_and_ends_with_its_callbacks():
    weight = torch.ones(2, requires_grad=True)
    seen: list[object] = []

    def hook(_):
        seen.append(compat.graph_task_id())
        compat.at_end_of_backward(lambda: seen.append("end"))

    for _ in range(2):
        (2 * weight).sum().backward(retain_graph=False)
        product = 3 * weight
        product.register_hook(hook)
        product.sum().backward()
        seen.append("over")
    first, end, over, second, *_ = seen
    assert (end, over) == ("end", "over")
    assert first != second
    assert compat.NO_BACKWARD not in (first, second)
    assert compat.graph_task_id() == compat.NO_BACKWARD


def test_a_block_without_overrides_calls_none():
    called = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            called.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    watched = torch.ones(2).as_subclass(Watched)
    called.clear()
    with compat.without_overrides():
        watched.sum()
    assert called == []
    watched.sum()
    assert called != []


def test_traces_and_transforms_are_seen():
    seen = []

    def forward(x):
        seen.append((compat.is_tracing(), compat.is_transformed()))
        return (x * x).sum()

    forward(torch.ones(2))
    torch.func.grad(forward)(torch.ones(2))
    torch.jit.trace(forward, torch.ones(2), check_trace=False)
    assert seen == [(False, False), (False, True), (True, True)]


def test_a_trace_does_not_hold_what_it_is_kept_out_of():
    held = torch.zeros(2)

    def forward(x):
        with compat.not_traced():
            assert not compat.is_tracing()
            held.add_(1)
        return x * held

    traced = torch.jit.trace(forward, torch.ones(2), check_trace=False)
    assert traced(torch.ones(2)).tolist() == [1.0, 1.0]
    assert held.tolist() == [1.0, 1.0]
    with compat.not_traced():
        assert not compat.is_tracing()


def test_views_count_as_holders_of_a_memory():
    tensor = torch.ones(4)
    alone = compat.storage_holders(tensor.untyped_storage())
    view = tensor[:2]
    assert compat.storage_holders(tensor.untyped_storage()) == alone + 1
    del view
    assert compat.storage_holders(tensor.untyped_storage()) == alone


def test_hooks_of_a_step_are_in_the_order_of_their_calls():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    called = []
    for name in "ab":
        optimizer.register_step_pre_hook(lambda *_, name=name: called.append(f"pre {name}"))
        optimizer.register_step_post_hook(lambda *_, name=name: called.append(f"post {name}"))
    before, after = compat.step_hooks(optimizer)
    assert (len(before), len(after)) == (2, 2)
    before.move_to_end(next(iter(before)))
    optimizer.step()
    assert called == ["pre b", "pre a", "post a", "post b"]


def test_a_scaler_unscales_by_this_call():
    gradient, found = torch.tensor([2.0, float("inf")]), torch.zeros(1)
    compat.unscale([gradient], found, torch.tensor([0.5]))
    assert gradient.tolist() == [1.0, float("inf")]
    assert found.item() == 1.0


def test_no_ddp_is_active_outside_of_its_forward():
    assert compat.active_ddp() is None


def test_a_compilation_is_announced_once():
    called = []
    compat.on_compilation(called.append)
    compat.on_compilation(called.append)
    from torch._dynamo.callback import callback_handler  # noqa: PLC0415 - it takes seconds

    assert callback_handler.start_callbacks.count(called.append) == 1
    callback_handler.remove_start_callback(called.append)


@pytest.mark.parametrize("name", compat.__all__)
def test_every_name_is_told_what_it_is_for(name):
    assert name in (compat.__doc__ or "") or name == "NO_BACKWARD"


def test_a_collective_in_python_tells_torch_its_result():
    work = compat.finished_work([torch.ones(2)])
    assert work.wait()
    assert work.is_completed()
    assert [one.tolist() for one in work.get_future().value()] == [[1.0, 1.0]]
