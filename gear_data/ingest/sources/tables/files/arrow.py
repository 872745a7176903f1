"""Arrow IPC streams and files, Feather (version 2) among them.

`save_to_disk` and the cache of HuggingFace `datasets` write streams. An IPC file is a stream between magic bytes and a
footer. The stream is read, because only there the messages that are checked are those that pyarrow reads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from gear_data.errors import errors_as
from gear_data.ingest.location import SourceFile
from gear_data.ingest.sources.tables.files.kind import (
    UNKNOWN_ROWS,
    BatchSizer,
    FileKind,
    RowGroups,
    batch_slices,
    unreadable,
)
from gear_data.ingest.sources.tables.flatten import FlattenedColumn
from gear_data.storage.arrow_footer import batch_rows

_MAGIC = b"ARROW1"
_FEATHER_1 = b"FEA1"
#: Bytes before the first message of an IPC file: the magic bytes, padded.
_HEAD_BYTES = 8
#: The end of a stream, by the format since 0.15; before, it was four zeros.
_END, _OLD_END = b"\xff\xff\xff\xff\0\0\0\0", b"\0\0\0\0"
_NAME = "Arrow"
#: Bytes of the small record batches of one row group. Each row group's ids are compared before reading.
_GROUP_BYTES = 1 << 20


class _BatchPlace(NamedTuple):
    """The message of a record batch: its first byte, its bytes and its rows."""

    start: int
    size: int
    rows: int


@lru_cache(maxsize=16)  # a file is opened for each part that is read
def _batch_groups(file: SourceFile, start: int) -> list[list[_BatchPlace]] | None:
    """Returns the record batches of a local file whose stream begins at `start`.

    Consecutive small batches form a group, because HuggingFace `datasets` writes one per 1,000 rows. Returns None if
    the batches need dictionaries.
    """
    groups: list[list[_BatchPlace]] = []
    size = _GROUP_BYTES
    with pa.memory_map(file.path) as source:
        source.seek(start)
        for number, message in enumerate(pa.ipc.MessageReader.open_stream(source)):
            if message.type == "dictionary":
                return None
            if message.type != ("record batch" if number else "schema"):
                raise pa.ArrowInvalid(f"holds a {message.type} as message {number}")
            if number:
                rows = batch_rows(memoryview(message.metadata))
                if not 0 <= rows < UNKNOWN_ROWS:
                    raise pa.ArrowInvalid(f"message {number} declares {rows} rows")
                batch = _BatchPlace(start, source.tell() - start, rows)
                if size + batch.size > _GROUP_BYTES:
                    groups.append([])
                    size = 0
                groups[-1].append(batch)
                size += batch.size
            start = source.tell()
    return groups


class ArrowTable:
    """An opened Arrow IPC stream or file.

    A row group is one record batch, or several small ones.

    A local file is mapped: uncompressed columns are read where they are. A remote file is one row group, read from its
    beginning, and so is a file with dictionaries, because a batch needs the dictionaries before it.

    Raises:
        CorruptSourceError: the file is empty, truncated, a Git-LFS pointer, or neither an IPC stream nor an IPC file.
    """

    def __init__(self, file: SourceFile, model: pa.Schema | None = None) -> None:
        self._file = file
        self._data: pa.Buffer | None = None
        file.check_readable()
        with _typed_errors(file.name):
            with file.open() as stream:
                head = stream.read(_HEAD_BYTES)
                stream.seek(max(0, file.size - len(_END)))
                tail = stream.read(len(_END))
            if head.startswith(_FEATHER_1):
                raise pa.ArrowInvalid("it is Feather version 1; write it again with pyarrow.feather.write_feather")
            self._start = _HEAD_BYTES if head.startswith(_MAGIC) else 0
            if not (tail.endswith(_MAGIC) if self._start else tail == _END or tail.endswith(_OLD_END)):
                raise pa.ArrowInvalid("its end is missing")
            if file.filesystem is None:
                with pa.memory_map(file.path) as mapped:
                    self._data = mapped.read_buffer()
            self.schema: pa.Schema = pa.ipc.read_schema(self._source())

    def __enter__(self) -> ArrowTable:
        return self

    def __exit__(self, *_: object) -> None:
        self._data = None

    def _source(self) -> pa.NativeFile:
        """Returns the file as a source, positioned at the beginning of the stream."""
        source = pa.PythonFile(self._file.open(), "r") if self._data is None else pa.BufferReader(self._data)
        source.seek(self._start)
        return source

    def _groups(self) -> list[list[_BatchPlace]] | None:
        """Returns the record batches of each row group.

        Returns None if they cannot be read separately.
        """
        if self._data is None:
            return None
        with _typed_errors(self._file.name):
            return _batch_groups(self._file, self._start)

    def row_groups(self) -> RowGroups:
        groups = self._groups()
        if groups is None:
            return RowGroups((UNKNOWN_ROWS,), (self._file.size,), (self._file.size,))
        sizes = tuple(sum(batch.size for batch in group) for group in groups)
        return RowGroups(tuple(sum(batch.rows for batch in group) for group in groups), sizes, sizes)

    def batches(self, groups: range, columns: Sequence[FlattenedColumn], sizer: BatchSizer) -> Iterator[pa.RecordBatch]:
        names = list(dict.fromkeys(column.path[0] for column in columns))
        with _typed_errors(self._file.name):
            for batches in self._read(groups, names):
                for batch in batches:
                    batch.validate()  # of the sizes of buffers, before slicing reads offsets
                yield from batch_slices(pa.concat_batches(batches) if len(batches) > 1 else batches[0], sizer)

    def _read(self, groups: range, names: list[str]) -> Iterator[list[pa.RecordBatch]]:
        """Yields the record batches of each row group."""
        found = self._groups()
        if found is None or self._data is None:
            fields = [self.schema.get_field_index(name) for name in names]
            options = pa.ipc.IpcReadOptions(included_fields=fields)
            for batch in pa.ipc.open_stream(self._source(), options=options):
                yield [batch]
            return
        for group in groups:
            messages = [pa.ipc.read_message(self._data.slice(place.start, place.size)) for place in found[group]]
            yield [pa.ipc.read_record_batch(message, self.schema).select(names) for message in messages]


def _typed_errors(name: str) -> AbstractContextManager[None]:
    """Converts the errors of pyarrow, and of damaged metadata, to CorruptSourceError."""
    kinds = pa.ArrowException, OSError, EOFError, MemoryError, ValueError, KeyError, TypeError, struct.error
    return errors_as(kinds, lambda error: unreadable(_NAME, name, error))


ARROW = FileKind(_NAME, ArrowTable)
