"""Puts video files into a dataset's folder: as clones, hard links or copies. Restores damaged ones."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from gear_data.errors import CorruptShardError, SourceChangedError
from gear_data.ingest.location import SourceFile
from gear_data.ingest.source import SourceVideos
from gear_data.ingest.videos.storage_options import KEEP
from gear_data.storage.atomic import checksum, link_file
from gear_data.storage.manifest import Manifest
from gear_data.storage.videos.mapped import is_kept
from gear_data.storage.writing.file_store import FileStore, LocalFileStore
from gear_data.video.file_index import VideoFile
from gear_data.video.index_tables import VideoIndex

#: The folder of a dataset that has its video files.
VIDEOS = "videos"
#: ioctl of Linux: the file shares the blocks of another file until one of them changes.
_FICLONE = 0x40049409


class _NoCloneError(Exception):
    """Raised where the file system cannot clone a file."""


def kept_names(files: Sequence[SourceFile]) -> list[str]:
    """Returns the path of each file in the dataset's folder, all different.

    It is the path in the source, below `videos/`. Of files with one name, the second gets the folder `videos/2/`. Names
    that differ only in upper and lower case count as one name, because some file systems hold only one of them.
    """
    names: dict[str, str] = {}
    for file in files:
        parts = [part for part in PurePosixPath(file.name).parts if part not in ("/", "..", ".")]
        if len(parts) > 1 and parts[0] in (VIDEOS, "video"):
            parts = parts[1:]
        name, again = "/".join([VIDEOS, *parts]), 1
        while name.casefold() in names:
            again += 1
            name = "/".join([VIDEOS, str(again), *parts])
        names[name.casefold()] = name
    return list(names.values())


def linked_name(file: SourceFile) -> str:
    """Returns the absolute path or the URL of a file."""
    if file.filesystem is None:
        return os.path.abspath(file.path)
    return str(file.filesystem.unstrip_protocol(file.path))


def place(store: FileStore, source: Path, name: str, video: VideoFile) -> None:
    """Puts a file that was indexed into the dataset's folder.

    The file becomes a clone (reflink) or a hard link where the file systems can, else a copy.

    Args:
        store: the dataset's folder.
        source: the file.
        name: its path in the folder.
        video: its index.

    Raises:
        SourceChangedError: the file changed since it was indexed, or is gone.
        StorageFullError, UnwritableError: the folder cannot be written to.
    """
    if not source.is_file():
        raise SourceChangedError("was removed while it was read", file=str(source), hint="restore the file")
    if isinstance(store, LocalFileStore):
        with suppress(_NoCloneError):
            with store.writing(name) as path:
                _clone(source, path)
            return _check_size(store.folder / name, source, video)
        if link_file(source, store.folder / name):
            return _check_size(store.folder / name, source, video)
    with store.writing(name) as path:
        shutil.copyfile(source, path)
        if checksum(path) != video.checksum:
            raise _changed(source)


def _clone(source: Path, path: Path) -> None:
    """Raises _NoCloneError if the file system cannot clone, or the files are on two."""
    with open(source, "rb") as old, open(path, "wb") as new:
        try:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        except OSError as error:
            raise _NoCloneError from error


def _check_size(path: Path, source: Path, video: VideoFile) -> None:
    # A clone or a link is not read again: `verify` compares its checksum later.
    if path.stat().st_size != video.size:
        raise _changed(source)


def _changed(source: Path) -> SourceChangedError:
    return SourceChangedError(
        "changed while it was read", file=str(source), hint="convert again with --overwrite (overwrite=True)"
    )


def kept_video_bytes(manifest: Manifest) -> int:
    """Returns the size of the video files in a dataset's folder."""
    videos = manifest.provenance.get("videos", {})
    return int(videos.get("bytes", 0)) if videos.get("mode") == KEEP else 0


_CONVERT_AGAIN = "restore the original file, or convert the source again"


def restore_videos(folder: Path, index: VideoIndex, bad: Collection[str], videos: SourceVideos) -> None:
    """Copies damaged video files from the source.

    A file is replaced only if the copy has its checksum.

    Args:
        folder: the dataset.
        index: its video files.
        bad: the files to restore, by their names in the index.
        videos: the cameras of the source.

    Raises:
        CorruptShardError: a file is not in the dataset's folder: the dataset only refers to it.
        SourceChangedError: the source does not have the file, or has another one.
    """
    store = LocalFileStore(folder)
    sources = dict(zip(kept_names(videos.files), videos.files, strict=True))
    checksums = dict(zip(*(index.files.column(name).to_pylist() for name in ("file", "checksum")), strict=True))
    for name in bad:
        if not is_kept(name):
            raise CorruptShardError(
                "this video file is damaged, and is not in the dataset's folder", file=name, hint=_CONVERT_AGAIN
            )
        source = sources.get(name)
        if source is None:
            raise SourceChangedError("the source does not have this video file", file=name, hint=_CONVERT_AGAIN)
        with store.writing(name) as path:
            with source.open() as old, open(path, "wb") as new:
                shutil.copyfileobj(old, new, 8 << 20)
            if checksum(path) != checksums[name]:
                raise SourceChangedError(
                    f"is not the file of which the dataset has {name}", file=source.name, hint=_CONVERT_AGAIN
                )
