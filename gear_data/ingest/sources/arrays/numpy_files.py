"""`.npy`, `.npy.gz` and `.npz` files, and arrays in memory: their headers, and their rows in pieces of bounded size.

Sizes are checked before memory is allocated, and no pickle is loaded. Formats:
https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html and, for the archive, ZIP.
"""

from __future__ import annotations

import gzip
import io
import math
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import IO, Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from gear_data.errors import CorruptSourceError, GearError, UnsupportedColumnError, errors_as
from gear_data.ingest.location import SourceFile
from gear_data.ingest.sources.arrays.step_arrays import RowArray
from gear_data.ingest.sources.zip_members import ARCHIVE_ERRORS, MAX_DEFLATE_RATIO, check_member, check_sizes

#: Limit for a header, which is parsed as a Python literal. NumPy has the same limit.
_MAX_HEADER = 10_000
#: Bytes of a header as NumPy writes it, with what is before it. More are read if it is longer.
_USUAL_HEADER = 128
#: Parsed headers that are kept.
_HEADERS = 256
#: Archives and their members up to this size are read whole: an array is opened once for its header and its values.
_SMALL_BYTES = 1 << 20
#: How the header before a member begins, and the bytes of the header without the name and extra fields (APPNOTE.TXT,
#: 4.3.7).
_SIGNATURE, _LOCAL_HEADER = b"PK\x03\x04", 30
DOWNLOAD_AGAIN = "the file may have been truncated: download it again"
_WRITE_AGAIN = "download it again, or write it again with np.save or np.savez"
#: Message and hint for members of another compression.
_OTHER_METHOD = "is compressed by a method that NumPy does not write", "save it with np.savez_compressed"


class SmallArchive:
    """An archive in memory. Its members stay open.

    Args:
        data: the bytes of the file.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.zip = zipfile.ZipFile(io.BytesIO(data))
        self._members: dict[str, IO[bytes]] = {}

    def open(self, name: str) -> IO[bytes]:
        """Returns the values of a member. Whoever reads them seeks first."""
        if name not in self._members:
            self._members[name] = self._open(name)
        return self._members[name]

    def _open(self, name: str) -> IO[bytes]:
        info = self.zip.getinfo(name)
        if info.file_size <= _SMALL_BYTES:
            if (values := self._stored(info)) is not None:
                return io.BytesIO(values)
            # A member that is damaged is an error only for those who read all its values.
            with suppress(zipfile.BadZipFile, zlib.error, EOFError):
                return io.BytesIO(self.zip.read(name))
        return self.zip.open(name)

    def _stored(self, info: zipfile.ZipInfo) -> bytes | None:
        """Returns the bytes of an intact member as `np.savez` writes it, much faster than ZipFile; None for others."""
        begin = info.header_offset
        head = self._data[begin : begin + _LOCAL_HEADER]
        name_end = begin + _LOCAL_HEADER + int.from_bytes(head[26:28], "little")
        name = self._data[begin + _LOCAL_HEADER : name_end]
        start = name_end + int.from_bytes(head[28:30], "little")
        data = self._data[start : start + info.file_size]
        intact = (
            head[:4] == _SIGNATURE
            and head[6:10] == bytes(4)  # no flags, not compressed
            and info.compress_type == zipfile.ZIP_STORED
            and name == info.orig_filename.encode()
            and len(data) == info.file_size == info.compress_size
            and zlib.crc32(data) == info.CRC
        )
        return data if intact else None


@dataclass(frozen=True)
class StoredArray(RowArray):
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
        archive: the archive of the member, if it is small.
        rotation: the stored row that is read as row 0, of a ring buffer. The rows before it follow the last stored row.
        values: the values of an array in memory, which is in no file; otherwise None.
    """

    kinds: ClassVar[str] = "a number, a boolean or text"
    file: SourceFile
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int = 0
    member: str | None = None
    fortran: bool = False
    gzipped: bool = False
    archive: SmallArchive | None = field(default=None, repr=False, compare=False)
    rotation: int = 0
    values: npt.NDArray[Any] | None = field(default=None, repr=False, compare=False)

    @property
    def place(self) -> str:
        """File and member, for messages."""
        return self.file.name if self.member is None else f"{self.file.name}:{self.member}"

    @property
    def is_text(self) -> bool:
        return self.dtype.kind == "U"

    def column_dtype(self, column: str) -> str:
        return "string" if self.is_text else super().column_dtype(column)


def open_npz(file: SourceFile) -> dict[str, StoredArray]:
    """Reads the headers of all arrays of an `.npz` archive: name -> array.

    Object arrays are included; their values cannot be read.

    Raises:
        CorruptSourceError: the file is not an archive of complete `.npy` files.
    """
    return {name: array for name, array, _ in npz_members(file)}


def npz_members(file: SourceFile) -> Iterator[tuple[str, StoredArray, IO[bytes]]]:
    """Yields name, header and values of each array of an `.npz` archive.

    The stream of the values is open until the next array is requested.

    Raises:
        CorruptSourceError: the file is not an archive of complete `.npy` files.
    """
    try:
        with reading(file.name), file.open() as stream:
            yield from _members(file, stream)
    except CorruptSourceError:
        file.check_readable()  # raises a clearer error for empty files and Git-LFS pointers
        raise


