"""Locates a source: local files, files behind an fsspec URL, or objects in memory."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import PurePosixPath
from typing import IO, Any
from urllib.parse import quote, unquote

import pyarrow as pa

from gear_data.common.extras import import_datasets
from gear_data.common.paths import is_remote, is_utf8, missing_hint, plain_path, printable
from gear_data.common.retry import MANY, is_transient, with_retries
from gear_data.errors import (
    CorruptSourceError,
    GearError,
    InvalidArgumentError,
    RemoteError,
    SourceNotFoundError,
    UnknownFormatError,
    refuse_exhausted,
)
from gear_data.ingest.sources.memory.transitions import as_table, holds_arrays, holds_transitions, transition_episodes
from gear_data.ingest.splits import choose_split, several_splits
from gear_data.ingest.table_options import TableOptions
from gear_data.storage.manifest import MANIFEST_NAME
from gear_data.storage.remote.hub_rows import HubRows
from gear_data.storage.remote.range_reader import filesystem_of, open_range_reader
from gear_data.storage.remote.range_requests import contents_name, is_hub, is_web_server

_HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")
#: A dataset of the hub in its file system: name, revision, path.
_HUB_PATH = re.compile(r"datasets/([^/@]+/[^/@]+)(?:@([^/]+))?(/.*)?")
#: The file that LeRobot's datasets have. Their cameras are not in the rows that `datasets` reads.
_LEROBOT = "meta/info.json"
#: Files of a dataset of gear-data. Its card shows `datasets` the shards, which do not say where episodes begin.
_OF_GEAR = frozenset({MANIFEST_NAME, "episodes.arrow"})
_DATA_SUFFIXES = (".parquet", ".hdf5", ".h5", ".npz", ".arrow", ".feather", ".json", ".jsonl", ".csv", ".tsv", ".tar")
_HDF5_SUFFIXES = (".hdf5", ".h5")
#: Suffixes of files that are read as more episodes if the folder has another name of them.
_EPISODE_SUFFIXES = (*_DATA_SUFFIXES, ".npy", ".arrows", ".ndjson", ".gz", ".zst", ".zip")
#: What servers call that which changes when a file changes.
_STAMPS = ("ETag", "etag", "mtime", "LastModified", "Last-Modified", "blob_id")
#: Requests at once.
_REQUESTS = 32
_LFS_POINTER = b"version https://git-lfs"
#: More folders than this usually hold one episode each.
_FEW_FOLDERS = 64
#: Hidden files that are listed: they describe the arrays of a Zarr store of version 2.
_LISTED_HIDDEN = frozenset({".zarray", ".zattrs", ".zgroup"})


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a source.

    Attributes:
        path: the path in its file system.
        name: the path relative to the source's root, for messages and the episode table.
        size: the size in bytes.
        stamp: the modification time or ETag. It changes when the file changes.
        filesystem: an fsspec file system, or None for a local file.
        contents: the name by which a server can be asked for these contents (`contents_name`); empty if it has none.
    """

    path: str
    name: str
    size: int
    stamp: str = ""
    filesystem: Any = None
    contents: str = ""

    def open(self) -> IO[bytes]:
        """Opens the file. Raises CorruptSourceError if that fails."""
        if self.filesystem is not None:
            return open_range_reader(self.filesystem, self.path, self.size, self.name)
        try:
            return open(self.path, "rb")
        except OSError as error:
            raise _unreadable(self.name, error) from error

    def check_readable(self) -> None:
        """Raises CorruptSourceError if the file is empty or a Git-LFS pointer."""
        if self.size == 0:
            raise CorruptSourceError("the file is empty", file=self.name, hint="download it again")
        with self.open() as file:
            head = file.read(len(_LFS_POINTER))
        if head == _LFS_POINTER:
            raise CorruptSourceError(
                "this is a Git-LFS pointer, not the file",
                file=self.name,
                hint="download the contents with 'git lfs pull'",
            )


