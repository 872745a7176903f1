"""Several opened sources, read one after another as one source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import UnsupportedColumnError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.pipeline.end_flags import complete_end_flags, end_flag_columns
from gear_data.ingest.pipeline.prepare import check_block
from gear_data.ingest.pipeline.stored_columns import RETURNS_TO_GO, drop_variable_finals, without_variable_finals
from gear_data.ingest.several.cameras import videos_in_sequence
from gear_data.ingest.several.embodiments import EMBODIMENT
from gear_data.ingest.several.parts import SourcePart
from gear_data.ingest.several.united import united_columns, with_masks
from gear_data.ingest.source import EpisodeSource, Unit, source_videos
from gear_data.ingest.sources.arrays.blocks import episode_runs
from gear_data.schema import ColumnSpec, Schema
from gear_data.storage.episode_block import BEGIN, END, EpisodeBlock, Position

#: The fact that names the split of an episode.
SPLIT = "split"
#: Positions of part k begin at file k << 40. No source has so many files, or units that it counts as files.
_PART_BITS = 40
#: Bytes of missing columns that are added to a block at once.
_PIECE_BYTES = 32 << 20
#: Values of missing columns of variable length.
_EMPTY = {"string": "", "binary": b""}


class SourceSequence:
    """Several sources as one. See `EpisodeSource`.

    The episodes have the facts `embodiment`, if there are several sources, and `split`, if there are several splits. A
    fact of the source with such a name becomes `metadata.NAME`. After each block, the findings and
    the state of its source are moved to the sequence.

    Args:
        parts: the parts.
        sources: their sources, opened.

    Raises:
        UnsupportedColumnError: a column has two dtypes or shapes, or a source lacks a camera.
    """

    def __init__(self, parts: Sequence[SourcePart], sources: Sequence[EpisodeSource]) -> None:
        self._parts = parts
        self._sources = sources
        named = [
            (part.name, end_flag_columns(without_variable_finals(source.columns)))
            for part, source in zip(parts, sources, strict=True)
        ]
        # Derived columns are computed later, and masks of all columns come before them.
        self._columns = united_columns(with_masks(named))
        schema = Schema(self._columns)
        self._masks = {mask: column.name for column in schema if (mask := schema.mask_of(column.name)) is not None}
        sequence = videos_in_sequence(
            [(name, own, source_videos(source)) for (name, own), source in zip(named, sources, strict=True)]
        )
        self.videos, self._first_files = sequence.videos, sequence.first_files
        self._reading = sources[0]
        self.findings = FindingLog()
        self.resume_state: dict[str, Any] = {}
        for source in sources:
            self._take_findings(source)
        for name, columns in named:
            self._report_missing(name, {column.name for column in columns})
        if (finding := differing_subtasks([source.metadata for source in sources])) is not None:
            self.findings.add(finding)

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        return self._columns

    @property
    def num_rows(self) -> int | None:
        """The rows of all sources.

        None if one is unknown, or if some rows are steps and others are episodes.
        """
        counts = [source.num_rows for source in self._sources]
        known = [count for count in counts if count is not None]
        alike = len({source.rows_are_steps for source in self._sources}) == 1
        return sum(known) if alike and len(known) == len(counts) else None

    @property
    def rows_are_steps(self) -> bool:
        """Whether a row of the source that is being read is a step."""
        return self._reading.rows_are_steps

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata that all sources share."""
        return reduce(common_metadata, (source.metadata for source in self._sources))

    def part_records(self) -> list[dict[str, Any]]:
        """Returns the name, split, embodiment and metadata of each part, for the manifest."""
        return [
            {"source": part.name, "split": part.split, "embodiment": part.embodiment, "metadata": source.metadata}
            for part, source in zip(self._parts, self._sources, strict=True)
        ]

    def units(self) -> Sequence[Unit]:
        return [
            Unit(_shifted(unit.position, index), unit.bytes)
            for index, source in enumerate(self._sources)
            for unit in source.units()
        ]

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        for index, source in enumerate(self._sources):
            first, last = _within(start, index), _within(stop, index)
            if first < last:
                yield from self._blocks_of(index, source, first, last)

    def _blocks_of(self, index: int, source: EpisodeSource, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        self._reading = source
        source.findings.restore([])
        source.resume_state.clear()
        source.resume_state.update(self.resume_state.get(str(index), {}))
        for block in source.blocks(start, stop):
            times = {name: each.shifted(self._first_files[index]) for name, each in block.video_times.items()}
            block = replace(block, position=_shifted(block.position, index), video_times=times)
            pieces = self._prepared(block, index, source) if len(block) else iter([block])
            self._take_findings(source)
            self.resume_state[str(index)] = dict(source.resume_state)
            yield from pieces
        self._take_findings(source)

    def _report_missing(self, part: str, names: set[str]) -> None:
        """Adds a finding for each column that a part lacks."""
        for mask, column in self._masks.items():
            if column not in names:
                message = f"the source lacks a column that others have; read as zeros, and {mask} is false there"
                self.findings.add(Finding("missing-column", message, file=part, column=column))
        if RETURNS_TO_GO in names and "rewards" in self._masks.values() and "rewards" not in names:
            raise UnsupportedColumnError(
                "cannot be kept: other sources have rewards, from which conversion computes this column",
                file=part,
                column=RETURNS_TO_GO,
                hint=f"convert this source by itself, with --rename {RETURNS_TO_GO}=NAME or without the column "
                "(--columns), and merge the datasets",
            )

    def _prepared(self, block: EpisodeBlock, index: int, source: EpisodeSource) -> Iterator[EpisodeBlock]:
        """Returns a block with the columns and facts of all sources, in pieces.

        Missing columns may take far more memory than the columns of the source.
        """
        check_block(block, source.columns)
        block = drop_variable_finals(block, source.columns, source.findings)
        block = complete_end_flags(block, source.findings)
        added = sum(
            column.row_bytes
            for column in self._columns
            if not column.variable_length and column.name not in block.columns
        )
        return self._completed(block, index, max(1, _PIECE_BYTES // max(1, added)))

    def _completed(self, block: EpisodeBlock, index: int, steps: int) -> Iterator[EpisodeBlock]:
        """Yields pieces of about `steps` steps, with all columns."""
        for first, last in episode_runs(block.lengths, 1, steps):
            piece = self._with_all_columns(block.slice(first, last), index)
            yield replace(piece, source_rows=0) if first else piece

    def _with_all_columns(self, block: EpisodeBlock, index: int) -> EpisodeBlock:
        steps = int(block.lengths.sum())
        columns, own = dict(block.columns), block.columns.keys()
        for column in self._columns:
            if column.name in own:
                continue
            if column.variable_length:
                columns[column.name] = pa.repeat(pa.scalar(_EMPTY[column.dtype], column.arrow_type), steps)
            elif column.name in self._masks:
                columns[column.name] = np.full(steps, self._masks[column.name] in own)
            else:
                columns[column.name] = _no_values(column, steps)
        count = int(block.has_final.sum())
        finals = {
            column.name: block.finals.get(column.name, _no_values(column, count))
            for column in self._columns
            if column.has_final
        }
        facts = self._facts(block, self._parts[index])
        return replace(block, columns=columns, finals=finals, metadata=facts)

    def _facts(self, block: EpisodeBlock, part: SourcePart) -> dict[str, Sequence[Any]]:
        added: dict[str, Sequence[Any]] = {}
        if part.embodiment is not None:
            added[EMBODIMENT] = [part.embodiment] * len(block)
        if any(each.split is not None for each in self._parts):
            added[SPLIT] = [part.split] * len(block)
        own = {f"metadata.{name}" if name in added else name: values for name, values in block.metadata.items()}
        return {**own, **added}

    def _take_findings(self, source: EpisodeSource) -> None:
        self.findings.extend(source.findings)
        source.findings.restore([])


def _no_values(column: ColumnSpec, count: int) -> npt.NDArray[Any]:
    """Returns zeros for steps or final observations of a source without this column."""
    return np.zeros((count, *column.shape), column.numpy_dtype)


def common_metadata(first: Any, second: Any) -> dict[str, Any]:
    """Returns the metadata that two sources share. Totals are of one source only."""
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return {}
    return {
        name: value
        for name, value in first.items()
        if not name.startswith("total_") and name in second and second[name] == value
    }


def differing_subtasks(metadata: Sequence[Any]) -> Finding | None:
    """Returns the finding about sources with other texts of subtasks; None if all have the same texts, or none has."""
    first, *others = (each.get("subtasks") if isinstance(each, Mapping) else None for each in metadata)
    if all(each == first for each in others):
        return None
    message = (
        "the sources have other texts for the numbers of subtasks; the metadata of all together has no texts, nor has "
        "an export to LeRobot"
    )
    return Finding("metadata-disagrees", message, column="subtask_index")


def _shifted(position: Position, index: int) -> Position:
    return Position((index << _PART_BITS) + position.file, position.row)


def _within(position: Position, index: int) -> Position:
    """Returns the position in part `index`.

    A position before or after the part becomes its begin or end.
    """
    part = position.file >> _PART_BITS
    if part != index:
        return BEGIN if part < index else END
    return Position(position.file - (index << _PART_BITS), position.row)
