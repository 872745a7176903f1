"""The videos of a generation that is not published yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gear_data.ingest.videos.placing import VIDEOS
from gear_data.ingest.videos.storage_options import KEEP, LINK
from gear_data.schema import ColumnSpec
from gear_data.storage.arrow_files import read_table
from gear_data.storage.episode_tables import with_values
from gear_data.storage.generations.growth import TABLES
from gear_data.storage.manifest import FileEntry, Manifest
from gear_data.storage.videos.mapped import is_kept
from gear_data.storage.writing.file_store import LocalFileStore
from gear_data.storage.writing.placing import place
from gear_data.storage.writing.staging import write_table
from gear_data.video.index_tables import FILES_SCHEMA, FILES_TABLE, PACKETS_TABLE, files_fact, packet_counts
from gear_data.video.segments import segment_columns


@dataclass(frozen=True, eq=False)
class DraftVideos:
    """The index of video files.

    Attributes:
        files: a table of `FILES_SCHEMA`.
        packets: a table of `PACKETS_SCHEMA`.
    """

    files: pa.Table
    packets: pa.Table

    @property
    def names(self) -> list[str]:
        """The files, by number."""
        names: list[str] = self.files.column("file").to_pylist()
        return names

    def renamed(self, names: Sequence[str]) -> DraftVideos:
        """Returns the index with other names of the files, by number."""
        column = FILES_SCHEMA.get_field_index("file")
        named = self.files.set_column(column, FILES_SCHEMA.field(column), pa.array(names, pa.large_string()))
        return DraftVideos(named, self.packets)

    def provenance(self) -> dict[str, Any]:
        """Returns the fact `videos` of the provenance."""
        sizes = zip(self.names, self.files.column("bytes").to_pylist(), strict=True)
        kept = [size for name, size in sizes if is_kept(name)]
        return files_fact(KEEP if kept else LINK, sum(kept), self.files)


def read_videos(folder: Path, manifest: Manifest) -> DraftVideos | None:
    """Reads the index of a dataset's video files; None without cameras.

    Raises:
        CorruptShardError: a table is damaged.
    """
    if not manifest.schema.videos:
        return None
    entries = (manifest.tables[name] for name in (FILES_TABLE, PACKETS_TABLE))
    return DraftVideos(*(read_table(folder / entry.file, entry.checksum) for entry in entries))


def video_bytes(
    videos: DraftVideos | None, episodes: pa.Table, cameras: Sequence[ColumnSpec], part_of_shard: Any, parts: int
) -> list[int]:
    """Returns the size of each part's video files. A file counts for the first part that has it.

    Args:
        videos: the files.
        episodes: the episode table.
        cameras: the cameras.
        part_of_shard: int64 [shards], the part of each shard.
        parts: number of parts.
    """
    if videos is None:
        return [0] * parts
    part = np.full(len(videos.files), parts)
    of_episode = part_of_shard[episodes.column("shard").to_numpy()]
    for camera in cameras:
        np.minimum.at(part, episodes.column(segment_columns(camera.name)[0]).to_numpy(), of_episode)
    sizes = videos.files.column("bytes").to_numpy()
    return [int(sizes[part == number].sum()) for number in range(parts)]


def kept_videos(folder: Path, manifest: Manifest) -> set[str]:
    """Returns the video files of a dataset that are in its folder.

    Raises:
        CorruptShardError: the table of video files is damaged.
    """
    if not manifest.schema.videos:
        return set()
    entry = manifest.tables[FILES_TABLE]
    return set(filter(is_kept, read_table(folder / entry.file, entry.checksum).column("file").to_pylist()))


def linked_videos(store: LocalFileStore, source: Path, videos: DraftVideos, name: str) -> DraftVideos:
    """Puts the video files of a sealed journal into the dataset's folder.

    Args:
        store: the dataset's folder.
        source: folder of the sealed journal.
        videos: its video files.
        name: of the new part. No earlier part has the name.

    Raises:
        CorruptShardError: a file has another checksum.
        StorageFullError, UnwritableError: the folder cannot be written to.
    """
    names = []
    for file, size, checksum in zip(
        videos.names, *(videos.files.column(each).to_pylist() for each in ("bytes", "checksum")), strict=True
    ):
        names.append(f"{VIDEOS}/{name}/{file.removeprefix(f'{VIDEOS}/')}")
        place(store, source / file, FileEntry(file, size, checksum), names[-1], name=str(source / file))
    return videos.renamed(names)


def appended_videos(videos: DraftVideos | None, added: DraftVideos | None) -> DraftVideos | None:
    """Returns the files of both. The added ones follow."""
    if videos is None or added is None:
        return videos
    files = pa.concat_tables([videos.files, added.files])
    return DraftVideos(files, pa.concat_tables([videos.packets, added.packets]).combine_chunks())


def with_file_numbers(episodes: pa.Table, cameras: Sequence[ColumnSpec], numbers: Any) -> pa.Table:
    """Returns an episode table whose files have other numbers.

    Args:
        episodes: the table.
        cameras: the cameras.
        numbers: int64 [files], the new number of each file.
    """
    for camera in cameras:
        name, _ = segment_columns(camera.name)
        episodes = with_values(episodes, name, numbers[episodes.column(name).to_numpy()])
    return episodes


def without_unused(
    videos: DraftVideos | None, episodes: pa.Table, cameras: Sequence[ColumnSpec]
) -> tuple[DraftVideos | None, pa.Table]:
    """Returns the files that episodes have, and the episode table with their new numbers."""
    if videos is None:
        return None, episodes
    used = np.zeros(len(videos.files), np.bool_)
    for camera in cameras:
        used[episodes.column(segment_columns(camera.name)[0]).to_numpy()] = True
    packets = np.repeat(used, packet_counts(videos.files))
    left = DraftVideos(videos.files.filter(pa.array(used)), videos.packets.filter(pa.array(packets)).combine_chunks())
    return left, with_file_numbers(episodes, cameras, np.cumsum(used) - 1)


def write_videos(store: LocalFileStore, videos: DraftVideos | None, name: str) -> dict[str, FileEntry]:
    """Writes the tables of a generation. Returns them by their names in the manifest.

    Args:
        store: the dataset's folder.
        videos: the files; None without cameras.
        name: part of the names of the tables.
    """
    if videos is None:
        return {}
    return {
        table_name: write_table(store, f"{TABLES}/{table_name}-{name}.arrow", table)
        for table_name, table in ((FILES_TABLE, videos.files), (PACKETS_TABLE, videos.packets))
    }