@dataclass(frozen=True)
class Location:
    """A located source.

    Attributes:
        name: the path, URL or hub id, or the type of an object in memory.
        files: the files, for paths and URLs.
        dataset: a HuggingFace dataset object.
        folder: whether the path or URL is a folder.
        episodes: an iterable of episodes in memory, or a function that returns one.
        arrays: arrays of steps in memory: name -> [N, ...].
        table: a table in memory.
        split: the split that the format must choose; None if the files are of one split.
        rename: source name -> the name that the user gives the column. Formats are recognised by these names.
        tables: how the values of tables are read.
        episode_columns: the columns that the user names as ids of the episodes.
        parts: the locations of several sources or splits that are read as one; empty for one source.
    """

    name: str
    files: tuple[SourceFile, ...] = ()
    dataset: Any = None
    folder: bool = False
    episodes: Any = None
    arrays: Mapping[str, Any] | None = None
    table: pa.Table | None = None
    split: str | None = None
    rename: Mapping[str, str] = field(default_factory=dict)
    tables: TableOptions = field(default_factory=TableOptions)
    episode_columns: tuple[str, ...] = ()
    parts: tuple[Location, ...] = ()

    def with_suffix(self, *suffixes: str) -> tuple[SourceFile, ...]:
        """Returns the files with one of the suffixes, in any case."""
        names = self._lower_names
        return tuple([file for file, name in zip(self.files, names, strict=True) if name.endswith(suffixes)])

    @cached_property
    def _lower_names(self) -> list[str]:
        return [file.name.lower() for file in self.files]

    def file(self, name: str) -> SourceFile | None:
        """Returns the file of a name relative to the root; None if it does not exist."""
        return next((file for file in self.files if file.name == name), None)


@contextmanager
def placed(file: str, column: str | None = None) -> Iterator[None]:
    """Says in which file and column errors of the block are, if they name no file."""
    try:
        yield
    except GearError as error:
        if not error.file:
            error.file, error.column = file, column if error.column is None else error.column
        raise


def listed(names: Iterable[object]) -> str:
    """Returns the first ten names, for a message."""
    first = [str(name) for name in islice(names, 11)]
    return ", ".join([*first[:10], "..."] if len(first) > 10 else first)


def holds_several(what: str, names: Iterable[object], hint: str) -> UnknownFormatError:
    """Returns the error for a source that holds several datasets, of which one can be read."""
    return UnknownFormatError(f"holds several {what}: {listed(names)}", hint=hint)


def separate_datasets_hint(names: Sequence[str], one: str, other: str) -> str | None:
    """Returns a hint for a source whose folders are separate datasets.

    Args:
        names: the names of all files.
        one: the name of a file.
        other: the name of a file that does not fit together with it.

    Returns:
        The hint; None if the two files are in the same folder.
    """
    if PurePosixPath(one).parent == PurePosixPath(other).parent:
        return None
    folders = listed(_first_of_folders(names))
    return f"if the folders are separate datasets, convert one folder at a time: {folders}"


def files_to_compare(names: Sequence[str], sizes: Sequence[int], large: int) -> list[int]:
    """Returns the indices of the files to compare with the first file before reading.

    Otherwise a folder of several datasets would be refused only after the first dataset was read. Opening these files
    takes little time: they are the first files of the folders, if there are few folders, and the large files.

    Args:
        names: the names of all files.
        sizes: their sizes, in bytes.
        large: the size above which a file is large, in bytes.
    """
    if len(names) < 2:
        return []
    firsts = _first_of_folders(names)
    chosen = set(firsts.values()) if len(firsts) <= _FEW_FOLDERS else set()
    return sorted({*chosen, *(index for index, size in enumerate(sizes) if size > large)} - {0})


def _first_of_folders(names: Sequence[str]) -> dict[str, int]:
    """Returns folder -> index of its first file, for the topmost folders that differ."""
    parents: dict[str, int] = {}
    for index, name in enumerate(names):
        parents.setdefault(name.rpartition("/")[0], index)
    depth = len(PurePosixPath(os.path.commonpath(parents)).parts)
    folders: dict[str, int] = {}
    for parent, index in parents.items():
        parts = PurePosixPath(parent).parts
        if len(parts) > depth:
            folders.setdefault("/".join(parts[: depth + 1]), index)
    return folders


