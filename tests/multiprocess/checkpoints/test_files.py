"""Checkpoints that are written, read and refused: in torch's format and torch's own way."""

from __future__ import annotations

import contextlib
import copy
import pickle
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)

from syncopate.engine.distribute import distribute
from syncopate.errors import EngineError, InvalidValueError
from tests.children import REPOSITORY
from tests.multiprocess.checkpoints.cases import (
    OPTIMIZERS,
    Shapes,
    assert_same,
    exchange_plan,
    groups_of,
    loss_of,
    train,
)
from tests.multiprocess.engine.cases import TIMEOUT_S, identical_everywhere, run_cases
from tests.multiprocess.harness import run_ranks

WORLD_SIZE = 3
CALL = r"On every rank call model\.syncopate\.state_dict\(optimizer\)"
OWNED = ("sharded", "rooted")


def _model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return Shapes()


def _all_reached(seed: int = 0) -> nn.Module:
    """A model all of whose parameters get gradients, which torch's own checkpoints presuppose."""
    model = _model(seed)
    model.unused.requires_grad_(False)
    return model


def _distributed(
    exchange: str,
    name: str = "adam",
    *,
    group: Any = None,
    sizes: Any = (4, 3, 2),
    model: Any = None,
) -> Any:
    model = _model() if model is None else model
    ranks = dist.get_world_size(group)
    plan = exchange_plan(model, ranks, exchange, sizes)
    optimizer = OPTIMIZERS[name](groups_of(model))
    return distribute(model, optimizer, plan=plan, group=group, timeout_s=TIMEOUT_S)


def _plain(saved: dict[str, Any], name: str = "adam") -> Any:
    """One process's model and optimizer with a copy of what was saved: loading may share it."""
    saved = copy.deepcopy(saved)
    model = _model(seed=7)
    optimizer = OPTIMIZERS[name](groups_of(model))
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return model, optimizer


def _elements(optimizer: torch.optim.Optimizer) -> int:
    """Elements of the tensors in the state, and of the memory behind them."""
    tensors = [t for s in optimizer.state.values() for k, t in s.items() if k != "step"]
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    assert sum(held.values()) == sum(t.nbytes for t in tensors)
    return sum(t.numel() for t in tensors)


def _rank_0_saves_and_one_process_loads(rank: int, folder: str) -> None:
    for exchange in OWNED:
        model, optimizer = _distributed(exchange)
        train(model, optimizer, rank, range(2), plain=False)
        saved = model.syncopate.state_dict(optimizer)
        assert (saved is not None) == (rank == 0)
        path = Path(folder) / f"{exchange}.pt"
        if rank == 0:
            torch.save(saved, path)
            weights = sum(p.nbytes for p in model.parameters())
            assert path.stat().st_size < 6 * weights + 40_000
        before = copy.deepcopy(saved)
        train(model, optimizer, rank, [2], plain=False)
        assert_same(saved, before, "what was saved changes no more", exact=True)
        dist.barrier()
        alone, its_optimizer = _plain(torch.load(path))
        train(alone, its_optimizer, rank, [2], plain=True)
        assert_same(alone.state_dict(), model.state_dict(), exchange)
        model.syncopate.detach()


def _fewer_ranks_load(rank: int, folder: str) -> None:
    """At two ranks, under another exchange, the next steps are those of one process."""
    group = dist.new_group([0, 1])
    for exchange, other in (("sharded", "rooted"), ("rooted", "sharded"), ("sharded", "allreduce")):
        saved = torch.load(Path(folder) / f"{exchange}.pt")
        if rank == 2:
            continue
        model, optimizer = _distributed(other, group=group, sizes=(1, 8), model=_model(3))
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        plain, reference = _plain(saved)
        if other != "allreduce":
            mine = [torch.tensor(_elements(optimizer))]
            dist.all_reduce(mine[0], group=group)
            # Each element is held once, from the moment of loading on.
            assert int(mine[0]) == _elements(reference)
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
            reference.zero_grad()
            (sum(loss_of(plain, r, step) for r in range(2)) / 2).backward()
            reference.step()
        told = model.syncopate.state_dict(optimizer, everywhere=True)
        assert_same(told["model"], plain.state_dict(), other)
        assert_same(told["optimizer"], reference.state_dict(), other)
        model.syncopate.detach()
    dist.barrier()


