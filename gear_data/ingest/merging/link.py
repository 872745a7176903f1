"""Merges datasets of equal columns: links or copies shards and videos, joins tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gear_data.common.paths import is_remote
from gear_data.common.progress import progress_bar
from gear_data.ingest.merging.dataset_cameras import read_index
from gear_data.ingest.merging.inputs import MergeInput, read_episode_table, read_finals_table
from gear_data.ingest.several.embodiments import EMBODIMENT
from gear_data.ingest.videos.draft import DraftVideos, with_file_numbers
from gear_data.ingest.videos.placing import VIDEOS
from gear_data.schema import Schema
from gear_data.storage.dataset_files import DatasetFiles
from gear_data.storage.episode_tables import join_episode_tables, with_plain_text
from gear_data.storage.manifest import FileEntry, ShardEntry
from gear_data.storage.videos.mapped import is_kept, video_entry
from gear_data.storage.writing.file_store import FileStore
from gear_data.storage.writing.placing import place
from gear_data.storage.writing.staging import renumbered_episodes, renumbered_finals, with_new_ids, write_table
from gear_data.video.index_tables import FILES_TABLE, PACKETS_TABLE, TABLE_FILES, VideoIndex

EPISODES, FINALS = "episodes.arrow", "finals.arrow"


def link_shards(
    inputs: Sequence[MergeInput], store: FileStore, progress: bool | None
) -> tuple[tuple[ShardEntry, ...], int]:
    """Puts the shards of all datasets into one folder.

    They become hard links if possible, else copies. A copy is compared with its checksum. A link is not read: `verify`
    checks it later.

    Returns:
        The shards of the merged dataset, and how many of them are links.

    Raises:
        CorruptShardError: a shard is missing or has another size, or a copied one has another checksum.
        DatasetReplacedError: a dataset was replaced meanwhile.
    """
    shards: list[ShardEntry] = []
    linked = 0
    total = sum(shard.bytes for item in inputs for shard in item.manifest.shards)
    with progress_bar(total, "merge", "B", progress) as bar:
        for part, item in enumerate(inputs):
            for index, shard in enumerate(item.manifest.shards):
                placed, links = place_shard(store, shard, f"shards/{part:05d}-{index:06d}.arrow", item.files)
                linked += links
                shards.append(placed)
                bar.update(shard.bytes)
    return tuple(shards), linked


def place_shard(store: FileStore, shard: ShardEntry, name: str, source: DatasetFiles) -> tuple[ShardEntry, bool]:
    """Links or copies the files of a shard. Returns the shard in the new dataset, and whether all are links.

    Args:
        store: the folder of the new dataset.
        shard: the shard.
        name: the name of its first file in the new dataset.
        source: the files of its dataset.
    """
    names = [name, *(f"{name.removesuffix('.arrow')}-{number}.arrow" for number in range(1, len(shard.files)))]
    links = True
    for entry, each in zip(shard.files, names, strict=True):
        with source.local(entry) as path:
            links &= place_file(store, path, entry, each, source)
    return shard.placed(names), links


def place_file(store: FileStore, path: Path, entry: FileEntry, name: str, source: DatasetFiles) -> bool:
    """Links or copies a file of a dataset, and returns whether it is a link.

    Args:
        store: the folder of the new dataset.
        path: the file on this machine.
        entry: the file.
        name: its name in the new dataset.
        source: the files of its dataset.
    """
    # The cache of remote datasets changes the times of its files.
    local = not is_remote(str(source.location))
    return place(store, path, entry, name, name=source.name(entry), links=local)


def merged_episodes(inputs: Sequence[MergeInput]) -> pa.Table:
    """Returns the episode tables of all datasets as one, with the fact `embodiment`.

    An embodiment that a dataset has already is kept.

    Raises:
        UnsupportedColumnError: a fact has several types.
        CorruptShardError: a table is damaged.
    """
    return join_episode_tables(list(_episode_tables(inputs)))


def _episode_tables(inputs: Sequence[MergeInput]) -> Iterator[pa.Table]:
    first_episode = first_shard = first_video = 0
    for item in inputs:
        table = with_plain_text(read_episode_table(item.files, item.manifest))
        if item.manifest.next_id != len(table):
            table = with_new_ids(table, table.column("episode_id").to_numpy())
        table = renumbered_episodes(table, first_episode, first_shard)
        if (videos := read_index(item.files, item.manifest)) is not None:
            numbers = np.arange(first_video, first_video + len(videos))
            table = with_file_numbers(table, item.manifest.schema.videos, numbers)
            first_video += len(videos)
        yield _with_embodiment(table, item.embodiment)
        first_episode += item.manifest.episodes
        first_shard += len(item.manifest.shards)


def _with_embodiment(table: pa.Table, name: str) -> pa.Table:
    if EMBODIMENT in table.column_names:
        return table
    return table.append_column(EMBODIMENT, pa.repeat(pa.scalar(name, pa.large_string()), len(table)))


def write_tables(
    inputs: Sequence[MergeInput], schema: Schema, store: FileStore, episodes: pa.Table
) -> dict[str, FileEntry]:
    """Writes the merged tables of episodes and final observations."""
    tables = {"episodes": write_table(store, EPISODES, episodes)}
    if schema.final_columns:
        tables["finals"] = write_table(store, FINALS, pa.concat_tables(_finals_tables(inputs)))
    return tables


def _finals_tables(inputs: Sequence[MergeInput]) -> Iterator[pa.Table]:
    first_episode = 0
    for item in inputs:
        if (table := read_finals_table(item.files, item.manifest)) is not None:
            if item.manifest.next_id != item.manifest.episodes:
                ids = read_episode_table(item.files, item.manifest).column("episode_id").to_numpy()
                table = with_new_ids(table, ids)
            yield renumbered_finals(table, first_episode, 0)
        first_episode += item.manifest.episodes


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
    placed = []
    for part, item in enumerate(inputs):
        index = read_index(item.files, item.manifest)
        if index is None:
            return LinkedVideos({}, None)
        placed.append(place_videos(item.files, index, store, f"{part:05d}/"))
    files, packets = [each.files for each in placed], [each.packets for each in placed]
    return write_index(store, DraftVideos(pa.concat_tables(files), pa.concat_tables(packets)))


def write_index(store: FileStore, videos: DraftVideos) -> LinkedVideos:
    """Writes the tables of video files that are in place."""
    tables = {FILES_TABLE: videos.files, PACKETS_TABLE: videos.packets}
    entries = {name: write_table(store, TABLE_FILES[name], table) for name, table in tables.items()}
    return LinkedVideos(entries, videos.provenance())


def place_videos(source: DatasetFiles, index: VideoIndex, store: FileStore, folder: str) -> DraftVideos:
    """Puts video files of a dataset into another dataset's folder, as hard links or copies.

    Args:
        source: the files of the dataset.
        index: the video files to put there. Those that it only refers to stay where they are.
        store: the other dataset's folder.
        folder: the folder below `videos/`, empty or with a slash at its end.

    Returns:
        The index of the files with their new names.

    Raises:
        CorruptShardError: a file is missing or has another size, or a copied one has another checksum.
    """
    names = []
    for number in range(len(index)):
        entry = video_entry(source, index, number)
        if not is_kept(entry.file):
            names.append(entry.file)
            continue
        names.append(f"{VIDEOS}/{folder}{entry.file.removeprefix(f'{VIDEOS}/')}")
        with source.local(entry) as path:
            place_file(store, path, entry, names[-1], source)
    return DraftVideos(index.files, index.packets).renamed(names)
