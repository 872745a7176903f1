"""Merges the cameras of datasets: links or copies their files, joins their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gear_data.ingest.merging.dataset_cameras import read_index
from gear_data.ingest.merging.inputs import MergeInput
from gear_data.ingest.merging.link import place_file
from gear_data.ingest.videos.arguments import KEEP, LINK
from gear_data.ingest.videos.placing import VIDEOS
from gear_data.storage.manifest import FileEntry
from gear_data.storage.videos.mapped import is_kept, video_entry
from gear_data.storage.writing.file_store import FileStore
from gear_data.storage.writing.staging import write_table
from gear_data.video.index_tables import FILES_SCHEMA, FILES_TABLE, PACKETS_TABLE, TABLE_FILES


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
        names = []
        for number in range(len(index)):
            entry = video_entry(item.files, index, number)
            if not is_kept(entry.file):
                names.append(entry.file)
                continue
            names.append(f"{VIDEOS}/{part:05d}/{entry.file.removeprefix(f'{VIDEOS}/')}")
            with item.files.local(entry) as path:
                place_file(store, path, entry, names[-1], item)
            kept, linked = kept + entry.bytes, False
        column = FILES_SCHEMA.get_field_index("file")
        files.append(index.files.set_column(column, FILES_SCHEMA.field(column), pa.array(names, pa.large_string())))
        packets.append(index.packets)
    tables = {
        name: write_table(store, TABLE_FILES[name], pa.concat_tables(parts))
        for name, parts in ((FILES_TABLE, files), (PACKETS_TABLE, packets))
    }
    return LinkedVideos(tables, {"mode": LINK if linked else KEEP, "bytes": kept})
