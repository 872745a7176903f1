"""Datasets whose shards are links to shards of other datasets: how they are written, and their report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from gear_data.common.paths import printable
from gear_data.ingest.card import CARD_NAME, dataset_card
from gear_data.ingest.destination import LockedTarget, abandoned_on_error, finished_manifest
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.merging.link import EPISODES, FINALS
from gear_data.ingest.videos.placing import kept_video_bytes
from gear_data.storage.atomic import swap_folders
from gear_data.storage.manifest import MANIFEST_NAME, STEP_MASK_FILE, Manifest
from gear_data.storage.remote.object_store import open_file_store
from gear_data.storage.writing.file_store import FileStore, put_text
from gear_data.storage.writing.staging import StagedDataset
from gear_data.video.index_tables import TABLE_FILES

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class MergeReport:
    """The outcome of a merge.

    Attributes:
        episodes: the number of episodes in the new dataset.
        steps: the number of steps.
        shards: the number of shards.
        linked: the number of shards that are hard links; 0 if an earlier run finished the dataset.
        bytes: the size of the shards, the tables, and the video files in the folder.
        seconds: the wall time.
        warnings: the findings, one line each.
        fingerprint: the fingerprint of the new dataset.
    """

    episodes: int
    steps: int
    shards: int
    linked: int
    bytes: int
    seconds: float
    warnings: tuple[str, ...]
    fingerprint: str

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON."""
        return {**asdict(self), "warnings": list(self.warnings)}


def report_fields(manifest: Manifest) -> dict[str, Any]:
    """Returns what the manifest says of a `MergeReport`, or of a `ConvertReport`."""
    return {
        "episodes": manifest.episodes,
        "steps": manifest.steps,
        "shards": len(manifest.shards),
        "bytes": sum(entry.bytes for entry in manifest.files) + kept_video_bytes(manifest),
        "warnings": tuple(str(Finding(**finding)) for finding in manifest.findings),
        "fingerprint": manifest.fingerprint,
    }


def write_linked(
    locked: LockedTarget,
    identity: Mapping[str, Any],
    write: Callable[[FileStore], tuple[Manifest, pa.Table, T]],
    *,
    resume: bool,
) -> tuple[Manifest, T | None]:
    """Writes a dataset. After an error, the tables are removed, and the shards stay for `resume`.

    Args:
        locked: the folder.
        identity: says which dataset it is. A run with another identity is not resumed.
        write: writes all files but the manifest. Returns the manifest, the episode table, and what it knows else.
        resume: continue an interrupted run.

    Returns:
        The manifest, and the third result of `write`; None if an earlier run finished the dataset.

    Raises:
        GearError: as `write`, or the folder cannot be written to.
    """
    target = locked.target
    store = open_file_store(target.staging)
    if resume and (not locked.locks or store.size(MANIFEST_NAME) is not None):
        return finished_manifest(store, locked, identity), None
    staged = StagedDataset(store, identity, resume=resume)
    with abandoned_on_error(staged, target):
        try:
            manifest, episodes, result = write(store)
            put_text(store, CARD_NAME, printable(dataset_card(manifest, episodes)))
            locked.check()
            staged.finish(manifest)
        except BaseException:
            if store.size(MANIFEST_NAME) is None:
                for file in (EPISODES, FINALS, STEP_MASK_FILE, *TABLE_FILES.values(), CARD_NAME):
                    store.remove(file)
            raise
    if target.replaces:
        swap_folders(Path(target.staging), Path(target.folder))
    return manifest, result
