"""Small loaders and trainers for the tests of the demo's model and trainer."""

from __future__ import annotations

from typing import Any

import torch

import gear_data
from gear_data.demo.model import Hyperparameters
from gear_data.demo.trainer import Trainer

SMALL = {"hidden_size": 16, "n_layer": 1, "n_head": 2, "learning_rate": 3e-3, "warmup_steps": 5}


def make_loader(dataset: gear_data.Dataset, **changes: Any) -> gear_data.SequenceLoader:
    """Returns a loader of small Decision Transformer batches.

    `changes` replace its arguments.
    """
    arguments: dict[str, Any] = {"batch_size": 16, "context": 6, "preset": "decision_transformer", "normalize": True}
    return gear_data.SequenceLoader(dataset, **{**arguments, **changes})


def make_trainer(dataset: gear_data.Dataset, feed: dict[str, Any] | None = None, **changes: Any) -> Trainer:
    """Returns a trainer of a small model on the CPU.

    Args:
        dataset: dataset to train on.
        feed: changes to the loader's arguments.
        changes: changes to the hyperparameters.
    """
    return Trainer(make_loader(dataset, **(feed or {})), Hyperparameters(**{**SMALL, **changes}), device="cpu")


def parameters(run: Trainer) -> dict[str, torch.Tensor]:
    """Returns copies of the model's weights."""
    return {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
