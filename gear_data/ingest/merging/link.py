"""Merges datasets of equal columns: links or copies shards, joins tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from gear_data.common.paths import is_remote
from gear_data.common.progress import progress_bar
from gear_data.ingest.merging.dataset_cameras import read_index
from gear_data.ingest.merging.inputs import MergeInput
from gear_data.ingest.several.embodiments import EMBODIMENT
from gear_data.schema import Schema
from gear_data.storage.dataset_files import DatasetFiles
from gear_data.storage.episode_tables import (
    join_episode_tables,
    read_episodes,
    read_finals,
    with_plain_text,
    with_values,
)
from gear_data.storage.manifest import FileEntry, Manifest, ShardEntry
from gear_data.storage.writing.file_store import FileStore
from gear_data.storage.writing.placing import place
from gear_data.storage.writing.staging import renumbered_episodes, renumbered_finals, with_new_ids, write_table
from gear_data.video.segments import segment_columns

EPISODES, FINALS = "episodes.arrow", "finals.arrow"


@dataclass(frozen=True)
class LinkedShards:
    """The shards of a merged dataset.

    Attributes:
        shards: the shards, in the order of the datasets.
        linked: number of shards that are hard links. The others are copies.
    """

    shards: tuple[ShardEntry, ...]
    linked: int


def link_shards(inputs: Sequence[MergeInput], store: FileStore, progress: bool | None) -> LinkedShards:
    """Puts the shards of all datasets into one folder.

    They become hard links if possible, else copies. A copy is compared with its checksum. A link is not read: `verify`
    checks it later.

    Raises:
        CorruptShardError: a shard is missing or has another size, or a copied one has another checksum.
        DatasetReplacedError: a dataset was replaced meanwhile.
    """
    shards: list[ShardEntry] = []
    linked = 0
    total = sum(shard.entry.bytes for item in inputs for shard in item.manifest.shards)
    with progress_bar(total, "merge", "B", progress) as bar:
        for part, item in enumerate(inputs):
            for index, shard in enumerate(item.manifest.shards):
                name = f"shards/{part:05d}-{index:06d}.arrow"
                with item.files.local(shard.entry) as path:
                    linked += place_file(store, path, shard.entry, name, item.files)
                shards.append(replace(shard, entry=replace(shard.entry, file=name)))
                bar.update(shard.entry.bytes)
    return LinkedShards(tuple(shards), linked)


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
        with item.files.local(item.manifest.tables["episodes"]) as path:
            table = with_plain_text(read_episodes(path, item.manifest))
        if item.manifest.next_id != len(table):
            table = with_new_ids(table, table.column("episode_id").to_numpy())
        table = _with_files_from(renumbered_episodes(table, first_episode, first_shard), item.manifest, first_video)
        yield _with_embodiment(table, item.embodiment)
        first_episode += item.manifest.episodes
        first_shard += len(item.manifest.shards)
        if (videos := read_index(item.files, item.manifest)) is not None:
            first_video += len(videos)


def _with_files_from(table: pa.Table, manifest: Manifest, first: int) -> pa.Table:
    """Returns the table with the numbers of video files shifted by `first`."""
    for spec in manifest.schema.videos:
        name, _ = segment_columns(spec.name)
        table = with_values(table, name, table.column(name).to_numpy() + first)
    return table


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
        if item.manifest.schema.final_columns:
            with item.files.local(item.manifest.tables["finals"]) as path:
                table = read_finals(path, item.manifest)
            if item.manifest.next_id != item.manifest.episodes:
                with item.files.local(item.manifest.tables["episodes"]) as path:
                    ids = read_episodes(path, item.manifest).column("episode_id").to_numpy()
                table = with_new_ids(table, ids)
            yield renumbered_finals(table, first_episode, 0)
        first_episode += item.manifest.episodes
