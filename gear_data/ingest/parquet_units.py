"""Where reading of Parquet files may begin independently of what comes before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import pyarrow.parquet as pq

from gear_data.ingest.location import SourceFile
from gear_data.ingest.parquet_file import group_bytes
from gear_data.ingest.source import UNIT_BYTES
from gear_data.storage.block import BEGIN, Position

#: Least and largest id.
Ids = tuple[Any, Any]


@dataclass(frozen=True)
class Span:
    """Rows that can be read on their own, up to the next span's.

    Attributes:
        position: of the first row.
        bytes: about how many bytes of the source they have.
        low: no id here is less, and all before are; None where ids do not matter, and at the source's beginning.
    """

    position: Position
    bytes: int
    low: Any = None


@dataclass(frozen=True)
class FirstStart:
    """The first row of a row group that begins an episode, counted in the group, and the ids before and from it on."""

    row: int
    before: Ids
    after: Ids


@dataclass(frozen=True)
class FilesToCut:
    """Files, and how to look into them.

    Attributes:
        files: in source order.
        footer: the metadata of one.
        first_start: what the column of ids says of a row group, where an episode begins in it; None where none does.
    """

    files: Sequence[SourceFile]
    footer: Callable[[int], pq.FileMetaData]
    first_start: Callable[[int, int, str], FirstStart | None]


@dataclass(frozen=True)
class _Piece:
    """A small file, or row groups of a large one; `groups` is None where the file was not opened."""

    position: Position
    bytes: int
    groups: range | None


def episode_spans(source: FilesToCut) -> tuple[Span, ...]:
    """Where a row is an episode: every file, and in large files row groups. Only large ones are opened."""
    return tuple(Span(piece.position, piece.bytes) for piece in _pieces(source))


def step_spans(source: FilesToCut, ids: str) -> tuple[Span, ...]:
    """Where a row is a step, in a source whose ids rise: places where an episode begins, as the statistics of the
    column `ids` say, or its values in a row group that goes on with the episode before.

    Many small files are taken together, and opened only where a span may end. What their ids are is not known then: a
    reader has to compare them with `Span.low`.
    """
    known: list[Ids] = []
    places: list[tuple[Position, int]] = []  # and how many of the known ids stand before it
    sizes, since = [0], 0
    previous: _Piece | None = None
    for piece in _pieces(source):
        groups = piece.groups
        if previous is not None and since >= UNIT_BYTES:
            since = 0
            if previous.groups is None:
                last = source.footer(previous.position.file)
                known += _known(last, range(last.num_row_groups)[-1:], ids)
            if groups is None:
                groups = range(source.footer(piece.position.file).num_row_groups)
            position = _place(source, piece.position, groups[:1], known, ids)
            if position is not None:
                places.append((position, len(known) - (position != piece.position)))
                sizes.append(0)
                if position != piece.position:
                    groups = groups[1:]
        if groups is not None:
            known += _known(source.footer(piece.position.file), groups, ids)
        sizes[-1] += piece.bytes
        since += piece.bytes
        previous = piece
    # Every id before a span must be less than every one after.
    highest = list(accumulate((high for _, high in known), max))
    lowest = list(accumulate((low for low, _ in reversed(known)), min))[::-1]
    spans = [Span(BEGIN, sizes[0])]
    for (position, before), size in zip(places, sizes[1:], strict=True):
        if before < len(known) and highest[before - 1] < lowest[before]:
            spans.append(Span(position, size, lowest[before]))
        else:
            spans[-1] = replace(spans[-1], bytes=spans[-1].bytes + size)
    return tuple(spans)


def _pieces(source: FilesToCut) -> Iterator[_Piece]:
    for index, file in enumerate(source.files):
        if file.size <= UNIT_BYTES:
            yield _Piece(Position(index, 0), file.size, None)
            continue
        metadata = source.footer(index)
        first, begin, row, size = 0, 0, 0, 0
        for group in range(metadata.num_row_groups):
            if size >= UNIT_BYTES:
                yield _Piece(Position(index, begin), size, range(first, group))
                first, begin, size = group, row, 0
            row += metadata.row_group(group).num_rows
            size += group_bytes(metadata, group)
        yield _Piece(Position(index, begin), size, range(first, metadata.num_row_groups))


def _place(source: FilesToCut, position: Position, group: range, known: list[Ids], ids: str) -> Position | None:
    """Where in the row group an episode begins; adds to the known ids those before and after, if it is not at once."""
    after = _known(source.footer(position.file), group, ids)
    if not known or not after:
        return None
    if known[-1][1] < after[0][0]:
        return position
    start = source.first_start(position.file, group[0], ids)
    if start is None:
        return None
    known += [start.before, start.after]
    return Position(position.file, position.row + start.row)


def _known(metadata: pq.FileMetaData, groups: range, ids: str) -> list[Ids]:
    """Least and largest id of those row groups whose statistics tell."""
    found = []
    for group in groups:
        row_group = metadata.row_group(group)
        for i in range(row_group.num_columns):
            column = row_group.column(i)
            if column.path_in_schema == ids:
                values = column.statistics
                if values is not None and values.has_min_max and values.has_null_count and not values.null_count:
                    found.append((values.min, values.max))
    return [pair for pair in found if all(isinstance(value, int | str) for value in pair)]
