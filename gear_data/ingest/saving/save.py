"""Saves some episodes of a dataset as a dataset of their own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from gear_data.ingest.destination import choose_target, locked_target
from gear_data.ingest.findings.dataset_checks import check_dataset, lasting_findings
from gear_data.ingest.findings.log import FindingLog
from gear_data.ingest.merging.dataset_cameras import read_index, source_of_videos
from gear_data.ingest.merging.inputs import check_apart, read_episode_table, read_finals_table
from gear_data.ingest.merging.link import EPISODES, FINALS, LinkedVideos, place_videos, write_index
from gear_data.ingest.merging.linked_dataset import MergeReport, report_fields, write_linked
from gear_data.ingest.saving.shards import SavedShards, SourceTables, save_shards
from gear_data.ingest.videos.draft import DraftVideos, without_unused
from gear_data.ingest.videos.sampled_statistics import sampled_statistics
from gear_data.storage.dataset_files import DatasetFiles
from gear_data.storage.episode_tables import StepFlags, content_bytes, join_episode_tables, with_plain_text, with_values
from gear_data.storage.identity import dataset_identity
from gear_data.storage.manifest import STEP_MASK, STEP_MASK_FILE, Manifest, fingerprint
from gear_data.storage.statistics import ColumnStatistics
from gear_data.storage.videos.stored_packets import video_index
from gear_data.storage.writing.file_store import FileStore
from gear_data.storage.writing.staging import with_new_ids, write_table

#: The format in the provenance of a saved view.
FORMAT = "view"
#: Facts of a source that are wrong for a part of its episodes.
_TOTALS = frozenset(("total_episodes", "total_steps", "total_frames"))


@dataclass(frozen=True, kw_only=True)
class SaveReport(MergeReport):
    """The outcome of `Dataset.save`. It also has the attributes of `MergeReport`.

    Attributes:
        whole: the number of shards that are links or copies of a whole shard. The others were written again.
    """

    whole: int


@dataclass(frozen=True, eq=False)
class SavedView:
    """Episodes to save.

    Attributes:
        files: the files of their dataset.
        manifest: its manifest.
        rows: int64 [k], ascending: their rows in its episode table.
        history: how they were chosen, one step a line.
        steps: the steps of these episodes that windows may use; None: all.
    """

    files: DatasetFiles
    manifest: Manifest
    rows: npt.NDArray[np.int64]
    history: Sequence[str]
    steps: StepFlags | None

    @property
    def name(self) -> str:
        """The path or URL of the dataset."""
        return str(self.files.location)


def save_episodes(
    view: SavedView, destination: str, *, overwrite: bool, resume: bool, progress: bool | None
) -> SaveReport:
    """Saves episodes of a dataset. See `Dataset.save`."""
    start = time.perf_counter()
    target = choose_target(destination, overwrite, resume)
    check_apart((view.name,), target.folder)
    identity = {
        "format": FORMAT,
        "source": view.name,
        "source_fingerprint": [dataset_identity(view.manifest)],
        "rows": _digest(view),
    }
    with locked_target(target, overwrite, resume) as locked:
        manifest, shards = write_linked(
            locked, identity, lambda store: _written(view, store, identity, progress), resume=resume
        )
    whole, linked = (0, 0) if shards is None else (shards.whole, shards.linked)
    return SaveReport(whole=whole, linked=linked, seconds=time.perf_counter() - start, **report_fields(manifest))


def _digest(view: SavedView) -> str:
    """Returns the hash of the episodes and steps that a view has."""
    digest = xxhash.xxh3_128(view.rows.tobytes())
    if view.steps is not None:
        digest.update(view.steps.mode.encode())
        digest.update(view.steps.words.tobytes())
    return digest.hexdigest()


def _written(
    view: SavedView, store: FileStore, identity: Mapping[str, Any], progress: bool | None
) -> tuple[Manifest, pa.Table, SavedShards]:
    """Writes all files but the manifest. Returns the manifest, the episode table and the shards."""
    source = view.manifest
    listed = with_plain_text(read_episode_table(view.files, source))
    tables = SourceTables(listed, read_finals_table(view.files, source))
    kept = np.zeros(source.episodes, np.bool_)
    kept[view.rows] = True
    findings = FindingLog()
    findings.extend(lasting_findings(source.findings, "video-statistics-left-out"))
    shards = save_shards(view.files, source, tables, kept, store, findings, progress)
    episodes = tables.episodes.take(view.rows)
    ids = episodes.column("episode_id").to_numpy()
    for name, values in (("episode_id", np.arange(len(ids))), ("shard", shards.shard), ("start", shards.start)):
        episodes = with_values(episodes, name, values)
    videos, cameras, episodes = _videos(view, store, episodes, findings)
    episodes = join_episode_tables([episodes])
    contents = content_bytes(episodes)
    check_dataset(findings, {}, contents, 0, lambda i: (str(episodes.column("source")[i].as_py()), None))
    written = {"episodes": write_table(store, EPISODES, episodes)}
    if tables.finals is not None:
        finals = tables.finals.filter(pa.array(np.isin(tables.finals.column("episode_id").to_numpy(), ids)))
        written["finals"] = write_table(store, FINALS, with_new_ids(finals, ids))
    if view.steps is not None:
        written[STEP_MASK] = write_table(store, STEP_MASK_FILE, view.steps.table())
    manifest = Manifest(
        episodes=len(ids),
        steps=sum(shard.steps for shard in shards.shards),
        fingerprint=fingerprint(source.schema, contents),
        schema=source.schema,
        shards=shards.shards,
        tables={**written, **videos.tables},
        statistics={**shards.statistics, **cameras},
        provenance=_provenance(view, identity, videos),
        findings=tuple(findings.to_json()),
    )
    return manifest, episodes, shards


def _videos(
    view: SavedView, store: FileStore, episodes: pa.Table, findings: FindingLog
) -> tuple[LinkedVideos, dict[str, ColumnStatistics], pa.Table]:
    """Puts the video files that the episodes use into the folder, and samples their frames again.

    Returns the files, the statistics of the cameras, and the episode table with the new numbers of the files.
    """
    source = read_index(view.files, view.manifest)
    cameras = view.manifest.schema.videos
    videos = None if source is None else DraftVideos(source.files, source.packets)
    left, episodes = without_unused(videos, episodes, cameras)
    if left is None:
        return LinkedVideos({}, None), {}, episodes
    index = video_index(view.files, left.files, left.packets)
    files = source_of_videos(view.files, view.manifest, index, episodes).files
    shareable = not view.name.startswith("memory:")
    statistics = sampled_statistics(cameras, index, files, episodes, findings, shareable=shareable)
    return write_index(store, place_videos(view.files, index, store, "")), statistics, episodes


def _provenance(view: SavedView, identity: Mapping[str, Any], videos: LinkedVideos) -> dict[str, Any]:
    """Returns the origin of the saved dataset.

    `view` has the fingerprint and the provenance of the dataset, and how its episodes were chosen.
    """
    source = view.manifest
    metadata = source.provenance.get("metadata")
    return {
        "reason": f"{len(view.rows):,} of the {source.episodes:,} episodes of another dataset",
        **identity,
        **({"videos": videos.provenance} if videos.provenance else {}),
        "view": {
            "fingerprint": source.fingerprint,
            "episodes": source.episodes,
            "generation": source.generation,
            "history": list(view.history),
            "provenance": dict(source.provenance),
        },
        "metadata": {name: value for name, value in metadata.items() if name not in _TOTALS}
        if isinstance(metadata, Mapping)
        else {},
    }
