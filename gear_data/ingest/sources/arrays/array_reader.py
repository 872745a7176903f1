"""Values of `.npy`, `.npy.gz` and `.npz` files, read in pieces of bounded size."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.images import byte_strings
from gear_data.errors import CorruptSourceError, UnsupportedColumnError
from gear_data.ingest.location import SourceFile
from gear_data.ingest.sources.arrays.numpy_files import DOWNLOAD_AGAIN, StoredArray, npz_members, reading, unpacked
from gear_data.schema import VARIABLE_TYPES

#: Bytes to read at once: streams that unpack copy each piece.
_PIECE_BYTES = 1 << 20
_MAX_CHARACTER, _SURROGATES = 0x10FFFF, (0xD800, 0xDFFF)


class ArrayReader:
    """Reads rows of stored arrays; reading from front to back is fastest.

    Use it as a context manager.

    Only the requested rows are in memory: the members of an archive are unpacked while they are read.
    """

    def __init__(self) -> None:
        self._open = ExitStack()
        self._archives: dict[str, zipfile.ZipFile] = {}
        self._streams: dict[tuple[str, str | None], IO[bytes]] = {}

    def __enter__(self) -> ArrayReader:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams.values():
            stream.close()
        self._open.close()

    def read(self, array: StoredArray, start: int, stop: int) -> npt.NDArray[Any]:
        """Reads the rows [start, stop).

        Returns:
            [stop - start, *row_shape], C-contiguous and in native byte order.

        Raises:
            CorruptSourceError: the file is damaged.
        """
        seam = len(array) - array.rotation
        if array.rotation and start < seam < stop:
            return np.concatenate([self.read(array, start, seam), self.read(array, seam, stop)])
        if array.rotation:
            shift = array.rotation if start < seam else -seam
            start, stop = start + shift, stop + shift
        if array.values is not None:
            # A copy: the pipeline may change what a source reads, but not the user's array.
            rows = array.values.reshape(array.shape)[start:stop]
            return np.array(rows, rows.dtype.newbyteorder("="), order="C")
        with reading(array.place):
            stream = self._stream(array)
            if array.fortran:
                values = _fortran_rows(stream, array, start, stop)
            else:
                values = np.empty((stop - start, *array.row_shape), array.dtype)
                _fill(stream, array.start + start * array.row_bytes, values, array.place)
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
        if array.is_text:
            _check_text(values, array.place, start)
        return values

    def check_ends(self, arrays: Iterable[StoredArray]) -> None:
        """Checks that files compressed by gzip end where their arrays end.

        It unpacks the rows that were not read, so that gzip compares its checksum.

        Raises:
            CorruptSourceError: a file is shorter or longer than its array, or the checksum differs.
        """
        for array in arrays:
            if not array.gzipped:
                continue
            expected = array.start + len(array) * array.row_bytes
            with reading(array.place):
                stream = self._stream(array)
                while stream.tell() <= expected and stream.read(_PIECE_BYTES):
                    pass
                size = stream.tell()
            if size != expected:
                raise CorruptSourceError(
                    f"unpacks to {size} bytes or more, but its header claims {expected}",
                    file=array.place,
                    hint=DOWNLOAD_AGAIN,
                )

    def release(self, array: StoredArray) -> None:
        """Closes an array that has been read. It may be read again."""
        stream = self._streams.pop((array.file.path, array.member), None)
        if stream is not None:
            stream.close()

    def _stream(self, array: StoredArray) -> IO[bytes]:
        if array.archive is not None and array.member is not None:
            return array.archive.open(array.member)
        key = (array.file.path, array.member)
        if key not in self._streams:
            if array.gzipped:
                packed = self._open.enter_context(array.file.open())
                stream: IO[bytes] = self._open.enter_context(unpacked(packed))
            elif array.member is None:
                stream = array.file.open()
            else:
                stream = self._archive(array.file).open(array.member)
            self._streams[key] = stream
        return self._streams[key]

    def _archive(self, file: SourceFile) -> zipfile.ZipFile:
        if file.path not in self._archives:
            stream = self._open.enter_context(file.open())
            self._archives[file.path] = self._open.enter_context(zipfile.ZipFile(stream))
        return self._archives[file.path]


def strings(values: npt.NDArray[Any], type_: pa.DataType = VARIABLE_TYPES["string"]) -> pa.Array:
    """Returns text or byte strings [n] as an Arrow array; Python objects as one of `type_`."""
    if values.dtype.kind == "S":
        return pa.array(byte_strings(values), VARIABLE_TYPES["binary"])
    return pa.array(values.tolist(), type_)


def _fortran_rows(stream: IO[bytes], array: StoredArray, start: int, stop: int) -> npt.NDArray[Any]:
    """Reads rows of an array whose first axis varies fastest.

    The rows are a piece of each of the array's `math.prod(row_shape)` columns.
    """
    if array.member is not None or array.gzipped:
        raise UnsupportedColumnError(
            "is in Fortran order inside an archive or a compressed file, so it cannot be read in pieces",
            file=array.place,
            hint="save np.ascontiguousarray(array) instead",
        )
    values = np.empty((math.prod(array.row_shape), stop - start), array.dtype)
    for i, column in enumerate(values):
        _fill(stream, array.start + (i * len(array) + start) * array.dtype.itemsize, column, array.place)
    return np.ascontiguousarray(values.reshape(*array.row_shape[::-1], stop - start).T)


def _fill(stream: IO[bytes], position: int, values: npt.NDArray[Any], place: str) -> None:
    """Fills a contiguous array with the bytes from `position` on."""
    if stream.tell() != position:
        stream.seek(position)
    view = values.reshape(-1).view(np.uint8)
    done = 0
    while done < len(view):
        count = stream.readinto(view[done : done + _PIECE_BYTES])  # type: ignore[attr-defined]
        if not count:
            raise CorruptSourceError("ends before its last value", file=place, hint="download it again")
        done += count


def _check_text(values: npt.NDArray[np.str_], place: str, start: int) -> None:
    """Raises CorruptSourceError for invalid characters.

    NumPy stores text as 4 bytes per character without checking them; Python and Arrow fail on invalid characters.
    """
    codes = np.frombuffer(values.tobytes(), np.uint32)
    bad = (codes > _MAX_CHARACTER) | ((codes >= _SURROGATES[0]) & (codes <= _SURROGATES[1]))
    if bad.any():
        row = start + int(np.argmax(bad)) * len(values) // len(codes)
        raise CorruptSourceError("is not Unicode text", file=place, row=row, hint="download it again")


def read_small_npz(file: SourceFile, names: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    """Reads whole arrays of an archive that fits the memory: name -> array.

    Raises:
        CorruptSourceError: the file is damaged, or an array holds Python objects.
    """
    values: dict[str, npt.NDArray[Any]] = {}
    for name, array, stream in npz_members(file):
        if name not in names:
            continue
        if array.dtype.hasobject:
            raise CorruptSourceError(
                "holds pickled Python objects, which are never loaded",
                file=array.place,
                hint="save the values as numbers of one dtype in all files: np.asarray(values, 'float32')",
            )
        whole = np.empty(array.shape[::-1] if array.fortran else array.shape, array.dtype)
        with reading(file.name):
            _fill(stream, array.start, whole, array.place)
        values[name] = whole.T if array.fortran else whole
    return values
