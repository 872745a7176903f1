"""The Decision Transformer model and its loss."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import gear_data
from gear_data.demo.model import Hyperparameters, build_model, masked_action_loss
from tests.support.training import SMALL, make_loader


def test_loss_is_the_mean_over_valid_positions() -> None:
    generator = torch.Generator().manual_seed(0)
    predicted, actions = torch.randn(4, 5, 3, generator=generator), torch.randn(4, 5, 3, generator=generator)
    valid = [5, 1, 3, 2]
    mask = torch.tensor([[0.0] * (5 - n) + [1.0] * n for n in valid])
    actions[mask == 0] = -10.0

    total, count = 0.0, 0
    for b in range(4):
        for k in range(5):
            if mask[b, k]:
                for a in range(3):
                    total += (predicted[b, k, a].item() - actions[b, k, a].item()) ** 2
                    count += 1

    assert count == sum(valid) * 3
    assert masked_action_loss(predicted, actions, mask).item() == pytest.approx(total / count, rel=1e-6)


def test_padding_gets_no_gradient() -> None:
    predicted = torch.zeros(1, 3, 1, requires_grad=True)
    mask = torch.tensor([[0.0, 1.0, 1.0]])
    masked_action_loss(predicted, torch.tensor([[[-10.0], [1.0], [2.0]]]), mask).backward()  # type: ignore[no-untyped-call]
    assert predicted.grad is not None
    assert predicted.grad.flatten().tolist() == [0.0, -1.0, -2.0]


def test_model_fits_the_dataset(dataset: gear_data.Dataset, rollouts_path: Path) -> None:
    config = build_model(make_loader(dataset), Hyperparameters(**SMALL)).config
    assert (config.state_dim, config.act_dim, config.max_ep_len) == (3, 2, int(dataset.lengths.max()))
    assert config.action_tanh
    # tanh cannot reach actions outside [-1, 1], in the data or after normalising.
    assert not build_model(make_loader(gear_data.open(rollouts_path)), Hyperparameters(**SMALL)).config.action_tanh
    assert not build_model(make_loader(dataset, normalize=["actions"]), Hyperparameters(**SMALL)).config.action_tanh
    assert not build_model(make_loader(dataset), Hyperparameters(**SMALL, action_tanh=False)).config.action_tanh
    assert build_model(make_loader(dataset), Hyperparameters(**SMALL, max_ep_len=99)).config.max_ep_len == 99
