"""Checks of single episodes for unusual but valid values.

Every conversion runs them. docs/reference/findings.md lists all codes. Each episode is checked by itself, so the
findings do not depend on how a source is cut into blocks.
"""

from __future__ import annotations

import numpy as np

from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.findings.observation_jumps import MAX_ELEMENTS, find_jumps
from gear_data.schema import Role, role_of
from gear_data.storage.episode_block import EpisodeBlock


def check_episodes(block: EpisodeBlock, findings: FindingLog, *, rows_are_steps: bool) -> None:
    """Adds findings about the episodes of a block whose end flags are complete.

    The findings are episodes of one step (`one-step-episode`), and observations that jump inside an episode
    (`observation-jump`).
    """
    short = np.flatnonzero(block.lengths == 1)
    if len(short):
        first = int(short[0])
        message = "an episode of one step; kept"
        findings.add(
            Finding("one-step-episode", message, len(short), block.sources[first], int(block.rows[first]), None)
        )
    for name, values in block.columns.items():
        if role_of(name) is not Role.OBSERVATION or values.dtype.kind != "f" or values.ndim > 2:
            continue
        vectors = values.reshape(len(values), -1)
        if not 0 < vectors.shape[1] <= MAX_ELEMENTS:
            continue
        jumps = find_jumps(vectors, block.lengths)
        if jumps:
            episode, step = jumps[0]
            message = f"the observation jumps inside an episode, first after its step {step}, as if two rollouts were "
            message += "joined; kept as one episode"
            row = int(block.rows[episode]) + (step if rows_are_steps else 0)
            findings.add(Finding("observation-jump", message, len(jumps), block.sources[episode], row, name))
