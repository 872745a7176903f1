"""Publication in a bucket: sealed journals become a generation by one conditional put of the manifest."""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Literal

from gear_data.common.paths import printable
from gear_data.errors import CorruptShardError, GearError, RemoteError, UnsupportedColumnError
from gear_data.ingest.card import CARD_NAME, dataset_card
from gear_data.ingest.growing.added_journals import AddedJournal, check_columns
from gear_data.ingest.growing.next_generation import NextGeneration, growth_of, next_generation
from gear_data.ingest.growing.publish import Publication, publication_of
from gear_data.recording.object_store.bucket import Bucket
from gear_data.recording.object_store.mirror import Mirror
from gear_data.recording.object_store.retirement import remove_published, remove_replaced
from gear_data.recording.object_store.sealed_objects import (
    SealedName,
    complete_journals,
    listed_journals,
    read_sealed,
)
from gear_data.recording.seal_options import SealOptions
from gear_data.storage.generations.growth import JOURNALS, generation_file
from gear_data.storage.manifest import MANIFEST_NAME, Manifest
from gear_data.storage.remote.conditional_store import VersionedFile
from gear_data.storage.writing.file_store import put_text
from gear_data.storage.writing.staging import manifest_text

_ATTEMPTS = 20
_FIRST_DELAY, _LAST_DELAY = 0.05, 5.0
LOST: Literal["lost"] = "lost"

_log = logging.getLogger(__name__)


def publish_sealed(bucket: Bucket, mirror: Mirror, options: SealOptions, writer: str) -> Publication | None:
    """Publishes all sealed journals of the bucket, of all writers.

    Of several processes that publish at once, one succeeds. The others read its generation, and add what is left to it.

    Args:
        bucket: the bucket.
        mirror: local copies of its files.
        options: limits of the dataset, and of its shards.
        writer: an error in the journals of other writers leaves them out; in its own journals it is raised.

    Returns:
        None if the dataset has all sealed journals already.

    Raises:
        UnsupportedColumnError: a journal of this writer has other columns than the dataset.
        RemoteError: the server cannot be reached, or other processes were faster many times.
        GearError: the bucket cannot be read or written to. The dataset is as before.
    """
    for attempt in range(_ATTEMPTS):
        if attempt:
            # Random, so that processes that met once do not meet again.
            time.sleep(random.uniform(0, min(_LAST_DELAY, _FIRST_DELAY * 2**attempt)))
        found = bucket.newest()
        try:
            outcome = _attempt(bucket, mirror, options, writer, found)
        except (CorruptShardError, FileNotFoundError, RemoteError) as error:
            if isinstance(error, RemoteError) and not isinstance(error.__cause__, FileNotFoundError):
                raise
            # Another process may have published journals and removed their files meanwhile, also while they were read.
            if _etag(found) == _etag(bucket.newest()):
                if isinstance(error, FileNotFoundError):
                    raise RemoteError(f"a file is missing: {error}", file=bucket.url, hint="restore it") from error
                raise
            continue
        if outcome != LOST:
            return outcome
    raise RemoteError(
        f"cannot publish a generation, tried {_ATTEMPTS} times: other Writers published first",
        file=bucket.url,
        hint="publish less often; the episodes are in the bucket, and the next generation takes them",
    )


def _etag(found: tuple[Manifest, VersionedFile] | None) -> str | None:
    return None if found is None else found[1].etag


