"""Episodes as DreamerV2 and V3 save them, https://github.com/danijar/dreamerv3, and episodes whose rows are RLDS's.

The last row of an episode is only its final observation. In RLDS the other rows are steps, and the end flags of the
last row are those of the last step. In Dreamer a row holds an observation and the reward that came with it, so rewards
and flags belong to the previous step. In V2 the action of a row is the one that led to the observation, and is zero in
the first row.

Early files have no flags (some of https://github.com/conglu1997/v-d4rl): a file is an episode, which terminated if its
last `discount` is 0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gear_data.errors import BadEpisodeError
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.pipeline.columns import END_FLAGS
from gear_data.ingest.pipeline.names import is_observation
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.arrays.boundaries import without_final_rows
from gear_data.ingest.sources.arrays.classify import (
    FIRST,
    ClassifiedArrays,
    all_values,
    scalar_facts,
    values_at,
)
from gear_data.ingest.sources.arrays.first_rows import RowConvention
from gear_data.ingest.sources.arrays.numpy_files import StoredArray
from gear_data.ingest.sources.arrays.step_arrays import EpisodeRanges, StepArrays


def dreamer_arrays(classified: ClassifiedArrays, options: SourceOptions, discount: StoredArray | None) -> StepArrays:
    """Builds the step arrays of a file or folder in Dreamer's layout.

    Args:
        classified: the arrays to read.
        options: the user's options.
        discount: the array `discount`, if there is one, also if it is not read.

    Raises:
        BadEpisodeError: the arrays have different lengths, an episode has no step (unless bad episodes are skipped), or
            a reward comes with an episode's first observation.
    """
    rows = len(classified.boundaries.get(FIRST, classified.steps[classified.reference]))
    for name, array in classified.steps.items():
        if len(array) != rows:
            raise classified.wrong_length(name, rows)
    starts, cut = first_rows(classified, rows)
    starts, lengths, empty = without_final_rows(classified.name, FIRST, starts, rows, options)
    shifted = _shifted_columns(classified, starts)
    flags = _flags_by_discount(classified, discount, starts + lengths)
    episodes = EpisodeRanges(
        lengths,
        starts,
        facts=scalar_facts(classified, len(lengths)),
        flags=flags,
        findings=(*classified.findings, *cut, *empty),
    )
    finals, sources = filter(is_observation, classified.steps), dict.fromkeys(flags, "discount")
    return classified.with_episodes(episodes, classified.steps, finals, shifted=shifted, flag_sources=sources)


def first_rows(classified: ClassifiedArrays, rows: int) -> tuple[npt.NDArray[np.int64], list[Finding]]:
    """Returns the episodes' first rows, int64 [n], by `is_first`, and findings."""
    starts = np.zeros(1, np.int64)
    if FIRST in classified.boundaries:
        starts = np.flatnonzero(all_values(classified.boundaries[FIRST]).astype(np.bool_)).astype(np.int64)
    if not rows or (len(starts) and not starts[0]):
        return starts, []
    message = "the file begins inside an episode; the rest of the episode is read as an episode"
    finding = Finding("episode-cut", message, file=classified.name, row=0)
    return np.concatenate([[0], starts]).astype(np.int64), [finding]


def _shifted_columns(classified: ClassifiedArrays, starts: npt.NDArray[np.int64]) -> frozenset[str]:
    """Returns the columns whose row t + 1 belongs to step t.

    In RLDS these are the end flags. In Dreamer these are all columns except observations; in V3 also except actions.

    Raises BadEpisodeError if an episode's first reward is not zero.
    """
    if classified.rows_are is RowConvention.RLDS:
        return END_FLAGS & classified.steps.keys()
    shifted = {name for name in classified.steps if not is_observation(name) and name != "actions"}
    actions = classified.steps.get("actions")
    if actions is not None and actions.dtype.kind == "f" and not values_at(actions, starts).any():
        shifted.add("actions")
    rewards = classified.steps.get("rewards")
    if rewards is not None and (nonzero := np.flatnonzero(values_at(rewards, starts))).size:
        raise BadEpisodeError(
            "is not zero at an episode's first observation, before any step",
            column=classified.sources["rewards"],
            row=int(starts[nonzero[0]]),
            hint="store each reward with the observation that it led to; or convert copies without 'is_first'",
        )
    return frozenset(shifted)


def _flags_by_discount(
    classified: ClassifiedArrays, discount: StoredArray | None, last_rows: npt.NDArray[np.int64]
) -> dict[str, npt.NDArray[np.bool_]]:
    """Returns the end flags of episodes whose file has none, bool [n] each."""
    if FIRST in classified.boundaries or END_FLAGS & classified.steps.keys() or discount is None:
        return {}
    if (
        discount.dtype.kind not in "biuf"
        or discount.row_shape not in ((), (1,))
        or len(discount) <= last_rows.max(initial=0)
    ):
        raise BadEpisodeError(
            f"holds {discount.dtype} {discount.shape}, not one number a row",
            column="discount",
            hint="download the file again",
        )
    terminated = values_at(discount, last_rows).reshape(-1) == 0
    return {"terminated": terminated, "truncated": ~terminated}
