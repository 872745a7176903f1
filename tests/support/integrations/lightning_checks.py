"""Checks of LoaderDataModule in one process: DATASET FOLDER."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

import gear_data
from gear_data.errors import InvalidArgumentError
from gear_data.integrations.lightning import LoaderDataModule
from tests.support.integrations.recorder import WIDTH
from tests.support.integrations.training_runs import global_batches

OPTIONS: dict[str, Any] = {"batch_size": 8, "context": 5}


class Policy(pl.LightningModule):
    """Keeps the batches on which it is trained and validated."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, 3)
        self.trained: list[Any] = []
        self.validated: list[Any] = []

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self.trained.append(batch["observations"].numpy().copy())
        return self.layer(batch["observations"]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Validated(Policy):
    def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
        self.validated.append(batch["observations"].numpy().copy())


def fit(policy: Policy, data: Any, **options: Any) -> pl.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = pl.Trainer(**quiet, **options)
    trainer.fit(policy, data)
    return trainer


def equal(found: list[Any], expected: list[Any]) -> bool:
    return [each.tolist() for each in found] == [each.tolist() for each in expected]


ds, folder = gear_data.open(sys.argv[1]), sys.argv[2]
expected = global_batches(ds, 9, **OPTIONS)

# A loader without an end, in epochs that the Trainer ends; Lightning finds no validation.
policy = Policy()
data = LoaderDataModule(gear_data.SequenceLoader(ds, **OPTIONS))
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    fit(policy, data, max_epochs=3, limit_train_batches=3, enable_checkpointing=False)
assert not [warning for warning in found if "val_dataloader" in str(warning.message)]
assert equal(policy.trained, expected), "three epochs of three batches"
assert data.state_dict()["step"] == 9

# Epochs shorter than a pass go on with the next batch, too; each validation has the same batches.
policy = Validated()
train, val = gear_data.SequenceLoader(ds, **OPTIONS, steps=8), gear_data.SequenceLoader(ds, **OPTIONS, seed=1, steps=2)
data = LoaderDataModule(train, val)
trainer = fit(
    policy, data, max_epochs=2, limit_train_batches=4, default_root_dir=folder, num_sanity_val_steps=1
)  # fmt: skip
assert equal(policy.trained, expected[:8]), "two epochs of half a pass"
assert equal(policy.validated[1:], global_batches(ds, 2, **OPTIONS, seed=1) * 2), "two validations"

# Passes with the same batches, in more epochs than two.
policy = Policy()
data = LoaderDataModule(gear_data.SequenceLoader(ds, **OPTIONS, steps=2, passes="repeat"))
fit(policy, data, max_epochs=3, enable_checkpointing=False)
assert equal(policy.trained, expected[:2] * 3), "three epochs of one pass"
assert data.state_dict()["step"] == 0

# A new loader goes on from the checkpoint at the end of an epoch.
policy = Validated()
data = LoaderDataModule(gear_data.SequenceLoader(ds, **OPTIONS, steps=8), val)
more = pl.Trainer(max_epochs=3, limit_train_batches=1, logger=False, accelerator="cpu", enable_checkpointing=False)
more.fit(policy, datamodule=data, ckpt_path=trainer.checkpoint_callback.best_model_path)
assert equal(policy.trained, expected[8:9]), "the epoch after the checkpoint"

# Without the module, the state in a checkpoint would be one batch too far.
loader = gear_data.SequenceLoader(ds, **OPTIONS)
for batches in (loader, loader.dataloader()):
    with pytest.raises(InvalidArgumentError, match=r"one batch ahead(.|\n)*datamodule=LoaderDataModule\(loader\)"):
        fit(Policy(), batches, max_steps=2, enable_checkpointing=False)
for batches in (loader, gear_data.SequenceLoader(ds, **OPTIONS, steps=2)):
    fit(Policy(), batches, max_epochs=1, limit_train_batches=2, enable_checkpointing=False)
