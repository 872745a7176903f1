"""Removes the files of a growing dataset that no generation on disk lists."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from gear_data.errors import GearError
from gear_data.growing.part_statistics import part_file
from gear_data.ingest.card import CARD_NAME
from gear_data.ingest.videos.draft import kept_videos
from gear_data.ingest.videos.placing import VIDEOS
from gear_data.storage.atomic import is_unrenamed
from gear_data.storage.dataset_files import SIDECARS
from gear_data.storage.generations.growth import GENERATIONS, GROWING_FOLDERS, generation_file
from gear_data.storage.generations.leases import remove_unread
from gear_data.storage.manifest import MANIFEST_NAME, Manifest
from gear_data.storage.quantiles.files import QUANTILES
from gear_data.storage.sidecar import COLUMN, sidecar_files
from gear_data.video.index_tables import TABLE_FILES

_log = logging.getLogger(__name__)

#: Folders in which all files belong to generations.
_FOLDERS = ("shards", *GROWING_FOLDERS)
#: The tables of a dataset before it grew.
_FIRST_TABLES = ("episodes.arrow", "finals.arrow", *TABLE_FILES.values())


def sweep(folder: Path, newest: Manifest) -> None:
    """Removes files that no reader needs.

    A file that cannot be removed now is removed by a later call.

    Args:
        folder: the dataset's folder, which this process has locked.
        newest: the newest manifest.
    """
    growth = newest.growth
    if growth is None:
        return
    generations = {newest.generation, *remove_unread(folder, newest.generation)}
    manifests = []
    listed = {part_file(part.name) for part in growth.parts} | {generation_file(each) for each in generations}
    for generation in generations:
        try:
            is_newest = generation == newest.generation
            manifest = newest if is_newest else Manifest.load(folder, generation_file(generation))
            manifests.append(manifest)
            listed |= {entry.file for entry in manifest.files} | kept_videos(folder, manifest)
        except GearError as error:
            # A reader holds this generation, and its files are unknown: nothing is removed.
            _log.warning("%s: no file of earlier generations is removed: %s", folder, error)
            return
    found = [str(path.relative_to(folder)) for each in _FOLDERS for path in (folder / each).glob("*")]
    found += [str(path.relative_to(folder)) for path in (folder / VIDEOS).rglob("*") if path.is_file()]
    found += [path.name for path in folder.glob(".*.tmp") if is_unrenamed(path.name, MANIFEST_NAME, CARD_NAME)]
    if growth.base is not None:
        found += _FIRST_TABLES
    _sweep_sidecars(folder, manifests)
    for file in found:
        if file not in listed:
            with suppress(OSError):
                (folder / file).unlink()
                # Folders that hold other videos stay.
                for parent in PurePosixPath(file).parents[:-2]:
                    (folder / parent).rmdir()


def has_earlier(folder: Path, newest: Manifest) -> bool:
    """Returns whether earlier generations are on disk."""
    name = PurePosixPath(generation_file(newest.generation)).name
    return any(path.name != name for path in (folder / GENERATIONS).glob("*.json"))


def _sweep_sidecars(folder: Path, manifests: Sequence[Manifest]) -> None:
    """Removes the sidecars and quantiles of generations and shards that are gone."""
    listed = set[str]().union(*map(sidecar_files, manifests))
    for path in (folder / SIDECARS).glob(f"{COLUMN.name}-*/*"):
        if path.suffix in (".json", ".arrow") and path.name not in listed:
            with suppress(OSError):
                path.unlink()
    first_words = {f"{manifest.generation:06d}" for manifest in manifests}
    grows = all(manifest.growth is not None for manifest in manifests)
    for path in (folder / SIDECARS / QUANTILES).glob("*.json"):
        generation, _, _ = path.stem.rpartition("-")
        if generation not in first_words and (generation or grows):
            with suppress(OSError):
                path.unlink()
