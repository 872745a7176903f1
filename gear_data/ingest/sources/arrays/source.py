"""Episodes out of stored arrays: which rows are whose, and blocks of them read in bounded pieces.

NumPy archives, folders of `.npy` files and TorchRL's memory maps are all this: named arrays of one length, and some
rule that says where episodes begin. A format turns each file (or folder) into a `StepArrays`; the rest is done here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import CorruptSourceError, EmptySourceError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.location import separate_datasets_hint
from gear_data.ingest.pipeline.columns import SCALAR_COLUMNS
from gear_data.ingest.source import UNIT_BYTES, Unit
from gear_data.ingest.sources.arrays.numpy_files import ArrayReader, StoredArray
from gear_data.schema import ColumnSpec
from gear_data.storage.block import BEGIN, EpisodeBlock, Position, offsets_of

_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True)
class EpisodeRanges:
    """Where the episodes of a part are.

    Attributes:
        lengths: int64 [n], steps of each, all positive.
        starts: int64 [n], the row of each one's first step.
        wide_starts: int64 [n], the same in `wide` columns, where rows are counted otherwise in those.
        facts: name -> n values, what is known of each.
        flags: canonical name -> bool [n], end flags of the last step.
        findings: what was noticed about them.
    """

    lengths: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    wide_starts: npt.NDArray[np.int64] | None = None
    facts: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    flags: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True)
class StepArrays:
    """Arrays of one length in one place.

    Attributes:
        name: of the file or folder.
        bytes: its size.
        arrays: canonical name -> the array of a step column.
        sources: canonical name -> the name in the source.
        wide: columns that have one row more an episode, the observation after the last step.
        following: canonical name -> array whose row at an episode's last step is the observation after it.
        shifted: columns whose row t + 1 belongs to step t.
        flags: names of the end flags that are given by episode, not by step.
        locate: finds the episodes; called once a reading.
        seekable: whether reading may begin anywhere at no cost.
    """

    name: str
    bytes: int
    arrays: Mapping[str, StoredArray]
    sources: Mapping[str, str]
    locate: Callable[[], EpisodeRanges]
    wide: frozenset[str] = frozenset()
    following: Mapping[str, StoredArray] = field(default_factory=dict)
    shifted: frozenset[str] = frozenset()
    flags: tuple[str, ...] = ()
    seekable: bool = False

    def columns(self) -> tuple[ColumnSpec, ...]:
        """Raises UnsupportedColumnError."""
        specs = []
        for name, array in self.arrays.items():
            source = self.sources[name]
            dtype, shape = array.column_dtype(source), array.row_shape
            if name in SCALAR_COLUMNS and shape == (1,):
                shape = ()
            has_final = (name in self.wide or name in self.following) and dtype != "string"
            specs.append(ColumnSpec(name, dtype, shape, False, None if source == name else source, has_final))
        for name in self.flags:
            source = self.sources[name]
            specs.append(ColumnSpec(name, "bool", (), False, None if source == name else source))
        return tuple(specs)


class ArraySource:
    """An `EpisodeSource` over parts, each of whole episodes."""

    rows_are_steps = True

    def __init__(
        self,
        names: Sequence[str],
        sizes: Sequence[int],
        part: Callable[[int], StepArrays],
        findings: FindingLog,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """`part(i)` opens the one of these names and sizes in bytes; the others must have the columns of the first."""
        self.findings = findings
        self.resume_state: dict[str, Any] = {}
        self.metadata: Mapping[str, Any] = metadata or {}
        self.num_rows: int | None = None
        self._names = names
        self._sizes = sizes
        self._part = part
        self._model = part(0)
        self.columns = self._model.columns()
        if not self.columns:
            raise EmptySourceError("no column is left to read", file=self._model.name)

    def units(self) -> Sequence[Unit]:
        if len(self._names) > 1:
            starts, sizes = [0], [0]
            for i, size in enumerate(self._sizes):
                if sizes[-1] >= UNIT_BYTES:
                    starts.append(i)
                    sizes.append(0)
                sizes[-1] += size
            return [Unit(Position(start, 0), size) for start, size in zip(starts, sizes, strict=True)]
        if not self._model.seekable or self._model.bytes <= UNIT_BYTES:
            return [Unit(BEGIN, self._model.bytes)]
        cuts = _cuts(self._model.locate().lengths, _row_bytes(self.columns), UNIT_BYTES)
        share = self._model.bytes // len(cuts)
        return [Unit(Position(0, start), share) for start, _ in cuts]

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        yield from _merged(self._blocks(start, stop), _row_bytes(self.columns))

    def _blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        for index in range(start.file, len(self._names)):
            first = start.row if index == start.file else 0
            if (index, first) >= stop:
                return
            part = self._part(index)
            self._check_like_first(part)
            episodes = part.locate()
            last = stop.row if index == stop.file else len(episodes)
            if first == 0:
                for finding in episodes.findings:
                    self.findings.add(finding)
            if not len(episodes):
                self.findings.add(Finding("empty-file", "the arrays hold no steps", file=part.name))
            with ArrayReader() as reader:
                lengths = episodes.lengths[first:last]
                for begin, end in _cuts(lengths, _row_bytes(self.columns), _BLOCK_BYTES):
                    yield _read(part, self.columns, episodes, reader, Position(index, first + begin), first + end)

    def _check_like_first(self, part: StepArrays) -> None:
        if part.shifted != self._model.shifted:
            raise CorruptSourceError(
                f"actions stand in another row than in {self._model.name}, judged by those of the first observation",
                file=part.name,
                column=self._model.sources.get("actions"),
                hint="convert the files that differ by themselves",
            )
        model = {spec.name: spec for spec in self.columns}
        found = {spec.name: spec for spec in part.columns()}
        for name in dict.fromkeys([*model, *found]):
            own, first = found.get(name), model.get(name)
            if own is None or first is None:
                what = f"is here, and not in {self._model.name}" if first is None else "is missing"
                raise CorruptSourceError(
                    f"{what}; all files must have the same columns",
                    file=part.name,
                    column=(own or first or self.columns[0]).source or name,
                    hint=self._apart(part) or "name the columns to keep with --columns (columns=[...])",
                )
            if (own.dtype, own.shape, own.has_final) != (first.dtype, first.shape, first.has_final):
                raise CorruptSourceError(
                    f"is {_described(own)}; in {self._model.name} it is {_described(first)}",
                    file=part.name,
                    column=own.source or name,
                    hint=self._apart(part) or "bring the files to one type and shape first",
                )

    def _apart(self, part: StepArrays) -> str | None:
        return separate_datasets_hint(self._names, self._names[0], part.name)


def _described(spec: ColumnSpec) -> str:
    return f"{spec.dtype} {spec.shape} with{'' if spec.has_final else 'out'} a final observation"


def _row_bytes(columns: Sequence[ColumnSpec]) -> int:
    # What a text takes is not known before it is read: NumPy's own fixed width is small.
    return sum(64 if spec.variable_length else spec.row_bytes for spec in columns)


def _cuts(lengths: npt.NDArray[np.int64], row_bytes: int, wanted: int) -> list[tuple[int, int]]:
    """Runs of whole episodes (first, one past the last), each of about `wanted` bytes and at least one episode."""
    ends = np.cumsum(lengths)
    cuts, first = [], 0
    while first < len(lengths):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + wanted // max(1, row_bytes), side="right")))
        cuts.append((first, last))
        first = last
    return cuts


def _read(
    part: StepArrays,
    columns: Sequence[ColumnSpec],
    episodes: EpisodeRanges,
    reader: ArrayReader,
    position: Position,
    stop: int,
) -> EpisodeBlock:
    some = slice(position.row, stop)
    lengths, starts = episodes.lengths[some], episodes.starts[some]
    offsets = offsets_of(lengths)
    values: dict[str, npt.NDArray[Any]] = {}
    variable: dict[str, pa.Array] = {}
    finals: dict[str, npt.NDArray[Any]] = {}
    for spec in columns:
        if spec.name in part.flags:
            flag = np.zeros(int(offsets[-1]), np.bool_)
            flag[offsets[1:] - 1] = episodes.flags[spec.name][some]
            values[spec.name] = flag
            continue
        array = part.arrays[spec.name]
        wide, shift = spec.name in part.wide, int(spec.name in part.shifted)
        base = starts if episodes.wide_starts is None or not wide else episodes.wide_starts[some]
        first = int(base[0]) + shift
        rows = _rows(base + shift - first, lengths)
        read = reader.read(array, first, int(base[-1] + lengths[-1]) + shift + int(wide))
        steps = read[: offsets[-1]] if rows is None else read[rows]
        if spec.variable_length:
            variable[spec.name] = pa.array(steps.tolist(), spec.arrow_type)
            continue
        values[spec.name] = np.ascontiguousarray(steps.reshape(len(steps), *spec.shape))
        if spec.has_final and wide:
            finals[spec.name] = read[base - first + lengths].reshape(len(lengths), *spec.shape)
        elif spec.has_final:
            ends = starts + lengths - 1
            found = reader.read(part.following[spec.name], int(ends[0]), int(ends[-1]) + 1)
            finals[spec.name] = found[ends - ends[0]].reshape(len(lengths), *spec.shape)
    return EpisodeBlock(
        position=position,
        lengths=lengths,
        columns=values,
        sources=[part.name] * len(lengths),
        rows=starts,
        has_final=np.full(len(lengths), bool(finals)),
        finals=finals,
        metadata={name: list(facts[some]) for name, facts in episodes.facts.items()},
        variable=variable,
        source_rows=int(offsets[-1]),
    )


def _rows(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """int64 [sum(lengths)]: the rows of episodes that begin at `starts`; None where they are all rows, in order."""
    offsets = offsets_of(lengths)
    if np.array_equal(starts, offsets[:-1]):
        return None
    return np.arange(int(offsets[-1])) + np.repeat(starts - offsets[:-1], lengths)


def _merged(blocks: Iterator[EpisodeBlock], row_bytes: int) -> Iterator[EpisodeBlock]:
    """Small blocks of consecutive parts taken together: a file an episode would else be a block an episode."""
    held: list[EpisodeBlock] = []
    size = 0
    for block in blocks:
        held.append(block)
        size += int(block.lengths.sum()) * row_bytes
        if size >= _BLOCK_BYTES:
            yield concatenate_blocks(held)
            held, size = [], 0
    if held:
        yield concatenate_blocks(held)


def concatenate_blocks(blocks: Sequence[EpisodeBlock]) -> EpisodeBlock:
    """One block of the episodes of several, in order, at the first one's position. They have the same columns."""
    if len(blocks) == 1:
        return blocks[0]
    first = blocks[0]
    facts = dict.fromkeys(name for block in blocks for name in block.metadata)
    return replace(
        first,
        lengths=np.concatenate([block.lengths for block in blocks]),
        columns={name: np.concatenate([block.columns[name] for block in blocks]) for name in first.columns},
        sources=[source for block in blocks for source in block.sources],
        rows=np.concatenate([block.rows for block in blocks]),
        has_final=np.concatenate([block.has_final for block in blocks]),
        finals={name: np.concatenate([block.finals[name] for block in blocks]) for name in first.finals},
        metadata={
            name: [value for block in blocks for value in block.metadata.get(name, [None] * len(block))]
            for name in facts
        },
        variable={name: pa.concat_arrays([block.variable[name] for block in blocks]) for name in first.variable},
        variable_finals={
            name: pa.concat_arrays([block.variable_finals[name] for block in blocks]) for name in first.variable_finals
        },
        source_rows=sum(block.source_rows for block in blocks),
    )
