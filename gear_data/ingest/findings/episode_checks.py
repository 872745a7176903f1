"""Checks of single episodes for unusual but valid values.

Every conversion runs them. docs/reference/findings.md lists all codes. Each episode is checked by itself, so the
findings do not depend on how a source is cut into blocks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import NonFiniteError
from gear_data.ingest.findings.log import Finding, FindingLog, place_of
from gear_data.ingest.findings.observation_jumps import MAX_ELEMENTS, find_jumps
from gear_data.ingest.pipeline.columns import EPISODE_COLUMNS, FIRST_FLAGS, ONE_VALUE, STEP_NUMBERS
from gear_data.ingest.pipeline.episode_values import rows_differ
from gear_data.ingest.pipeline.stored_columns import RETURNS_TO_GO
from gear_data.schema import Role, role_of
from gear_data.storage.episode_block import EpisodeBlock


def check_episodes(block: EpisodeBlock, findings: FindingLog, *, rows_are_steps: bool) -> None:
    """Adds findings about the episodes of a block whose end flags are complete.

    The findings are episodes of one step (`one-step-episode`), and observations that jump inside an episode
    (`observation-jump`).
    """
    findings.add_episodes(block, "one-step-episode", "an episode of one step; kept", block.lengths == 1)
    for name, values in block.arrays.items():
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


_STRICT_HINT = "repair the source, or convert without --strict to keep such values"


def check_finite(block: EpisodeBlock, findings: FindingLog, *, strict: bool, rows_are_steps: bool) -> None:
    """Counts NaN and Inf in float columns and final observations. The values are kept.

    Raises:
        NonFiniteError: there is such a value, and `strict` is set.
    """
    for name, values in block.arrays.items():
        if values.dtype.kind != "f" or name == RETURNS_TO_GO:
            continue
        finite = np.isfinite(values)
        if finite.all():
            continue
        steps = np.flatnonzero(~finite.reshape(len(values), -1).all(axis=1))
        episode, step = block.locate(steps[0])
        file, row = place_of(block, episode, step * rows_are_steps)
        first_place = "" if rows_are_steps else f", first at step {step} of its episode"
        if strict:
            raise NonFiniteError(f"holds NaN or Inf{first_place}", file=file, column=name, row=row, hint=_STRICT_HINT)
        message = f"NaN or Inf{first_place}; kept"
        findings.add(Finding("non-finite", message, int((~finite).sum()), file, row, name))
    for name, values in block.finals.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            bad = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))
            file, row = place_of(block, np.flatnonzero(block.has_final)[bad[0]])
            if strict:
                raise NonFiniteError(
                    "a final observation holds NaN or Inf", file=file, column=name, row=row, hint=_STRICT_HINT
                )
            message = "NaN or Inf in final observations; kept"
            findings.add(Finding("non-finite-final", message, len(bad), file, row, name))


#: Usual names of columns that name a run, in which episodes may be numbered from 0; and of columns that name an
#: episode, where something else ended the episodes.
_RUNS = (
    *EPISODE_COLUMNS, "episode_idx", "episode_num", "episode_number", "ep", "ep_id", "ep_idx", "traj", "traj_idx",
    "trajectory", "rollout", "rollout_id", "demo_id",
    "seed", "run", "run_id", "run_name", "trial", "experiment", "worker", "worker_id", "worker_index", "env", "env_id",
    "env_index", "env_idx", "actor", "actor_id", "rank",
)  # fmt: skip


def check_joined_episodes(block: EpisodeBlock, findings: FindingLog, *, rows_are_steps: bool) -> None:
    """Adds findings about columns that say that an episode is several.

    A step number falls inside an episode (`steps-not-monotonic`), the seed, the run or an episode id changes
    (`run-changes`), or a later step is the first of an episode (`first-step-inside`). Or the first step is not marked
    as one (`episode-cut`).
    """
    scalars = {name: each.reshape(-1) for name, each in block.arrays.items() if each.shape[1:] in ONE_VALUE}
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
    texts = {name: each for name, each in block.columns.items() if isinstance(each, pa.Array)}
    for name in _RUNS:
        values = scalars.get(name, texts.get(name))
        if values is not None:
            kind = "run-changes", "changes inside an episode", name
            _report(block, findings, rows_differ(values[1:], values[:-1]), kind, rows_are_steps)


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
