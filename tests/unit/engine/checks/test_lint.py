"""What ``check`` finds in models and optimizers, and that it agrees with ``distribute``."""

from __future__ import annotations

import copy
import weakref
from collections import deque
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import syncopate
from syncopate.engine.checks import soundness
from syncopate.engine.checks.findings import COSTS, DIFFERS, REFUSED, WAITS, Checked
from syncopate.engine.exchange.optimizers import kind_of
from syncopate.engine.exchange.proxies.weights import read_below_torch
from syncopate.engine.model import ownership
from syncopate.engine.selfplan.wishes import Wishes
from syncopate.errors import EngineError, InvalidValueError, SyncopateError


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def found(result: Checked) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(each.effect, each.what, each.where) for each in result.findings]


class Renamed(torch.optim.AdamW):
    """Overrides nothing but ``__init__``."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)


class Stepping(torch.optim.AdamW):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class Unknown(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None: ...


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight


class Asking(nn.Parameter):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_plain_model_has_nothing_to_report() -> None:
    model = plain()
    for optimizer in (sgd(model), Renamed(model.parameters()), torch.optim.Muon([model[0].weight])):
        others = torch.optim.SGD([*list(model.parameters())[1:]], lr=0.1)
        both = [optimizer, others] if isinstance(optimizer, torch.optim.Muon) else optimizer
        assert syncopate.check(model, both).findings == ()
    assert syncopate.check(model, sgd(model)).summary() == ("Sequential and SGD: nothing found",)


# -- what is refused -----------------------------------------------------------------------------


def of_ddp() -> nn.Module:
    inner = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(inner)
    inner.module = nn.Linear(2, 2)
    return nn.Sequential(nn.Linear(2, 2), inner)


def on_meta() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))


def frozen() -> nn.Module:
    return plain().requires_grad_(False)


def quarter() -> nn.Module:
    model = plain()
    model.register_parameter("tiny", nn.Parameter(torch.zeros(2).to(torch.float8_e5m2)))
    return model


REFUSALS = {
    "lazy": (
        lambda: nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d()),
        "a tensor without a shape",
        ("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"),
        "run one forward through the lazy modules first",
    ),
    "meta": (
        on_meta,
        "a parameter that is no plain tensor with values",
        ("1.weight", "1.bias"),
        "materialise the model first",
    ),
    "DDP": (
        of_ddp,
        "a module that is trained over ranks already",
        ("1",),
        "give the module inside (.module)",
    ),
    "frozen": (
        frozen,
        "the model as a whole",
        ("Sequential",),
        "set requires_grad on those to be trained",
    ),
    "dtype": (
        quarter,
        "a parameter that is no plain tensor with values",
        ("tiny",),
        None,
    ),
}


def test_a_data_parallel_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.DataParallel(nn.Linear(2, 2)))
    assert found(syncopate.check(model, sgd(model))) == [(COSTS, "a DataParallel", ("1",))]
    whole = nn.DataParallel(plain())
    assert found(syncopate.check(whole, sgd(whole))) == [(COSTS, "a DataParallel", ("the model",))]


def row(model: nn.Module, *optimizers: torch.optim.Optimizer) -> str:
    """Return what the checks of ``distribute`` refuse."""
    given = soundness.Given(None, Wishes())
    try:
        deque(soundness.checks(model, optimizers, given, world_size=2), maxlen=0)
    except SyncopateError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_refused_is_named_and_is_what_distribute_refuses(name: str) -> None:
    make, what, where, do = REFUSALS[name]
    model = make()
    kept = dict(vars(model)), type(model)
    refused = syncopate.check(model).refused
    assert [(each.what, each.where) for each in refused] == [(what, where)]
    assert refused[0].happens in row(model)
    if do is not None:
        assert refused[0].do == do
    assert (vars(model), type(model)) == kept


def test_an_optimizer_of_another_model_is_refused() -> None:
    model = plain()
    other = sgd(plain())
    result = syncopate.check(model, [sgd(model), other])
    assert found(result) == [
        (REFUSED, "an optimizer of other parameters", ("optimizer 1, SGD",)),
    ]
    assert result.refused[0].happens in row(model, other)
    loss = nn.Linear(2, 1)
    both = torch.optim.SGD([*model.parameters(), loss.weight], lr=0.1)
    result = syncopate.check(model, both)
    assert [(each.effect, each.what) for each in result.findings] == [
        (REFUSED, "a parameter that is not the model's"),
    ]
    assert result.findings[0].where == ("parameter 4 of the optimizer's group 0 (shape (1, 2))",)
    assert row(model, both) == ""  # distribute takes it; the first step does not
    with pytest.raises(EngineError, match="is in no distributed model"):
        ownership.require_averaged(both)


def test_what_is_given_has_to_be_a_model_and_optimizers() -> None:
    with pytest.raises(InvalidValueError, match=r"model is 'int'; it must be a torch.nn.Module"):
        syncopate.check(3)  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="ignore names 'nothing'"):
        syncopate.check(plain(), ignore=["nothing"])
    with pytest.raises(InvalidValueError, match=r"optimizer is 'str'; it must be"):
        syncopate.check(plain(), "sgd")  # type: ignore[arg-type]


# -- what does not overlap -----------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "names"), [(Stepping, "step"), (Unknown, "")])
def test_an_optimizer_that_is_not_declared_takes_its_whole_step(kind: Any, names: str) -> None:
    model = plain()
    optimizer = kind(model.parameters())
    result = syncopate.check(model, optimizer)
    assert found(result) == [(WAITS, "an optimizer that is not declared", (kind.__name__,))]
    assert f"declare_optimizer({kind.__name__}, 'element')" in result.findings[0].do
    said = f"(it has a {names} of its own beside AdamW's)"
    assert (said in result.findings[0].happens) == bool(names)
    with pytest.raises(EngineError):
        kind_of(optimizer)


def test_a_declared_optimizer_is_not_reported() -> None:
    class Declared(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        def step(self, closure: Any = None) -> None: ...

    model = plain()
    assert len(syncopate.check(model, Declared(model.parameters())).findings) == 1
    syncopate.declare_optimizer(Declared, "element")
    assert syncopate.check(model, Declared(model.parameters())).findings == ()


def test_closures_hooks_and_no_optimizer() -> None:
    model = plain()
    lbfgs = torch.optim.LBFGS(model.parameters())
    assert found(syncopate.check(model, lbfgs)) == [
        (WAITS, "a step that needs a closure", ("LBFGS",))
    ]
    assert found(syncopate.check(model)) == [(WAITS, "no optimizer", ("Sequential",))]
    optimizer = sgd(model)
    handle = optimizer.register_step_post_hook(lambda *_: None)
    model[0].weight.register_hook(lambda gradient: gradient)
    model[2].bias.register_post_accumulate_grad_hook(lambda _: None)
    assert found(syncopate.check(model, optimizer)) == [
        (WAITS, "a hook on the optimizer's step", ("SGD",)),
        (WAITS, "a hook on a gradient", ("0.weight", "2.bias")),
    ]
    handle.remove()
    assert len(syncopate.check(model, optimizer).findings) == 1


def test_what_reads_weights_unseen() -> None:
    model = nn.Sequential(plain(), torch.jit.script(nn.Linear(2, 2)))
    assert found(syncopate.check(model, sgd(model))) == [(WAITS, "a TorchScript module", ("1",))]
    assert read_below_torch(model)
    whole = torch.jit.script(plain())
    assert (WAITS, "a TorchScript module", ("RecursiveScriptModule", "0", "1", "2")) in found(
        syncopate.check(whole, sgd(whole))
    )
    model = plain()
    assert not read_below_torch(model)
    model[0].weight = Asking(torch.zeros(3, 4))
    assert read_below_torch(model)
    assert (
        WAITS,
        "a parameter with its own __torch_function__",
        ("0.weight",),
    ) in found(syncopate.check(model, sgd(model)))


def test_buffers_and_how_they_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    model.register_buffer("mask", torch.zeros(1 << 20))
    names = ("mask", "1.running_mean", "1.running_var", "1.num_batches_tracked")
    optimizer = sgd(model)
    result = syncopate.check(model, optimizer)
    assert found(result) == [(WAITS, "buffers", names)]
    assert "when rank 0 changes 'mask', it is sent in a message of its own" in str(result)
    assert syncopate.check(model, optimizer, broadcast_buffers=False).findings == ()
    assert found(syncopate.check(model, optimizer, ignore=names[:2])) == [
        (WAITS, "buffers", names[2:])
    ]


def test_shared_parameters() -> None:
    model = Tied()
    assert found(syncopate.check(model, sgd(model))) == [
        (WAITS, "a shared parameter", ("embedding.weight = head.weight",))
    ]


# -- what differs, and what costs ----------------------------------------------------------------


def test_dtypes_several_optimizers_and_parameters_of_none() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.complex64))
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.SGD([model[0].weight, model[1].weight], lr=0.1)
    assert found(syncopate.check(model, [first, second])) == [
        (DIFFERS, "a complex parameter", ("1.weight", "1.bias")),
        (DIFFERS, "a parameter of several optimizers", ("0.weight",)),
        (COSTS, "several dtypes", ("0.weight: float32", "1.weight: complex64")),
        (COSTS, "a parameter that no optimizer trains", ("1.bias",)),
    ]
    assert found(syncopate.check(model, first, ignore=["1.weight", "1.bias"])) == []
    model[1].requires_grad_(False)
    assert found(syncopate.check(model, first)) == []


# -- how it is shown -----------------------------------------------------------------------------


def test_embeddings_with_sparse_gradients_wait() -> None:
    rows = nn.Embedding(5, 2, sparse=True), nn.EmbeddingBag(5, 2, sparse=True)
    model = nn.Sequential(*rows, nn.Linear(2, 2))
    names = ("0", "1")
    assert found(syncopate.check(model, sgd(model))) == [
        (WAITS, "an embedding with sparse gradients", names)
    ]


def test_it_prints_a_sentence_for_each_and_becomes_rows() -> None:
    model = nn.Sequential(*(nn.Embedding(3, 2, device="meta") for _ in range(6)), nn.BatchNorm1d(2))
    result = syncopate.check(model, sgd(model))
    assert repr(result) == "<Checked: Sequential and SGD: 1 refused, 1 waits>"
    assert result.rows()[0] == {
        "effect": "refused",
        "what": "a parameter that is no plain tensor with values",
        "where": "0.weight, 1.weight, 2.weight, 3.weight and 2 others",
    }
    assert result.frame()[0]["where"] == ", ".join(f"{n}.weight" for n in range(6))
    assert result.frame()[0]["do"] == "materialise the model first"
    assert result.summary()[1] == (
        "refused: a parameter that is no plain tensor with values (0.weight, 1.weight, 2.weight, "
        "3.weight and 2 others). '0.weight' is on the meta device; materialise the model first"
    )
    assert "refused" in str(result).splitlines()[-2]


def test_nothing_is_changed_and_no_group_is_made() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    gradients = [each.grad for each in model.parameters()]
    before: list[Any] = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    random = torch.get_rng_state()
    syncopate.check(model, optimizer)
    assert not torch.distributed.is_initialized()
    assert torch.equal(torch.get_rng_state(), random)
    torch.testing.assert_close([model.state_dict(), optimizer.state_dict()], before, rtol=0, atol=0)
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    assert type(model) is nn.Sequential
    for each in model.parameters():
        held: Any = each
        assert not held._post_accumulate_grad_hooks
        assert isinstance(held.grad, Tensor)


def test_a_hook_of_an_engine_that_is_gone_stays_where_it_is() -> None:
    model = plain()
    ownership.orphan({"0.weight": weakref.ref(model[0].weight)})
    assert syncopate.check(model, sgd(model)).findings == ()
    with pytest.raises(EngineError, match=r"'0.weight' is trained, but the model"):
        model(torch.ones(1, 4)).sum().backward()
    ownership.adopt(model)
    model(torch.ones(1, 4)).sum().backward()