def _pieces_are_no_state(rank: int, folder: str) -> None:
    for exchange in OWNED:
        model, optimizer = _distributed(exchange, sizes=(9,))
        assert_same(optimizer.state_dict()["state"], {}, "fresh")
        train(model, optimizer, rank, [0], plain=False)
        with pytest.raises(EngineError, match=CALL):
            optimizer.state_dict()
        for copied in (copy.deepcopy, pickle.dumps):
            with pytest.raises(EngineError, match=r"Copy or pickle it inside .*whole_state"):
                copied(optimizer)
        with model.syncopate.whole_state(optimizer):
            whole = copy.deepcopy(optimizer.state_dict())
            for again in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
                assert_same(again.state_dict(), whole, exchange, exact=True)
            with model.syncopate.whole_state(optimizer):
                pass
            loss_of(model, rank, 1).backward()
            with pytest.raises(EngineError, match="this step is one of training; step outside"):
                optimizer.step()
        optimizer.step()
        optimizer.load_state_dict(whole)
        with pytest.raises(EngineError, match=CALL):
            optimizer.state_dict()
        told = model.syncopate.state_dict(optimizer, everywhere=True)
        assert_same(told["optimizer"], whole, exchange, exact=True)
        with pytest.raises(InvalidValueError, match="optimizer is 'Shapes'; it must be a torch"):
            model.syncopate.state_dict(model)
        model.syncopate.detach()


def _different_states_are_refused(rank: int, folder: str) -> None:
    for exchange in ("sharded",):
        model, optimizer = _distributed(exchange)
        train(model, optimizer, rank, [0], plain=False)
        whole = model.syncopate.state_dict(optimizer, everywhere=True)["optimizer"]
        if rank == 1:
            for entries in whole["state"].values():
                entries["step"] += 1
        optimizer.load_state_dict(whole)
        with pytest.raises(EngineError, match=r"'step' of '.*' is not the same on ranks \d and \d"):
            model.syncopate.state_dict(optimizer)
        with pytest.raises(EngineError, match="is not the same on ranks"):
            model.syncopate.detach()
        assert type(model) is Shapes


def _rank_0_alone_saves_weights(rank: int, folder: str) -> None:
    for exchange in OWNED:
        model, optimizer = _distributed(exchange)
        train(model, optimizer, rank, range(2), plain=False)
        if rank == 0:
            weights = model.state_dict()
            torch.save(weights, Path(folder) / "weights.pt")
        dist.barrier()
        here = copy.deepcopy(model.state_dict())
        assert_same(torch.load(Path(folder) / "weights.pt"), here, exchange, exact=True)
        identical_everywhere(model.state_dict().values())
        model.syncopate.detach()


def _each_weight_has_a_storage(rank: int, folder: str) -> None:
    """What is saved of a weight is that weight, and what is written to it is written to it."""
    for exchange in OWNED:
        model, optimizer = _distributed(exchange)
        train(model, optimizer, rank, range(2), plain=False)
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        around = nn.Sequential(model)
        for found, place in ((model.state_dict(), ""), (around.state_dict(prefix="at."), "at.0.")):
            weights = [found[place + name] for name in trained]
            for weight in weights:
                assert weight.untyped_storage().nbytes() == weight.nbytes
        for weight in weights:
            weight.fill_(rank + 1.0)
        assert all(bool((weight == rank + 1.0).all()) for weight in trained.values())
        model.syncopate.detach()


def _torchs_own_calls_need_the_block(rank: int, folder: str) -> None:
    """Outside of it they say what to call, with state and without."""
    calls = (
        get_state_dict,
        get_optimizer_state_dict,
        partial(get_state_dict, options=StateDictOptions(full_state_dict=True)),
        partial(
            get_optimizer_state_dict, options=StateDictOptions(flatten_optimizer_state_dict=True)
        ),
    )
    for exchange in OWNED:
        model, optimizer = _distributed(exchange, "adam", sizes=(4, 4), model=_all_reached())
        for step in range(2):
            for call in calls:
                with pytest.raises(EngineError, match=f"{CALL}.*whole_state"):
                    call(model, optimizer)
            train(model, optimizer, rank, [step], plain=False)
        model.syncopate.detach()


