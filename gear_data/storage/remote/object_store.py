"""Where a dataset is written: a folder, or an fsspec URL."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from gear_data.common.retry import with_retries
from gear_data.errors import RemoteError, UnwritableError
from gear_data.storage.atomic import typed_write_errors
from gear_data.storage.remote.files import filesystem_of, is_remote, join, open_range_reader
from gear_data.storage.writing.file_store import FileStore, LocalFileStore

__all__ = ["ObjectStore", "is_remote", "open_file_store"]

_Result = TypeVar("_Result")


def open_file_store(destination: str | Path) -> FileStore:
    """The folder at a path or a URL.

    Raises:
        MissingExtraError, InvalidArgumentError: a URL that cannot be used, see `filesystem_of`.
    """
    if isinstance(destination, str) and is_remote(destination):
        return ObjectStore(destination)
    return LocalFileStore(Path(destination))


class ObjectStore:
    """A folder behind an fsspec URL. Object stores show a file when all of it is there, and not before; on other
    servers a file may be seen half-written, but not in a dataset whose manifest is there.

    Its methods raise RemoteError where the server cannot be reached; all try again first.
    """

    def __init__(self, url: str) -> None:
        filesystem_of(url)
        self.name = url.rstrip("/")

    @contextmanager
    def writing(self, file: str) -> Iterator[Path]:
        url = join(self.name, file)
        with tempfile.TemporaryDirectory(prefix="gear-data-") as folder:
            path = Path(folder, Path(file).name)
            with typed_write_errors(path):
                yield path
            try:
                with_retries(lambda: self._upload(path, file), "be written", url)
            except FileNotFoundError as error:
                raise UnwritableError("cannot be written: no such bucket or folder", file=url) from error
            except RemoteError as error:
                if isinstance(error.__cause__, PermissionError):
                    raise UnwritableError(error.message, file=url) from error
                raise

    def _upload(self, path: Path, file: str) -> None:
        filesystem, place = self._place(file)
        filesystem.put_file(str(path), place)
        filesystem.invalidate_cache()
        found, wanted = filesystem.info(place)["size"], path.stat().st_size
        if found != wanted:
            raise ConnectionError(f"{found} bytes arrived of {wanted}")

    def read(self, file: str) -> bytes:
        def read(filesystem: Any, place: str) -> bytes:
            return filesystem.cat_file(place)  # type: ignore[no-any-return]

        return self._call(file, "be read", read)

    def reader(self, file: str, size: int) -> IO[bytes]:
        """A file of so many bytes for reading at any place, see `open_range_reader`."""
        filesystem, place = self._place(file)
        return open_range_reader(filesystem, place, size, join(self.name, file))

    def size(self, file: str) -> int | None:
        def size(filesystem: Any, place: str) -> int | None:
            info = filesystem.info(place)
            return int(info["size"]) if info["type"] == "file" else None

        try:
            return self._call(file, "be looked up", size)
        except FileNotFoundError:
            return None

    def files(self, folder: str = "") -> list[str]:
        return sorted(self.sizes(folder))

    def sizes(self, folder: str = "") -> dict[str, int]:
        """The files that `files` names, and the bytes of each; one request for some thousand files."""

        def sizes(filesystem: Any, place: str) -> dict[str, int]:
            root = self._place("")[1].rstrip("/") + "/"
            found = filesystem.find(place, detail=True)
            # Object stores match names by how they begin, and show empty objects that stand for folders.
            return {
                path.removeprefix(root): int(info["size"])
                for path, info in found.items()
                if path.startswith(place.rstrip("/") + "/") and info["type"] == "file" and not path.endswith("/")
            }

        try:
            return self._call(folder, "be listed", sizes)
        except FileNotFoundError:
            return {}

    def remove(self, file: str) -> None:
        with suppress(FileNotFoundError):
            self._call(file, "be removed", lambda filesystem, place: filesystem.rm(place, recursive=True))

    @contextmanager
    def locked(self, file: str) -> Iterator[None]:
        """Nothing is held: such places have no locks."""
        yield

    def _call(self, file: str, what: str, call: Callable[[Any, str], _Result]) -> _Result:
        def attempt() -> _Result:
            filesystem, place = self._place(file)
            # What it keeps of listings does not know what other processes wrote.
            filesystem.invalidate_cache()
            return call(filesystem, place)

        return with_retries(attempt, what, join(self.name, file))

    def _place(self, file: str) -> tuple[Any, str]:
        # Not of the file's own URL: in one, "::" and what follows would be another place.
        filesystem, root = filesystem_of(self.name)
        return filesystem, join(root, file)
