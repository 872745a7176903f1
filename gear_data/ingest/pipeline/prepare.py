"""Prepares a source's blocks for storage: checks, end flags, derived columns."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gear_data.common.paths import printable
from gear_data.errors import BadEpisodeError, CorruptSourceError, UnsupportedColumnError
from gear_data.ingest.findings.episode_checks import check_episodes, check_finite, check_joined_episodes
from gear_data.ingest.findings.log import BAD_EPISODE_HINT, NO_STEPS, Finding
from gear_data.ingest.pipeline.end_flags import check_end_flags, complete_end_flags, end_flag_columns
from gear_data.ingest.pipeline.names import (
    INVALID_NAME,
    conflicting_presets,
    is_nearly_actions,
    is_next,
    is_storable,
    observations_before,
)
from gear_data.ingest.pipeline.stored_columns import (
    RETURNS_TO_GO,
    add_returns_to_go,
    drop_variable_finals,
    with_derived_columns,
    without_variable_finals,
)
from gear_data.ingest.source import EpisodeSource, source_videos, typed_memory_errors
from gear_data.schema import ColumnSpec, Role, Schema, role_of
from gear_data.storage.episode_block import EpisodeBlock, Position


def stored_schema(source: EpisodeSource) -> Schema:
    """Returns the schema of the dataset that a source is converted to."""
    columns = with_derived_columns(end_flag_columns(without_variable_finals(source.columns)))
    return Schema(columns, source_videos(source).columns)


def report_names(source: EpisodeSource, *, all_columns: bool) -> None:
    """Adds findings about the names of columns.

    A derived column replaces a column of the source (`replaced-column`), the batches of a preset have an array of the
    column's name (`reserved-name`), no column is `actions` (`no-actions-column`), or next observations have no
    observations beside them (`next-observations-kept`).

    Args:
        source: the opened source.
        all_columns: whether all columns are read. A user who chose columns may have left the actions out.
    """
    columns = {column.name: column for column in source.columns}
    _report_actions(source, all_columns)
    for name, column in columns.items():
        before = columns.get(observations_before(name, columns) or "")
        if all_columns and is_next(name) and (before is None or before.shape != column.shape):
            message = f"no column '{name[len('next_') :]}' has its shape, so it gives no final observations; kept"
            source.findings.add(Finding("next-observations-kept", message, column=column.source or name))
    if RETURNS_TO_GO in columns and "rewards" in columns and columns["rewards"].shape == ():
        message = "replaced by values computed from the rewards; --rename keeps the source's column under another name"
        source.findings.add(Finding("replaced-column", message, column=RETURNS_TO_GO))
    for column in source.columns:
        presets = conflicting_presets(column.name)
        if presets:
            message = f"kept, but batches of the preset {' and '.join(map(repr, presets))} have another array of this "
            message += "name, so that preset cannot feed the column; "
            message += f"rename it with --rename {printable(column.source_name)}=NAME"
            source.findings.add(Finding("reserved-name", message, column=column.name))


def _report_actions(source: EpisodeSource, all_columns: bool) -> None:
    """Adds the finding `no-actions-column`, with the names that are nearly `actions`."""
    if any(role_of(column.name) is Role.ACTION for column in source.columns):
        return
    names = [printable(column.source_name) for column in source.columns]
    near = [name for name in names if is_nearly_actions(name)]
    if not near and not all_columns:
        return
    message = "no column is 'actions', which training needs"
    if near:
        message += f"; if {' or '.join(map(repr, near))} holds the actions: --rename {near[0]}=actions"
    source.findings.add(Finding("no-actions-column", message))


def prepared_blocks(
    source: EpisodeSource, start: Position, stop: Position, *, strict: bool
) -> Iterator[tuple[EpisodeBlock, dict[str, Any]]]:
    """Yields blocks ready to be written, each with the state at its position.

    The state is the state of the source before it read the block: the findings, and `resume_state` under "notes". A run
    that resumes at the position must restore the state first.

    Args:
        source: the opened source.
        start: the position of the first episode.
        stop: the position where reading stops.
        strict: raise an error for NaN and Inf.
    """
    has_rewards = any(column.name == "rewards" and column.shape == () for column in source.columns)
    blocks = source.blocks(start, stop)
    state: dict[str, Any] = {}
    while True:
        before = {"findings": source.findings.to_json(), "notes": dict(source.resume_state)}
        with typed_memory_errors(), _advice_about_columns(source):
            block = next(blocks, None)
        if block is None:
            return
        # A resumed run reads all blocks of one position again, and finds the same findings again.
        state = state if block.first else before
        if not len(block):
            continue
        check_block(block, source.columns)
        block = drop_variable_finals(block, source.columns, source.findings)
        ready = complete_end_flags(block, source.findings)
        check_end_flags(ready, source.findings)
        check_finite(ready, source.findings, strict=strict, rows_are_steps=source.rows_are_steps)
        check_episodes(ready, source.findings, rows_are_steps=source.rows_are_steps)
        check_joined_episodes(ready, source.findings, rows_are_steps=source.rows_are_steps)
        yield add_returns_to_go(ready) if has_rewards else ready, state


@contextmanager
def _advice_about_columns(source: EpisodeSource) -> Iterator[None]:
    """Adds to a BadEpisodeError without its own advice that the column can be left out.

    If all episodes have the same fault, it does not help to leave bad episodes out.
    """
    try:
        yield
    except BadEpisodeError as error:
        if error.message == NO_STEPS:
            error.hint = "leave such episodes out with --on-bad-episode skip (on_bad_episode='skip')"
            raise
        names = [spec.name for spec in source.columns if not _is_about(error, spec)]
        if (error.hint or "").startswith(BAD_EPISODE_HINT) and 0 < len(names) < len(source.columns):
            more = str(error.hint).removeprefix(BAD_EPISODE_HINT)
            error.hint = (
                f"leave the column out with --columns {shlex.quote(','.join(names))} (columns=[...]), leave such "
                f"episodes out with --on-bad-episode skip (on_bad_episode='skip'), or repair the source{more}"
            )
        raise


def _is_about(error: BadEpisodeError, spec: ColumnSpec) -> bool:
    """Returns whether an error is about a column. Errors about trees have the path of the episode before the name."""
    source, column = spec.source_name, error.column or ""
    return column in (spec.name, source) or column.endswith(f"/{source}")


def check_block(block: EpisodeBlock, columns: tuple[ColumnSpec, ...]) -> None:
    """Checks a block's arrays and the names of its episodes' facts.

    After this check the bytes of the arrays are written and hashed without conversion.

    Raises:
        CorruptSourceError: an array has another dtype, shape or length, or a boolean is neither 0 nor 1.
        UnsupportedColumnError: the name of a fact cannot be stored.
    """
    for name in block.metadata:
        if not is_storable(name):
            raise UnsupportedColumnError(
                f"a fact about an episode cannot have the name {name!r}: it is {INVALID_NAME}",
                file=block.sources[0],
                column=printable(name),
                row=int(block.rows[0]),
                hint="rename it in the source",
            )
    steps = int(block.lengths.sum())
    for spec in columns:
        found = [(block.columns, steps)]
        if spec.has_final:
            found.append((block.finals, int(block.has_final.sum())))
        for part, count in found:
            values: Any = part[spec.name]
            if spec.variable_length:
                if values.type != spec.arrow_type or len(values) != count or values.null_count:
                    raise _changed(block, spec, str(values.type))
            elif values.dtype != spec.numpy_dtype or values.shape != (count, *spec.shape):
                raise _changed(block, spec, f"{values.dtype} {values.shape[1:]}")
            elif spec.dtype == "bool" and values.size and (largest := int(values.view(np.uint8).max())) > 1:
                # NumPy takes the bytes of a file as they are. Arithmetic on such a value gives other results.
                raise CorruptSourceError(
                    f"holds a boolean that is stored as {largest}, which is neither 0 nor 1",
                    file=block.sources[0],
                    column=spec.source_name,
                    row=int(block.rows[0]),
                    hint="the file may be damaged: download it again",
                )


def _changed(block: EpisodeBlock, spec: ColumnSpec, found: str) -> CorruptSourceError:
    return CorruptSourceError(
        f"holds {found} here, but {spec.dtype} {spec.shape} at the start of the source",
        file=block.sources[0],
        column=spec.source_name,
        row=int(block.rows[0]),
        hint="convert the column to one type and shape first",
    )
