"""Blocks of episodes, read from step arrays in pieces of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.images import byte_strings
from gear_data.ingest.pipeline.episode_values import cast_or_refuse
from gear_data.ingest.sources.arrays.step_arrays import EpisodeRanges, RowReader, StepArrays
from gear_data.schema import VARIABLE_TYPES, ColumnSpec
from gear_data.storage.episode_block import EpisodeBlock, Position, Values, offsets_of, rows_of, shaped

#: A fact about an episode: one value, a nested list of numbers, or None if the episode lacks it.
Fact = str | bool | int | float | list[Any] | None


def episode_runs(lengths: npt.NDArray[np.int64], row_bytes: int, run_bytes: int) -> list[tuple[int, int]]:
    """Divides episodes into runs [first, last) of about `run_bytes`.

    Each run has at least one episode.
    """
    ends = np.cumsum(lengths)
    runs, first = [], 0
    while first < len(lengths):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + run_bytes // max(1, row_bytes), side="right")))
        runs.append((first, last))
        first = last
    return runs


def read_block(
    arrays: StepArrays,
    columns: Sequence[ColumnSpec],
    episodes: EpisodeRanges,
    reader: RowReader,
    position: Position,
    stop: int,
) -> EpisodeBlock:
    """Reads the episodes [position.row, stop) into one block."""
    selected = slice(position.row, stop)
    lengths, starts = episodes.lengths[selected], episodes.starts[selected]
    offsets = offsets_of(lengths)
    plain_rows = _step_rows(starts - starts[0], lengths)
    values: dict[str, Values] = {}
    finals: dict[str, Values] = {}
    for spec in columns:
        if spec.name in arrays.episode_flags:
            flag = np.zeros(int(offsets[-1]), np.bool_)
            flag[offsets[1:] - 1] = episodes.flags[spec.name][selected]
            values[spec.name] = flag
            continue
        has_final_row, shift = spec.name in arrays.final_row_columns, int(spec.name in arrays.shifted)
        own_starts = starts
        if has_final_row and episodes.final_row_starts is not None:
            own_starts = episodes.final_row_starts[selected]
        first = int(own_starts[0]) + shift
        last = int(own_starts[-1] + lengths[-1]) + shift + int(has_final_row)
        stored = reader.read(arrays.arrays[spec.name], first, last)
        stored = _as_dtype(stored, spec, first)
        rows = plain_rows if own_starts is starts else _step_rows(own_starts - own_starts[0], lengths)
        values[spec.name] = stored[: offsets[-1]] if rows is None else rows_of(stored, rows)
        if spec.has_final and has_final_row:
            finals[spec.name] = rows_of(stored, own_starts - first + lengths)
        elif spec.has_final:
            last_rows = starts + lengths - 1
            after = reader.read(arrays.next_arrays[spec.name], int(last_rows[0]), int(last_rows[-1]) + 1)
            after = _as_dtype(after, spec, int(last_rows[0]))
            finals[spec.name] = rows_of(after, last_rows - last_rows[0])
    return EpisodeBlock(
        position=position,
        lengths=lengths,
        columns=_stored(values, columns),
        sources=[arrays.name] * len(lengths),
        rows=starts,
        has_final=np.full(len(lengths), bool(finals)),
        finals=_stored(finals, columns),
        metadata={name: list(facts[selected]) for name, facts in episodes.facts.items()},
        source_rows=int(offsets[-1]),
    )


def _as_dtype(values: Values, spec: ColumnSpec, row: int) -> Values:
    """Returns values with the dtype of their column.

    Raises BadEpisodeError if a number would change by more than the rounding of floats.
    """
    if isinstance(values, pa.Array) or spec.variable_length or values.dtype == spec.numpy_dtype:
        return values
    name = spec.source_name
    return cast_or_refuse(values, spec.dtype, name, row, rounds=True, source=name)


def _stored(values: Mapping[str, Values], columns: Sequence[ColumnSpec]) -> dict[str, Values]:
    """Returns values as `EpisodeBlock` has them: contiguous, or of Arrow."""
    stored: dict[str, Values] = {}
    for spec in (spec for spec in columns if spec.name in values):
        found = shaped(values[spec.name], spec)
        if not spec.variable_length:
            stored[spec.name] = np.ascontiguousarray(found)
        else:
            stored[spec.name] = found if isinstance(found, pa.Array) else strings(found, spec.arrow_type)
    return stored


def strings(values: npt.NDArray[Any], type_: pa.DataType = VARIABLE_TYPES["string"]) -> pa.Array:
    """Returns text or byte strings [n] as an Arrow array; Python objects as one of `type_`."""
    if values.dtype.kind == "S":
        return pa.array(byte_strings(values), VARIABLE_TYPES["binary"])
    return pa.array(values.tolist(), type_)


def _step_rows(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """Returns int64 [sum(lengths)], the rows of episodes that begin at `starts`.

    Returns None if these are 0, 1, 2, ...
    """
    if len(starts) == 1 and not starts[0]:
        return None
    offsets = offsets_of(lengths)
    if np.array_equal(starts, offsets[:-1]):
        return None
    return np.arange(int(offsets[-1])) + np.repeat(starts - offsets[:-1], lengths)


def merge_small_blocks(blocks: Iterator[EpisodeBlock], row_bytes: int, block_bytes: int) -> Iterator[EpisodeBlock]:
    """Concatenates consecutive blocks up to `block_bytes`.

    Otherwise a file per episode would make a block per episode.
    """
    pending: list[EpisodeBlock] = []
    size = 0
    for block in blocks:
        pending.append(block)
        variable = [each for each in (*block.columns.values(), *block.finals.values()) if isinstance(each, pa.Array)]
        size += int(block.lengths.sum()) * row_bytes + sum(array.nbytes for array in variable)
        if size >= block_bytes:
            yield _concatenate_blocks(pending)
            pending, size = [], 0
    if pending:
        yield _concatenate_blocks(pending)


def _concatenate_blocks(blocks: Sequence[EpisodeBlock]) -> EpisodeBlock:
    """Returns one block with the episodes of all blocks.

    It has the first block's position. All blocks must have the same columns.
    """
    if len(blocks) == 1:
        return blocks[0]
    first = blocks[0]
    facts = dict.fromkeys(name for block in blocks for name in block.metadata)
    return replace(
        first,
        lengths=np.concatenate([block.lengths for block in blocks]),
        columns={name: joined([block.columns[name] for block in blocks]) for name in first.columns},
        sources=[source for block in blocks for source in block.sources],
        rows=np.concatenate([block.rows for block in blocks]),
        has_final=np.concatenate([block.has_final for block in blocks]),
        finals={name: joined([block.finals[name] for block in blocks]) for name in first.finals},
        metadata={
            name: [value for block in blocks for value in block.metadata.get(name, [None] * len(block))]
            for name in facts
        },
        source_rows=sum(block.source_rows for block in blocks),
    )


@dataclass
class ReadEpisode:
    """An episode that was read.

    Attributes:
        number: the number of the episode.
        steps: the number of steps.
        columns: name -> the rows of the steps.
        finals: name -> one row, the final observation.
        facts: name -> a fact about the episode.
    """

    number: int
    steps: int
    columns: dict[str, Values] = field(default_factory=dict)
    finals: dict[str, Values] = field(default_factory=dict)
    facts: dict[str, Fact] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(values.nbytes for group in (self.columns, self.finals) for values in group.values())


def block_of(
    episodes: Sequence[ReadEpisode], columns: Sequence[ColumnSpec], file: str, position: Position, rows: int
) -> EpisodeBlock:
    """Joins episodes of one file into a block.

    Args:
        episodes: the episodes.
        columns: the columns of all episodes.
        file: the file, or another source.
        position: where the block starts.
        rows: the number of source rows, of bad episodes too.
    """
    with_final = [episode for episode in episodes if episode.finals]
    finals = {
        c.name: joined([e.finals[c.name] for e in with_final])
        if with_final
        else np.empty((0, *c.shape), object if c.variable_length else c.dtype)
        for c in columns
        if c.has_final
    }
    facts = dict.fromkeys(name for episode in episodes for name in episode.facts)
    return EpisodeBlock(
        position=position,
        lengths=np.array([episode.steps for episode in episodes], np.int64),
        columns=_stored({c.name: joined([e.columns[c.name] for e in episodes]) for c in columns}, columns),
        sources=[file] * len(episodes),
        rows=np.array([episode.number for episode in episodes], np.int64),
        has_final=np.array([bool(episode.finals) for episode in episodes]),
        finals=_stored(finals, columns),
        metadata={name: [episode.facts.get(name) for episode in episodes] for name in facts},
        source_rows=rows,
    )


def joined(parts: Sequence[Values]) -> Values:
    """Concatenates the values of a column. A single part stays as it is."""
    if isinstance(parts[0], pa.Array):
        return pa.concat_arrays(parts)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
