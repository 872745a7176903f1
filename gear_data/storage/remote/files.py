"""Files behind fsspec URLs, read in ranges that are asked for again when a connection breaks."""

from __future__ import annotations

import io
import os
from typing import IO, Any

from gear_data.common.retry import with_retries
from gear_data.errors import InvalidArgumentError, MissingExtraError, RemoteError

#: Bytes asked for at once where a reader wants few; the most that are asked for in one request.
_BUFFER = 2 << 20
_REQUEST = 32 << 20


def is_remote(place: str) -> bool:
    """Whether a place is a URL, not a path."""
    return "://" in place


def is_utf8(text: str) -> bool:
    """Whether a text can be UTF-8, as what stands in manifests and tables has to be: a path's bytes need not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def plain_path(place: str | os.PathLike[str]) -> str:
    """A path or URL as text; of a `file:///...` URL the path. Raises InvalidArgumentError for what is none."""
    text = os.fspath(place) if isinstance(place, str | os.PathLike) else place
    if not isinstance(text, str):
        raise InvalidArgumentError(f"a path or a URL is a str or a Path, not {type(place).__name__}")
    if not text:
        raise InvalidArgumentError("a path or a URL is expected, not nothing", hint="'.' is the present folder")
    if not is_utf8(text):
        raise InvalidArgumentError("the path is not UTF-8", file=printable(text), hint="rename it, or link to it")
    return text.removeprefix("file://") if text.startswith("file:///") else text


def printable(text: str) -> str:
    """A path with what is not UTF-8 as `\\udc..`."""
    return text.encode("utf-8", "backslashreplace").decode()


def filesystem_of(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, as fsspec's configuration and environment set it up, and the path there.

    fsspec keeps one a process for each configuration; it is asked anew each time because after a fork an old one
    does not work.

    Raises:
        MissingExtraError: the package for this kind of URL is not installed.
        InvalidArgumentError: no kind of URL that fsspec knows, or one of nothing.
    """
    import fsspec

    if not url.partition(":/")[2].strip("/"):
        raise InvalidArgumentError("is no URL of a file or folder", file=url, hint="name one: s3://bucket/folder")
    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise MissingExtraError(f"this kind of URL needs a package: {error}", file=url) from error
    except ValueError as error:
        raise InvalidArgumentError(f"cannot be used as a URL: {error}", file=url) from error
    return filesystem, path


def join(url: str, name: str) -> str:
    """The URL or path of a file in a folder."""
    return f"{url.rstrip('/')}/{name}" if name else url


def open_range_reader(filesystem: Any, path: str, size: int, name: str) -> IO[bytes]:
    """A remote file for reading at any place; outlives broken connections.

    Args:
        path: as the file system knows it.
        size: bytes.
        name: for messages.

    Its reads raise RemoteError: the connection broke every time, or the server does not serve ranges.
    """
    return io.BufferedReader(RangeReader(filesystem, path, size, name), _BUFFER)


class RangeReader(io.RawIOBase):
    """See `open_range_reader`. Holds no connection between two reads, so that there is none to break."""

    def __init__(self, filesystem: Any, path: str, size: int, name: str) -> None:
        super().__init__()
        self._filesystem = filesystem
        self._path = path
        self._size = size
        self._place = 0
        self.name = name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any) -> int:
        first = self._place
        last = min(first + len(buffer), first + _REQUEST, self._size)
        if last <= first:
            return 0
        try:
            data = with_retries(lambda: self._range(first, last), "be read", self.name)
        except FileNotFoundError as error:
            raise RemoteError("the file is gone", file=self.name) from error
        buffer[: len(data)] = data
        self._place = last
        return len(data)

    def _range(self, first: int, last: int) -> bytes:
        data: bytes = self._filesystem.cat_file(self._path, start=first, end=last)
        if len(data) > last - first:
            raise RemoteError("its server does not serve parts of a file", file=self.name, hint="download it first")
        if len(data) < last - first:
            raise ConnectionError(f"{len(data)} of {last - first} bytes came")
        return data
