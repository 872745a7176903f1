"""Columns computed at conversion, and the check for NaN and Inf."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from gear_data.errors import NonFiniteError
from gear_data.ingest.findings.record import Finding, Findings
from gear_data.schema import ColumnSpec
from gear_data.storage.block import EpisodeBlock

RETURNS_TO_GO = "returns_to_go"


def derived_columns(columns: tuple[ColumnSpec, ...]) -> tuple[ColumnSpec, ...]:
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


def check_finite(block: EpisodeBlock, findings: Findings, *, strict: bool, rows_are_steps: bool) -> None:
    """Counts NaN and Inf in float columns and final observations, which are kept.

    Raises:
        NonFiniteError: there is one and `strict`.
    """
    offsets = block.offsets
    for name, values in block.columns.items():
        if values.dtype.kind != "f" or name == RETURNS_TO_GO:
            continue
        finite = np.isfinite(values)
        if finite.all():
            continue
        steps = np.flatnonzero(~finite.reshape(len(values), -1).all(axis=1))
        episode = int(np.searchsorted(offsets, steps[0], side="right") - 1)
        step = int(steps[0] - offsets[episode])
        row = int(block.rows[episode]) + (step if rows_are_steps else 0)
        where = "" if rows_are_steps else f", first at step {step} of its episode"
        if strict:
            raise NonFiniteError(
                f"holds NaN or Inf{where}",
                file=block.sources[episode],
                column=name,
                row=row,
                hint="mend the source, or convert without --strict to keep such values",
            )
        message = f"NaN or Inf{where}; kept"
        findings.add(Finding("non-finite", message, int((~finite).sum()), block.sources[episode], row, name))
    for name, values in block.finals.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            bad = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))
            episode = int(np.flatnonzero(block.has_final)[bad[0]])
            file, row = block.sources[episode], int(block.rows[episode])
            if strict:
                raise NonFiniteError("a final observation holds NaN or Inf", file=file, column=name, row=row)
            message = "NaN or Inf in final observations; kept"
            findings.add(Finding("non-finite-final", message, len(bad), file, row, name))