def _torchs_own_checkpoints(rank: int, folder: str) -> None:
    """Saved by three ranks, loaded by two and by one process."""
    group = dist.new_group([0, 1])
    for name, exchange, other in (("adam", "sharded", "rooted"), ("momentum", "rooted", "sharded")):
        model, optimizer = _distributed(exchange, name, sizes=(4, 4), model=_all_reached())
        train(model, optimizer, rank, range(2), plain=False)
        path = Path(folder) / f"dcp_{exchange}"
        with model.syncopate.whole_state(optimizer):
            weights, state = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": state}, checkpoint_id=path)
        wanted = model.syncopate.state_dict(optimizer, everywhere=True)
        model.syncopate.detach()
        if rank < 2:
            model = _all_reached(5)
            model, optimizer = _distributed(other, name, group=group, sizes=(2, 6), model=model)
            with model.syncopate.whole_state(optimizer):
                weights, state = get_state_dict(model, optimizer)
                dcp.load(
                    {"model": weights, "optimizer": state}, checkpoint_id=path, process_group=group
                )
                set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
            found = model.syncopate.state_dict(optimizer, everywhere=True)
            assert_same(found, wanted, other, exact=True)
            model.syncopate.detach()
        dist.barrier()


def _no_phantom_update(rank: int, folder: str) -> None:
    """What a fresh optimizer's step with zero gradients does is what it does to a plain one."""
    for name, exchange in (("adam", "sharded"), ("momentum", "rooted"), ("adagrad", "sharded")):
        for inside in (True, False):
            model, optimizer = _distributed(exchange, name)
            plain = _model()
            reference = OPTIMIZERS[name](groups_of(plain))
            before = copy.deepcopy(model.state_dict())
            _, wanted = get_state_dict(plain, reference)
            if inside:
                with model.syncopate.whole_state(optimizer):
                    _, found = get_state_dict(model, optimizer)
                assert_same(found, wanted, name, exact=True)
            else:
                # Loading steps first as well, and needs no block.
                filled = copy.deepcopy(wanted)
                for entries in filled["state"].values():
                    entries["step" if "step" in entries else "momentum_buffer"].add_(3)
                for target, its in ((model, optimizer), (plain, reference)):
                    set_state_dict(
                        target,
                        its,
                        model_state_dict=copy.deepcopy(before),
                        optim_state_dict=copy.deepcopy(filled),
                    )
            assert_same(model.state_dict(), before, name, exact=True)
            told = model.syncopate.state_dict(optimizer, everywhere=True)
            assert_same(told["optimizer"], reference.state_dict(), name, exact=True)
            for trained, its in ((model, optimizer), (plain, reference)):
                train(trained, its, rank, range(2), plain=trained is plain)
            told = model.syncopate.state_dict(optimizer, everywhere=True)
            assert_same(told["optimizer"], reference.state_dict(), name)
            model.syncopate.detach()


def _one_optimizer_of_two_models(rank: int, folder: str) -> None:
    first, second = _model(), _model(1)
    optimizer = OPTIMIZERS["adam"](groups_of(first) + groups_of(second))
    twins = [copy.deepcopy(model) for model in (first, second)]
    reference = OPTIMIZERS["adam"](groups_of(twins[0]) + groups_of(twins[1]))
    models = []
    for model, exchange in ((first, "rooted"), (second, "sharded")):
        plan = exchange_plan(model, WORLD_SIZE, exchange, [4, 5])
        models.append(distribute(model, optimizer, plan=plan, timeout_s=TIMEOUT_S)[0])
    for step in range(2):
        for trained, its, plain in ((models, optimizer, False), (twins, reference, True)):
            its.zero_grad()
            for model in trained:
                loss_of(model, rank, step).backward()
            if plain:
                for model in trained:
                    _average_gradients(model)
            its.step()
    with pytest.raises(EngineError, match=CALL):
        optimizer.state_dict()
    told = models[0].syncopate.state_dict(optimizer, everywhere=True)
    assert_same(told["optimizer"], reference.state_dict(), "both")
    models[0].syncopate.detach()
    with pytest.raises(EngineError, match=CALL):
        optimizer.state_dict()
    told = models[1].syncopate.state_dict(optimizer, everywhere=True)
    assert_same(told["optimizer"], reference.state_dict(), "one detached")
    models[1].syncopate.detach()
    assert_same(optimizer.state_dict(), reference.state_dict(), "both detached")


