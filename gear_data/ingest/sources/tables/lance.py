"""Lance tables, which the package `pylance` reads (extra `lance`).

A table is a folder with `_versions/N.manifest` and `data/ID.lance`. Its latest version is read. A fragment takes the
place of a file: it is one file of rows, or several of columns.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa

from gear_data.common.extras import import_extra
from gear_data.errors import GearError, UnknownFormatError
from gear_data.ingest.location import Location, SourceFile, holds_several
from gear_data.ingest.sources.tables.file_stream import FileTables
from gear_data.ingest.sources.tables.files.kind import BatchSizer, FileKind, RowGroups, batch_slices, unreadable
from gear_data.ingest.sources.tables.flatten import FlattenedColumn

_VERSIONS, _DATA = "_versions", "data"
_NAME = "Lance"
#: Stored bytes, and most rows, of a batch that Lance decodes.
_BATCH_BYTES, _MAX_ROWS = 4 << 20, 8192


def open_lance(location: Location) -> FileTables | None:
    """Opens the Lance table at a location.

    Returns None if there is none.

    Raises:
        UnknownFormatError: there are several tables, or the table has no rows, or is at a URL.
        MissingExtraError: `pylance` is not installed.
        CorruptSourceError: the table cannot be read.
    """
    paths = [PurePosixPath(file.name) for file in location.files if file.name.endswith(".manifest")]
    roots = {path.parent.parent for path in paths if path.parent.name == _VERSIONS}
    if not roots:
        return None
    if len(roots) > 1:
        raise holds_several("Lance tables", sorted(map(str, roots)), "convert one at a time")
    (root,) = roots
    if any(file.filesystem is not None for file in location.files):
        # Lance would ask the server itself, with its own names of places and without our time limit.
        raise UnknownFormatError("Lance can be read only from a local folder", hint="copy the folder to a local disk")
    lance = import_extra("lance", "lance")
    with _typed_errors(str(root / _VERSIONS)):
        dataset = lance.dataset(posixpath.normpath(location.name) if str(root) == "." else f"{location.name}/{root}")
        fragments = {fragment.fragment_id: fragment for fragment in dataset.get_fragments()}
        files = tuple(_fragment_file(location, root, fragment) for fragment in fragments.values())
    if not files:
        raise UnknownFormatError("holds no rows", hint="check the version of the Lance table")

    def open_fragment(file: SourceFile, model: pa.Schema | None) -> AbstractContextManager[LanceFragment]:
        # A fragment is open only while it is read.
        return nullcontext(LanceFragment(file, fragments[int(file.path)], dataset.schema))

    return FileTables(files, FileKind(_NAME, open_fragment), is_one_table=True)


def _fragment_file(location: Location, root: PurePosixPath, fragment: Any) -> SourceFile:
    """Returns a fragment as a file, whose path is the fragment's number."""
    names = [str(root / _DATA / file.path) for file in fragment.data_files()]
    sizes = {file.name: file.size for file in location.files}
    return SourceFile(str(fragment.fragment_id), names[0], sum(sizes.get(name, 0) for name in names))


class LanceFragment:
    """An opened fragment, as one row group."""

    def __init__(self, file: SourceFile, fragment: Any, schema: pa.Schema) -> None:
        self._file = file
        self._fragment = fragment
        self.schema = schema

    def row_groups(self) -> RowGroups:
        with _typed_errors(self._file.name):
            rows = int(self._fragment.count_rows())
        return RowGroups((rows,), (self._file.size,), (self._file.size,))

    def batches(self, groups: range, columns: Sequence[FlattenedColumn], sizer: BatchSizer) -> Iterator[pa.RecordBatch]:
        names = list(dict.fromkeys(column.path[0] for column in columns))
        (rows,) = self.row_groups().rows
        size = max(1, min(_MAX_ROWS, _BATCH_BYTES * rows // max(1, self._file.size)))
        with _typed_errors(self._file.name):
            for batch in self._fragment.to_batches(columns=names, batch_size=size, batch_readahead=2):
                yield from batch_slices(batch, sizer)


@contextmanager
def _typed_errors(name: str) -> Iterator[None]:
    """Converts the errors of Lance to CorruptSourceError; `name` is the file's."""
    try:
        yield
    except (GearError, GeneratorExit, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of Rust is no Exception
        raise unreadable(_NAME, name, RuntimeError(str(error)[:1000])) from error
