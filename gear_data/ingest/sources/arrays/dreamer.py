"""Episodes as DreamerV2 and V3 save them: https://github.com/danijar/dreamerv3."""

from __future__ import annotations

import numpy as np

from gear_data.errors import BadEpisodeError
from gear_data.ingest.findings.log import BAD_EPISODE_HINT, Finding
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.arrays.classify import (
    FIRST,
    ClassifiedArrays,
    all_values,
    is_observation,
    misfit,
    scalar_facts,
    values_at,
)
from gear_data.ingest.sources.arrays.source import EpisodeRanges, StepArrays


def dreamer_arrays(found: ClassifiedArrays, size: int, options: SourceOptions, seekable: bool) -> StepArrays:
    """A row is an observation and the reward that came with it, so rewards and flags belong to the step before. In V2
    the action is the one that led to the observation, all zero at the first."""
    rows = len(found.split[FIRST])
    for name, array in found.steps.items():
        if len(array) != rows:
            raise misfit(found, name, rows)
    starts = np.flatnonzero(all_values(found.split[FIRST]).astype(np.bool_)).astype(np.int64)
    findings = list(found.findings)
    if rows and (not len(starts) or starts[0]):
        starts = np.concatenate([[0], starts]).astype(np.int64)
        message = "the file begins inside an episode; the rest of it is read as an episode of its own"
        findings.append(Finding("episode-cut", message, file=found.name, row=0))
    lengths = np.diff(starts, append=rows) - 1
    empty = np.flatnonzero(lengths < 1)
    if len(empty):
        if not options.skip_bad:
            raise BadEpisodeError(
                "the episode has an observation and no step",
                file=found.name,
                column=FIRST,
                row=int(starts[empty[0]]),
                hint=BAD_EPISODE_HINT,
            )
        message = "an observation and no step; skipped"
        findings.append(Finding("bad-episode", message, len(empty), found.name, int(starts[empty[0]]), FIRST))
        starts, lengths = np.delete(starts, empty), np.delete(lengths, empty)
    shifted = {name for name in found.steps if not is_observation(name) and name != "actions"}
    actions = found.steps.get("actions")
    if actions is not None and actions.dtype.kind == "f" and not values_at(actions, starts).any():
        shifted.add("actions")
    rewards = found.steps.get("rewards")
    if rewards is not None and (nonzero := np.flatnonzero(values_at(rewards, starts))).size:
        raise BadEpisodeError(
            "is not zero with an episode's first observation, where no step has been taken yet",
            file=found.name,
            column=found.sources["rewards"],
            row=int(starts[nonzero[0]]),
            hint="rewards must come with the observation they led to; else convert copies without 'is_first'",
        )
    wide = frozenset(name for name in found.steps if is_observation(name))
    episodes = EpisodeRanges(lengths, starts, facts=scalar_facts(found, len(lengths)), findings=tuple(findings))
    return StepArrays(
        name=found.name,
        bytes=size,
        arrays=found.steps,
        sources=found.sources,
        locate=lambda: episodes,
        wide=wide,
        shifted=frozenset(shifted),
        seekable=seekable,
    )