def _two_optimizers_of_one_model(rank: int, folder: str) -> None:
    model, plain = _all_reached(), _all_reached()
    pairs = []
    for one in (model, plain):
        trained = [p for p in one.parameters() if p.requires_grad]
        matrices = [p for p in trained if p.dim() == 2]
        others = [p for p in trained if p.dim() != 2]
        pairs.append([torch.optim.Muon(matrices, lr=0.01), torch.optim.Adam(others, lr=0.01)])
    plan = exchange_plan(model, WORLD_SIZE, "sharded", [4, 4])
    model, optimizers = distribute(model, pairs[0], plan=plan, timeout_s=TIMEOUT_S)
    for step in range(2):
        for trained, its in ((model, optimizers), (plain, pairs[1])):
            loss_of(trained, rank, step).backward()
            if trained is plain:
                _average_gradients(plain)
            for one in its:
                one.step()
                one.zero_grad()
    told = model.syncopate.state_dict(optimizers, everywhere=True)
    assert_same(told["optimizer"], [one.state_dict() for one in pairs[1]], "both")
    for one, state in zip(optimizers, told["optimizer"], strict=True):
        one.load_state_dict(state)
    with model.syncopate.whole_state(optimizers):
        assert_same([one.state_dict() for one in optimizers], told["optimizer"], exact=True)
    model.syncopate.detach()
    assert_same([one.state_dict() for one in optimizers], told["optimizer"], exact=True)


def _average_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= WORLD_SIZE


def _the_page_runs(rank: int, folder: str) -> None:
    """The code of the page does what the page says, in its order."""
    page = (REPOSITORY / "docs" / "checkpoints.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    model, optimizer = _distributed("sharded", sizes=(4, 4), model=_all_reached())
    train(model, optimizer, rank, range(2), plain=False)
    before = model.syncopate.state_dict(optimizer, everywhere=True)
    names: dict[str, Any] = {
        "model": model,
        "optimizer": optimizer,
        "rank": rank,
        "step": 2,
        "build_model": _all_reached,
        "build_optimizer": lambda alone: OPTIMIZERS["adam"](groups_of(alone)),
        "torch": torch,
        "dcp": dcp,
        "get_state_dict": get_state_dict,
        "set_state_dict": set_state_dict,
    }
    with contextlib.chdir(folder):
        for block in blocks:
            exec(block, names)
            dist.barrier()
    assert len(blocks) == 6
    for trained, its in ((names["alone"], names["its_optimizer"]), (model, optimizer)):
        assert_same(trained.state_dict(), before["model"], "weights", exact=True)
        assert_same(its.state_dict(), before["optimizer"], "state", exact=True)


CASES = (
    _rank_0_saves_and_one_process_loads,
    _fewer_ranks_load,
    _pieces_are_no_state,
    _different_states_are_refused,
    _rank_0_alone_saves_weights,
    _each_weight_has_a_storage,
    _torchs_own_calls_need_the_block,
    _torchs_own_checkpoints,
    _no_phantom_update,
    _one_optimizer_of_two_models,
    _two_optimizers_of_one_model,
    _the_page_runs,
)


def _all_cases(rank: int, world_size: int, folder: str) -> None:
    run_cases(CASES, rank, folder)


def test_checkpoints_are_whole_and_belong_to_no_plan(tmp_path):
    run_ranks(_all_cases, WORLD_SIZE, str(tmp_path))
