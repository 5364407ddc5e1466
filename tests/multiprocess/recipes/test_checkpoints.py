"""Checkpoints that frameworks write by themselves, under exchanges whose programs are DDP's.

Each framework trains a few steps, writes its own checkpoint on the way and resumes from it: with
its own DDP, by a plan of the ``decoupled`` exchange, and without a word of exchanges. On two ranks
all of it is the same bits: the files, what goes on from them, and what goes on from another's.
Gradients are clipped by value: of a norm the last bit may differ.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import syncopate
from syncopate.artifacts.plan import SHARDED
from syncopate.engine.selfplan import payback, phases
from syncopate.errors import CollectiveError, EngineError, SyncopateError
from tests.multiprocess.engine.cases import TIMEOUT_S
from tests.multiprocess.harness import run_ranks
from tests.multiprocess.recipes.frameworks import (
    DDP,
    INPUTS,
    OURS,
    RANKS,
    Classifier,
    launched,
    needs,
    options,
    require_same,
    small,
)

RESUMED = (
    *((name, name) for name in (DDP, *OURS)),
    *((DDP, name) for name in OURS),
    *((name, DDP) for name in OURS),
)
"""The run that wrote a checkpoint, and the run that goes on from it."""
PASSES_S = 20.0
"""A time limit that passes: rank 1 waits for rank 0, which refuses to save."""

CALL = r"On every rank call model\.syncopate\.state_dict\(optimizer\)"


# -- Accelerate ---------------------------------------------------------------------------------

STEPS, SAVED_AFTER = 6, 3
PLANNED_STEPS, LATEST_SAVED = 400, 300
"""Of a training that measures itself: it tries the first other exchange after some 200."""


def by_accelerate(name: str, folder: Path, start: Path | None = None) -> Any:
    """Train; write a checkpoint on the way, or begin with one. Return the states at the end."""
    from accelerate import Accelerator  # noqa: PLC0415 - only ranks need it

    from syncopate.integrations import SyncopateAccelerator  # noqa: PLC0415 - loads Accelerate

    model, data = small()
    kind = partial(SyncopateAccelerator, distribute_options=options(name, model))
    accelerator = (Accelerator if name == DDP else kind)(cpu=True)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.1)
    batches: Any = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    scheduler: Any = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    prepared, optimizer, batches, scheduler = accelerator.prepare(
        model, optimizer, batches, scheduler
    )
    if start is not None:
        accelerator.load_state(str(start))
        batches = accelerator.skip_first_batches(batches, SAVED_AFTER)
    for step, (inputs, targets) in enumerate(batches, SAVED_AFTER if start else 0):
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(prepared(inputs), targets))
        accelerator.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        scheduler.step()
        if step + 1 == SAVED_AFTER:
            accelerator.save_state(str(folder))
            accelerator.wait_for_everyone()
    assert step + 1 == STEPS
    end = (model.state_dict(), optimizer.state_dict(), scheduler.state_dict())
    accelerator.free_memory()
    if name != DDP:
        model.syncopate.detach()
    return end


def saves_by_accelerate(rank: int, world_size: int, folder: Path) -> None:
    launched(rank, world_size, folder)
    ends = {name: by_accelerate(name, folder / name) for name in (DDP, *OURS)}
    for name in OURS:
        require_same(ends[name], ends[DDP], name)
        for file in (folder / DDP).iterdir():
            require_same(loaded(folder / name / file.name), loaded(file), f"{name}, {file.name}")
    for saved, resumed in RESUMED:
        end = by_accelerate(resumed, folder / "again", folder / saved)
        require_same(end, ends[DDP], f"from {saved} by {resumed}")
    # Where ranks own parts of the weights: all weights, and a sentence that says what to call.
    with pytest.raises(EngineError, match=CALL):
        by_accelerate(SHARDED, folder / SHARDED)
    torch.distributed.barrier()  # rank 0 has written the weights
    ours, theirs = (weights_in(folder / name) for name in (SHARDED, DDP))
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value)


def weights_in(folder: Path) -> dict[str, Tensor]:
    """Return the weights of a checkpoint."""
    from safetensors.torch import load_file  # noqa: PLC0415 - only ranks need it

    found: dict[str, Tensor] = load_file(folder / "model.safetensors")
    return found


def loaded(file: Path) -> Any:
    """Return the content of a checkpoint's file; its bytes where they are not torch's."""
    if file.suffix in {".bin", ".pt", ".ckpt"}:
        return torch.load(file, weights_only=False)
    return file.read_bytes() if file.suffix == ".safetensors" else None


@needs("accelerate")
def test_accelerate_s_own_checkpoints(tmp_path: Path) -> None:
    run_ranks(saves_by_accelerate, RANKS, tmp_path)


def saves_while_planning(rank: int, world_size: int, folder: Path) -> None:
    launched(rank, world_size, folder)
    from accelerate import Accelerator  # noqa: PLC0415 - only ranks need it

    # Every plan is tried, also one that gains nothing.
    payback.SHARE, phases.least_step_s = 1e9, lambda *_: 0.0
    accelerator = Accelerator(cpu=True)
    tried: set[str] = set()
    saved_after = None
    generator = torch.Generator().manual_seed(rank)
    batches = [torch.randn(4, INPUTS, generator=generator) for _ in range(PLANNED_STEPS)]

    def trained(name: str, start: int = 0) -> Any:
        nonlocal saved_after
        model = small()[0]
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-3)
        prepared = accelerator.prepare_model(model, evaluation_mode=name != DDP)
        if name != DDP:
            syncopate.distribute(model, optimizer, timeout_s=TIMEOUT_S)
        optimizer = accelerator.prepare(optimizer)
        if start:
            accelerator.load_state(str(folder / name))
        for step, inputs in enumerate(batches[start:], start + 1):
            optimizer.zero_grad()
            accelerator.backward(prepared(inputs).square().mean())
            optimizer.step()
            if name != DDP and not start:
                tried.add(model.syncopate.plan.exchange)
                if saved_after is None and (len(tried) > 1 or step == LATEST_SAVED):
                    saved_after = step
            if not start and step == saved_after:
                accelerator.save_state(str(folder / name))
                accelerator.wait_for_everyone()
        end = (model.state_dict(), optimizer.state_dict())
        accelerator.free_memory()
        if name != DDP:
            model.syncopate.detach()
        return end

    end = trained("default")
    require_same(end, trained(DDP), "default")
    for file in (folder / DDP).iterdir():
        require_same(loaded(folder / "default" / file.name), loaded(file), file.name)
    assert saved_after is not None
    require_same(trained("default", saved_after), end, "default, resumed")


@needs("accelerate")
def test_checkpoints_while_plans_change(tmp_path: Path) -> None:
    run_ranks(saves_while_planning, RANKS, tmp_path)


# -- Transformers -------------------------------------------------------------------------------


ARGUMENTS: dict[str, Any] = {
    "max_steps": STEPS,
    "save_steps": SAVED_AFTER,
    "eval_strategy": "steps",
    "eval_steps": SAVED_AFTER,
    "per_device_train_batch_size": 4,
    "learning_rate": 0.1,
    "max_grad_norm": 0.0,
    "bf16": True,
    "use_cpu": True,
    "report_to": [],
    "disable_tqdm": True,
}


def saves_by_trainer(rank: int, world_size: int, folder: Path) -> None:
    launched(rank, world_size, folder)
    from transformers import Trainer, TrainingArguments  # noqa: PLC0415 - only ranks need it

    from syncopate.integrations import SyncopateTrainer  # noqa: PLC0415 - loads Transformers

    samples = [{"inputs": inputs, "labels": label} for inputs, label in small()[1]]

    def trained(name: str, output: Path, start: Path | None = None, **given: Any) -> Any:
        arguments = TrainingArguments(
            output_dir=str(output),
            load_best_model_at_end=start is None and not given,
            **ARGUMENTS,
            **given,
        )
        model = Classifier()
        shown = options(name, model, TIMEOUT_S if given.get("save_only_model", True) else PASSES_S)
        kind = partial(SyncopateTrainer, distribute_options=shown)
        trainer = (Trainer if name == DDP else kind)(
            model=model, args=arguments, train_dataset=samples, eval_dataset=samples
        )
        trainer.train(resume_from_checkpoint=str(start) if start else None)
        assert name in (DDP, "default") or model.syncopate.plan.exchange == name
        if given:
            return None
        torch.distributed.barrier()  # rank 0 has written its checkpoint
        end = trainer.model.state_dict(), trainer.optimizer.state_dict(), trainer.evaluate()
        return (*end[:2], end[2]["eval_loss"])

    ends = {name: trained(name, folder / name) for name in (DDP, *OURS)}
    for name in OURS:
        require_same(ends[name], ends[DDP], name)
        for step in (SAVED_AFTER, STEPS):
            for file in ("model.safetensors", "optimizer.pt", "scheduler.pt"):
                ours, theirs = (folder / by / f"checkpoint-{step}" / file for by in (name, DDP))
                require_same(loaded(ours), loaded(theirs), f"{name}, {step}, {file}")
    expected = trained(DDP, folder / "last", folder / DDP / f"checkpoint-{SAVED_AFTER}")
    for saved, resumed in RESUMED:
        start = folder / saved / f"checkpoint-{SAVED_AFTER}"
        end = trained(resumed, folder / f"{saved}-{resumed}", start)
        require_same(end, expected, f"from {saved} by {resumed}")
    # Where ranks own parts of the weights: all weights, and a sentence that says what to call.
    for only_model in (True, False):
        output = folder / f"{SHARDED}-{only_model}"
        told = (
            nullcontext()
            if only_model
            else pytest.raises(SyncopateError, match=CALL if rank == 0 else "rank 0")
        )
        with told as raised:
            trained(SHARDED, output, save_only_model=only_model)
        if raised is not None:
            assert isinstance(raised.value, EngineError if rank == 0 else CollectiveError)
        torch.distributed.barrier()
        ours, theirs = (
            weights_in(at / f"checkpoint-{SAVED_AFTER}") for at in (output, folder / DDP)
        )
        assert ours.keys() == theirs.keys()
        for weight, value in theirs.items():
            torch.testing.assert_close(ours[weight], value)


@needs("transformers")
def test_a_trainer_s_own_checkpoints(tmp_path: Path) -> None:
    run_ranks(saves_by_trainer, RANKS, tmp_path)


# -- Lightning ----------------------------------------------------------------------------------


def lightning_module() -> Any:
    """Return a small module with its data; only ranks import Lightning."""
    import lightning.pytorch as pl  # noqa: PLC0415

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.data = small()

        def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

        def train_dataloader(self) -> torch.utils.data.DataLoader:
            return torch.utils.data.DataLoader(self.data, batch_size=4, shuffle=True)

    return Module()


def saves_by_lightning(rank: int, world_size: int, folder: Path) -> None:
    launched(rank, world_size, folder)
    import lightning.pytorch as pl  # noqa: PLC0415 - only ranks need it

    from syncopate.integrations import SyncopateStrategy  # noqa: PLC0415 - loads Lightning
    from syncopate.integrations import lightning as strategies  # noqa: PLC0415

    def fitted(name: str, output: Path, start: Path | None = None) -> Any:
        torch.manual_seed(7)
        keeping = pl.callbacks.ModelCheckpoint(
            output, filename="{step}", save_top_k=-1, every_n_train_steps=SAVED_AFTER
        )
        model = lightning_module()
        trainer = pl.Trainer(
            strategy=DDP if name == DDP else SyncopateStrategy(**options(name, model)),
            accelerator="cpu",
            devices=world_size,
            max_epochs=2,
            precision="bf16-mixed",
            gradient_clip_val=0.01,
            gradient_clip_algorithm="value",
            logger=False,
            callbacks=[keeping],
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, ckpt_path=start)
        return model.state_dict(), trainer.optimizers[0].state_dict()

    def files(name: str) -> dict[str, Any]:
        found = {file.name: loaded(file) for file in (folder / name).iterdir()}
        kept = ("state_dict", "optimizer_states", "lr_schedulers", "global_step")
        return {file: {key: saved[key] for key in kept} for file, saved in found.items()}

    def check(closures: str) -> None:
        for name in OURS:
            place = f"{name}{closures}"
            require_same(fitted(name, folder / place), ends, place)
            require_same(files(place), files(DDP), place)

    ends = fitted(DDP, folder / DDP)
    assert len(files(DDP)) == 2 * STEPS // SAVED_AFTER
    check("")
    for saved, resumed in RESUMED:
        start = folder / saved / f"step={STEPS}.ckpt"
        require_same(fitted(resumed, folder / "again", start), ends, f"from {saved} by {resumed}")
    # A strategy that leaves forward and backward inside of the optimizer's step.
    strategies._closure_first = lambda *_: None
    check(" with closures")


@needs("lightning")
def test_lightning_s_own_checkpoints(tmp_path: Path) -> None:
    run_ranks(saves_by_lightning, RANKS, tmp_path)
