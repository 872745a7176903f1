"""Restores damaged video files of a dataset from its source."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from gear_data.errors import CorruptShardError, SourceChangedError
from gear_data.ingest.videos.placing import kept_names
from gear_data.ingest.videos.source_videos import SourceVideos
from gear_data.storage.atomic import checksum
from gear_data.storage.videos.mapped import is_kept
from gear_data.storage.writing.file_store import LocalFileStore
from gear_data.video.index_tables import VideoIndex

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
