"""Source over the step arrays of one or several files or folders.

NumPy archives, folders of `.npy` files, TorchRL's memory maps and Zarr stores use it.

Each of these formats has named arrays of one length, and a rule that says where episodes begin. The format turns each
file or folder into `StepArrays`; this module reads the episodes.

It is not the source of trees. Why: docs/explanation/decisions/array-sources.md
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from gear_data.errors import CorruptSourceError, EmptySourceError, GearError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.location import files_to_compare, listed, placed, separate_datasets_hint
from gear_data.ingest.pipeline.columns import check_dtypes, with_dtypes
from gear_data.ingest.source import UNIT_BYTES, Unit, files_between
from gear_data.ingest.sources.arrays.blocks import episode_runs, merge_small_blocks, read_block
from gear_data.ingest.sources.arrays.classify import FIRST
from gear_data.ingest.sources.arrays.numpy_files import ArrayReader
from gear_data.ingest.sources.arrays.step_arrays import RowReader, StepArrays
from gear_data.schema import ColumnSpec
from gear_data.storage.episode_block import BEGIN, EpisodeBlock, Position

_BLOCK_BYTES = 16 << 20
#: Estimated bytes of a text: its real size is unknown before it is read.
_TEXT_BYTES = 64
#: Files that are compared with the first for the list in an error.
_COMPARED_FILES = 1000
_SEPARATELY = "convert the files that differ separately"


class ArraySource:
    """An `EpisodeSource` over step arrays, one `StepArrays` per file or folder.

    `Position.file` is the index of the file or folder, and `Position.row` counts its episodes.
    """

    rows_are_steps = True

    def __init__(
        self,
        names: Sequence[str],
        sizes: Sequence[int],
        open_arrays: Callable[[int], StepArrays],
        findings: FindingLog | None = None,
        metadata: Mapping[str, Any] | None = None,
        open_reader: Callable[[], AbstractContextManager[RowReader]] = ArrayReader,
        dtypes: Mapping[str, str] | None = None,
    ) -> None:
        """Opens the first file or folder, whose columns the source has.

        Args:
            names: the names of the files or folders.
            sizes: the size of each, in bytes.
            open_arrays: opens the file or folder with an index. All must have the columns of the first.
            findings: receives the findings; None for a new log.
            metadata: facts about the source.
            open_reader: returns a reader of the arrays of one file or folder.
            dtypes: source or canonical name -> the dtype to read; None if the format does not have the option.

        Raises:
            EmptySourceError: no column is left to read.
            UnknownNameError: no column has a name of `dtypes`.
            UnsupportedColumnError: a column of `dtypes` holds text.
        """
        self.findings = findings or FindingLog()
        self.resume_state: dict[str, Any] = {}
        self.metadata: Mapping[str, Any] = metadata or {}
        self._names = names
        self._sizes = sizes
        self._open_arrays = open_arrays
        self._open_reader = open_reader
        with placed(names[0]):
            self._model = open_arrays(0)
        self._bytes = sizes[0] if self._model.bytes is None else self._model.bytes
        # Opening all files is expensive: the others are assumed to have as many steps per byte.
        self.num_rows: int | None = self._model.steps * sum(sizes) // max(1, sizes[0])
        self._dtypes = dtypes
        self.columns = self._columns(self._model)
        check_dtypes(dtypes or {}, self.columns)
        if not self.columns:
            raise EmptySourceError(
                "holds no array with a row a step",
                file=self._model.name,
                hint="check that this is the right source",
            )
        self._row_bytes = sum(map(self._bytes_of_step, self.columns))

    def _bytes_of_step(self, spec: ColumnSpec) -> int:
        if spec.dtype == "binary":
            return int(self._model.arrays[spec.name].row_bytes)
        return _TEXT_BYTES if spec.variable_length else spec.row_bytes

    def _columns(self, arrays: StepArrays) -> tuple[ColumnSpec, ...]:
        """Returns the columns of arrays, with the dtypes that the user chose."""
        return with_dtypes(arrays.columns(), self._dtypes or {}, arrays.name)

    def units(self) -> Sequence[Unit]:
        if len(self._names) > 1:
            for index in files_to_compare(self._names, self._sizes, UNIT_BYTES):
                with placed(self._names[index]):
                    self._check_matches_first(self._open_arrays(index))
            starts, sizes = [0], [0]
            for i, size in enumerate(self._sizes):
                if sizes[-1] >= UNIT_BYTES:
                    starts.append(i)
                    sizes.append(0)
                sizes[-1] += size
            return [Unit(Position(start, 0), size) for start, size in zip(starts, sizes, strict=True)]
        if not self._model.seekable or self._bytes <= UNIT_BYTES:
            return [Unit(BEGIN, self._bytes)]
        with placed(self._names[0]):
            runs = episode_runs(self._model.locate().lengths, self._row_bytes, UNIT_BYTES)
        run_bytes = self._bytes // len(runs)
        return [Unit(Position(0, start), run_bytes) for start, _ in runs]

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        yield from merge_small_blocks(self._blocks(start, stop), self._row_bytes, _BLOCK_BYTES)

    def _blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        for index, first, last in files_between(start, stop, len(self._names)):
            with placed(self._names[index]), self._open_reader() as reader:
                arrays = self._open_arrays(index)
                self._check_matches_first(arrays)
                episodes = arrays.locate()
                if first == 0:
                    self.findings.extend(episodes.findings)
                if not len(episodes):
                    self.findings.add(Finding("empty-file", "the arrays hold no steps", file=arrays.name))
                lengths = episodes.lengths[first:last]
                for begin, end in episode_runs(lengths, self._row_bytes, _BLOCK_BYTES):
                    position = Position(index, first + begin)
                    yield read_block(arrays, self.columns, episodes, reader, position, first + end)

    def _check_matches_first(self, arrays: StepArrays) -> None:
        """Checks that the columns equal the columns of the first file or folder.

        A column must also belong to the same rows: all or no files have it shifted.

        Raises CorruptSourceError otherwise.
        """
        differ = (arrays.shifted ^ self._model.shifted) & arrays.arrays.keys() & self._model.arrays.keys()
        if differ:
            column = "actions" if "actions" in differ else min(differ)
            problem = f"belongs to other rows than in {self._model.name}: only one of the two files has '{FIRST}'"
            if column == "actions":
                is_zero = "zero" if column in arrays.shifted else "not zero"
                problem = f"is {is_zero} at the first observations, unlike in {self._model.name}: the actions belong "
                problem += "to other rows"
            raise CorruptSourceError(problem, column=arrays.sources[column], hint=_SEPARATELY)
        if arrays.layout == self._model.layout:
            return
        columns = self._columns(arrays)
        if columns == self.columns:
            return
        model = {spec.name: spec for spec in self.columns}
        found = {spec.name: spec for spec in columns}
        separate = separate_datasets_hint(self._names, self._names[0], arrays.name)
        for name in dict.fromkeys([*model, *found]):
            own, first = found.get(name), model.get(name)
            if own is None or first is None:
                problem = f"is here, but not in {self._model.name}" if first is None else "is missing"
                raise CorruptSourceError(
                    f"{problem}; all files must have the same columns{self._list_of_others()}",
                    column=(own or first or self.columns[0]).source or name,
                    hint=separate or "name the columns to keep with --columns (columns=[...])",
                )
            if (own.dtype, own.shape, own.has_final) != (first.dtype, first.shape, first.has_final):
                raise CorruptSourceError(
                    f"is {describe(own)}; in {self._model.name} it is {describe(first)}",
                    column=own.source or name,
                    hint=separate or self._one_dtype_hint(own, first),
                )

    def _list_of_others(self) -> str:
        """Returns the files that have other columns than the first, for a message."""
        names = {spec.name for spec in self.columns}
        others = []
        for index, name in enumerate(self._names[:_COMPARED_FILES]):
            try:
                differs = {spec.name for spec in self._open_arrays(index).columns()} != names
            except GearError:
                differs = True
            if differs:
                others.append(name)
        return f"; {len(others)} of {len(self._names)} files have others: {listed(others)}" if len(others) > 1 else ""

    def _one_dtype_hint(self, own: ColumnSpec, first: ColumnSpec) -> str:
        alike = own.shape == first.shape and not own.variable_length and not first.variable_length
        if self._dtypes is None or not alike or own.has_final != first.has_final:
            return "convert the files to one dtype and shape first"
        dtype = np.promote_types(own.dtype, first.dtype)
        return f"read all files as one dtype: --dtype {shlex.quote(own.source_name)}={dtype}"


def describe(spec: ColumnSpec | None) -> str:
    """Returns what a column holds, for messages."""
    if spec is None:
        return "missing"
    return f"{spec.dtype} {spec.shape} with{'' if spec.has_final else 'out'} a final observation"