def _attempt(
    bucket: Bucket, mirror: Mirror, options: SealOptions, writer: str, found: tuple[Manifest, VersionedFile] | None
) -> Publication | Literal["lost"] | None:
    """Publishes the generation after `found`; returns None if there is nothing to publish."""
    current = None if found is None else found[0]
    growth = growth_of(current)
    journals = listed_journals(bucket.objects.files(JOURNALS))
    new = [name for name in complete_journals(journals) if not name.is_published(growth.sealed)]
    added = _added(bucket, mirror, new, current, writer)
    if not added:
        if current is not None:
            _remove_unneeded(bucket, mirror, journals, current)
        return None
    if current is not None:
        mirror.fetch(current)
    mirror.begin()
    name = f"{growth.generation + 1:06d}-{secrets.token_hex(4)}"  # two processes may try to make the same generation
    generation = next_generation(
        mirror, current, growth, added, options.limits, name=name,
        shard_bytes=options.part_bytes, shard_steps=options.part_steps,
    )  # fmt: skip
    mirror.upload(mirror.written)
    text = manifest_text(generation.manifest, mirror, "use larger shards: raise shard_bytes")
    if found is not None:
        # The manifest that is replaced stays readable. All processes write the same text.
        put_text(bucket.objects, generation_file(found[0].generation), found[1].data.decode())
    if not bucket.conditional.put(MANIFEST_NAME, text.encode(), None if found is None else found[1].etag):
        _remove_quietly(bucket, [file for file in mirror.written if name in file])
        mirror.forget(mirror.written)
        return LOST
    _after(bucket, mirror, journals, generation)
    mirror.keep_only(_needed(generation.manifest, options.shard_bytes))
    return publication_of(generation, added)


def _added(
    bucket: Bucket, mirror: Mirror, names: Sequence[SealedName], current: Manifest | None, writer: str
) -> list[AddedJournal]:
    """Reads sealed journals. Those that cannot join the dataset are left out."""
    schema = None if current is None else current.schema
    added: list[AddedJournal] = []
    left_out: set[str] = set()
    for name in names:
        if name.writer in left_out:
            continue  # the journals of one writer enter in order
        manifest = bucket.manifest(name.manifest)
        if manifest is None:
            raise FileNotFoundError(f"{bucket.url}/{name.manifest}")
        try:
            journal = read_sealed(mirror, manifest, name)
            if schema is not None:
                check_columns(schema, journal.manifest.schema, bucket.url)
        except UnsupportedColumnError as error:
            if name.writer == writer:
                raise
            left_out.add(name.writer)
            _log.warning("%s: the journals of another writer are left out: %s", bucket.url, error)
            continue
        schema = journal.manifest.schema if schema is None else schema
        added.append(journal)
    return added


def _after(
    bucket: Bucket, mirror: Mirror, journals: Mapping[SealedName, Sequence[str]], generation: NextGeneration
) -> None:
    """Writes the card of a new dataset, and removes what is not needed any more."""
    try:
        if generation.manifest.generation == 1 and bucket.objects.size(CARD_NAME) is None:
            put_text(bucket.objects, CARD_NAME, printable(dataset_card(generation.manifest, generation.episodes)))
    except GearError as error:
        _log.warning("%s: cannot be written: %s", f"{bucket.url}/{CARD_NAME}", error)
    _remove_unneeded(bucket, mirror, journals, generation.manifest)


def _remove_unneeded(
    bucket: Bucket, mirror: Mirror, journals: Mapping[SealedName, Sequence[str]], newest: Manifest
) -> None:
    """Removes files that no reader needs. What cannot be removed now is removed by a later call."""
    try:
        remove_published(bucket, mirror, journals, newest)
        remove_replaced(bucket, mirror, newest)
    except (GearError, FileNotFoundError) as error:
        _log.warning("%s: files that are not needed any more stay for now: %s", bucket.url, error)


def _remove_quietly(bucket: Bucket, files: Sequence[str]) -> None:
    try:
        bucket.objects.remove_all(files)
    except GearError as error:
        _log.warning("%s: cannot remove files that are not needed: %s", bucket.url, error)


def _needed(manifest: Manifest, shard_bytes: int) -> set[str]:
    """Returns the files that the next publication needs: the tables, and small shards at the end."""
    files, size = {entry.file for entry in manifest.tables.values()}, 0
    for shard in reversed(manifest.shards):
        size += shard.entry.bytes
        if size > shard_bytes:
            break
        files.add(shard.entry.file)
    return files
