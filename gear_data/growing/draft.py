"""Draft: the shards and tables of a generation that is not published yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.ingest.videos.draft import (
    DraftVideos,
    appended_videos,
    read_videos,
    video_bytes,
    with_file_numbers,
    without_unused,
)
from gear_data.schema import Schema
from gear_data.storage.episode_tables import (
    concatenate_episode_tables,
    read_episodes,
    read_finals,
    with_plain_text,
    with_values,
)
from gear_data.storage.generations.growth import Part
from gear_data.storage.manifest import Manifest, ShardEntry
from gear_data.storage.statistics import ColumnStatistics, merged_statistics
from gear_data.storage.writing.staging import renumbered_episodes, renumbered_finals


@dataclass(frozen=True)
class DraftPart:
    """A part of a draft.

    Attributes:
        part: its name.
        shards: its shards.
        video_bytes: the size of its video files.
    """

    part: Part
    shards: tuple[ShardEntry, ...]
    video_bytes: int = 0

    @property
    def steps(self) -> int:
        """The number of steps."""
        return sum(shard.steps for shard in self.shards)

    @property
    def bytes(self) -> int:
        """The size of the shards and video files."""
        return sum(shard.bytes for shard in self.shards) + self.video_bytes


@dataclass(frozen=True, eq=False)
class Draft:
    """The shards and tables of a generation.

    Attributes:
        schema: all columns.
        parts: the shards in order, in parts.
        episodes: the episode table; its shards are numbered through all parts.
        finals: the final observations; None if the schema has none.
        next_id: the id of the next episode.
        statistics: of all columns; None: the statistics of the parts must be merged again.
        videos: the video files; None without cameras.
    """

    schema: Schema
    parts: tuple[DraftPart, ...]
    episodes: pa.Table
    finals: pa.Table | None
    next_id: int
    statistics: Mapping[str, ColumnStatistics] | None
    videos: DraftVideos | None = None

    @property
    def shards(self) -> tuple[ShardEntry, ...]:
        """All shards in order."""
        return tuple(shard for part in self.parts for shard in part.shards)

    @property
    def steps(self) -> int:
        """The number of steps."""
        return sum(part.steps for part in self.parts)

    @property
    def bytes(self) -> int:
        """The size of the shards and video files."""
        return sum(part.bytes for part in self.parts)

    def part_of_shard(self) -> npt.NDArray[np.int64]:
        """Returns the number of each shard's part, int64 [shards]."""
        return np.repeat(np.arange(len(self.parts)), [len(part.shards) for part in self.parts])


def draft_of(folder: Path, manifest: Manifest, parts: Sequence[Part]) -> Draft:
    """Returns a dataset as a draft.

    Args:
        folder: folder of the dataset.
        manifest: its manifest.
        parts: its parts.

    Raises:
        CorruptShardError: a table is damaged.
    """
    episodes = read_episodes(folder / manifest.tables["episodes"].file, manifest)
    videos = read_videos(folder, manifest)
    counts = [part.shards for part in parts]
    sizes = video_bytes(videos, episodes, manifest.schema.videos, np.repeat(np.arange(len(parts)), counts), len(parts))
    shards, drafts = list(manifest.shards), []
    for part, size in zip(parts, sizes, strict=True):
        drafts.append(DraftPart(part, tuple(shards[: part.shards]), size))
        del shards[: part.shards]
    finals = read_finals(folder / manifest.tables["finals"].file, manifest) if "finals" in manifest.tables else None
    return Draft(
        manifest.schema, tuple(drafts), with_plain_text(episodes), finals, manifest.next_id, manifest.statistics,
        videos,
    )  # fmt: skip


def appended(draft: Draft | None, added: Draft) -> Draft:
    """Returns a draft with the episodes of another one after its own.

    The other one's ids follow. Both have the same columns.

    Raises:
        UnsupportedColumnError: a fact about episodes has several types.
    """
    if draft is None:
        return added
    table = renumbered_episodes(added.episodes, draft.next_id, len(draft.shards))
    if draft.videos is not None and added.videos is not None:
        numbers = np.arange(len(added.videos.files)) + len(draft.videos.files)
        table = with_file_numbers(table, draft.schema.videos, numbers)
    finals = draft.finals
    if finals is not None and added.finals is not None:
        finals = pa.concat_tables([finals, renumbered_finals(added.finals, draft.next_id, 0)])
    statistics = None
    if draft.statistics is not None and added.statistics is not None:
        statistics = merged_statistics(draft.schema, [draft.statistics, added.statistics])
    return replace(
        draft,
        parts=(*draft.parts, *added.parts),
        episodes=concatenate_episode_tables([draft.episodes, table]),
        finals=finals,
        next_id=draft.next_id + added.next_id,
        statistics=statistics,
        videos=appended_videos(draft.videos, added.videos),
    )


def without_parts(draft: Draft, gone: Sequence[int]) -> Draft:
    """Returns a draft without some parts and their episodes.

    The other episodes keep their ids.

    Args:
        draft: the draft.
        gone: numbers of parts, not all.
    """
    if not gone:
        return draft
    kept = ~np.isin(draft.part_of_shard(), gone)
    numbers = np.cumsum(kept) - 1
    shard = draft.episodes.column("shard").to_numpy()
    left = without_episodes(draft, ~kept[shard])
    table = with_values(left.episodes, "shard", numbers[shard[kept[shard]]])
    parts = tuple(part for number, part in enumerate(draft.parts) if number not in set(gone))
    return replace(left, parts=parts, episodes=table)


def without_episodes(draft: Draft, gone: npt.NDArray[np.bool_]) -> Draft:
    """Returns a draft whose tables lack some episodes. Its shards still have their steps.

    Args:
        draft: the draft.
        gone: bool [episodes], not all.
    """
    if not gone.any():
        return draft
    table = draft.episodes.filter(pa.array(~gone))
    videos, table = without_unused(draft.videos, table, draft.schema.videos)
    finals = draft.finals
    if finals is not None:
        ids, final_ids = (each.column("episode_id").to_numpy() for each in (table, finals))
        finals = finals.filter(pa.array(np.isin(final_ids, ids)))
    return replace(draft, episodes=table, finals=finals, statistics=None, videos=videos)
