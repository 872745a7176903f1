"""Positions in Parquet files at which reading may begin.

The rows from a position on can be read independently of the rows before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from gear_data.ingest.location import SourceFile
from gear_data.ingest.source import UNIT_BYTES
from gear_data.ingest.sources.tables.files.kind import RowGroups
from gear_data.storage.episode_block import BEGIN, Position

#: Smallest and largest id.
IdRange = tuple[Any, Any]


@dataclass(frozen=True)
class ReadSpan:
    """Rows that can be read on their own, up to the next span.

    Attributes:
        position: the position of the first row.
        bytes: the approximate size of the rows in the source, in bytes.
        low: the lower bound of the ids in the span; all ids before the span are smaller. None at the beginning of the
            source, and if a row is an episode.
    """

    position: Position
    bytes: int
    low: Any = None


@dataclass(frozen=True)
class FirstEpisodeStart:
    """The first row of a row group that begins an episode.

    Attributes:
        row: the index of the row in the row group.
        before: the smallest and largest id before the row.
        after: the smallest and largest id from the row on; None if no row begins an episode.
    """

    row: int
    before: IdRange
    after: IdRange | None


@dataclass(frozen=True)
class SplittableFiles:
    """Files, and functions that look into them.

    Attributes:
        files: the files, in source order.
        footer: returns the row groups of a file, by its index.
        id_range: returns the smallest and largest id in row groups of a file; None if there are no ids, or an id is
            null.
        first_start: finds the row at which the first id of a row group ends; None if there are no ids, or an id is
            null.
    """

    files: Sequence[SourceFile]
    footer: Callable[[int], RowGroups]
    id_range: Callable[[int, range], IdRange | None]
    first_start: Callable[[int, int], FirstEpisodeStart | None]


@dataclass(frozen=True)
class _FilePiece:
    """A small file, or some row groups of a large one.

    `groups` is None if the file was not opened.
    """

    position: Position
    bytes: int
    groups: range | None


def episode_spans(files: Sequence[SourceFile], footer: Callable[[int], RowGroups]) -> tuple[ReadSpan, ...]:
    """Returns spans of tables with one row per episode.

    A small file is one span, a large file has several. Only large files are opened.
    """
    return tuple(ReadSpan(piece.position, piece.bytes) for piece in _pieces(files, footer))


def step_spans(source: SplittableFiles) -> tuple[ReadSpan, ...]:
    """Returns spans of tables with one row per step and rising episode ids.

    Each span begins with an episode.

    Small files are grouped, and a file is opened only if a span may end there. The ids inside a group are unknown, so a
    reader must compare them with `ReadSpan.low`. In large files all ids are read: they are a small part of the file,
    and the file's own statistics are not safe to use (see `RowGroups`).
    """
    known: list[IdRange] = []
    candidates: list[tuple[Position, int]] = []  # position, and number of the entries of `known` before it
    sizes, since_candidate = [0], 0
    previous: _FilePiece | None = None
    for piece in _pieces(source.files, source.footer):
        groups = piece.groups
        if previous is not None and since_candidate >= UNIT_BYTES:
            since_candidate = 0
            if previous.groups is None:
                last_group = len(source.footer(previous.position.file).rows)
                known += _id_ranges(source, previous.position.file, range(last_group)[-1:])
            if groups is None:
                groups = range(len(source.footer(piece.position.file).rows))
            candidate = _candidate(source, piece.position, groups, known)
            groups = groups[1:]
            if candidate is not None:
                candidates.append(candidate)
                sizes.append(0)
        if groups is not None:
            known += _id_ranges(source, piece.position.file, groups)
        sizes[-1] += piece.bytes
        since_candidate += piece.bytes
        previous = piece
    # A candidate counts if all ids before it are smaller than all ids after it.
    highest = list(accumulate((high for _, high in known), max))
    lowest = list(accumulate((low for low, _ in reversed(known)), min))[::-1]
    spans = [ReadSpan(BEGIN, sizes[0])]
    for (position, before), size in zip(candidates, sizes[1:], strict=True):
        if before < len(known) and highest[before - 1] < lowest[before]:
            spans.append(ReadSpan(position, size, lowest[before]))
        else:
            spans[-1] = replace(spans[-1], bytes=spans[-1].bytes + size)
    return tuple(spans)


def _pieces(files: Sequence[SourceFile], footer: Callable[[int], RowGroups]) -> Iterator[_FilePiece]:
    """Yields small files, and runs of row groups of large files."""
    for index, file in enumerate(files):
        if file.size <= UNIT_BYTES:
            yield _FilePiece(Position(index, 0), file.size, None)
            continue
        row_groups = footer(index)
        first, begin, row, size = 0, 0, 0, 0
        for group, (rows, stored) in enumerate(zip(row_groups.rows, row_groups.stored, strict=True)):
            if size >= UNIT_BYTES:
                yield _FilePiece(Position(index, begin), size, range(first, group))
                first, begin, size = group, row, 0
            row += rows
            size += stored
        yield _FilePiece(Position(index, begin), size, range(first, len(row_groups.rows)))


def _candidate(
    source: SplittableFiles, position: Position, groups: range, known: list[IdRange]
) -> tuple[Position, int] | None:
    """Finds the first row in the first of the row groups that begins an episode.

    Returns:
        Its position, and the number of entries of `known` before it; None if there is no such row. The ids of the row
        group are added to `known`.
    """
    start = source.first_start(position.file, groups[0]) if groups else None
    if start is None:
        return None
    after = [start.after] if start.after is not None else []
    candidate = None
    if known and known[-1][1] < min(low for low, _ in (start.before, *after)):
        candidate = position, len(known)
    elif known and after:
        candidate = Position(position.file, position.row + start.row), len(known) + 1
    known += [start.before, *after]
    return candidate


def _id_ranges(source: SplittableFiles, file: int, groups: range) -> list[IdRange]:
    id_range = source.id_range(file, groups)
    return [] if id_range is None else [id_range]
