"""The next generation of a growing dataset: its shards, its tables and its manifest."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pyarrow as pa

from gear_data.errors import InvalidArgumentError
from gear_data.growing.added_journals import AddedJournal
from gear_data.growing.compaction import parts_to_join, rewritten_parts
from gear_data.growing.draft import Draft, without_parts
from gear_data.growing.eviction import next_rewriting, parts_to_evict
from gear_data.growing.part_statistics import merged_parts
from gear_data.growing.returned import last_journal
from gear_data.growing.seal_options import OLDEST, SealOptions
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.videos.draft import write_videos
from gear_data.storage.episode_tables import content_bytes
from gear_data.storage.generations.growth import TABLES, Growth, Part
from gear_data.storage.identity import dataset_identity
from gear_data.storage.journal.writing import is_series
from gear_data.storage.manifest import STEP_MASK, Manifest, fingerprint
from gear_data.storage.statistics import ColumnStatistics
from gear_data.storage.writing.file_store import LocalFileStore
from gear_data.storage.writing.staging import write_table

#: A generation knows the last numbers of so many series of journals, and of so many clients: those that published last.
REMEMBERED = 1000

Last = TypeVar("Last")


def growth_of(manifest: Manifest | None) -> Growth:
    """Returns the growth of the newest generation. The dataset may not have grown so far, or not exist.

    Raises:
        InvalidArgumentError: the dataset cannot grow.
    """
    if manifest is not None and STEP_MASK in manifest.tables:
        raise InvalidArgumentError(
            "the dataset was saved with a filter of steps, which says nothing about new episodes",
            hint="record to a dataset that was saved without it: gear_data.open(...).all_steps().save(...)",
        )
    if manifest is None:
        return Growth(uuid.uuid4().hex, 0, 0, None)
    if manifest.growth is not None:
        return manifest.growth
    parts = tuple(Part(f"base-{number:06d}", 1) for number in range(len(manifest.shards)))
    return Growth(uuid.uuid4().hex, 0, manifest.episodes, dataset_identity(manifest), parts=parts)


def next_generation(
    store: LocalFileStore,
    draft: Draft,
    current: Manifest | None,
    growth: Growth,
    added: Sequence[AddedJournal],
    options: SealOptions,
    name: str,
    gone: Collection[str],
    kept: Collection[str],
) -> tuple[Manifest, pa.Table]:
    """Writes the files of a generation, except its manifest, and returns its manifest and its episode table.

    Args:
        store: the dataset's folder.
        draft: the newest generation with the new journals.
        current: the manifest of the newest generation; None: there is none.
        growth: of the newest generation.
        added: the new journals, those of one writer in the order of their numbers.
        options: limits of the dataset, and of its shards.
        name: part of the names of the new files. No earlier generation has the name.
        gone: see `publish`.
        kept: series that the generation does not forget. See `GenerationStore`.

    Raises:
        StorageFullError, UnwritableError: the folder cannot be written to.
        CorruptShardError: a table or shard of the dataset is damaged.
    """
    size, written = draft.bytes, 0
    if options.limited and options.evict != OLDEST:
        draft, written = _without_small_weights(store, draft, options, len(added), name)
    draft = without_parts(draft, parts_to_evict(draft, options))
    # What has left, and what is written again, is on disk until the generation is published: together at most a shard.
    joined = parts_to_join(draft, options.part_bytes - (size - draft.bytes) - written, options.part_steps)
    if joined > 1:
        last = range(len(draft.parts) - joined, len(draft.parts))
        none = np.zeros(len(draft.episodes), np.bool_)
        draft = rewritten_parts(store, draft, last, none, f"shards/{name}-joined.arrow", f"{name}-joined")
    statistics = merged_parts(store, draft) if draft.statistics is None else draft.statistics
    published = {each.writer: last_journal(each.number, each.manifest) for each in added}
    sealed, forgotten = _remembered(growth.sealed, published, kept)
    sequences, clients = _remembered(growth.sequences, _sequences(growth, added), (), gone)
    grown = replace(
        growth,
        generation=growth.generation + 1,
        next_id=draft.next_id,
        sealed=sealed,
        sequences=sequences,
        forgotten=max(growth.forgotten, *filter(is_series, forgotten), ""),
        forgotten_clients=max(growth.forgotten_clients, *clients, ""),
        parts=tuple(part.part for part in draft.parts),
    )
    return _manifest(store, draft, current, added, grown, statistics, name), draft.episodes


def _without_small_weights(
    store: LocalFileStore, draft: Draft, options: SealOptions, added: int, name: str
) -> tuple[Draft, int]:
    """Returns a draft without episodes of small weight, and the bytes that were written for it."""
    written = 0
    for number in itertools.count():
        found = next_rewriting(draft, options, added) if options.excess(draft) > 0 else None
        if found is None:
            break
        part = draft.part_of_shard()[draft.episodes.column("shard").to_numpy()]
        if found.gone[(part >= found.parts.start) & (part < found.parts.stop)].all():
            draft = without_parts(draft, found.parts)
            continue
        draft = rewritten_parts(
            store, draft, found.parts, found.gone, f"shards/{name}-kept-{number:04d}.arrow", f"{name}-kept-{number:04d}"
        )
        written += draft.parts[found.parts.start].bytes
    return draft, written


def _sequences(growth: Growth, added: Sequence[AddedJournal]) -> dict[str, int]:
    """Returns the last sequence numbers of the clients that have episodes in new journals."""
    new: dict[str, int] = {}
    for each in added:
        for client, sequence in each.sequences.items():
            new[client] = max(sequence, new.get(client, -1), growth.sequences.get(client, -1))
    return new


def _remembered(
    known: Mapping[str, Last], new: Mapping[str, Last], kept: Collection[str], gone: Collection[str] = ()
) -> tuple[dict[str, Last], list[str]]:
    """Returns what was last of all, and the names of those that published nothing for the longest time.

    Args:
        known: name -> what was last so far.
        new: name -> what is last now.
        kept: names that are remembered in any case.
        gone: names that cannot come back.
    """
    found = {name: last for name, last in known.items() if name not in new} | dict(new)
    found = {name: last for name, last in found.items() if name not in gone}
    oldest = list(found)[: max(0, len(found) - REMEMBERED)]
    forgotten = [name for name in oldest if name not in kept and name not in new]
    for name in forgotten:
        del found[name]
    return found, forgotten


def _manifest(
    store: LocalFileStore,
    draft: Draft,
    current: Manifest | None,
    added: Sequence[AddedJournal],
    growth: Growth,
    statistics: Mapping[str, ColumnStatistics],
    name: str,
) -> Manifest:
    """Writes the tables of a generation, and returns its manifest."""
    tables = {"episodes": write_table(store, f"{TABLES}/episodes-{name}.arrow", draft.episodes)}
    if draft.finals is not None:
        tables["finals"] = write_table(store, f"{TABLES}/finals-{name}.arrow", draft.finals)
    tables |= write_videos(store, draft.videos, name)
    provenance = dict((added[0].manifest if current is None else current).provenance)
    if current is None:
        # Journals are removed: they are no source that somebody could convert again.
        provenance |= {"reason": "recorded", "source": "gear_data.Writer", "source_files": [], "metadata": {}}
    if draft.videos is not None:
        provenance["videos"] = draft.videos.provenance()
    findings = FindingLog()
    for manifest in (*(() if current is None else (current,)), *(each.manifest for each in added)):
        for finding in manifest.findings:
            findings.add(Finding(**finding))
    return Manifest(
        episodes=len(draft.episodes),
        steps=draft.steps,
        fingerprint=fingerprint(draft.schema, content_bytes(draft.episodes)),
        schema=draft.schema,
        shards=draft.shards,
        tables=tables,
        statistics=statistics,
        provenance=provenance,
        findings=tuple(findings.to_json()),
        growth=growth,
    )
