"""SourceVideos: the cameras of a source, and their files."""

from __future__ import annotations

from dataclasses import dataclass

from gear_data.ingest.findings.video_files import DeclaredVideo
from gear_data.ingest.location import SourceFile
from gear_data.ingest.source import EpisodeSource
from gear_data.schema import ColumnSpec


@dataclass(frozen=True)
class SourceVideos:
    """The cameras of a source, in an attribute `videos` of the source.

    The blocks of such a source have `EpisodeBlock.video_times` for every camera.

    Attributes:
        columns: a `gear_data.schema.video_column` for each camera, as the source declares its frames. The index of the
            files corrects them.
        files: the files of all cameras. Their order is the same in every process.
        declared: for each file, what the source says about it (`gear_data.ingest.findings.video_files.video_findings`).
    """

    columns: tuple[ColumnSpec, ...] = ()
    files: tuple[SourceFile, ...] = ()
    declared: tuple[DeclaredVideo, ...] = ()


#: The videos of a source without cameras.
NO_VIDEOS = SourceVideos()


def source_videos(source: EpisodeSource) -> SourceVideos:
    """Returns the cameras of a source; `NO_VIDEOS` if it has no `videos`."""
    return getattr(source, "videos", NO_VIDEOS)
