"""Publishes generations of a dataset that grows.

A generation is complete before `manifest.json` names it: one atomic rename publishes it. No file that an earlier
generation lists is changed. Files that no reader's generation lists are removed afterwards.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gear_data.common.paths import printable
from gear_data.errors import DatasetNotFoundError, UnsupportedColumnError
from gear_data.ingest.card import CARD_NAME, dataset_card
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.growing.compaction import joined_parts, parts_to_join
from gear_data.ingest.growing.draft import Draft, DraftPart, appended, draft_of, without_parts
from gear_data.ingest.growing.draft_videos import linked_videos, write_videos
from gear_data.ingest.growing.eviction import Limits, parts_to_evict
from gear_data.ingest.growing.part_statistics import merged_parts, write_statistics
from gear_data.ingest.growing.sweep import sweep
from gear_data.ingest.several.united import united_columns
from gear_data.schema import Schema
from gear_data.storage.atomic import link_file, typed_write_errors
from gear_data.storage.generations.growth import TABLES, Growth, Part, generation_file
from gear_data.storage.identity import dataset_identity
from gear_data.storage.manifest import MANIFEST_NAME, FileEntry, Manifest, fingerprint
from gear_data.storage.statistics import ColumnStatistics
from gear_data.storage.writing.file_store import LocalFileStore, put_text
from gear_data.storage.writing.placing import place
from gear_data.storage.writing.progress_files import PROGRESS
from gear_data.storage.writing.staging import manifest_text, write_table


@dataclass(frozen=True)
class SealedJournal:
    """A sealed journal: a dataset of its own, which becomes a part of a growing one.

    Attributes:
        writer: the name of the writer's folder of journals.
        number: of the journal.
        folder: folder of the sealed dataset.
        sequences: client of a server for writers -> sequence number of its last episode in the journal.
    """

    writer: str
    number: int
    folder: Path
    sequences: Mapping[str, int] = field(default_factory=dict)


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
        growth = _growth_of(folder, current)
        new = [each for each in segments if each.number > growth.sealed.get(each.writer, -1)]
        if not new:
            return None
        generation = growth.generation + 1
        draft = None if current is None else draft_of(folder, current, growth.parts)
        manifests = [Manifest.load(each.folder) for each in new]
        for number, (segment, manifest) in enumerate(zip(new, manifests, strict=True)):
            added = _linked(
                store, segment, manifest, f"{generation:06d}-{number:04d}", None if draft is None else draft.schema
            )
            draft = appended(draft, added)
        if draft is None:
            return None
        gone = parts_to_evict(draft, limits, len(new))
        evicted = len(draft.episodes)
        draft = without_parts(draft, gone)
        evicted -= len(draft.episodes)
        joined = parts_to_join(draft, shard_bytes, shard_steps)
        if joined > 1:
            name = f"{generation:06d}-joined"
            draft = joined_parts(store, draft, joined, f"shards/{name}.arrow", name)
        statistics = merged_parts(store, draft) if draft.statistics is None else draft.statistics
        grown = Growth(
            growth.id, generation, draft.next_id, growth.base,
            {**growth.sealed, **_last(new)}, _sequences(growth, new), tuple(part.part for part in draft.parts),
        )  # fmt: skip
        manifest = _manifest(store, draft, current, manifests, grown, statistics)
        if current is None:
            put_text(store, CARD_NAME, printable(dataset_card(manifest, draft.episodes)))
        lock.check()
        _put_manifest(store, manifest)
        sweep(folder, manifest)
        return Publication(
            generation,
            sum(each.episodes for each in manifests),
            sum(each.steps for each in manifests),
            evicted,
            manifest.episodes,
            manifest.steps,
            manifest.fingerprint,
        )


def _growth_of(folder: Path, manifest: Manifest | None) -> Growth:
    """Returns the growth of a dataset, which may not have grown so far.

    Its manifest is kept as generation 0.
    """
    if manifest is None:
        return Growth(uuid.uuid4().hex, 0, 0, None)
    if manifest.growth is not None:
        return manifest.growth
    if not link_file(folder / MANIFEST_NAME, folder / generation_file(0)):
        put_text(LocalFileStore(folder), generation_file(0), manifest.to_text())
    parts = tuple(Part(f"base-{number:06d}", 1) for number in range(len(manifest.shards)))
    return Growth(uuid.uuid4().hex, 0, manifest.episodes, dataset_identity(manifest), parts=parts)


def _linked(
    store: LocalFileStore, segment: SealedJournal, manifest: Manifest, name: str, schema: Schema | None
) -> Draft:
    """Puts the shards and videos of a segment into the dataset's folder, and returns them as a draft."""
    if schema is not None:
        check_columns(schema, manifest.schema, str(store.folder))
    (store.folder / "shards").mkdir(parents=True, exist_ok=True)
    files = []
    for number, shard in enumerate(manifest.shards):
        file = f"shards/{name}-{number:04d}.arrow"
        source = segment.folder / shard.entry.file
        place(store, source, shard.entry, file, name=str(source))
        files.append(FileEntry(file, shard.entry.bytes, shard.entry.checksum))
    _fsync_folder(store.folder / "shards")
    write_statistics(store, name, manifest.statistics)
    draft = draft_of(segment.folder, manifest, [Part(name, len(files))])
    entries = zip(draft.shards, files, strict=True)
    shards = tuple(
        type(shard)(file, shard.episodes, shard.steps, shard.buffers, shard.variable) for shard, file in entries
    )
    videos = None if draft.videos is None else linked_videos(store, segment.folder, draft.videos, name)
    part = DraftPart(Part(name, len(files)), shards, draft.parts[0].video_bytes)
    return Draft(
        draft.schema if schema is None else schema, (part,), draft.episodes, draft.finals, draft.next_id,
        draft.statistics, videos,
    )  # fmt: skip


