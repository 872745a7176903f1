"""Merges the cameras of datasets: links or copies their files, joins their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gear_data.ingest.merging.dataset_cameras import read_index
from gear_data.ingest.merging.inputs import MergeInput
from gear_data.ingest.merging.link import place_file
from gear_data.ingest.videos.placing import VIDEOS
from gear_data.ingest.videos.storage_options import KEEP, LINK
from gear_data.storage.dataset_files import DatasetFiles
from gear_data.storage.manifest import FileEntry
from gear_data.storage.videos.mapped import is_kept, video_entry
from gear_data.storage.writing.file_store import FileStore
from gear_data.storage.writing.staging import write_table
from gear_data.video.index_tables import FILES_SCHEMA, FILES_TABLE, PACKETS_TABLE, TABLE_FILES, VideoIndex


@dataclass(frozen=True)
class LinkedVideos:
    """The video files of a merged dataset.

    Attributes:
        tables: the tables of the files, by their name in the manifest; empty without cameras.
        provenance: the fact `videos` of the provenance; None without cameras.
    """

    tables: dict[str, FileEntry]
    provenance: dict[str, Any] | None


def link_videos(inputs: Sequence[MergeInput], store: FileStore) -> LinkedVideos:
    """Puts the video files of all datasets into one folder, and writes their tables.

    They become hard links or copies, as shards do. Files that a dataset only refers to stay where they are.

    Raises:
        CorruptShardError: a file is missing or has another size, or a copied one has another checksum.
    """
    files, packets = [], []
    kept = 0
    linked = True
    for part, item in enumerate(inputs):
        index = read_index(item.files, item.manifest)
        if index is None:
            return LinkedVideos({}, None)
        table, size = place_videos(item.files, index, store, f"{part:05d}/")
        files.append(table)
        packets.append(index.packets)
        kept, linked = kept + size, linked and not size
    tables = {
        name: write_table(store, TABLE_FILES[name], pa.concat_tables(parts))
        for name, parts in ((FILES_TABLE, files), (PACKETS_TABLE, packets))
    }
    return LinkedVideos(tables, {"mode": LINK if linked else KEEP, "bytes": kept})


def place_videos(source: DatasetFiles, index: VideoIndex, store: FileStore, folder: str) -> tuple[pa.Table, int]:
    """Puts video files of a dataset into another dataset's folder, as hard links or copies.

    Args:
        source: the files of the dataset.
        index: the video files to put there. Those that it only refers to stay where they are.
        store: the other dataset's folder.
        folder: the folder below `videos/`, empty or with a slash at its end.

    Returns:
        The table of the files with their new names, and the number of bytes in the other dataset's folder.

    Raises:
        CorruptShardError: a file is missing or has another size, or a copied one has another checksum.
    """
    names, kept = [], 0
    for number in range(len(index)):
        entry = video_entry(source, index, number)
        if not is_kept(entry.file):
            names.append(entry.file)
            continue
        names.append(f"{VIDEOS}/{folder}{entry.file.removeprefix(f'{VIDEOS}/')}")
        with source.local(entry) as path:
            place_file(store, path, entry, names[-1], source)
        kept += entry.bytes
    column = FILES_SCHEMA.get_field_index("file")
    table = index.files.set_column(column, FILES_SCHEMA.field(column), pa.array(names, pa.large_string()))
    return table, kept
