"""What people do with frameworks that the recipes do not show: the same bits as with their DDP."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.multiprocess.harness import Cases, run_ranks
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


def compare(cases: dict[str, Any], run: Any) -> None:
    """Run each case by DDP and by us."""
    with Cases() as case:
        for name, told in cases.items():
            expected = run(DDP, told)
            for by in OURS:
                with case(f"{name}, {by}"):
                    require_same(run(by, told), expected, name)


# -- Accelerate ---------------------------------------------------------------------------------


def with_accelerate(rank: int, world_size: int, folder: Path) -> None:
    launched(rank, world_size, folder)
    from accelerate import Accelerator  # noqa: PLC0415 - only ranks need it

    from syncopate.integrations import SyncopateAccelerator  # noqa: PLC0415 - loads Accelerate

    def trained(name: str, steps: int) -> Any:
        """Accumulate, average the weights as they go, and evaluate on rank 0 alone."""
        model, data = small()
        kind = partial(SyncopateAccelerator, distribute_options=options(name, model))
        accelerator = (Accelerator if name == DDP else kind)(
            cpu=True, gradient_accumulation_steps=steps
        )
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.05)
        batches = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
        prepared, optimizer, batches = accelerator.prepare(model, optimizer, batches)
        inner = accelerator.unwrap_model(prepared)
        averaged = AveragedModel(inner, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        told: list[Tensor] = []
        for inputs, targets in (batch for _ in range(2) for batch in batches):
            with accelerator.accumulate(prepared):
                loss = nn.functional.cross_entropy(prepared(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            told.append(accelerator.gather_for_metrics(loss.detach()))
            if accelerator.sync_gradients:
                averaged.update_parameters(inner)
                if accelerator.is_main_process:
                    with torch.no_grad():
                        told.append(inner(torch.ones(2, INPUTS)))
        end = copy.deepcopy((model.state_dict(), averaged.state_dict(), optimizer.state_dict()))
        accelerator.free_memory()
        if name != DDP:
            model.syncopate.detach()
        return *end, told

    compare({"each step": 1, "of three": 3}, trained)


@needs("accelerate")
def test_accelerate(tmp_path: Path) -> None:
    run_ranks(with_accelerate, RANKS, tmp_path)


# -- Transformers -------------------------------------------------------------------------------


ARGUMENTS: dict[str, dict[str, Any]] = {
    "accumulated": {"gradient_accumulation_steps": 3},
    "scheduled": {"lr_scheduler_type": "cosine", "warmup_steps": 2, "bf16": True},
    "optimizer of whole tensors": {"optim": "adafactor"},
    "uneven": {"max_steps": -1, "num_train_epochs": 2, "per_device_train_batch_size": 5},
}


def with_trainer(rank: int, world_size: int, folder: Path) -> None:
    launched(rank, world_size, folder)
    from transformers import (  # noqa: PLC0415 - only ranks need it
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    from syncopate.integrations import SyncopateTrainer  # noqa: PLC0415 - loads Transformers

    samples = [{"inputs": inputs, "labels": label} for inputs, label in small()[1]]

    class Averaged(TrainerCallback):
        weights: dict[str, Tensor] | None = None

        def on_step_end(self, *_: Any, model: nn.Module, **__: Any) -> None:
            now = {name: p.detach().clone() for name, p in model.named_parameters()}
            before = now if self.weights is None else self.weights
            self.weights = {name: 0.9 * before[name] + 0.1 * now[name] for name in now}

    def trained(name: str, told: dict[str, Any]) -> Any:
        arguments: dict[str, Any] = {
            "output_dir": str(folder / "trainer"),
            "max_steps": 10,
            "per_device_train_batch_size": 4,
            "learning_rate": 0.05,
            "max_grad_norm": 0.0,
            "save_strategy": "no",
            "logging_steps": 2,
            "use_cpu": True,
            "report_to": [],
            "disable_tqdm": True,
        }
        model, averaged = Classifier(), Averaged()
        kind = partial(SyncopateTrainer, distribute_options=options(name, model))
        trainer = (Trainer if name == DDP else kind)(
            model=model,
            args=TrainingArguments(**arguments | told),
            train_dataset=samples,
            eval_dataset=samples,
            callbacks=[averaged],
        )
        trainer.train()
        losses = [entry.get("loss") for entry in trainer.state.log_history]
        predicted = torch.tensor(trainer.predict(samples).predictions)
        end = copy.deepcopy(trainer.model.state_dict()), averaged.weights, losses, predicted
        if name != DDP:
            model.syncopate.detach()
        return end

    compare(ARGUMENTS, trained)
    # Of a norm the last bit may differ, which is why gradients are not clipped above.
    clipped = {"max_grad_norm": 0.1}
    for name in OURS:
        weights, expected = trained(name, clipped)[0], trained(DDP, clipped)[0]
        torch.testing.assert_close(weights, expected)


@needs("transformers")
def test_transformers(tmp_path: Path) -> None:
    run_ranks(with_trainer, RANKS, tmp_path)


# -- Lightning ----------------------------------------------------------------------------------


def manual(kind: str) -> Any:
    """Return a module that steps by itself; only ranks import Lightning."""
    import lightning.pytorch as pl  # noqa: PLC0415

    class Manual(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.net, self.data = small()
            self.told: list[Tensor] = []

        def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
            optimizers: Any = self.optimizers()
            optimizers = optimizers if isinstance(optimizers, list) else [optimizers]

            def closure() -> Tensor:
                loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
                self.manual_backward(loss)
                self.told.append(loss.detach())
                return loss

            if kind == "closure":
                optimizers[0].zero_grad()
                optimizers[0].step(closure=closure)
                return
            closure()
            if kind != "accumulated" or index % 2:
                for optimizer in optimizers:
                    self.clip_gradients(optimizer, 0.05, "value")
                    optimizer.step()
                    optimizer.zero_grad()

        def configure_optimizers(self) -> Any:
            if kind != "several optimizers":
                return torch.optim.AdamW(self.parameters(), lr=0.05)
            first = torch.optim.AdamW(self.net[0].parameters(), lr=0.05)
            return [first, torch.optim.SGD(self.net[2].parameters(), lr=0.1, momentum=0.9)]

        def train_dataloader(self) -> torch.utils.data.DataLoader:
            return torch.utils.data.DataLoader(self.data, batch_size=4)

    return Manual()


def with_lightning(rank: int, world_size: int, folder: Path) -> None:
    launched(rank, world_size, folder)
    import lightning.pytorch as pl  # noqa: PLC0415 - only ranks need it

    from syncopate.integrations import SyncopateStrategy  # noqa: PLC0415 - loads Lightning

    def fitted(name: str, kind: str) -> Any:
        model = manual(kind)
        trainer = pl.Trainer(
            strategy=DDP if name == DDP else SyncopateStrategy(**options(name, model)),
            accelerator="cpu",
            devices=world_size,
            max_epochs=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model)
        states = [optimizer.state_dict() for optimizer in trainer.optimizers]
        return copy.deepcopy(model.state_dict()), states, model.told

    kinds = ("plain", "accumulated", "several optimizers", "closure")
    compare({kind: kind for kind in kinds}, fitted)


@needs("lightning")
def test_manual_optimization_of_lightning(tmp_path: Path) -> None:
    run_ranks(with_lightning, RANKS, tmp_path)
