"""Where reading of Parquet files may begin independently of what comes before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from gear_data.ingest.location import SourceFile
from gear_data.ingest.source import UNIT_BYTES
from gear_data.ingest.sources.tables.parquet import RowGroups
from gear_data.storage.block import BEGIN, Position

#: Least and largest id.
IdRange = tuple[Any, Any]


@dataclass(frozen=True)
class ReadSpan:
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
class FirstEpisodeStart:
    """The first row of a row group that begins an episode, counted in the group, and the ids before and from it on.
    `after` is None where no row does."""

    row: int
    before: IdRange
    after: IdRange | None


@dataclass(frozen=True)
class SplittableFiles:
    """Files, and how to look into them.

    Attributes:
        files: in source order.
        footer: the row groups of one.
        ids: the least and largest id in row groups of one; None where there is none, or one is null.
        first_start: where the first id of a row group ends; None as for `ids`.
    """

    files: Sequence[SourceFile]
    footer: Callable[[int], RowGroups]
    ids: Callable[[int, range], IdRange | None]
    first_start: Callable[[int, int], FirstEpisodeStart | None]


@dataclass(frozen=True)
class _FilePiece:
    """A small file, or row groups of a large one; `groups` is None where the file was not opened."""

    position: Position
    bytes: int
    groups: range | None


def episode_spans(files: Sequence[SourceFile], footer: Callable[[int], RowGroups]) -> tuple[ReadSpan, ...]:
    """Where a row is an episode: every file, and in large files row groups. Only large ones are opened."""
    return tuple(ReadSpan(piece.position, piece.bytes) for piece in _pieces(files, footer))


def step_spans(source: SplittableFiles) -> tuple[ReadSpan, ...]:
    """Where a row is a step, in a source whose ids rise: places where an episode begins.

    Many small files are taken together, and opened only where a span may end. What their ids are is not known then: a
    reader has to compare them with `ReadSpan.low`. Of large files all ids are read: they take next to nothing in the
    file, and the statistics that it has of them cannot be (see `RowGroups`).
    """
    known: list[IdRange] = []
    places: list[tuple[Position, int]] = []  # and how many of the known ids stand before it
    sizes, since = [0], 0
    previous: _FilePiece | None = None
    for piece in _pieces(source.files, source.footer):
        groups = piece.groups
        if previous is not None and since >= UNIT_BYTES:
            since = 0
            if previous.groups is None:
                last = len(source.footer(previous.position.file).rows)
                known += _known(source, previous.position.file, range(last)[-1:])
            if groups is None:
                groups = range(len(source.footer(piece.position.file).rows))
            place = _place(source, piece.position, groups, known)
            groups = groups[1:]
            if place is not None:
                places.append(place)
                sizes.append(0)
        if groups is not None:
            known += _known(source, piece.position.file, groups)
        sizes[-1] += piece.bytes
        since += piece.bytes
        previous = piece
    # Every id before a span must be less than every one after.
    highest = list(accumulate((high for _, high in known), max))
    lowest = list(accumulate((low for low, _ in reversed(known)), min))[::-1]
    spans = [ReadSpan(BEGIN, sizes[0])]
    for (position, before), size in zip(places, sizes[1:], strict=True):
        if before < len(known) and highest[before - 1] < lowest[before]:
            spans.append(ReadSpan(position, size, lowest[before]))
        else:
            spans[-1] = replace(spans[-1], bytes=spans[-1].bytes + size)
    return tuple(spans)


def _pieces(files: Sequence[SourceFile], footer: Callable[[int], RowGroups]) -> Iterator[_FilePiece]:
    for index, file in enumerate(files):
        if file.size <= UNIT_BYTES:
            yield _FilePiece(Position(index, 0), file.size, None)
            continue
        found = footer(index)
        first, begin, row, size = 0, 0, 0, 0
        for group, (rows, stored) in enumerate(zip(found.rows, found.stored, strict=True)):
            if size >= UNIT_BYTES:
                yield _FilePiece(Position(index, begin), size, range(first, group))
                first, begin, size = group, row, 0
            row += rows
            size += stored
        yield _FilePiece(Position(index, begin), size, range(first, len(found.rows)))


def _place(
    source: SplittableFiles, position: Position, groups: range, known: list[IdRange]
) -> tuple[Position, int] | None:
    """Where in the first row group an episode begins, and how many of the known ids are before; the group's are added
    to them."""
    start = source.first_start(position.file, groups[0]) if groups else None
    if start is None:
        return None
    after = [start.after] if start.after is not None else []
    place = None
    if known and known[-1][1] < min(low for low, _ in (start.before, *after)):
        place = position, len(known)
    elif known and after:
        place = Position(position.file, position.row + start.row), len(known) + 1
    known += [start.before, *after]
    return place


def _known(source: SplittableFiles, file: int, groups: range) -> list[IdRange]:
    ids = source.ids(file, groups)
    return [] if ids is None else [ids]