def locate(source: Any, split: str | None, *, follow_links: bool = False) -> Location:
    """Locates a source: a path, a URL, a hub id, or an object in memory.

    Args:
        source: the source, as in `convert`.
        split: the split to read; None if the source has only one.
        follow_links: whether symbolic links may lead out of a folder.

    Raises:
        SourceNotFoundError: the source does not exist.
        UnknownFormatError: the hub id is of a dataset of gear-data.
        InvalidArgumentError: the split is missing or does not exist, the kind of URL is unknown, or a link leads out of
            the folder.
        RemoteError: the server cannot be reached.
        MissingExtraError: the package for this kind of URL is not installed.
    """
    if not isinstance(source, str | os.PathLike):
        return _object(source, split)
    text = plain_path(source)
    if not is_remote(text) and not os.path.exists(text) and is_hub_name(text):
        return _hub(text, split)
    location = locate_files(text, follow_links=follow_links)
    if location.folder:
        return _choose_split(location, split)
    return location if is_remote(text) else replace(location, split=split)


def is_hub_name(text: str) -> bool:
    """Returns whether a text has the form of a dataset's name on the hub, USER/NAME or USER/NAME@REVISION."""
    return _HUB_ID.fullmatch(text) is not None and not text.lower().endswith(_DATA_SUFFIXES)


def locate_files(text: str, *, follow_links: bool = False) -> Location:
    """Returns the location of all files of a path or URL, of all splits. Raises the errors of `locate`."""
    if is_remote(text):
        return _remote(text)
    if os.path.isdir(text):
        return _local_folder(text, _Links(text, follow_links))
    if os.path.exists(text):
        file = _local_file(text, os.path.basename(text))
        if file is None:
            raise SourceNotFoundError("is neither a file nor a folder", file=text, hint="give a file or a folder")
        return Location(text, (file, *_json_beside(text)))
    raise SourceNotFoundError("no such file or folder", file=text, hint=missing_hint(text))


class _Links:
    """The symbolic links of a folder.

    A link to a folder that is read anyway is left out: else its files would be read twice. A snapshot in the cache of
    the HuggingFace hub consists of links to the files of its repository (`blobs`).

    Args:
        root: the folder.
        follow: whether links may lead out of it.
    """

    def __init__(self, root: str, follow: bool) -> None:
        self._read = [os.path.realpath(root)]
        self._follow = follow
        repository, found, _ = self._read[0].partition(f"{os.sep}snapshots{os.sep}")
        self._inside = [self._read[0], os.path.join(repository, "blobs")] if found else self._read

    def check(self, path: str, name: str) -> None:
        """Raises InvalidArgumentError if a file is a link that must not be followed."""
        if os.path.islink(path):
            target = os.path.realpath(path)
            if self._is_second_name(path, target):
                raise InvalidArgumentError(
                    f"is a link to a file that is in the folder, too: its episodes would be read twice ({target})",
                    file=printable(name),
                    hint="remove the link; or put a copy in its place, if the episodes count twice",
                )
            if not self._follow and not _is_below(target, self._inside):
                raise InvalidArgumentError(
                    f"is a link that leads out of the folder, to {printable(target)}",
                    file=printable(name),
                    hint="to read it all the same: follow_links=True (--follow-links)",
                )

    def _is_second_name(self, path: str, target: str) -> bool:
        """Returns whether a link leads to a file of episodes that is listed anyway."""
        suffix = os.path.splitext(path)[1].lower()
        inside = next((target[len(each) :] for each in self._read if _is_below(target, [each])), "")
        is_listed = bool(inside) and not any(map(_is_hidden, inside.strip(os.sep).split(os.sep)))
        return is_listed and suffix in _EPISODE_SUFFIXES and target.lower().endswith(suffix)

    def is_new(self, path: str, name: str) -> bool:
        """Returns whether the files of a folder must be read. Raises InvalidArgumentError as `check` does."""
        if not os.path.islink(path):
            return True
        target = os.path.realpath(path)
        if _is_below(target, self._read):
            return False
        self.check(path, name)
        self._read.append(target)
        return True


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders)


