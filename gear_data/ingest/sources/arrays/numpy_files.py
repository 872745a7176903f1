"""Defensive reading of `.npy`, `.npy.gz` and `.npz` files, in pieces.

Sizes are checked before memory is allocated, and no pickle is loaded. Formats:
https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html and, for the archive, ZIP.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from gear_data.errors import CorruptSourceError, GearError, UnsupportedColumnError
from gear_data.ingest.location import SourceFile
from gear_data.schema import DTYPES

#: Limit for a header, which is parsed as a Python literal. NumPy has the same limit.
_MAX_HEADER = 10_000
#: Upper bound on the compression ratio of deflate, which is 1032 to 1 (RFC 1951: 258 bytes from two bits).
_MAX_DEFLATE_RATIO = 1040
#: Limit for one step. A larger one is an archive bomb, or an array whose first axis is not the steps.
_MAX_ROW_BYTES = 1 << 30
#: Bytes to read at once: streams that unpack copy each piece.
_PIECE_BYTES = 1 << 20
_MAX_CHARACTER, _SURROGATES = 0x10FFFF, (0xD800, 0xDFFF)
_DOWNLOAD_AGAIN = "the file may have been truncated: download it again"
_WRITE_AGAIN = "download it again, or write it again with np.save or np.savez"


@dataclass(frozen=True)
class StoredArray:
    """An array in a file, whose header has been read and fits the file's size.

    Its values are read later.

    Attributes:
        file: the file that holds the array.
        dtype: the stored dtype; its byte order may not be native.
        shape: the stored shape. The first axis is the rows.
        start: the offset of the values in the (unpacked) file, in bytes.
        member: the name of the array in its archive; None if the file is the array.
        fortran: whether the first axis varies fastest in the file.
        gzipped: whether the file is compressed by gzip.
        rotation: the stored row that is read as row 0, of a ring buffer. The rows before it follow the last stored row.
    """

    file: SourceFile
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int = 0
    member: str | None = None
    fortran: bool = False
    gzipped: bool = False
    rotation: int = 0

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def place(self) -> str:
        """File and member, for messages."""
        return self.file.name if self.member is None else f"{self.file.name}:{self.member}"

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.shape[1:]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.row_shape) * self.dtype.itemsize

    @property
    def is_text(self) -> bool:
        return self.dtype.kind == "U"

    def column_dtype(self, column: str) -> str:
        """Returns the dtype of a step column with these values, in native byte order.

        `column` is for the error.

        Raises:
            UnsupportedColumnError: no column can hold the values.
        """
        if self.is_text:
            return "string"
        name = self.dtype.newbyteorder("=").name
        if name not in DTYPES:
            raise UnsupportedColumnError(
                f"holds {name}, which is not a number, a boolean or text",
                file=self.place,
                column=column,
                hint="name the columns to keep with --columns (columns=[...]), without this one",
            )
        if 0 in self.row_shape:
            raise UnsupportedColumnError(
                f"has steps of shape {self.row_shape}, which hold no values",
                file=self.place,
                column=column,
                hint="name the columns to keep with --columns (columns=[...]), without this one",
            )
        if self.row_bytes > _MAX_ROW_BYTES:
            raise UnsupportedColumnError(
                f"one step has {self.row_bytes} bytes (shape {self.row_shape}), above the limit of {_MAX_ROW_BYTES}",
                file=self.place,
                column=column,
                hint="the first axis must be the steps",
            )
        return name


def open_npz(file: SourceFile) -> dict[str, StoredArray]:
    """Reads the headers of all arrays of an `.npz` archive: name -> array.

    Object arrays are included; their values cannot be read.

    Raises:
        CorruptSourceError: the file is not an archive of complete `.npy` files.
    """
    file.check_readable()
    arrays: dict[str, StoredArray] = {}
    with _reading(file.name), file.open() as stream, zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        if sum(info.compress_size for info in members) > file.size:
            raise CorruptSourceError(
                "its members claim more bytes than the file has", file=file.name, hint=_DOWNLOAD_AGAIN
            )
        for info in members:
            name = info.filename.removesuffix(".npy")
            if name == info.filename:
                continue  # not an array: `np.load` ignores it too
            place = f"{file.name}:{info.filename}"
            if name in arrays:
                raise CorruptSourceError(
                    "two members have the same name", file=place, hint="write the archive again with np.savez"
                )
            _check_member(info, place)
            with archive.open(info) as member:
                arrays[name] = _parse(member, info.file_size, file, info.filename)
    return arrays


def open_npy(file: SourceFile) -> StoredArray:
    """Reads the header of an `.npy` file.

    Raises CorruptSourceError if the file is damaged.
    """
    file.check_readable()
    with _reading(file.name), file.open() as stream:
        return _parse(stream, file.size, file, None)


def open_gzipped_npy(file: SourceFile) -> StoredArray:
    """Reads the header of an `.npy` file that is compressed by gzip.

    The file's size bounds the size that the header may claim. `ArrayReader.check_ends` compares the two.

    Raises CorruptSourceError if the file is damaged.
    """
    file.check_readable()
    with _reading(file.name), file.open() as packed, _unpacked(packed) as stream:
        array = _parse(stream, _MAX_DEFLATE_RATIO * file.size, file, None, exact=False)
    return replace(array, gzipped=True)


def _unpacked(packed: IO[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", gzip.GzipFile(fileobj=packed))


def _check_member(info: zipfile.ZipInfo, place: str) -> None:
    """Checks the header of an archive's member.

    Raises CorruptSourceError if the member is encrypted, has another compression, or has an impossible size.
    """
    if info.flag_bits & 1:
        raise CorruptSourceError("is encrypted", file=place, hint="write the archive again without a password")
    if info.compress_type == zipfile.ZIP_STORED:
        fits = info.file_size == info.compress_size
    elif info.compress_type == zipfile.ZIP_DEFLATED:
        fits = info.file_size <= _MAX_DEFLATE_RATIO * (info.compress_size + 1)
    else:
        raise CorruptSourceError(
            "is compressed by a method that NumPy does not write", file=place, hint="save it with np.savez_compressed"
        )
    if not fits:
        raise CorruptSourceError(
            f"claims to unpack {info.compress_size} bytes to {info.file_size}, which is impossible",
            file=place,
            hint=_DOWNLOAD_AGAIN,
        )


def _parse(stream: IO[bytes], size: int, file: SourceFile, member: str | None, *, exact: bool = True) -> StoredArray:
    """Reads a header, and checks that its values take the bytes that follow.

    Args:
        stream: the file or the archive's member.
        size: the size of the stream, in bytes.
        file: the file.
        member: the name of the member in its archive.
        exact: whether `size` is the size, and not only a bound of it.
    """
    place = file.name if member is None else f"{file.name}:{member}"
    head = stream.read(12)
    if len(head) < 12 or head[:6] != b"\x93NUMPY" or head[6] not in (1, 2, 3):
        raise CorruptSourceError("is not a NumPy array file", file=place, hint="write it with np.save")
    # The header's length takes two bytes in version 1, and four from version 2 on.
    prefix, length = (10, head[8] | head[9] << 8) if head[6] == 1 else (12, int.from_bytes(head[8:12], "little"))
    if length > _MAX_HEADER:
        raise CorruptSourceError(
            f"its header claims {length} bytes, above the limit of {_MAX_HEADER}", file=place, hint=_WRITE_AGAIN
        )
    text = io.BytesIO(head[8:] + stream.read(prefix + length - 12))
    parse = np.lib.format.read_array_header_1_0 if head[6] == 1 else np.lib.format.read_array_header_2_0
    try:
        shape, fortran, dtype = parse(text)
    except Exception as error:  # NumPy passes on all errors of Python's literal parser
        raise CorruptSourceError(
            f"its header cannot be read: {type(error).__name__}: {error}", file=place, hint=_WRITE_AGAIN
        ) from error
    shape, start = tuple(int(n) for n in shape), prefix + length
    claimed = math.prod(shape) * dtype.itemsize
    fits = claimed == size - start or (claimed < size - start and not exact)
    if min(shape, default=0) < 0 or not (dtype.hasobject or fits):
        bound = "" if exact else "at most "
        raise CorruptSourceError(
            f"its header claims {dtype} {shape}, which is {claimed} bytes, but {bound}{size - start} follow",
            file=place,
            hint=_DOWNLOAD_AGAIN,
        )
    return StoredArray(file, dtype, shape, start, member, fortran and len(shape) > 1)


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
        with _reading(array.place):
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
            with _reading(array.place):
                stream = self._stream(array)
                while stream.tell() <= expected and stream.read(_PIECE_BYTES):
                    pass
                size = stream.tell()
            if size != expected:
                raise CorruptSourceError(
                    f"unpacks to {size} bytes or more, but its header claims {expected}",
                    file=array.place,
                    hint=_DOWNLOAD_AGAIN,
                )

    def _stream(self, array: StoredArray) -> IO[bytes]:
        key = (array.file.path, array.member)
        if key not in self._streams:
            if array.gzipped:
                packed = self._open.enter_context(array.file.open())
                stream: IO[bytes] = self._open.enter_context(_unpacked(packed))
            elif array.member is None:
                stream = self._open.enter_context(array.file.open())
            else:
                stream = self._open.enter_context(self._archive(array.file).open(array.member))
            self._streams[key] = stream
        return self._streams[key]

    def _archive(self, file: SourceFile) -> zipfile.ZipFile:
        if file.path not in self._archives:
            stream = self._open.enter_context(file.open())
            self._archives[file.path] = self._open.enter_context(zipfile.ZipFile(stream))
        return self._archives[file.path]


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


@contextmanager
def _reading(place: str) -> Iterator[None]:
    """Converts the errors of zipfile and zlib to CorruptSourceError."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, GearError):
            raise
        raise CorruptSourceError(
            f"cannot be read as a NumPy file: {error}",
            file=place,
            hint=_DOWNLOAD_AGAIN,
        ) from error
    except (struct.error, KeyError, IndexError, OverflowError) as error:
        raise CorruptSourceError(
            f"cannot be read as a NumPy file: {error}", file=place, hint=_DOWNLOAD_AGAIN
        ) from error
