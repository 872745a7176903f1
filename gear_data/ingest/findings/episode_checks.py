"""Checks of single episodes for unusual but valid values.

Every conversion runs them. docs/reference/findings.md lists all codes. Each episode is checked by itself, so the
findings do not depend on how a source is cut into blocks.
"""

from __future__ import annotations

from gear_data.ingest.findings.log import Finding, FindingLog, place_of
from gear_data.ingest.findings.observation_jumps import MAX_ELEMENTS, find_jumps
from gear_data.schema import Role, role_of
from gear_data.storage.episode_block import EpisodeBlock


def check_episodes(block: EpisodeBlock, findings: FindingLog, *, rows_are_steps: bool) -> None:
    """Adds findings about the episodes of a block whose end flags are complete.

    The findings are episodes of one step (`one-step-episode`), and observations that jump inside an episode
    (`observation-jump`).
    """
    findings.add_episodes(block, "one-step-episode", "an episode of one step; kept", block.lengths == 1)
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
            place = place_of(block, episode, step * rows_are_steps)
            findings.add(Finding("observation-jump", message, len(jumps), *place, name))
