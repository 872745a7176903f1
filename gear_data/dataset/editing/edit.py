"""Edits of a dataset: its new files are in a folder of this process, until it is saved."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy.typing as npt
import pyarrow as pa
import xxhash

from gear_data.common.private_folder import OwnedFolder
from gear_data.common.progress import progress_bar
from gear_data.dataset.stores.store import DatasetStore, restored
from gear_data.errors import InvalidArgumentError
from gear_data.schema import ColumnSpec, Schema
from gear_data.storage.arrow_files import buffer_offsets, column_array, write_ipc
from gear_data.storage.atomic import checksum
from gear_data.storage.content_hash import content_hashes
from gear_data.storage.edits.changes import AddedColumn, Edit
from gear_data.storage.edits.files import EditedFiles
from gear_data.storage.episode_tables import (
    content_bytes,
    episode_returns,
    join_episode_tables,
    read_finals,
    with_plain_text,
)
from gear_data.storage.identity import dataset_identity
from gear_data.storage.manifest import FileEntry, Manifest, ShardEntry, fingerprint
from gear_data.storage.sidecar import REWARDS
from gear_data.storage.statistics import ColumnStatistics, RunningStatistics
from gear_data.storage.verify import episode_block, read_shard
from gear_data.storage.videos.stored_packets import read_video_index
from gear_data.storage.writing.file_store import LocalFileStore
from gear_data.storage.writing.staging import write_table
from gear_data.video.index_tables import TABLE_FILES

#: Values of a new column in a shard, by the number of the shard: [steps, *shape], or an Arrow array.
ShardValues = Callable[[int], "tuple[ColumnSpec, npt.NDArray[Any] | pa.Array]"]


def check_editable(store: DatasetStore) -> None:
    """Checks that a dataset can be edited.

    Raises:
        InvalidArgumentError: it grows, it is served by other nodes, it was placed, or shards are left out.
    """
    if type(store) is not DatasetStore:
        raise InvalidArgumentError(
            f"{store.path} is served by other nodes, and cannot be edited from here",
            hint="open the dataset's folder or URL to edit it",
        )
    if store.manifest.growth is not None:
        raise InvalidArgumentError(
            "the dataset grows: episodes that are recorded later would not have the edit",
            file=str(store.path),
            hint="save it first, gear_data.open(...).save('copy'), and edit the copy",
        )
    if store.residency == "tiered" or store.bad_files:
        raise InvalidArgumentError(
            "the dataset was placed, or opened without damaged shards",
            file=str(store.path),
            hint="edit the dataset as gear_data.open(...) returns it: repair it before, or place it afterwards",
        )


def edited_columns(store: DatasetStore, names: Edit, values: ShardValues | None, what: str) -> DatasetStore:
    """Returns a store with the columns of an edit.

    Args:
        store: the dataset; `check_editable` has checked it.
        names: the columns that stay.
        values: of a new column; None: none.
        what: the edit in words.

    Raises:
        CorruptShardError: a shard is damaged.
        StorageFullError, UnwritableError: the folder of temporary files cannot be written to.
        GearError: as `values`.
    """
    owner = OwnedFolder()
    try:
        manifest = _Columns(store, LocalFileStore(owner.path), what).manifest(names, values)
    except BaseException:
        owner.remove()
        raise
    return _opened(store, manifest, owner)


def edited_facts(store: DatasetStore, episodes: pa.Table, what: str) -> DatasetStore:
    """Returns a store with another episode table, of the same episodes. Raises the errors of `edited_columns`."""
    owner = OwnedFolder()
    try:
        name = f"{_folder(store, what)}/episodes.arrow"
        entry = write_table(LocalFileStore(owner.path), name, join_episode_tables([with_plain_text(episodes)]))
        manifest = replace(
            store.manifest,
            tables={**store.manifest.tables, "episodes": entry},
            provenance=_provenance(store.manifest, what),
        )
    except BaseException:
        owner.remove()
        raise
    return _opened(store, manifest, owner)


def _opened(store: DatasetStore, manifest: Manifest, owner: OwnedFolder) -> DatasetStore:
    files = EditedFiles(store.files, manifest, owner.path, owner)
    opened = DatasetStore(files, store.residency)
    return restored(opened, None, store.discount if REWARDS in manifest.schema else None)


def _folder(store: DatasetStore, what: str) -> str:
    """Returns the name of the folder for the files of an edit. No file of the dataset is in it."""
    return "edit-" + xxhash.xxh3_128_hexdigest(json.dumps([dataset_identity(store.manifest), what]).encode())


def _provenance(manifest: Manifest, what: str) -> dict[str, Any]:
    """Returns the provenance with one more edit, and with the fingerprint before the first one."""
    known = manifest.provenance.get("edited") or {"fingerprint": manifest.fingerprint, "edits": []}
    return {**manifest.provenance, "edited": {**known, "edits": [*known["edits"], what]}}


class _Columns:
    """Writes the files of an edit of columns.

    Args:
        store: the dataset.
        files: the folder to write to.
        what: the edit in words.
    """

    def __init__(self, store: DatasetStore, files: LocalFileStore, what: str) -> None:
        self._store = store
        self._before = store.manifest
        self._files = files
        self._what = what
        self._folder = _folder(store, what)

    def manifest(self, edit: Edit, values: ShardValues | None) -> Manifest:
        """Writes the files, and returns the manifest of the edited dataset."""
        before = self._before
        schema, episodes = edit.schema(before.schema), with_plain_text(self._store.episode_table)
        shards: list[ShardEntry] = []
        statistics: dict[str, ColumnStatistics] = {}
        moves_rewards = edit.names.get(REWARDS) != (REWARDS if REWARDS in before.schema else None)
        if values is None and not edit.changes_contents(before.schema) and not moves_rewards:
            shards += [edit.shard(shard, None) for shard in before.shards]
        else:
            edit, shards, statistics, contents, returns = self._read(edit, values)
            schema = edit.schema(before.schema)
            index = episodes.schema.get_field_index("content")
            episodes = episodes.set_column(index, episodes.schema.field(index), contents)
            if edit.names.get(REWARDS) != REWARDS:
                index = episodes.schema.get_field_index("return")
                episodes = episodes.set_column(index, episodes.schema.field(index), returns)
        episodes = edit.episodes(episodes, before.schema)
        kept = {new: before.statistics[old] for new, old in edit.names.items() if old in before.statistics}
        return replace(
            before,
            fingerprint=fingerprint(schema, content_bytes(episodes)),
            schema=schema,
            shards=tuple(shards),
            tables=self._tables(edit, schema, episodes),
            statistics={**kept, **statistics},
            provenance=_provenance(before, self._what),
        )

    def _tables(self, edit: Edit, schema: Schema, episodes: pa.Table) -> dict[str, FileEntry]:
        before = self._before
        tables = dict(before.tables)
        tables["episodes"] = write_table(self._files, f"{self._folder}/episodes.arrow", join_episode_tables([episodes]))
        finals = tables.pop("finals", None)
        if finals is not None and schema.final_columns:
            table = edit.finals(self._finals(finals), schema)
            tables["finals"] = write_table(self._files, f"{self._folder}/finals.arrow", table)
        if not schema.videos:
            tables = {name: entry for name, entry in tables.items() if name not in TABLE_FILES}
        return tables

    def _finals(self, entry: FileEntry) -> pa.Table:
        with self._store.files.local(entry) as path:
            return read_finals(path, self._before)

    def _read(
        self, edit: Edit, values: ShardValues | None
    ) -> tuple[Edit, list[ShardEntry], dict[str, ColumnStatistics], pa.Array, pa.Array]:
        """Reads all shards, and writes the new column beside them.

        Returns:
            The edit with its new column, the shards, the statistics of the new column, and the columns `content` and
            `return` of the episode table.
        """
        before, store = self._before, self._store
        finals = self._finals(before.tables["finals"]) if "finals" in before.tables else None
        videos = read_video_index(store.files, before) if before.schema.videos else None
        running: RunningStatistics | None = None
        shards: list[ShardEntry] = []
        contents: list[bytes] = []
        returns: list[pa.Array] = []
        first = 0
        with progress_bar(sum(shard.bytes for shard in before.shards), "edit", "B", None) as bar:
            for number, shard in enumerate(before.shards):
                rows = store.episode_table.slice(first, shard.episodes)
                batch = read_shard(store.files.local, before.schema, shard)
                block = episode_block(batch, before, rows, finals, videos)
                added = column = None
                if values is not None:
                    spec, column = values(number)
                    edit = replace(edit, added=spec)
                    added = self._written(number, spec, column)
                    if not spec.variable_length:
                        running = running or RunningStatistics(Schema((spec,)))
                        running.update({spec.name: column}, block.lengths)
                after = edit.block(block, column)
                contents += content_hashes(after, edit.schema(before.schema))
                returns.append(episode_returns(after))
                shards.append(edit.shard(shard, added))
                first += shard.episodes
                bar.update(shard.bytes)
        statistics = {} if running is None else running.result()
        return edit, shards, statistics, pa.array(contents, pa.binary(16)), pa.concat_arrays(returns)

    def _written(self, number: int, spec: ColumnSpec, column: npt.NDArray[Any] | pa.Array) -> AddedColumn:
        """Writes the new column of a shard."""
        array = column if spec.variable_length else column_array(column, spec.arrow_type)
        batch = pa.RecordBatch.from_arrays([array], schema=Schema((spec,)).to_arrow())
        name = f"{self._folder}/{number:06d}.arrow"
        with self._files.writing(name) as path:
            write_ipc(path, batch)
            entry = FileEntry(name, path.stat().st_size, checksum(path))
            values, variable = buffer_offsets(path, Schema((spec,)))
        return AddedColumn(spec.name, entry, values[spec.name], variable.get(spec.name))
