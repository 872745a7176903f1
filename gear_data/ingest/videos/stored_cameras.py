"""Cameras as a dataset stores them: as files, or as decoded columns."""

from __future__ import annotations

from collections.abc import Sequence

from gear_data.ingest.location import SourceFile
from gear_data.ingest.source import EpisodeSource
from gear_data.ingest.videos.decoded_videos import DecodedVideos, SourcePackets
from gear_data.ingest.videos.indexed_source import IndexedSource, indexed_source
from gear_data.ingest.videos.source_videos import source_videos
from gear_data.ingest.videos.storage_options import FRAMES, JPEG, VideoStorage
from gear_data.storage.writing.file_store import FileStore


def stored_cameras(
    source: EpisodeSource, store: FileStore, videos: VideoStorage, *, skip_bad: bool, threads: int
) -> EpisodeSource:
    """Returns a source whose blocks are ready to be stored.

    `stage_videos` has indexed its files. A source without cameras, or one that is ready, is returned unchanged.

    Args:
        source: the source.
        store: the dataset's folder.
        videos: what becomes of the video files.
        skip_bad: whether malformed episodes are left out.
        threads: threads that decode.

    Raises:
        ResumeError: the index is missing, or was changed.
    """
    indexed = indexed_source(source, store, skip_bad=skip_bad, one_size=videos.size is None)
    if videos.mode not in (FRAMES, JPEG) or not isinstance(indexed, IndexedSource):
        return indexed
    packets = SourcePackets(indexed_files(indexed))
    return DecodedVideos(indexed, indexed.staged.index, packets, videos, skip_bad=skip_bad, threads=threads)


def indexed_files(source: IndexedSource) -> Sequence[SourceFile]:
    """Returns the source's files in the order of the index."""
    files = source_videos(source).files
    return [files[number] for number in sorted(source.staged.rows, key=source.staged.rows.__getitem__)]
