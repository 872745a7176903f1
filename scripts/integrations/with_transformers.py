"""Trains a Decision Transformer, and continues from the last checkpoint.

torchrun --nproc-per-node 4 scripts/integrations/with_transformers.py hopper/ --out runs/dt --steps 1000
"""

from __future__ import annotations

import argparse
import os

import torch
from transformers import DecisionTransformerConfig, DecisionTransformerModel, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import gear_data
from gear_data.integrations.transformers import LoaderTrainer


class Policy(DecisionTransformerModel):
    """A Decision Transformer that returns its loss, as `Trainer` expects."""

    def forward(self, valid_count: torch.Tensor, **batch: torch.Tensor) -> dict[str, torch.Tensor]:
        found = super().forward(**batch, return_dict=True).action_preds
        return {"loss": (found - batch["actions"])[batch["attention_mask"] > 0].square().mean()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=1000, help="batches of an epoch")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=100)
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)  # only rank 0 of a Trainer makes it, and all look for a checkpoint

    args = TrainingArguments(
        options.out, num_train_epochs=options.epochs, gradient_accumulation_steps=options.accumulate,
        save_steps=options.save_every, logging_steps=10, report_to="none", use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    ds = gear_data.open(options.dataset)
    loader = gear_data.SequenceLoader(
        ds, batch_size=64, context=20, preset="decision_transformer", steps=options.steps, device=args.device
    )
    states, actions = (ds.schema[name].shape[0] for name in ("observations", "actions"))
    config = DecisionTransformerConfig(state_dim=states, act_dim=actions, hidden_size=32, n_layer=1, n_head=1)
    trainer = LoaderTrainer(Policy(config), args, train_dataset=loader)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(options.out))


if __name__ == "__main__":
    main()
