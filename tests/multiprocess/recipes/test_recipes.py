"""Recipes for other frameworks: each trains as the framework does with DDP, and not beside it."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import syncopate
from syncopate.engine import distribute as distributing
from syncopate.errors import EngineError, SyncopateError
from tests.multiprocess.engine.cases import TIMEOUT_S, plan_of
from tests.multiprocess.harness import run_ranks
from tests.multiprocess.recipes.frameworks import (
    RANKS,
    RECIPES,
    close,
    launched,
    needs,
    small,
    weights_of,
)


def started(file: str, *options: str) -> dict[str, Tensor]:
    """Run a recipe; return the weights that it saved, none but on rank 0.

    It is to make one model distributed, by Syncopate or, with ``--ddp``, by torch.
    """
    made = []
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((distributing, "_begin"), (DistributedDataParallel, "__init__")):
            patch.setattr(owner, name, _counted(getattr(owner, name), made, name))
        patch.setattr(sys, "argv", [file, "--epochs", "1", "--save", "weights.pt", *options])
        runpy.run_path(str(RECIPES / file), run_name="__main__")
    assert made == ["__init__" if "--ddp" in options else "_begin"]
    saved = Path("weights.pt")
    weights: dict[str, Tensor] = torch.load(saved) if saved.exists() else {}
    saved.unlink(missing_ok=True)
    return weights


def _counted(function: Any, made: list[str], name: str) -> Any:
    def counted(*args: Any, **options: Any) -> Any:
        made.append(name)
        return function(*args, **options)

    return counted


def trains_as_ddp(file: str) -> None:
    """Run a recipe by Syncopate and by DDP, in processes of a launcher; they end alike."""
    ours, theirs = started(file), started(file, "--ddp")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    if os.environ["RANK"] == "0":
        assert len(ours) > 100
    else:
        assert not ours


# -- Accelerate ---------------------------------------------------------------------------------


def with_accelerate(rank: int, world_size: int, folder: Path) -> None:
    launched(rank, world_size, folder)
    trains_as_ddp("with_accelerate.py")
    from accelerate import Accelerator  # noqa: PLC0415 - only ranks need it

    from syncopate.integrations import SyncopateAccelerator  # noqa: PLC0415 - loads Accelerate

    accelerator = Accelerator(cpu=True)
    assert accelerator.mixed_precision == "bf16"
    assert accelerator.num_processes == world_size

    def made() -> tuple[nn.Module, torch.optim.Optimizer, torch.utils.data.DataLoader]:
        model, data = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return model, optimizer, torch.utils.data.DataLoader(data, batch_size=4)

    def trained(accelerator: Any, model: nn.Module, optimizer: Any, batches: Any) -> list[Tensor]:
        for inputs, targets in batches:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
            accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        return weights_of(model)

    expected = trained(accelerator, *accelerator.prepare(*made()))
    for exchange in ("allreduce", "sharded"):
        model, optimizer, batches = made()
        plan = plan_of(model, world_size, exchange=exchange)
        ours = SyncopateAccelerator(
            cpu=True, distribute_options={"plan": plan, "timeout_s": TIMEOUT_S}
        )
        prepared = ours.prepare(model, optimizer, batches)
        assert prepared[0] is model
        assert model.syncopate.plan == plan
        close(trained(ours, *prepared), expected)
        if exchange == "allreduce":
            ours.save_state(str(folder / exchange))
            ours.wait_for_everyone()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
            ours.load_state(str(folder / exchange))
            close(weights_of(model), expected)
        else:
            with pytest.raises(EngineError, match=r"call model.syncopate.state_dict\(optimizer\)"):
                ours.save_state(str(folder / exchange))
            assert bool(model.syncopate.state_dict(optimizer)) == (rank == 0)
        model.syncopate.detach()

    # Never both: neither a model that DDP has, nor DDP around one that is distributed.
    with pytest.raises(EngineError, match="wrapped in DistributedDataParallel already"):
        syncopate.distribute(accelerator.prepare(made()[0]), timeout_s=TIMEOUT_S)
    model, optimizer, batches = made()
    syncopate.distribute(model, optimizer, timeout_s=TIMEOUT_S)
    model._is_accelerate_prepared = True
    assert accelerator.prepare(model) is model
    del model._is_accelerate_prepared
    prepared = accelerator.prepare(model, optimizer, batches)
    with pytest.raises(EngineError, match=r"distributed already.*such as Accelerate's prepare"):
        trained(accelerator, *prepared)


@needs("accelerate")
def test_accelerate(tmp_path: Path) -> None:
    run_ranks(with_accelerate, RANKS, tmp_path)


# -- Transformers -------------------------------------------------------------------------------


def with_trainer(rank: int, world_size: int, folder: Path) -> None:
    launched(rank, world_size, folder)
    trains_as_ddp("with_trainer.py")
    from transformers import Trainer, TrainingArguments  # noqa: PLC0415 - only ranks need it

    from syncopate.integrations import SyncopateTrainer  # noqa: PLC0415 - loads Transformers

    class Counting(Trainer):
        made = 0

        def create_optimizer(self, *args: Any) -> torch.optim.Optimizer:
            Counting.made += 1
            return super().create_optimizer(*args)

    class Mixed(SyncopateTrainer, Counting):
        pass

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, _ = small()

        def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": nn.functional.cross_entropy(self.net(inputs), labels)}

    samples = [{"inputs": inputs, "labels": label} for inputs, label in small()[1]]

    def trainer(kind: type) -> Any:
        arguments = TrainingArguments(
            output_dir=str(folder / kind.__name__),
            max_steps=6,
            save_steps=3,
            per_device_train_batch_size=4,
            learning_rate=0.1,
            optim="sgd",
            optim_args="momentum=0.9",
            bf16=True,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        return kind(model=Classifier(), args=arguments, train_dataset=samples, eval_dataset=samples)

    def outcome(kind: type) -> tuple[list[Tensor], list[Tensor], float]:
        whole = trainer(kind)
        whole.train()
        loss = whole.evaluate()["eval_loss"]
        torch.distributed.barrier()  # rank 0 has written its checkpoint
        again = trainer(kind)
        again.train(resume_from_checkpoint=str(folder / kind.__name__ / "checkpoint-3"))
        return weights_of(whole.model), weights_of(again.model), loss

    expected, _, loss = outcome(Trainer)
    weights, resumed, our_loss = outcome(Mixed)
    assert Counting.made == 2
    close(weights, expected)
    close(resumed, expected)
    assert our_loss == pytest.approx(loss)


@needs("transformers")
def test_transformers(tmp_path: Path) -> None:
    run_ranks(with_trainer, RANKS, tmp_path)


# -- Lightning ----------------------------------------------------------------------------------


def lightning_classifier() -> Any:
    """Return a small module with its data; only ranks import Lightning."""
    import lightning.pytorch as pl  # noqa: PLC0415

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, data = small()
            self.data = data
            self.calls = 0
            self.register_forward_hook(lambda *_: setattr(self, "calls", self.calls + 1))

        def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
            self.log("loss", self.training_step(batch), sync_dist=True)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

        def train_dataloader(self) -> torch.utils.data.DataLoader:
            return torch.utils.data.DataLoader(self.data, batch_size=4)

        val_dataloader = train_dataloader

    return Classifier()


def with_lightning(rank: int, world_size: int, folder: Path) -> None:
    launched(rank, world_size, folder)
    trains_as_ddp("with_lightning.py")
    import lightning.pytorch as pl  # noqa: PLC0415 - only ranks need it

    from syncopate.integrations import SyncopateStrategy  # noqa: PLC0415 - loads Lightning

    def fitted(name: str, by: Any, **options: Any) -> tuple[Any, Any]:
        keeping = pl.callbacks.ModelCheckpoint(folder / name, filename="{epoch}", save_top_k=-1)
        model = lightning_classifier()
        trainer = pl.Trainer(
            strategy=by,
            accelerator="cpu",
            devices=world_size,
            max_epochs=2,
            precision="bf16-mixed",
            accumulate_grad_batches=2,
            gradient_clip_val=0.5,
            logger=False,
            callbacks=[keeping],
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, **options)
        return model, trainer

    model, by_ddp = fitted("ddp", "ddp")
    expected = weights_of(model)
    for exchange in ("allreduce", "sharded"):
        plan = plan_of(model, world_size, exchange=exchange)
        model, trainer = fitted(exchange, SyncopateStrategy(plan=plan, timeout_s=TIMEOUT_S))
        close(weights_of(model), expected)
        torch.testing.assert_close(trainer.callback_metrics, by_ddp.callback_metrics)
        # Syncopate has seen every batch: two epochs of 48 samples, 4 on each rank.
        assert model.calls == 2 * 48 // (4 * world_size)
        assert not hasattr(model, "syncopate")
        trainer.save_checkpoint(folder / "after.ckpt")
        # What is saved goes on under DDP, and the other way round.
        for saved, by in ((exchange, "ddp"), ("ddp", SyncopateStrategy(plan=plan))):
            resumed, _ = fitted("resumed", by, ckpt_path=folder / saved / "epoch=0.ckpt")
            close(weights_of(resumed), expected)


def fails_in_lightning(rank: int, world_size: int, folder: Path) -> None:
    launched(rank, world_size, folder)
    import lightning.pytorch as pl  # noqa: PLC0415 - only ranks need it

    from syncopate.integrations import SyncopateStrategy  # noqa: PLC0415 - loads Lightning

    def fit(model: Any, exchange: str) -> None:
        plan = plan_of(model, world_size, exchange=exchange)
        pl.Trainer(
            strategy=SyncopateStrategy(plan=plan, timeout_s=TIMEOUT_S),
            accelerator="cpu",
            devices=world_size,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(model)

    for exchange in ("allreduce", "decoupled", "sharded"):
        for failing in ((1,), range(world_size)):
            model = lightning_classifier()

            def fail(module: Any, _: Any, failing: Any = failing) -> None:
                if module.calls == 2 and rank in failing:
                    raise ValueError("some bug")

            hook = model.register_forward_pre_hook(fail)
            if rank in failing:
                error = pytest.raises(ValueError, match="some bug")
            else:
                error = pytest.raises(SyncopateError, match=r"rank 1.*ValueError: some bug")
            with error:
                fit(model, exchange)
            assert not hasattr(model, "syncopate")
            hook.remove()
            fit(model, exchange)
            close(weights_of(model), weights_of(model))


@needs("lightning")
def test_a_model_whose_fit_by_lightning_failed_is_fitted_again(tmp_path: Path) -> None:
    run_ranks(fails_in_lightning, RANKS, tmp_path)


@needs("lightning")
def test_lightning(tmp_path: Path) -> None:
    run_ranks(with_lightning, RANKS, tmp_path)
