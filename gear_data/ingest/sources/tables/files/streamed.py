"""Files that HuggingFace `datasets` reads, as its `load_dataset` reads them.

So `load_dataset` gives the same types: the first block of the first file decides, and later blocks are cast to these
types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gear_data.common.extras import import_datasets
from gear_data.common.private_folder import scratch_folder
from gear_data.common.retry import answer_of, is_transient
from gear_data.errors import CorruptSourceError, GearError, RemoteError, errors_as
from gear_data.ingest.location import SourceFile
from gear_data.ingest.sources.tables.files.kind import UNKNOWN_ROWS, BatchSizer, FileKind, RowGroups, batch_slices
from gear_data.ingest.sources.tables.flatten import FlattenedColumn, with_types
from gear_data.ingest.sources.tables.to_numpy import is_list, leaf_type

#: Yields the blocks of a file. The second argument is the schema of the source's first file, or None for that file.
Reader = Callable[[SourceFile, pa.Schema | None], Iterator[pa.Table]]


@dataclass(frozen=True)
class _StreamedFormat:
    """A kind of files: its name, its reader, and the advice for other files."""

    name: str
    read: Reader
    advice: str

    def blocks(self, file: SourceFile, model: pa.Schema | None) -> Iterator[pa.Table]:
        """Yields the blocks of a file. A server has a time limit for each block."""
        blocks = self.read(file, model)
        if file.filesystem is None:
            yield from blocks
            return
        while (block := answer_of(lambda: next(blocks, None))) is not None:
            yield block

    def open(self, file: SourceFile, model: pa.Schema | None) -> AbstractContextManager[StreamedTable]:
        return nullcontext(StreamedTable(self, file, model))  # a file is open only while it is read


def streamed_kind(name: str, read: Reader, advice: str = "check the rows", *, by_pandas: bool = False) -> FileKind:
    """Returns the kind of files that a function reads from the beginning.

    `advice` is for files that are not of the kind; `by_pandas` says that pandas reads the files.
    """
    return FileKind(name, _StreamedFormat(name, read, advice).open, splittable=False, by_pandas=by_pandas)


class StreamedTable:
    """An opened file. It is one row group, read from its beginning.

    Args:
        format: the name and the reader of the file's kind.
        file: the file.
        model: the schema of the source's first file, to which the rows are cast; None for that file.

    Raises:
        CorruptSourceError: the file is empty, a Git-LFS pointer, or not of the kind.
        MissingExtraError: `datasets`, or the package for the file's compression, is not installed.
    """

    def __init__(self, format: _StreamedFormat, file: SourceFile, model: pa.Schema | None) -> None:
        file.check_readable()
        import_datasets()
        self._format = format
        self._file = file
        self.schema = _first_schema(format, file) if model is None else model

    def row_groups(self) -> RowGroups:
        return RowGroups((UNKNOWN_ROWS,), (self._file.size,), (self._file.size,))

    def batches(self, groups: range, columns: Sequence[FlattenedColumn], sizer: BatchSizer) -> Iterator[pa.RecordBatch]:
        from datasets.table import table_cast

        names, row = list(dict.fromkeys(column.path[0] for column in columns)), 0
        tables = self._format.blocks(self._file, self.schema)
        while True:
            try:
                with _typed_errors(self._format, self._file.name, row):
                    table = next(tables, None)
                    if table is None:
                        return
                    table = table_cast(table, self.schema)
            except CorruptSourceError as error:
                self._name_fractions(error)
                raise
            for batch in table.select(names).to_batches():
                yield from batch_slices(batch, sizer)
            row += len(table)

    def _name_fractions(self, error: CorruptSourceError) -> None:
        """Adds the way out to an error about fractions in a column that has whole numbers in the first rows."""
        numbers = [field.name for field in self.schema if pa.types.is_integer(leaf_type(field.type))]
        model = with_types(self.schema, {(name,): pa.float64() for name in numbers})
        with suppress(Exception):  # the file may have other faults
            for table in self._format.blocks(self._file, model):
                for name in numbers:
                    values = table.column(name)
                    while is_list(values.type):
                        values = pc.list_flatten(values)
                    if pa.types.is_floating(values.type) and pc.any(pc.not_equal(values, pc.floor(values))).as_py():
                        error.column = name
                        error.hint = "the first rows have whole numbers, and later rows fractions: give --dtype "
                        error.hint += f"{name}=float64 (tables=TableOptions(dtype={{{name!r}: 'float64'}}))"
                        return


@lru_cache(maxsize=16)
def _first_schema(format: _StreamedFormat, file: SourceFile) -> pa.Schema:
    """Returns the types of the first block of a file."""
    with _typed_errors(format, file.name, 0):
        table = next(format.blocks(file, None), None)
    if table is None or not table.num_columns:
        raise CorruptSourceError("holds no row", file=file.name, hint="leave the file out")
    return table.schema


def split_builder(builder_class: type[Any], file: SourceFile, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Returns a builder of `datasets` for one file.

    The second value is the arguments of its methods that read the file.
    """
    from datasets import DownloadConfig
    from datasets.data_files import DataFilesDict, DataFilesList
    from datasets.download.streaming_download_manager import StreamingDownloadManager
    from datasets.streaming import extend_dataset_builder_for_streaming

    url = file.path if file.filesystem is None else file.filesystem.unstrip_protocol(file.path)
    data_files = DataFilesDict({"train": DataFilesList([url], [("", "")])})
    with scratch_folder() as cache:  # a builder makes a lock there
        builder = builder_class(cache_dir=str(cache), data_files=data_files, **options)
    extend_dataset_builder_for_streaming(builder)
    manager = StreamingDownloadManager(base_path="", download_config=DownloadConfig(), dataset_name="")
    (split,) = builder._split_generators(manager)
    return builder, split.gen_kwargs


def _typed_errors(format: _StreamedFormat, name: str, row: int) -> AbstractContextManager[None]:
    """Converts errors to CorruptSourceError.

    `row` is the first row of the block that is read.
    """

    def typed(error: Exception) -> GearError:
        text = f"{type(error).__name__}: {error}"
        if is_transient(error):
            return RemoteError(f"cannot be read: {text}", file=name, hint="run the same command again")
        return CorruptSourceError(
            f"from row {row} on, datasets cannot read it as {format.name}: {text[:1000]}",
            file=name,
            row=row,
            hint=f"{format.advice}; the first rows decide the types: to give others, load the file with datasets "
            "and its features=..., and pass the datasets.Dataset to gear_data.convert",
        )

    return errors_as(Exception, typed)  # datasets, pandas, pyarrow and the decompressors raise many kinds of errors
