"""NumPy's own files, `.npy` and `.npz`: read in pieces, sizes checked before anything is allocated, no pickle loaded.

Formats: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html and, for the archive, ZIP.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import CorruptSourceError, GearError, UnsupportedColumnError
from gear_data.ingest.location import SourceFile
from gear_data.schema import DTYPES

#: NumPy refuses longer headers too; they are parsed as Python literals.
_MAX_HEADER = 10_000
#: Deflate cannot do better than 1032 to 1 (RFC 1951: 258 bytes from two bits); a larger claim is a lie.
_MAX_DEFLATE_RATIO = 1040
#: One step of more is no step: it is an archive bomb, or an array whose first axis is not the steps.
_MAX_ROW_BYTES = 1 << 30
_MAX_CHARACTER, _SURROGATES = 0x10FFFF, (0xD800, 0xDFFF)


@dataclass(frozen=True)
class StoredArray:
    """An array in a file: its header is read and fits the file's size, its values are not read yet.

    Attributes:
        file: what it is in.
        member: its name in the archive, None where the file is the array.
        dtype, shape: as stored; the dtype may be of the other byte order.
        start: byte of the (unpacked) file at which the values begin.
        fortran: whether the first axis runs fastest.
    """

    file: SourceFile
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int = 0
    member: str | None = None
    fortran: bool = False

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def place(self) -> str:
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
        """The dtype of a step column of these values, native byte order.

        Raises:
            UnsupportedColumnError: no column can hold them.
        """
        if self.is_text:
            return "string"
        name = self.dtype.newbyteorder("=").name
        if name not in DTYPES:
            raise UnsupportedColumnError(
                f"holds {name}, which is not a number, a boolean or text",
                file=self.place,
                column=column,
                hint="name the columns to keep with --columns (columns=[...]), leaving this one out",
            )
        if 0 in self.row_shape:
            raise UnsupportedColumnError(
                f"a step of shape {self.row_shape} has no elements", file=self.place, column=column, hint="leave it out"
            )
        if self.row_bytes > _MAX_ROW_BYTES:
            raise UnsupportedColumnError(
                f"one step has {self.row_bytes} bytes (shape {self.row_shape}), more than any step has",
                file=self.place,
                column=column,
                hint="the first axis must be the steps",
            )
        return name


def open_npz(file: SourceFile) -> dict[str, StoredArray]:
    """The arrays of an `.npz` archive by name, object arrays included: their headers can be read, their values not.

    Raises:
        CorruptSourceError: not an archive of whole `.npy` files.
    """
    file.check_readable()
    arrays: dict[str, StoredArray] = {}
    with _reading(file.name), file.open() as stream, zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        if sum(info.compress_size for info in members) > file.size:
            raise CorruptSourceError("its members claim more bytes than the file has", file=file.name)
        for info in members:
            name = info.filename.removesuffix(".npy")
            if name == info.filename:
                continue  # not an array: `np.load` does not see those either
            place = f"{file.name}:{info.filename}"
            if name in arrays:
                raise CorruptSourceError("two members have one name", file=place)
            _check_member(info, place)
            with archive.open(info) as member:
                arrays[name] = _parse(member, info.file_size, file, info.filename)
    return arrays


def open_npy(file: SourceFile) -> StoredArray:
    """The array of an `.npy` file. Raises CorruptSourceError."""
    file.check_readable()
    with _reading(file.name), file.open() as stream:
        return _parse(stream, file.size, file, None)


def _check_member(info: zipfile.ZipInfo, place: str) -> None:
    if info.flag_bits & 1:
        raise CorruptSourceError("is encrypted", file=place, hint="save it without a password")
    if info.compress_type == zipfile.ZIP_STORED:
        fits = info.file_size == info.compress_size
    elif info.compress_type == zipfile.ZIP_DEFLATED:
        fits = info.file_size <= _MAX_DEFLATE_RATIO * (info.compress_size + 1)
    else:
        raise CorruptSourceError(
            "is packed in a way that NumPy does not write", file=place, hint="save it with np.savez_compressed"
        )
    if not fits:
        raise CorruptSourceError(
            f"claims to unpack {info.compress_size} bytes to {info.file_size}, which cannot be", file=place
        )


def _parse(stream: IO[bytes], size: int, file: SourceFile, member: str | None) -> StoredArray:
    """Reads a header, and checks that the values it claims are exactly the bytes that follow."""
    place = file.name if member is None else f"{file.name}:{member}"
    head = stream.read(12)
    if len(head) < 12 or head[:6] != b"\x93NUMPY" or head[6] not in (1, 2, 3):
        raise CorruptSourceError("not a NumPy array file", file=place, hint="only what np.save wrote can be read")
    # The header's length is a claim as well: two bytes in version 1, four from version 2 on.
    prefix, length = (10, head[8] | head[9] << 8) if head[6] == 1 else (12, int.from_bytes(head[8:12], "little"))
    if length > _MAX_HEADER:
        raise CorruptSourceError(f"its header claims {length} bytes", file=place)
    text = io.BytesIO(head[8:] + stream.read(prefix + length - 12))
    parse = np.lib.format.read_array_header_1_0 if head[6] == 1 else np.lib.format.read_array_header_2_0
    try:
        shape, fortran, dtype = parse(text)
    except Exception as error:  # NumPy parses Python literals, and passes on whatever the parser raises
        raise CorruptSourceError(f"its header cannot be read: {type(error).__name__}: {error}", file=place) from error
    shape, start = tuple(int(n) for n in shape), prefix + length
    claimed = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or (not dtype.hasobject and claimed != size - start):
        raise CorruptSourceError(
            f"its header claims {dtype} {shape}, which is {claimed} bytes, and {size - start} follow",
            file=place,
            hint="it may have been cut short: download it again",
        )
    return StoredArray(file, dtype, shape, start, member, fortran and len(shape) > 1)


class ArrayReader:
    """Reads rows of stored arrays, in pieces; quickest from front to back. Close it, or use it as a context manager.

    Only what is asked for is in memory: an archive's members are unpacked side by side as they are read.
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
        """[stop - start, *row_shape], native byte order, C-contiguous. Raises CorruptSourceError."""
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

    def _stream(self, array: StoredArray) -> IO[bytes]:
        key = (array.file.path, array.member)
        if key not in self._streams:
            if array.member is None:
                stream: IO[bytes] = self._open.enter_context(array.file.open())
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
    """Rows of an array whose first axis runs fastest: a piece of every column, `math.prod(row_shape)` of them."""
    if array.member is not None:
        raise UnsupportedColumnError(
            "is in Fortran order inside an archive, and cannot be read in pieces",
            file=array.place,
            hint="save np.ascontiguousarray of it",
        )
    values = np.empty((math.prod(array.row_shape), stop - start), array.dtype)
    for i, column in enumerate(values):
        _fill(stream, array.start + (i * len(array) + start) * array.dtype.itemsize, column, array.place)
    return np.ascontiguousarray(values.reshape(*array.row_shape[::-1], stop - start).T)


