"""Checks for several episodes that were read as one, because their ids are equal."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from gear_data.ingest.findings.log import Finding, FindingLog, place_of
from gear_data.ingest.pipeline.columns import FIRST_FLAGS, ONE_VALUE, STEP_NUMBERS
from gear_data.storage.episode_block import EpisodeBlock

#: Usual names of columns that name a run, in which episodes may be numbered from 0.
_RUNS = (
    "seed", "run", "run_id", "run_name", "trial", "experiment", "worker", "worker_id", "worker_index", "env", "env_id",
    "env_index", "env_idx", "actor", "actor_id", "rank",
)  # fmt: skip


def check_joined_episodes(block: EpisodeBlock, findings: FindingLog, *, rows_are_steps: bool) -> None:
    """Adds findings about columns that say that an episode is several.

    A step number falls inside an episode (`steps-not-monotonic`), the seed or the run changes (`run-changes`), or a
    later step is the first of an episode (`first-step-inside`). Or the first step is not marked as one
    (`episode-cut`).
    """
    scalars = {name: each.reshape(-1) for name, each in block.columns.items() if each.shape[1:] in ONE_VALUE}
    for name in STEP_NUMBERS:
        numbers = scalars.get(name)
        if numbers is not None and numbers.dtype.kind in "iuf":
            message = "falls inside an episode"
            _report(block, findings, numbers[1:] < numbers[:-1], ("steps-not-monotonic", message, name), rows_are_steps)
    for name in sorted(FIRST_FLAGS):
        first = scalars.get(name)
        if first is not None and first.dtype.kind in "biuf":
            message = "is not true at the first step of an episode, which may lack its beginning; kept"
            findings.add_episodes(block, "episode-cut", message, first[block.offsets[:-1]] == 0, name)
            message = "is true inside an episode"
            _report(block, findings, first[1:] != 0, ("first-step-inside", message, name), rows_are_steps)
    for name in _RUNS:
        if (values := scalars.get(name)) is not None:
            differ = np.asarray(values[1:] != values[:-1])
        elif (texts := block.variable.get(name)) is not None:
            differ = np.asarray(pc.not_equal(texts[1:], texts[:-1]).to_numpy(zero_copy_only=False), np.bool_)
        else:
            continue
        _report(block, findings, differ, ("run-changes", "changes inside an episode", name), rows_are_steps)


def _report(
    block: EpisodeBlock,
    findings: FindingLog,
    changes: npt.NDArray[np.bool_],
    kind: tuple[str, str, str],
    rows_are_steps: bool,
) -> None:
    """Adds a finding of a code, message and column for changes between a step and the next, bool [steps - 1]."""
    changes[block.offsets[1:-1] - 1] = False
    steps = np.flatnonzero(changes)
    if len(steps):
        code, message, column = kind
        episode, before = block.locate(steps[0])
        step = before + 1
        message += f", first at step {step} of its episode, as if two were joined; kept as one. If episodes of several "
        message += "runs have the same number, name all columns that tell them apart: --episode-column RUN "
        message += "--episode-column EPISODE (episode_column=('RUN', 'EPISODE'))"
        findings.add(Finding(code, message, len(steps), *place_of(block, episode, step * rows_are_steps), column))