def _local_folder(root: str, links: _Links) -> Location:
    def refuse(error: OSError) -> None:
        raise _unreadable(str(error.filename), error) from error

    files = []
    for folder, folders, names in os.walk(root, onerror=refuse, followlinks=True):
        inside = "" if folder == root else f"{os.path.relpath(folder, root)}/"
        shown = sorted(name for name in folders if not name.startswith("."))
        folders[:] = [name for name in shown if links.is_new(os.path.join(folder, name), inside + name)]
        for name in names:
            if _is_hidden(name):
                continue
            file = _local_file(os.path.join(folder, name), inside + name)
            if file is None:
                raise _special(inside + name)
            links.check(file.path, file.name)
            files.append(file)
    return Location(root, tuple(sorted(files, key=_natural_order)), folder=True)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") and name not in _LISTED_HIDDEN


def _local_file(path: str, name: str) -> SourceFile | None:
    """Returns a file, or None for special files such as pipes."""
    if not is_utf8(name):
        raise CorruptSourceError("the name is not UTF-8", file=printable(name), hint="rename it")
    try:
        status = os.stat(path)
    except OSError as error:
        raise _unreadable(name, error) from error
    if not stat.S_ISREG(status.st_mode):
        return None
    return SourceFile(path, name, status.st_size, str(status.st_mtime_ns))


def _json_beside(path: str) -> list[SourceFile]:
    """Returns the JSON file of the same name beside an HDF5 file: it may have facts about the episodes."""
    stem, suffix = os.path.splitext(path)
    beside = f"{stem}.json"
    if suffix.lower() not in _HDF5_SUFFIXES or not os.path.isfile(beside):
        return []
    found = _local_file(beside, os.path.basename(beside))
    return [] if found is None else [found]


def _special(name: str) -> CorruptSourceError:
    """Returns the error for a pipe, a device or a socket in a folder.

    If it were left out, a pipe in the place of rewards.npy would lose a column in silence. Libraries that read the
    folder themselves would wait for its data forever.
    """
    return CorruptSourceError("is a pipe, a device or a socket, not a file", file=name, hint="remove it")


def _unreadable(name: str, error: OSError) -> CorruptSourceError:
    refuse_exhausted(error, printable(name))
    hint = "check whether it is a link to a missing file; download it again"
    if isinstance(error, PermissionError):
        hint = "check its permissions"
    return CorruptSourceError(f"cannot be read: {error.strerror}", file=printable(name), hint=hint)


def _remote(url: str) -> Location:
    filesystem, root = filesystem_of(url)
    try:
        if is_hub(filesystem):
            root = _at_commit(root, url)
        found = with_retries(lambda: _listed_files(filesystem, root), "be listed", url, MANY)
    except FileNotFoundError:
        found = {}
    # Consoles of object stores make empty objects that stand for folders.
    found = {path: info for path, info in found.items() if not path.endswith("/") or info.get("size")}
    if not found:
        raise SourceNotFoundError("no such file or folder", file=url, hint="check the URL, and whether you may read it")
    folder = root not in found
    files = []
    for path, info in _with_sizes(filesystem, found, url).items():
        name = str(PurePosixPath(path).relative_to(root)) if folder else _file_name(path)
        if not any(map(_is_hidden, PurePosixPath(name).parts)):
            stamp = next((str(info[key]) for key in _STAMPS if info.get(key)), "")
            if info["type"] == "other":  # of a file system of this machine
                raise _special(name)
            if info["size"] is None:
                raise RemoteError(
                    "the server does not report the size of the file", file=path, hint="download it first"
                )
            contents = contents_name(filesystem, path, info)
            files.append(SourceFile(path, name, int(info["size"]), stamp, filesystem, contents))
    return Location(url, tuple(sorted(files, key=_natural_order)), folder=folder)


def _file_name(path: str) -> str:
    """Returns the name of a file that is given itself. A web server's path may have a query: `hops.hdf5?download=1`."""
    before = PurePosixPath(path.partition("?")[0]).name
    return before if PurePosixPath(before).suffix else PurePosixPath(path).name


