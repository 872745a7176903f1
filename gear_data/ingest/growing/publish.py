"""Publishes generations of a dataset that grows.

A generation is complete before `manifest.json` names it: one atomic rename publishes it. No file that an earlier
generation lists is changed. Files that no reader's generation lists are removed afterwards.

Why: docs/explanation/decisions/growing.md
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gear_data.common.paths import printable
from gear_data.errors import DatasetNotFoundError
from gear_data.ingest.card import CARD_NAME, dataset_card
from gear_data.ingest.growing.added_journals import AddedJournal, SealedJournal, check_columns, placed
from gear_data.ingest.growing.eviction import Limits
from gear_data.ingest.growing.next_generation import NextGeneration, growth_of, next_generation
from gear_data.ingest.growing.sweep import has_earlier, sweep
from gear_data.storage.atomic import link_file, typed_write_errors
from gear_data.storage.generations.growth import generation_file
from gear_data.storage.manifest import MANIFEST_NAME, Manifest
from gear_data.storage.writing.file_store import LocalFileStore, put_text
from gear_data.storage.writing.progress_files import PROGRESS
from gear_data.storage.writing.staging import manifest_text


@dataclass(frozen=True)
class Publication:
    """A generation that was published.

    Attributes:
        generation: its number.
        episodes, steps: what was added.
        evicted_episodes: what left.
        total_episodes, total_steps: what the dataset has now.
        fingerprint: of the dataset now.
    """

    generation: int
    episodes: int
    steps: int
    evicted_episodes: int
    total_episodes: int
    total_steps: int
    fingerprint: str


def newest_manifest(folder: Path) -> Manifest | None:
    """Returns the newest manifest of a folder; None if there is no dataset."""
    if not (folder / MANIFEST_NAME).exists():
        return None
    try:
        return Manifest.load(folder)
    except DatasetNotFoundError:
        return None


def publish(
    folder: Path, segments: Sequence[SealedJournal], limits: Limits, *, shard_bytes: int, shard_steps: int | None = None
) -> Publication | None:
    """Adds sealed journals to a dataset, as a new generation.

    Processes take turns. A journal that the dataset has already is left out.

    Args:
        folder: the dataset's folder, which need not exist.
        segments: the sealed journals.
        limits: the largest size of the dataset.
        shard_bytes: smaller shards are joined up to this size.
        shard_steps: and up to so many steps; None: no limit.

    Returns:
        None if the dataset has all the journals already.

    Raises:
        UnsupportedColumnError: a journal has other columns than the dataset.
        StorageFullError, UnwritableError: the folder cannot be written to. The dataset is as before.
        CorruptShardError: a table of the dataset is damaged.
    """
    if not segments:
        return None
    store = LocalFileStore(folder)
    with store.locked(PROGRESS, wait=True) as lock:
        current = newest_manifest(folder)
        growth = growth_of(current)
        new = [each for each in segments if each.number > growth.sealed.get(each.writer, -1)]
        if not new:
            return None
        if current is not None and current.growth is None:
            _keep_first(folder, current)
        if current is not None and has_earlier(folder, current):
            sweep(folder, current)  # readers may have gone since the last publication, and the disk may be full
        added = _added(store, new, current, f"{growth.generation + 1:06d}")
        generation = next_generation(
            store, current, growth, added, limits,
            name=f"{growth.generation + 1:06d}", shard_bytes=shard_bytes, shard_steps=shard_steps,
        )  # fmt: skip
        if current is None:
            put_text(store, CARD_NAME, printable(dataset_card(generation.manifest, generation.episodes)))
        lock.check()
        _put_manifest(store, generation.manifest)
        sweep(folder, generation.manifest)
        return publication_of(generation, added)


def publication_of(generation: NextGeneration, added: Sequence[AddedJournal]) -> Publication:
    """Returns what a published generation added."""
    manifest = generation.manifest
    return Publication(
        manifest.generation,
        sum(each.manifest.episodes for each in added),
        sum(each.manifest.steps for each in added),
        generation.evicted,
        manifest.episodes,
        manifest.steps,
        manifest.fingerprint,
    )


def _added(
    store: LocalFileStore, segments: Sequence[SealedJournal], current: Manifest | None, name: str
) -> list[AddedJournal]:
    """Puts sealed journals into the dataset's folder."""
    manifests = [Manifest.load(each.folder) for each in segments]
    schema = (current or manifests[0]).schema
    added = []
    for number, (segment, manifest) in enumerate(zip(segments, manifests, strict=True)):
        check_columns(schema, manifest.schema, str(store.folder))
        draft = placed(store, segment.folder, manifest, f"{name}-{number:04d}")
        added.append(AddedJournal(segment.writer, segment.number, segment.sequences, manifest, draft))
    _fsync_folder(store.folder / "shards")
    return added


def _keep_first(folder: Path, manifest: Manifest) -> None:
    """Keeps the manifest of a dataset that has not grown so far, as generation 0."""
    if not link_file(folder / MANIFEST_NAME, folder / generation_file(0)):
        put_text(LocalFileStore(folder), generation_file(0), manifest.to_text())


def _fsync_folder(folder: Path) -> None:
    with typed_write_errors(folder):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _put_manifest(store: LocalFileStore, manifest: Manifest) -> None:
    """Publishes a generation."""
    text = manifest_text(manifest, store, "use larger shards: raise shard_bytes")
    file = generation_file(manifest.generation)
    put_text(store, file, text)
    # Two names of one file: a lease of one is a lease of both.
    second = store.folder / f".{MANIFEST_NAME}.{manifest.generation}.tmp"
    if link_file(store.folder / file, second):
        with typed_write_errors(second):
            os.replace(second, store.folder / MANIFEST_NAME)
        _fsync_folder(store.folder)
    else:
        put_text(store, MANIFEST_NAME, text)