def check_columns(schema: Schema, added: Schema, file: str) -> None:
    """Checks that episodes of some columns can join a dataset.

    Args:
        schema: of the dataset.
        added: of the episodes.
        file: the dataset, for errors.

    Raises:
        UnsupportedColumnError: a column is missing, new, or has another dtype or shape.
    """
    united_columns([(file, schema.columns), ("the new episodes", added.columns)])
    for name in dict.fromkeys((*schema.names, *added.names)):
        if (name in schema) != (name in added):
            lacks = "the new episodes lack it" if name in schema else "the dataset lacks it"
            raise UnsupportedColumnError(
                f"cannot be appended: {lacks}", file=file, column=name, hint="record the columns of the dataset"
            )
        if (schema[name].video is None, schema[name].shape) != (added[name].video is None, added[name].shape):
            kinds = ("a column" if each[name].video is None else "a camera" for each in (schema, added))
            raise UnsupportedColumnError(
                "is {} in the dataset, and {} of other frames in the new episodes".format(*kinds), file=file,
                column=name, hint="record to another path",
            )  # fmt: skip
        if schema[name].has_final != added[name].has_final:
            raise UnsupportedColumnError(
                "has final observations in one of the dataset and the new episodes only", file=file, column=name,
                hint="record to another path, and merge the datasets",
            )  # fmt: skip
    if schema.names != added.names:
        raise UnsupportedColumnError(
            f"its columns are in the order {', '.join(schema.names)}", file=file, hint="record them in this order"
        )


def _fsync_folder(folder: Path) -> None:
    with typed_write_errors(folder):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _last(segments: Sequence[SealedJournal]) -> dict[str, int]:
    last: dict[str, int] = {}
    for each in segments:
        last[each.writer] = max(each.number, last.get(each.writer, -1))
    return last


def _sequences(growth: Growth, segments: Sequence[SealedJournal]) -> dict[str, int]:
    found = dict(growth.sequences)
    for each in segments:
        for client, sequence in each.sequences.items():
            found[client] = max(sequence, found.get(client, -1))
    return found


def _manifest(
    store: LocalFileStore,
    draft: Draft,
    current: Manifest | None,
    added: Sequence[Manifest],
    growth: Growth,
    statistics: Mapping[str, ColumnStatistics],
) -> Manifest:
    """Writes the tables of a generation, and returns its manifest."""
    tables = {"episodes": write_table(store, f"{TABLES}/episodes-{growth.generation:06d}.arrow", draft.episodes)}
    if draft.finals is not None:
        tables["finals"] = write_table(store, f"{TABLES}/finals-{growth.generation:06d}.arrow", draft.finals)
    tables |= write_videos(store, draft.videos, growth.generation)
    provenance = dict((added[0] if current is None else current).provenance)
    if current is None:
        # Journals are removed: they are no source that somebody could convert again.
        provenance |= {"reason": "recorded", "source": "gear_data.Writer", "source_files": []}
    if draft.videos is not None:
        provenance["videos"] = draft.videos.provenance()
    findings = FindingLog()
    for manifest in (*(() if current is None else (current,)), *added):
        for finding in manifest.findings:
            findings.add(Finding(**finding))
    contents = draft.episodes.column("content").combine_chunks()
    hashes = np.frombuffer(contents.buffers()[1], np.uint8, 16 * len(contents), 16 * contents.offset)
    return Manifest(
        episodes=len(draft.episodes),
        steps=draft.steps,
        fingerprint=fingerprint(draft.schema, [hashes.tobytes()]),
        schema=draft.schema,
        shards=draft.shards,
        tables=tables,
        statistics=statistics,
        provenance=provenance,
        findings=tuple(findings.to_json()),
        growth=growth,
    )


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