def _listed_files(filesystem: Any, root: str) -> dict[str, Any]:
    """Returns the files at or below a path, with what the server says about each.

    Raises:
        FileNotFoundError: there is no such file or folder, if the server says so.
    """
    if not is_web_server(filesystem):
        return filesystem.find(root, detail=True)  # type: ignore[no-any-return]
    # fsspec's `find` leaves out folders whose listing fails, and takes links that sort a listing for files.
    found: dict[str, Any] = {}
    folders, known = [root], {PurePosixPath(root)}
    while folders:
        folder = folders.pop()
        try:
            listed = filesystem.ls(folder, detail=True)
        except FileNotFoundError:
            if folder == root:
                raise
            continue
        for info in listed:
            place = PurePosixPath(info["name"])
            if place in known or ".." in place.parts or any(sign in info["name"][len(root) :] for sign in "?#"):
                continue
            known.add(place)
            if info["type"] == "directory":
                folders.append(info["name"])
            else:
                found[info["name"]] = info
    return found if found or root.endswith("/") else {root: {}}


def _with_sizes(filesystem: Any, found: Mapping[str, Any], url: str) -> dict[str, Any]:
    """Returns what a server says about files. A web server lists names only, and is asked for each file.

    Args:
        filesystem: fsspec file system.
        found: path -> what the listing says about it.
        url: the URL, for errors.
    """

    def asked(path: str) -> Any:
        try:
            return with_retries(lambda: filesystem.info(path), "be looked up", url)
        except FileNotFoundError as error:
            raise SourceNotFoundError(
                "the server lists it, and does not send it",
                file=path,
                hint="check the URL, and whether you may read it",
            ) from error

    # Nothing is known of a file that is given itself.
    unknown = [path for path, info in found.items() if not info or (info["size"] is None and info["type"] == "file")]
    with ThreadPoolExecutor(_REQUESTS, "gear-sizes") as threads:
        return {**found, **dict(zip(unknown, threads.map(asked, unknown), strict=True))}


