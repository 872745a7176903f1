"""Clones behaviour with Lightning, and continues from the last checkpoint.

torchrun --nproc-per-node 4 scripts/integrations/with_lightning.py hopper/ --out runs/bc --steps 1000
"""

from __future__ import annotations

import argparse
import os

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import gear_data
from gear_data.integrations.lightning import LoaderDataModule


class Policy(pl.LightningModule):
    """A network from observations to actions."""

    def __init__(self, states: int, actions: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(states, 64), torch.nn.ReLU(), torch.nn.Linear(64, actions))

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return (self.layers(batch["observations"]) - batch["actions"])[batch["mask"]].square().mean()

    def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
        self.log("val_loss", self.training_step(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=1000, help="all batches, of all epochs")
    parser.add_argument("--epoch", type=int, help="batches of an epoch; default: no end")
    parser.add_argument("--save-every", type=int, default=100)
    options = parser.parse_args()

    train, val = gear_data.open(options.dataset).split({"train": 0.9, "val": 0.1}, seed=0).values()
    states, actions = (train.schema[name].shape[0] for name in ("observations", "actions"))
    data = LoaderDataModule(
        gear_data.SequenceLoader(train, batch_size=64, context=20, steps=options.epoch),
        gear_data.SequenceLoader(val, batch_size=64, context=20, steps=2),
    )
    trainer = pl.Trainer(
        max_steps=options.steps, max_epochs=-1, devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)), logger=False,
        callbacks=[ModelCheckpoint(options.out, every_n_train_steps=options.save_every, save_last=True)],
    )  # fmt: skip
    trainer.fit(Policy(states, actions), datamodule=data, ckpt_path="last")


if __name__ == "__main__":
    main()
