"""Columns computed at conversion."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from gear_data.schema import ColumnSpec
from gear_data.storage.block import EpisodeBlock

RETURNS_TO_GO = "returns_to_go"


def with_derived_columns(columns: tuple[ColumnSpec, ...]) -> tuple[ColumnSpec, ...]:
    """The columns with `returns_to_go` added where there are scalar rewards, and with a source's own left out."""
    if not any(column.name == "rewards" and column.shape == () for column in columns):
        return columns
    kept = tuple(column for column in columns if column.name != RETURNS_TO_GO)
    return (*kept, ColumnSpec(RETURNS_TO_GO, "float32", derived=True))


def add_returns_to_go(block: EpisodeBlock) -> EpisodeBlock:
    """`returns_to_go[t]` = rewards[t] + ... + rewards[T - 1] of the episode: float32, summed in float64 from the end.

    The discount is 1, as in Decision Transformer (Chen et al., 2021).
    """
    rewards = block.columns["rewards"].astype(np.float64)
    result = np.empty(len(rewards), np.float32)
    offsets = block.offsets.tolist()
    for first, last in pairwise(offsets):
        result[first:last] = np.cumsum(rewards[first:last][::-1])[::-1]
    return replace(block, columns={**block.columns, RETURNS_TO_GO: result})
