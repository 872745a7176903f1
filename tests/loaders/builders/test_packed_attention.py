"""A two-layer attention model trains alike on packed and on padded batches of the same windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gear_data import SequenceLoader, WindowOptions
from tests.support.feed import data as feed_data

PACK, HEADS, WIDTH = 64, 2, 16


class Policy(nn.Module):
    """Two layers of causal attention over steps, and an action for each."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.positions = nn.Linear(4, WIDTH), nn.Embedding(PACK, WIDTH)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"qkv": nn.Linear(WIDTH, 3 * WIDTH), "out": nn.Linear(WIDTH, WIDTH)}) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, states: torch.Tensor, positions: torch.Tensor, attends: torch.Tensor) -> torch.Tensor:
        """states: [B, K, 4]. positions: [B, K]. attends: [B, K, K], which steps a step sees."""
        hidden = self.steps(states) + self.positions(positions)
        for layer in self.layers:
            shape = *hidden.shape[:2], 3, HEADS, WIDTH // HEADS
            q, k, v = layer["qkv"](hidden).view(shape).permute(2, 0, 3, 1, 4)
            seen = F.scaled_dot_product_attention(q, k, v, attends[:, None])
            hidden = hidden + layer["out"](seen.transpose(1, 2).reshape(hidden.shape))
        return self.head(hidden)


def causal(length: int) -> torch.Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def by_segments(batch: dict[str, Any]) -> torch.Tensor:
    """[B, K, K] of `segment_ids`, as for flex_attention or JAX."""
    segments = batch["segment_ids"]
    return (segments[:, :, None] == segments[:, None]) & causal(segments.shape[1])


def by_bounds(batch: dict[str, Any]) -> torch.Tensor:
    """[1, B * K, B * K] of `cu_seqlens`, as FlashAttention's varlen kernels read it."""
    bounds = batch["cu_seqlens"].long()
    sizes = bounds.diff()
    assert bounds[0] == 0 and bounds[-1] == batch["mask"].numel() and sizes.max() == batch["max_seqlen"]
    owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    return ((owner[:, None] == owner) & causal(len(owner)))[None]


def loss_and_gradients(
    model: Policy, batch: dict[str, Any], positions: torch.Tensor, attends: torch.Tensor, flat: bool = False
) -> tuple[float, list[torch.Tensor]]:
    states, actions, mask = batch["observations"].double(), batch["actions"].double(), batch["mask"]
    if flat:
        states, actions, mask, positions = (each.flatten(0, 1)[None] for each in (states, actions, mask, positions))
    model.zero_grad()
    errors = (model(states, positions, attends) - actions).square().mean(-1)
    loss = errors[mask].sum() / mask.sum()
    loss.backward()
    return loss.item(), [each.grad.clone() for each in model.parameters() if each.grad is not None]


@pytest.mark.parametrize("context", [None, 9])
def test_losses_and_gradients_are_those_of_padded_batches(tmp_path: Path, context: int | None) -> None:
    lengths = np.random.default_rng(3).integers(1, PACK // 4 + 1, 60)
    ds = feed_data.convert_episodes(feed_data.locomotion(lengths, seed=3), tmp_path / "ds")
    # Every window once, in batches with the same number of steps: the whole dataset.
    packed = SequenceLoader(ds, 1, context=context, pack=PACK, sampler="shuffle", epochs=1, seed=7)
    rows = len(packed)
    packed = SequenceLoader(ds, rows, context=context, pack=PACK, sampler="shuffle", seed=7)
    every = {"windows": WindowOptions(stride=PACK), "context": PACK} if context is None else {"context": context}
    count = 60 if context is None else int(ds.num_steps)
    padded = SequenceLoader(ds, count, sampler="shuffle", seed=7, **every)
    torch.manual_seed(0)
    model = Policy().double()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for one, other in zip(_first(packed, 3), _first(padded, 3), strict=True):
        width = other["mask"].shape[1]
        positions = torch.arange(width).expand(len(other["mask"]), -1)
        expected, gradients = loss_and_gradients(model, other, positions, causal(width).expand(len(positions), -1, -1))
        for attends, flat in ((by_segments(one), False), (by_bounds(one), True)):
            loss, own = loss_and_gradients(model, one, one["position_ids"], attends, flat)
            assert loss == pytest.approx(expected, rel=1e-9)
            for mine, theirs in zip(own, gradients, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-12)
        assert int(one["mask"].sum()) == int(other["mask"].sum())
        optimizer.step()


def _first(loader: SequenceLoader, count: int) -> list[dict[str, Any]]:
    return [batch for _, batch in zip(range(count), loader, strict=False)]


def test_the_positions_have_the_bounds(tmp_path: Path) -> None:
    """transformers finds `cu_seqlens` where positions begin again, also at the rest of a row."""
    ds = feed_data.convert_episodes(feed_data.locomotion([5, 1, 9, 14, 2, 7], seed=3), tmp_path / "ds")
    for batch in _first(SequenceLoader(ds, 3, pack=20, seed=1), 5):
        begins = (batch["position_ids"].flatten() == 0).nonzero().flatten()
        assert [*begins.tolist(), 60] == batch["cu_seqlens"].tolist()


def test_transformers_finds_the_same_bounds(tmp_path: Path) -> None:
    utils = pytest.importorskip("transformers.modeling_flash_attention_utils")
    if not hasattr(utils, "prepare_fa_kwargs_from_position_ids"):
        pytest.skip("another version of transformers")
    ds = feed_data.convert_episodes(feed_data.locomotion([5, 1, 9, 14, 2, 7], seed=3), tmp_path / "ds")
    for batch in _first(SequenceLoader(ds, 3, pack=20, seed=1), 5):
        (bounds, _), (longest, _) = utils.prepare_fa_kwargs_from_position_ids(batch["position_ids"].reshape(1, -1))
        assert bounds.tolist() == batch["cu_seqlens"].tolist() and bounds.dtype == batch["cu_seqlens"].dtype
        assert longest == batch["max_seqlen"]
