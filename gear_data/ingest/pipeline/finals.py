"""Final observations of variable length: text, and bytes that stay encoded. A dataset cannot hold them.

A source says that it has such ones by `has_final` of a column of variable length, and hands them over in
`EpisodeBlock.variable_finals`, since decoding may make them arrays (`gear_data.ingest.pipeline.images`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.schema import ColumnSpec
from gear_data.storage.block import EpisodeBlock


def without_variable_finals(columns: tuple[ColumnSpec, ...]) -> tuple[ColumnSpec, ...]:
    """The columns as they are stored: of those of variable length none has a final observation."""
    return tuple(replace(spec, has_final=False) if spec.variable_length else spec for spec in columns)


def drop_variable_finals(block: EpisodeBlock, columns: tuple[ColumnSpec, ...], findings: FindingLog) -> EpisodeBlock:
    """The block without `variable_finals`, with a finding for each column that had any. Episodes that had no other
    final observation have none then.

    Args:
        columns: the source's.
    """
    with_final = np.flatnonzero(block.has_final)
    for spec in columns:
        if spec.name in block.variable_finals and len(with_final):
            message = "final observations of variable length cannot be kept; left out"
            file, row = block.sources[with_final[0]], int(block.rows[with_final[0]])
            findings.add(Finding("final-left-out", message, len(with_final), file, row, spec.source or spec.name))
    has_final = block.has_final if block.finals else np.zeros(len(block), np.bool_)
    return replace(block, variable_finals={}, has_final=has_final)
