"""Columns that a dataset has, and its source has not, or in another way.

`returns_to_go` is computed from the rewards. Final observations of variable length, text and bytes that stay encoded,
are removed: a dataset cannot hold them. A source announces them by `has_final` of a column of variable length. Decoding
may turn them into arrays (`gear_data.ingest.pipeline.images`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gear_data.ingest.findings.log import FindingLog
from gear_data.schema import ColumnSpec
from gear_data.storage.episode_block import EpisodeBlock


def without_variable_finals(columns: tuple[ColumnSpec, ...]) -> tuple[ColumnSpec, ...]:
    """Returns the columns without final observations of variable length."""
    return tuple(replace(spec, has_final=False) if spec.variable_length else spec for spec in columns)


def drop_variable_finals(block: EpisodeBlock, columns: tuple[ColumnSpec, ...], findings: FindingLog) -> EpisodeBlock:
    """Removes final observations of variable length from a block.

    It adds a finding for each column that had some. Episodes without another final observation have none afterwards.

    Args:
        block: the block.
        columns: the columns of the source.
        findings: the log to add to.
    """
    finals = dict(block.finals)
    for spec in columns:
        if spec.variable_length and finals.pop(spec.name, None) is not None:
            message = "final observations of variable length cannot be stored; left out"
            findings.add_episodes(block, "final-left-out", message, block.has_final, spec.source_name)
    has_final = block.has_final if finals else np.zeros(len(block), np.bool_)
    return replace(block, finals=finals, has_final=has_final)


RETURNS_TO_GO = "returns_to_go"

#: Steps from which an episode is summed by itself: a sum without indices takes a tenth of the time per step.
_LONG = 64


def with_derived_columns(columns: tuple[ColumnSpec, ...]) -> tuple[ColumnSpec, ...]:
    """Adds `returns_to_go` if there are scalar rewards.

    It replaces a source column of that name.
    """
    if not any(column.name == "rewards" and column.shape == () for column in columns):
        return columns
    kept = tuple(column for column in columns if column.name != RETURNS_TO_GO)
    return (*kept, ColumnSpec(RETURNS_TO_GO, "float32", derived=True))


def add_returns_to_go(block: EpisodeBlock) -> EpisodeBlock:
    """Adds `returns_to_go` [steps] to a block, float32.

    `returns_to_go[t]` is rewards[t] + ... + rewards[T - 1] of the episode, summed in float64 from the end. The discount
    is 1, as in Decision Transformer (Chen et al., 2021).
    """
    rewards = block.columns["rewards"].astype(np.float64)
    result = np.empty(len(rewards), np.float32)
    ends, long = block.offsets[1:], block.lengths >= _LONG
    for first, last in zip((ends - block.lengths)[long].tolist(), ends[long].tolist(), strict=True):
        result[first:last] = np.cumsum(rewards[first:last][::-1])[::-1]
    # Short episodes of equal length are summed together. Each sum has the order of a loop over its episode.
    for length in np.unique(block.lengths[~long]).tolist():
        rows = ends[block.lengths == length, None] - 1 - np.arange(length)
        result[rows] = np.cumsum(rewards[rows], axis=1)
    return replace(block, columns={**block.columns, RETURNS_TO_GO: result})