def _members(file: SourceFile, stream: IO[bytes]) -> Iterator[tuple[str, StoredArray, IO[bytes]]]:
    small = SmallArchive(stream.read()) if file.size <= _SMALL_BYTES else None
    names: set[str] = set()
    with ExitStack() as stack:
        archive = small.zip if small is not None else stack.enter_context(zipfile.ZipFile(stream))
        members = archive.infolist()
        check_sizes(members, file)
        for info in members:
            name = info.filename.removesuffix(".npy")
            if name == info.filename:
                continue  # not an array: `np.load` ignores it too
            place = f"{file.name}:{info.filename}"
            if name in names:
                raise CorruptSourceError(
                    "two members have the same name", file=place, hint="write the archive again with np.savez"
                )
            names.add(name)
            check_member(info, place, other_method=_OTHER_METHOD, impossible_size=DOWNLOAD_AGAIN)
            with nullcontext(small.open(info.filename)) if small is not None else archive.open(info) as member:
                yield name, _parse(member, info.file_size, file, info.filename, archive=small), member


def open_npy(file: SourceFile) -> StoredArray:
    """Reads the header of an `.npy` file.

    Raises CorruptSourceError if the file is damaged.
    """
    file.check_readable()
    with reading(file.name), file.open() as stream:
        return _parse(stream, file.size, file, None)


def open_gzipped_npy(file: SourceFile) -> StoredArray:
    """Reads the header of an `.npy` file that is compressed by gzip.

    The file's size bounds the size that the header may claim. `ArrayReader.check_ends` compares the two.

    Raises CorruptSourceError if the file is damaged.
    """
    file.check_readable()
    with reading(file.name), file.open() as packed, unpacked(packed) as stream:
        array = _parse(stream, MAX_DEFLATE_RATIO * file.size, file, None, exact=False)
    return replace(array, gzipped=True)


def unpacked(packed: IO[bytes]) -> IO[bytes]:
    """Opens a stream that is compressed by gzip."""
    return cast("IO[bytes]", gzip.GzipFile(fileobj=packed))


def _parse(
    stream: IO[bytes],
    size: int,
    file: SourceFile,
    member: str | None,
    *,
    exact: bool = True,
    archive: SmallArchive | None = None,
) -> StoredArray:
    """Reads a header, and checks that its values take the bytes that follow.

    Args:
        stream: the file or the archive's member.
        size: the size of the stream, in bytes.
        file: the file.
        member: the name of the member in its archive.
        exact: whether `size` is the size, and not only a bound of it.
        archive: the archive, if it is small.
    """
    place = file.name if member is None else f"{file.name}:{member}"
    head = stream.read(_USUAL_HEADER)
    if len(head) < 12 or head[:6] != b"\x93NUMPY" or head[6] not in (1, 2, 3):
        raise CorruptSourceError("is not a NumPy array file", file=place, hint="write it with np.save")
    # The header's length takes two bytes in version 1, and four from version 2 on.
    prefix, length = (10, head[8] | head[9] << 8) if head[6] == 1 else (12, int.from_bytes(head[8:12], "little"))
    if length > _MAX_HEADER:
        raise CorruptSourceError(
            f"its header claims {length} bytes, above the limit of {_MAX_HEADER}", file=place, hint=_WRITE_AGAIN
        )
    try:
        text = head[8 : prefix + length] + stream.read(max(0, prefix + length - len(head)))
        shape, fortran, dtype = _parse_header(head[6], text)
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
            hint=DOWNLOAD_AGAIN,
        )
    return StoredArray(file, dtype, shape, start, member, fortran and len(shape) > 1, archive=archive)


@lru_cache(maxsize=_HEADERS)
def _parse_header(version: int, text: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Parses the length and the text of a header.

    Archives with one step or one episode have the same few headers.

    Returns:
        The shape, whether the first axis varies fastest, and the dtype.
    """
    parse = np.lib.format.read_array_header_1_0 if version == 1 else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = parse(io.BytesIO(text))
    return tuple(shape), bool(fortran), dtype


def reading(place: str) -> AbstractContextManager[None]:
    """Converts the errors of zipfile, gzip and zlib to CorruptSourceError."""
    return errors_as(ARCHIVE_ERRORS, lambda error: _unreadable(place, error))


def _unreadable(place: str, error: Exception) -> CorruptSourceError:
    return CorruptSourceError(f"cannot be read as a NumPy file: {error}", file=place, hint=DOWNLOAD_AGAIN)


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
        # As `reading`, which takes as long as a short read itself.
        try:
            stream = self._stream(array)
            if array.fortran:
                values = _fortran_rows(stream, array, start, stop)
            else:
                values = np.empty((stop - start, *array.row_shape), array.dtype)
                _fill(stream, array.start + start * array.row_bytes, values, array)
        except GearError:
            raise
        except ARCHIVE_ERRORS as error:
            raise _unreadable(array.place, error) from error
        if not values.dtype.isnative:
            values = values.astype(values.dtype.newbyteorder("="))
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
        _fill(stream, array.start + (i * len(array) + start) * array.dtype.itemsize, column, array)
    return np.ascontiguousarray(values.reshape(*array.row_shape[::-1], stop - start).T)


def _fill(stream: IO[bytes], position: int, values: npt.NDArray[Any], array: StoredArray) -> None:
    """Fills a contiguous array with the bytes from `position` on."""
    if stream.tell() != position:
        stream.seek(position)
    view = values.reshape(-1).view(np.uint8)
    done = 0
    while done < len(view):
        count = stream.readinto(view[done : done + _PIECE_BYTES])  # type: ignore[attr-defined]
        if not count:
            raise CorruptSourceError("ends before its last value", file=array.place, hint="download it again")
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
            _fill(stream, array.start, whole, array)
        values[name] = whole.T if array.fortran else whole
    return values
