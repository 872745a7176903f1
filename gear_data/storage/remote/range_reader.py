"""Files behind fsspec URLs, read in ranges with retries."""

from __future__ import annotations

import io
from typing import IO, Any

from gear_data.common.retry import requests_of, with_retries
from gear_data.errors import InvalidArgumentError, MissingExtraError, RemoteError
from gear_data.storage.remote.range_requests import request_range

#: Bytes of the read buffer, so that small reads share a request. A file of no more bytes is read whole.
SMALL_BYTES = 2 << 20
#: Largest number of bytes in one request.
_REQUEST = 32 << 20


def filesystem_of(url: str) -> tuple[Any, str]:
    """Returns the fsspec file system of a URL, and the path within it.

    fsspec's configuration and environment variables apply. fsspec caches one file system per process and configuration.
    Call this function again after a fork, because file systems of the parent do not work in the child.

    Raises:
        MissingExtraError: the package for this kind of URL is not installed.
        InvalidArgumentError: fsspec does not know this kind of URL, or the URL names no file or folder.
    """
    import fsspec

    if not url.partition(":/")[2].strip("/"):
        raise InvalidArgumentError(
            "the URL names no file or folder", file=url, hint="name one, such as s3://bucket/folder"
        )
    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise MissingExtraError(f"this kind of URL needs a package: {error}", file=url) from error
    except ValueError as error:
        raise InvalidArgumentError(f"cannot be used as a URL: {error}", file=url) from error
    return filesystem, path


def open_range_reader(filesystem: Any, path: str, size: int, name: str) -> IO[bytes]:
    """Opens a remote file for random access. Reads retry after broken connections.

    A file of at most `SMALL_BYTES` is read by one request. A read raises RemoteError if all retries failed, or if the
    server does not support ranges.

    Args:
        filesystem: fsspec file system.
        path: path within the file system.
        size: size of the file in bytes.
        name: URL of the file, for messages.
    """
    reader = (SmallFileReader if size <= SMALL_BYTES else RangeReader)(filesystem, path, size, name)
    return io.BufferedReader(reader, SMALL_BYTES)


class RangeReader(io.RawIOBase):
    """Unbuffered reader of a remote file.

    It keeps no connection open between reads, so no idle connection can break. See `open_range_reader`.

    Args:
        filesystem, path, size, name: see `open_range_reader`.
        contents: the name of its contents (`contents_name`). A file with other contents is a RemoteError.
    """

    def __init__(self, filesystem: Any, path: str, size: int, name: str, contents: str = "") -> None:
        super().__init__()
        self._contents = contents
        self._filesystem = filesystem
        self._path = path
        self._size = size
        self._position = 0
        self.name = name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        first = self._position
        last = min(first + len(buffer), first + _REQUEST, self._size)
        if last <= first:
            return 0
        data = self._fetch(first, last)
        buffer[: len(data)] = data
        self._position = last
        return len(data)

    def _fetch(self, first: int, last: int) -> bytes:
        """Returns a range of the file. Raises RemoteError."""
        try:
            return with_retries(lambda: self._range(first, last), "be read", self.name, requests_of(last - first))
        except FileNotFoundError as error:
            raise RemoteError(
                "the file no longer exists", file=self.name, hint="restore the file at its URL; then run again"
            ) from error

    def _range(self, first: int, last: int) -> bytes:
        data = request_range(self._filesystem, self._path, first, last, self._contents)
        if len(data) > last - first:
            raise RemoteError(
                "its server does not support range requests", file=self.name, hint="download the file first"
            )
        if len(data) < last - first:
            raise ConnectionError(f"received {len(data)} of {last - first} bytes")
        return data


class SmallFileReader(RangeReader):
    """Reader of a remote file that the first read fetches whole. See `RangeReader`."""

    _data: bytes | None = None

    def _fetch(self, first: int, last: int) -> bytes:
        if self._data is None:
            self._data = super()._fetch(0, self._size)
        return self._data[first:last]