def _fill(stream: IO[bytes], position: int, values: npt.NDArray[Any], place: str) -> None:
    if stream.tell() != position:
        stream.seek(position)
    view = values.reshape(-1).view(np.uint8)  # `values` is contiguous: no copy
    done = 0
    while done < len(view):
        count = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            raise CorruptSourceError("ends before its last value", file=place, hint="download it again")
        done += count


def _check_text(values: npt.NDArray[np.str_], place: str, start: int) -> None:
    """NumPy keeps text as 4 bytes a character and looks at none of them; Python and Arrow fail on what is none."""
    codes = np.frombuffer(values.tobytes(), np.uint32)
    bad = (codes > _MAX_CHARACTER) | ((codes >= _SURROGATES[0]) & (codes <= _SURROGATES[1]))
    if bad.any():
        row = start + int(np.argmax(bad)) * len(values) // len(codes)
        raise CorruptSourceError("holds what is no Unicode text", file=place, row=row, hint="download it again")


@contextmanager
def _reading(place: str) -> Iterator[None]:
    """Turns what zipfile and zlib raise for a damaged file into CorruptSourceError."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, GearError):
            raise
        raise CorruptSourceError(
            f"not a whole NumPy file: {error}", file=place, hint="it may have been cut short: download it again"
        ) from error
    except (struct.error, KeyError, IndexError, OverflowError) as error:
        raise CorruptSourceError(f"not a whole NumPy file: {error}", file=place) from error
