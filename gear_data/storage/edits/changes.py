"""Edit: other names of columns, fewer columns, or a further column, in the schema, the shards and the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa

from gear_data.schema import ColumnSpec, Schema, split_cameras
from gear_data.storage.episode_block import EpisodeBlock
from gear_data.storage.manifest import AddedFile, FileEntry, ShardEntry
from gear_data.storage.variable_columns import VariableBuffers
from gear_data.video.segments import segment_columns

T = TypeVar("T")
#: Columns of every dataset: the flags of the last step of an episode.
END_FLAGS = ("terminated", "truncated")


@dataclass(frozen=True)
class AddedColumn:
    """A new column in one shard.

    Attributes:
        name: of the column.
        entry: its file.
        values: byte offset of its values in the file.
        variable: its further buffers; None of a fixed-size column.
    """

    name: str
    entry: FileEntry
    values: int
    variable: VariableBuffers | None


@dataclass(frozen=True)
class Edit:
    """The columns of an edited dataset.

    Attributes:
        names: column or camera -> its name before, of all that stay, in the order of the schema.
        added: a new column; None: none.
    """

    names: Mapping[str, str]
    added: ColumnSpec | None = None

    def schema(self, before: Schema) -> Schema:
        """Returns the schema of the edited dataset."""
        columns, cameras = split_cameras(replace(before[old], name=new) for new, old in self.names.items())
        if self.added is None:
            return Schema(columns, cameras)
        # As conversions have it: end flags and computed columns come last. A Writer has this order, too.
        end = next((index for index, column in enumerate(columns) if column.name in END_FLAGS), len(columns))
        return Schema((*columns[:end], self.added, *columns[end:]), cameras)

    def changes_contents(self, before: Schema) -> bool:
        """Returns whether content hashes change: they are over the columns in the order of their names."""
        if self.added is not None:
            return True
        after = self.schema(before)
        pairs = ((before.source_columns, after.source_columns), (before.videos, after.videos))
        return any(
            [self.names[name] for name in sorted(column.name for column in new)]
            != sorted(column.name for column in old)
            for old, new in pairs
        )

    def shard(self, shard: ShardEntry, added: AddedColumn | None) -> ShardEntry:
        """Returns a shard of the edited dataset.

        Args:
            shard: the shard before.
            added: the new column in this shard.
        """
        kept = {new: old for new, old in self.names.items() if old in shard.buffers}
        stored = {new: (shard.names or {}).get(old, old) for new, old in kept.items()}
        files = [
            replace(file, columns=columns)
            for file in shard.added
            if (columns := tuple(new for new, old in kept.items() if old in file.columns))
        ]
        buffers = {new: shard.buffers[old] for new, old in kept.items()}
        variable = {new: shard.variable[old] for new, old in kept.items() if old in shard.variable}
        if added is not None:
            entry = added.entry
            files.append(AddedFile(entry.file, entry.bytes, entry.checksum, (added.name,)))
            buffers[added.name] = added.values
            if added.variable is not None:
                variable[added.name] = added.variable
        return replace(
            shard,
            buffers=buffers,
            variable=variable,
            added=tuple(files),
            names={new: name for new, name in stored.items() if new != name},
        )

    def block(self, block: EpisodeBlock, values: Any) -> EpisodeBlock:
        """Returns episodes of the edited dataset.

        Args:
            block: the episodes before.
            values: their steps of the new column, an array of NumPy or Arrow; None without one.
        """
        columns = self._renamed(block.columns)
        if self.added is not None:
            columns[self.added.name] = values
        finals, videos = self._renamed(block.finals), self._renamed(block.videos)
        return replace(block, columns=columns, finals=finals, videos=videos)

    def _renamed(self, found: Mapping[str, T]) -> dict[str, T]:
        return {new: found[old] for new, old in self.names.items() if old in found}

    def episodes(self, table: pa.Table, before: Schema) -> pa.Table:
        """Returns an episode table with the columns of the cameras that stay, under their names."""
        kept = {old: new for new, old in self.names.items()}
        renamed: dict[str, str] = {}
        for camera in before.videos:
            columns = segment_columns(camera.name)
            if camera.name in kept:
                renamed.update(zip(columns, segment_columns(kept[camera.name]), strict=True))
            else:
                table = table.drop_columns(list(columns))
        return table.rename_columns([renamed.get(name, name) for name in table.column_names])

    def finals(self, table: pa.Table, after: Schema) -> pa.Table:
        """Returns a table of final observations with the columns that stay, under their names."""
        names = [column.name for column in after.final_columns]
        found = table.select(["episode_id", *(self.names[name] for name in names)]).rename_columns(
            ["episode_id", *names]
        )
        fields = [table.schema.field("episode_id"), *(column.arrow_field for column in after.final_columns)]
        return found.cast(pa.schema(fields))
