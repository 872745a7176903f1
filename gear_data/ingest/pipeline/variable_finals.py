"""Removes final observations of variable length, which a dataset cannot hold.

They are text, and bytes that stay encoded. A source announces them by `has_final` of a column of variable length, and
puts them into `EpisodeBlock.variable_finals`: decoding may turn them into arrays (`gear_data.ingest.pipeline.images`).
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
    """Removes `variable_finals` from a block.

    It adds a finding for each column that had some. Episodes without another final observation have none afterwards.

    Args:
        block: the block.
        columns: the columns of the source.
        findings: the log to add to.
    """
    for spec in columns:
        if spec.name in block.variable_finals:
            message = "final observations of variable length cannot be stored; left out"
            findings.add_episodes(block, "final-left-out", message, block.has_final, spec.source or spec.name)
    has_final = block.has_final if block.finals else np.zeros(len(block), np.bool_)
    return replace(block, variable_finals={}, has_final=has_final)
