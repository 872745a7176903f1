"""Several opened sources, read one after another as one source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.ingest.findings.log import FindingLog
from gear_data.ingest.pipeline.end_flags import complete_end_flags, end_flag_columns
from gear_data.ingest.pipeline.prepare import check_block
from gear_data.ingest.pipeline.variable_finals import drop_variable_finals, without_variable_finals
from gear_data.ingest.several.embodiments import EMBODIMENT
from gear_data.ingest.several.parts import SourcePart
from gear_data.ingest.several.united import check_equal_columns, united_columns
from gear_data.ingest.source import EpisodeSource, Unit
from gear_data.schema import ColumnSpec
from gear_data.storage.episode_block import BEGIN, END, EpisodeBlock, Position

#: The fact that names the split of an episode.
SPLIT = "split"
#: Positions of part k begin at file k << 40. No source has so many files, or units that it counts as files.
_PART_BITS = 40


class SourceSequence:
    """Several sources as one. See `EpisodeSource`.

    The episodes have the facts `embodiment`, if there are several sources, and `split`, if there are several splits. A
    fact of the source with such a name becomes `metadata.NAME`. After each block, the findings and
    the state of its source are moved to the sequence.

    Args:
        parts: The parts.
        sources: Their sources, opened.

    Raises:
        UnsupportedColumnError: The sources have different columns.
    """

    def __init__(self, parts: Sequence[SourcePart], sources: Sequence[EpisodeSource]) -> None:
        self._parts = parts
        self._sources = sources
        named = [
            (part.name, end_flag_columns(without_variable_finals(source.columns)))
            for part, source in zip(parts, sources, strict=True)
        ]
        check_equal_columns(named)
        self._columns = united_columns(named)
        self._reading = sources[0]
        self.findings = FindingLog()
        self.resume_state: dict[str, Any] = {}
        for source in sources:
            self._take_findings(source)

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
            ready = self._prepared(block, index, source) if len(block) else block
            self._take_findings(source)
            self.resume_state[str(index)] = dict(source.resume_state)
            yield replace(ready, position=_shifted(block.position, index))
        self._take_findings(source)

    def _prepared(self, block: EpisodeBlock, index: int, source: EpisodeSource) -> EpisodeBlock:
        """Returns a block with the columns and facts that all sources share."""
        check_block(block, source.columns)
        block = drop_variable_finals(block, source.columns, source.findings)
        block = complete_end_flags(block, source.findings)
        count = int(block.has_final.sum())
        finals = {
            column.name: block.finals.get(column.name, _no_values(column, count))
            for column in self._columns
            if column.has_final
        }
        return replace(block, finals=finals, metadata=self._facts(block, self._parts[index]))

    def _facts(self, block: EpisodeBlock, part: SourcePart) -> dict[str, Sequence[Any]]:
        added: dict[str, Sequence[Any]] = {}
        if part.embodiment is not None:
            added[EMBODIMENT] = [part.embodiment] * len(block)
        if any(each.split is not None for each in self._parts):
            added[SPLIT] = [part.split] * len(block)
        own = {f"metadata.{name}" if name in added else name: values for name, values in block.metadata.items()}
        return {**own, **added}

    def _take_findings(self, source: EpisodeSource) -> None:
        for finding in source.findings:
            self.findings.add(finding)
        source.findings.restore([])


def _no_values(column: ColumnSpec, count: int) -> npt.NDArray[Any]:
    """Returns the final observations of a source without this column."""
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
