"""Decision Transformer: hyperparameters, model and loss.

Sources: Chen et al., "Decision Transformer" (2021), appendix A and its `gym` code; HuggingFace's "Train your first
Decision Transformer" (2022).

Discrete actions (one integer per step) are trained as a regression onto the action's number, because the preset gives
float32 [B, K, 1]. There is no classification head yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gear_data.common.extras import import_extra
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.arguments.checks import check_dataset
from gear_data.loaders.sequence_loader import SequenceLoader

#: Keys of a batch that the model takes.
MODEL_KEYS = ("states", "actions", "rewards", "returns_to_go", "timesteps", "attention_mask")


@dataclass(frozen=True)
class Hyperparameters:
    """Model and optimizer of one run.

    Names are as in `DecisionTransformerConfig` and `TrainingArguments`.

    The defaults are the paper's for Hopper, except the warm-up: the paper warms up for 10,000 of 100,000 steps.

    Attributes:
        hidden_size: width of the transformer.
        n_layer: number of blocks.
        n_head: number of attention heads of a block; divides the width.
        activation_function: activation of the feed-forward layers, a name that `transformers` knows.
        dropout: dropout probability of attention, residuals and embeddings.
        action_tanh: whether predictions go through tanh. None: true if all actions of the dataset are in [-1, 1].
        max_ep_len: number of timesteps that have an embedding. None: number of steps of the dataset's longest episode.
        learning_rate: learning rate of AdamW.
        weight_decay: weight decay of AdamW.
        warmup_steps: steps over which the learning rate rises linearly; afterwards it is constant.
        max_grad_norm: gradients are clipped to this norm.
        seed: seed of initial weights and dropout. The loader has a separate seed.

    Raises:
        InvalidArgumentError: a value is out of its range.
    """

    hidden_size: int = 128
    n_layer: int = 3
    n_head: int = 1
    activation_function: str = "relu"
    dropout: float = 0.1
    action_tanh: bool | None = None
    max_ep_len: int | None = None
    learning_rate: float = 1e-4
    weight_decay: float = 1e-4
    warmup_steps: int = 200
    max_grad_norm: float = 0.25
    seed: int = 0

    def __post_init__(self) -> None:
        positive = ("hidden_size", "n_layer", "n_head", "learning_rate", "max_grad_norm")
        for name in positive:
            if not getattr(self, name) > 0:
                raise InvalidArgumentError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("weight_decay", "warmup_steps", "seed"):
            if not getattr(self, name) >= 0:
                raise InvalidArgumentError(f"{name} must be at least 0, not {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise InvalidArgumentError(f"dropout must be from 0 to below 1, not {self.dropout}")
        if self.hidden_size % self.n_head:
            raise InvalidArgumentError(
                f"hidden_size must be a multiple of n_head: {self.hidden_size} is not a multiple of {self.n_head}"
            )


def build_model(loader: SequenceLoader, hyperparameters: Hyperparameters) -> Any:
    """Returns a model with initial weights, on the CPU.

    The model is a `DecisionTransformerModel` for the loader's batches.

    Raises:
        InvalidArgumentError: the loader has another preset, or `max_ep_len` is below the longest episode.
        MissingExtraError: transformers is not installed.
    """
    if loader.preset != "decision_transformer":
        raise InvalidArgumentError(
            f"training needs the preset 'decision_transformer', but the loader has '{loader.preset}'",
            hint="make the loader with preset='decision_transformer'",
        )
    transformers = import_extra("transformers")
    dataset = check_dataset(loader.dataset)
    longest = int(dataset.lengths.max())
    if hyperparameters.max_ep_len is not None and hyperparameters.max_ep_len < longest:
        raise InvalidArgumentError(
            f"max_ep_len is {hyperparameters.max_ep_len}, but the longest episode has {longest} steps",
            hint="leave max_ep_len out to use the longest episode",
        )
    config = transformers.DecisionTransformerConfig(
        state_dim=dataset.schema["observations"].size,
        act_dim=dataset.schema["actions"].size,
        hidden_size=hyperparameters.hidden_size,
        max_ep_len=hyperparameters.max_ep_len or longest,
        action_tanh=_fits_tanh(loader) if hyperparameters.action_tanh is None else hyperparameters.action_tanh,
        n_layer=hyperparameters.n_layer,
        n_head=hyperparameters.n_head,
        # A step is three tokens: return-to-go, state, action.
        n_positions=max(1024, 3 * loader.context),
        activation_function=hyperparameters.activation_function,
        resid_pdrop=hyperparameters.dropout,
        embd_pdrop=hyperparameters.dropout,
        attn_pdrop=hyperparameters.dropout,
        use_cache=False,
        # There are no words; the defaults are GPT-2's.
        bos_token_id=None,
        eos_token_id=None,
        architectures=["DecisionTransformerModel"],
    )
    with seeded(torch.device("cpu"), hyperparameters.seed):
        return transformers.DecisionTransformerModel(config)


def _fits_tanh(loader: SequenceLoader) -> bool:
    """Returns whether the actions in the loader's batches are in [-1, 1]."""
    actions = check_dataset(loader.dataset).statistics["actions"]
    if "actions" in loader.spec()["normalize"]:
        return False
    return bool((actions.min >= -1).all() and (actions.max <= 1).all())


def masked_action_loss(
    predicted: torch.Tensor, actions: torch.Tensor, attention_mask: torch.Tensor, world_size: int = 1
) -> torch.Tensor:
    """Returns the mean squared error of the actions over valid positions.

    Padding does not count.

    Args:
        predicted, actions: [B, K, A].
        attention_mask: [B, K], 1 = valid.
        world_size: number of ranks. With several ranks, valid positions are counted over all of them. This rank's loss
            is scaled so that the mean over the ranks is the loss of the whole batch. This also holds for the gradients.

    Returns:
        A scalar.
    """
    error = torch.where(attention_mask[..., None] > 0, (predicted - actions).square(), 0.0)
    count = (attention_mask > 0).sum() * actions.shape[-1]
    if world_size > 1:
        torch.distributed.all_reduce(count)
    return error.sum() * world_size / count


@contextmanager
def seeded(device: torch.device, *key: int) -> Iterator[None]:
    """Seeds the device's default generator; restores its state at the end."""
    generator = torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index]
    before = generator.get_state()
    generator.manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0]))
    try:
        yield
    finally:
        generator.set_state(before)