def _natural_order(file: SourceFile) -> list[Any]:
    """Returns a sort key that orders episode_2 before episode_10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", file.name)]


def _choose_split(location: Location, split: str | None) -> Location:
    """Keeps the files of one split of a folder, if names say the split."""
    files, left = choose_split(location.name, location.files, split)
    return replace(location, files=tuple(files), split=left)


def _object(source: Any, split: str | None) -> Location:
    """Returns the location of an object of `datasets`, or of data in memory."""
    if isinstance(source, dict) and source and all(hasattr(value, "features") for value in source.values()):
        # DatasetDict and IterableDatasetDict
        if split is None and len(source) == 1:
            split = next(iter(source))
        if split is None:
            raise several_splits(type(source).__name__, source)
        if split not in source:
            raise InvalidArgumentError(
                f"the source has the splits {', '.join(source)}, not {split!r}", hint="choose one with split= (--split)"
            )
        source, split = source[split], None
    datasets = sys.modules.get("datasets")  # its import takes seconds, and its objects exist only if it was imported
    if datasets is None or not isinstance(source, datasets.Dataset | datasets.IterableDataset):
        return _in_memory(source, split)
    if split is not None and str(source.split) != split:
        raise InvalidArgumentError(f"this dataset is the split '{source.split}', not '{split}'", hint="leave split out")
    return Location(f"datasets.{type(source).__name__}", dataset=source)


def _in_memory(source: Any, split: str | None) -> Location:
    """Returns the location of data in memory.

    The source is a table, a mapping of arrays, a list of transitions, an iterable of episodes, or a function that
    returns such an iterable.
    """
    iterable = hasattr(source, "__iter__") or hasattr(source, "__getitem__") or callable(source)
    table = as_table(source)
    is_empty = isinstance(source, Mapping) and not source
    if table is None and (not iterable or is_empty or isinstance(source, bytes | bytearray | type)):
        raise InvalidArgumentError(
            "a source must be a path, a URL, a hub id, a datasets.Dataset, an iterable of episodes, a mapping of "
            f"arrays, a table or a list of transitions, not {type(source).__name__}"
        )
    # Compared by name, because ingest does not import the layers above it.
    if type(source).__module__ == "gear_data.dataset.dataset":
        raise InvalidArgumentError(
            "the source is a GEAR dataset; iterating over it loses final observations and metadata",
            hint="export a view with gear_data.export(view, folder), then convert that folder",
        )
    if split is not None:
        raise InvalidArgumentError("data in memory has no splits", hint="leave split out")
    name = f"{type(source).__name__} in memory"
    if table is not None:
        return Location(name, table=table)
    if holds_transitions(source):
        return Location(name, episodes=transition_episodes(source, name))
    return Location(name, arrays=source) if holds_arrays(source) else Location(name, episodes=source)


def hub_commit(name: str) -> str:
    """Returns the hash of the newest commit of a dataset on the hub, or of its revision, by one request.

    Raises:
        SourceNotFoundError: the hub has no such dataset or revision, refuses access, or is not asked (offline mode).
        RemoteError: the hub cannot be reached, or limits how often it is asked. The request was tried several times.
    """
    return str(_hub_info(name).sha)


def _hub_info(name: str) -> Any:
    """Returns what the hub says about a dataset. Raises the errors of `hub_commit`."""
    repository, revision = _hub_parts(name)
    action = "be looked up on the hub (it is no folder here)"
    with _typed_hub_errors(name):
        return with_retries(lambda: _dataset_info(repository, revision), action, name, MANY)


def _dataset_info(repository: str, revision: str | None) -> Any:
    from huggingface_hub import HfApi

    return HfApi().dataset_info(repository, revision=revision)


def _hub_parts(name: str) -> tuple[str, str | None]:
    """Returns USER/NAME and the revision of a name on the hub."""
    repository, _, revision = name.partition("@")
    return repository, revision or None


def _at_commit(path: str, url: str) -> str:
    """Returns the path of a dataset in the hub's file system, at the commit that its revision has now.

    So all files are of one commit, also those that are read later.

    Raises:
        FileNotFoundError: the hub has no such dataset or revision.
        RemoteError: the hub cannot be reached.
    """
    found = _HUB_PATH.fullmatch(path)
    if found is None or found[2] == "refs":  # refs/..., whose end only the hub knows
        return path
    repository, revision = found[1], unquote(found[2]) if found[2] else None

    def commit() -> str:
        from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

        try:
            return str(_dataset_info(repository, revision).sha)
        except (RepositoryNotFoundError, RevisionNotFoundError) as error:
            raise FileNotFoundError(str(error)) from error

    return f"datasets/{repository}@{with_retries(commit, 'be listed', url, MANY)}{found[3] or ''}"


def _hub(name: str, split: str | None) -> Location:
    info, (repository, revision) = _hub_info(name), _hub_parts(name)
    files = {each.rfilename for each in info.siblings or ()}
    if files >= _OF_GEAR:
        at, flag = ("", "") if revision is None else (f"@{quote(revision, safe='')}", f" --revision {revision}")
        raise UnknownFormatError(
            "is already a gear dataset",
            file=name,
            hint=f"open it by its URL, hf://datasets/{repository}{at}; or copy it: "
            f"gear-data pull {repository} FOLDER{flag}",
        )
    if _LEROBOT in files:
        location = _remote(f"hf://datasets/{repository}@{info.sha}")
        return _choose_split(replace(location, name=name), split)
    with _typed_hub_errors(name):
        found = with_retries(
            lambda: import_datasets().load_dataset(repository, revision=revision, split=split, streaming=True),
            "be read",
            name,
            MANY,
        )
    return Location(name, dataset=HubRows(_object(found, split if isinstance(found, dict) else None).dataset, name))


@contextmanager
def _typed_hub_errors(name: str) -> Iterator[None]:
    """Converts errors of the block, which asks the hub about a dataset. Transient failures stay RemoteErrors."""
    try:
        yield
    except Exception as error:  # datasets raises many kinds of errors, and so does its HTTP client
        if isinstance(error, GearError) and (not isinstance(error, RemoteError) or is_transient(error)):
            raise
        cause = error.__cause__ if isinstance(error, RemoteError) and error.__cause__ is not None else error
        raise SourceNotFoundError(
            f"no such file or folder, and it cannot be read as a hub dataset: {type(cause).__name__}: {cause}",
            file=name,
            hint="check the path; a hub dataset needs network access, and a login if it is private",
        ) from cause
