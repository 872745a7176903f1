"""File stores behind fsspec URLs, such as S3 buckets."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any, TypeVar

from gear_data.common.paths import is_remote, join
from gear_data.common.private_folder import scratch_folder
from gear_data.common.regular_files import JSON_BYTES
from gear_data.common.retry import MANY, requests_of, with_retries
from gear_data.errors import RemoteError, UnwritableError
from gear_data.storage.atomic import typed_write_errors
from gear_data.storage.remote.conditional_store import SCHEMES
from gear_data.storage.remote.folder_claim import folder_claim
from gear_data.storage.remote.range_reader import filesystem_of, open_range_reader
from gear_data.storage.writing.file_store import IN_USE_HINT, FileStore, LocalFileStore
from gear_data.storage.writing.folder_lock import LOCK_NAME, FolderLock

_Result = TypeVar("_Result")


def open_file_store(destination: str | Path) -> FileStore:
    """Returns the file store at a path or a URL.

    Raises:
        MissingExtraError: the package for this kind of URL is not installed.
        InvalidArgumentError: the URL cannot be used.
    """
    if isinstance(destination, str) and is_remote(destination):
        return ObjectStore(destination)
    return LocalFileStore(Path(destination))


class ObjectStore:
    """A folder behind an fsspec URL.

    Object stores show a file only when its upload is complete. Other servers may show partial files, but never in a
    dataset that has a manifest. Methods retry transient failures. They raise RemoteError after
    the last attempt.
    """

    def __init__(self, url: str) -> None:
        filesystem_of(url)
        self.name = url.rstrip("/")

    @contextmanager
    def writing(self, file: str) -> Iterator[Path]:
        with ExitStack() as stack:
            with typed_write_errors(Path(tempfile.gettempdir())):
                path = stack.enter_context(scratch_folder()) / Path(file).name
            with typed_write_errors(path):
                yield path
            self.upload(path, file)

    def upload(self, path: Path, file: str) -> None:
        """Writes a file of this machine to the store. It is complete or missing there.

        Raises:
            RemoteError: the server cannot be reached.
            UnwritableError: the bucket does not exist, or the server refuses the write.
        """
        size = path.stat().st_size

        def upload(filesystem: Any, target: str) -> None:
            filesystem.put_file(str(path), target)
            if self.name.partition("://")[0] in SCHEMES:
                return  # the server has compared the size, and the checksum that botocore sends
            filesystem.invalidate_cache()
            if (stored := filesystem.info(target)["size"]) != size:
                raise ConnectionError(f"{stored} of {size} bytes were stored")

        with self._typed_upload_errors(file):
            self._call(file, "be written", upload, requests_of(size))

    def read(self, file: str, limit: int = JSON_BYTES) -> bytes:
        def read(filesystem: Any, path: str) -> bytes:
            info = filesystem.info(path)
            if info["type"] == "other":  # of a file system of this machine
                raise OSError("it is not a regular file")
            if (info["size"] or 0) > limit:  # some servers do not report sizes
                raise OSError(f"it has {info['size']} bytes, more than the limit of {limit}")
            return filesystem.cat_file(path)  # type: ignore[no-any-return]

        return self._call(file, "be read", read)

    def etag(self, file: str) -> str | None:
        """Returns a text that changes with the contents of a file; None if the server has none.

        Raises:
            FileNotFoundError: the file does not exist.
        """

        def etag(filesystem: Any, path: str) -> str | None:
            found = filesystem.info(path).get("ETag")
            return found if isinstance(found, str) else None

        return self._call(file, "be looked up", etag)

    def reader(self, file: str, size: int) -> IO[bytes]:
        """Opens a file of `size` bytes for random access. See `open_range_reader`."""
        filesystem, path = self._resolve(file)
        return open_range_reader(filesystem, path, size, join(self.name, file))

    def size(self, file: str) -> int | None:
        def size(filesystem: Any, path: str) -> int | None:
            info = filesystem.info(path)
            return int(info["size"]) if info["type"] == "file" else None

        try:
            return self._call(file, "be looked up", size)
        except FileNotFoundError:
            return None

    def files(self, folder: str = "") -> list[str]:
        return sorted(self._listed(folder))

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Returns the names of `files` with their sizes in bytes.

        One request lists some thousand files.

        Raises:
            RemoteError: the server does not list sizes, or cannot be reached.
        """
        listed = self._listed(folder)
        for name, info in listed.items():
            if info["size"] is None:
                raise RemoteError(
                    "its server does not list sizes of files, as web servers do not",
                    file=join(self.name, name),
                    hint="download the dataset, or put it into a bucket",
                )
        return {name: int(info["size"]) for name, info in listed.items()}

    def times(self, folder: str = "") -> dict[str, datetime]:
        """Returns the names of `files` with the times when they were written, by the clock of the server.

        Files without a time are left out.
        """
        times = {name: info.get("LastModified") for name, info in self._listed(folder).items()}
        return {name: time for name, time in times.items() if isinstance(time, datetime)}

    def _listed(self, folder: str) -> dict[str, dict[str, Any]]:
        """Returns the files of a folder, with what the server says about each."""

        def listed(filesystem: Any, path: str) -> dict[str, dict[str, Any]]:
            root = self._resolve("")[1].rstrip("/") + "/"
            found = filesystem.find(path, detail=True)
            # Object stores match names by prefix, and list empty objects that stand for folders.
            return {
                name.removeprefix(root): info
                for name, info in found.items()
                if name.startswith(path.rstrip("/") + "/") and info["type"] == "file" and not name.endswith("/")
            }

        try:
            return self._call(folder, "be listed", listed, MANY)
        except FileNotFoundError:
            return {}

    def remove(self, file: str) -> None:
        if _is_pattern(self._resolve(file)[1]):
            self._remove_each([*self.files(file), *([] if self.size(file) is None else [file])])
            return
        with suppress(FileNotFoundError):
            self._call(file, "be removed", lambda filesystem, path: filesystem.rm(path, recursive=True), MANY)

    def clear(self, folder: str, keep: str) -> None:
        self.remove_all([file for file in self.files(folder) if file != keep])

    def remove_all(self, files: Sequence[str]) -> None:
        """Removes the files that exist. One request removes some thousand objects."""
        paths = {file: self._resolve(file)[1] for file in files}
        self._remove_each([file for file, path in paths.items() if _is_pattern(path)])
        if plain := [path for path in paths.values() if not _is_pattern(path)]:
            with suppress(FileNotFoundError):
                self._call("", "be cleared", lambda filesystem, _: filesystem.rm(plain), MANY)

    def _remove_each(self, files: Sequence[str]) -> None:
        for file in files:
            with suppress(FileNotFoundError):
                self._call(file, "be removed", lambda filesystem, path: filesystem.rm_file(path))

    @contextmanager
    def locked(self, folder: str, wait: bool = False) -> Iterator[FolderLock]:
        with folder_claim(self, f"{folder}/{LOCK_NAME}", hint=IN_USE_HINT, wait=wait) as lock:
            yield lock

    def create(self, file: str, text: str) -> None:
        """Writes a small file that does not exist.

        If the file exists, stores that support conditional writes raise an error; others replace it.

        Raises:
            RemoteError: the file exists, or the server cannot be reached.
            UnwritableError: the bucket does not exist, or the server refuses the write.
        """

        def put(filesystem: Any, path: str) -> None:
            try:
                filesystem.put_file(str(local), path, mode="create")
            except TypeError:  # no such parameter
                filesystem.put_file(str(local), path)

        with ExitStack() as stack:
            with typed_write_errors(Path(tempfile.gettempdir())):
                local = stack.enter_context(scratch_folder()) / "claim"
                local.write_text(text, encoding="utf-8")
            with self._typed_upload_errors(file):
                self._call(file, "be written", put)

    @contextmanager
    def _typed_upload_errors(self, file: str) -> Iterator[None]:
        url = join(self.name, file)
        try:
            yield
        except FileNotFoundError as error:
            raise UnwritableError(
                "cannot be written: no such bucket or folder", file=url, hint="create the bucket, or check the URL"
            ) from error
        except RemoteError as error:
            if isinstance(error.__cause__, PermissionError):
                raise UnwritableError(error.message, file=url) from error
            raise

    def _call(self, file: str, action: str, call: Callable[[Any, str], _Result], requests: int = 1) -> _Result:
        """Calls `call(filesystem, path of the file)`, and retries transient failures."""
        filesystem, path = self._resolve(file)

        def attempt() -> _Result:
            # fsspec's cached listings miss files that other processes wrote.
            filesystem.invalidate_cache()
            return call(filesystem, path)

        return with_retries(attempt, action, join(self.name, file), requests)

    def _resolve(self, file: str) -> tuple[Any, str]:
        # Only the folder's URL is parsed. In a file's URL, "::" from its name would point to another place.
        filesystem, root = filesystem_of(self.name)
        return filesystem, join(root, file)


def _is_pattern(path: str) -> bool:
    """Returns whether fsspec's `rm` takes a path for a pattern, which may name files of other folders."""
    return any(sign in path for sign in "*?[")
