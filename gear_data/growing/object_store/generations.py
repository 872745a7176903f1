"""Generations in a bucket: one conditional put replaces the manifest. Any writer publishes the journals of all."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gear_data.errors import CorruptShardError, GearError, RemoteError
from gear_data.growing.added_journals import AddedJournal
from gear_data.growing.next_generation import growth_of
from gear_data.growing.object_store.bucket import Bucket
from gear_data.growing.object_store.mirror import Mirror
from gear_data.growing.object_store.retirement import remove_published, remove_replaced
from gear_data.growing.object_store.sealed_objects import (
    SealedName,
    have_gaps,
    listed_journals,
    read_sealed,
    waiting_journals,
)
from gear_data.growing.publish import GenerationStore, Overtaken
from gear_data.ingest.card import CARD_NAME
from gear_data.storage.generations.growth import JOURNALS, Growth, generation_file
from gear_data.storage.journal.quarantine import reason_file
from gear_data.storage.manifest import MANIFEST_NAME, Manifest
from gear_data.storage.writing.file_store import put_text

_log = logging.getLogger(__name__)


class BucketGenerations(GenerationStore[SealedName]):
    """The generations of a dataset in a bucket, and the sealed journals of all its writers.

    Args:
        bucket: the bucket.
        mirror: local copies of its files.
        shard_bytes: the size up to which shards are filled. Copies of smaller ones are kept.
    """

    files: Mirror

    def __init__(self, bucket: Bucket, mirror: Mirror, shard_bytes: int) -> None:
        self.name, self.files = bucket.url, mirror
        self._bucket, self._shard_bytes = bucket, shard_bytes

    @contextmanager
    def turn(self) -> Iterator[Manifest | None]:
        self._found, self._current = self._bucket.versioned()
        self.files.begin()
        try:
            yield self._current
        except (CorruptShardError, FileNotFoundError, RemoteError) as error:
            if isinstance(error, RemoteError) and not isinstance(error.__cause__, FileNotFoundError):
                raise
            self._check_overtaken(error)
            if isinstance(error, FileNotFoundError):
                raise RemoteError(f"a file is missing: {error}", file=self.name, hint="restore it") from error
            raise

    def _check_overtaken(self, error: Exception) -> None:
        """Another process may publish journals and remove their files, also while they are read."""
        if self._bucket.conditional.read(MANIFEST_NAME) != self._found:
            raise Overtaken from error

    def waiting(self, growth: Growth) -> Sequence[SealedName]:
        names = self._waiting(growth)
        if have_gaps(names, growth):
            # A listing in pages may lack a journal and have a later one: both were put between two of its pages. The
            # dataset would seem to have both. A second listing has all that were put before the last ones of the first.
            last = {name.writer: name.number for name in names}
            names = [name for name in self._waiting(growth) if name.number <= last.get(name.writer, -1)]
        self.kept = {name.writer for name in self._journals}
        if names and self._current is not None:
            self.files.fetch(self._current)
        return names

    def _waiting(self, growth: Growth) -> list[SealedName]:
        """Lists the sealed journals, and returns those that a dataset lacks, in order.

        Keeps all of them for `clean`.
        """
        self._journals = listed_journals(self._bucket.objects.files(JOURNALS))
        return [name for name in waiting_journals(self._journals) if not name.is_published(growth)]

    def named(self, generation: int) -> str:
        self._mark = f"{generation:06d}-{secrets.token_hex(4)}"  # two processes may try to make the same generation
        return self._mark

    def added(self, journal: SealedName, part: str) -> AddedJournal:
        try:
            manifest = self._bucket.manifest(journal.manifest)
            if manifest is None:
                raise FileNotFoundError(f"{self.name}/{journal.manifest}")
            return read_sealed(self.files, manifest, journal)
        except (CorruptShardError, FileNotFoundError) as error:
            self._check_overtaken(error)
            if isinstance(error, FileNotFoundError):
                raise CorruptShardError(f"a file is missing: {error}", file=self.name, hint="restore it") from error
            raise

    def set_aside(self, journal: SealedName, reason: str) -> None:
        sizes = self._bucket.objects.sizes("shards")
        size = sum(each for file, each in sizes.items() if file.startswith(f"shards/{journal}-"))
        document = reason_file(reason, f"{JOURNALS}/{journal}", 0, size)
        put_text(self._bucket.objects, journal.reason, document.decode())
        self._journals[journal].append(journal.reason)  # this publication may take later journals of the series
        text = "%s: a sealed journal cannot be published, and is kept: see gear-data journal show %s %s: %s"
        _log.warning(text, self.name, self.name, journal, reason)

    def replace(self, manifest: Manifest, text: str, card: str | None) -> None:
        self.files.upload(self.files.written)
        etag = None
        if self._found is not None and self._current is not None:
            # The manifest that is replaced stays readable. All processes write the same text.
            put_text(self._bucket.objects, generation_file(self._current.generation), self._found.data.decode())
            etag = self._found.etag
        data = text.encode()
        if not self._bucket.conditional.put(MANIFEST_NAME, data, etag):
            winner = self._winner(manifest)
            if winner != data:
                if winner is not None:  # no manifest has the files then, now or later
                    with self._warns("files that are not needed stay for now"):
                        self._bucket.objects.remove_all([file for file in self.files.written if self._mark in file])
                self.files.forget(self.files.written)
                raise Overtaken
        with self._warns(f"{CARD_NAME} cannot be written"):
            if card is not None and self._bucket.objects.size(CARD_NAME) is None:
                put_text(self._bucket.objects, CARD_NAME, card)

    def _winner(self, manifest: Manifest) -> bytes | None:
        """Returns the manifest that was published under the number of a generation.

        It may be the generation itself: the answer of its put was lost, and another process published the next one.

        Args:
            manifest: of the generation, whose put failed.

        Returns:
            None if nobody knows. The server may still work at the put. `remove_unfinished` decides later.
        """
        found, newest = self._bucket.versioned()
        if newest is not None and newest.generation > manifest.generation:
            found, newest = self._bucket.versioned(generation_file(manifest.generation))
        if found is None or newest is None or newest.generation != manifest.generation:
            return None
        # First generations that are made at once have different ids.
        is_same_dataset = manifest.generation == 1 or growth_of(newest).id == growth_of(manifest).id
        return found.data if is_same_dataset else None

    def clean(self, newest: Manifest) -> None:
        with self._warns("files that are not needed any more stay for now"):
            remove_published(self._bucket, self.files, self._journals, newest)
            remove_replaced(self._bucket, self.files, newest)
        # The next publication needs the tables, and small shards at the end.
        needed, size = {entry.file for entry in newest.tables.values()}, 0
        for shard in reversed(newest.shards):
            size += shard.bytes
            if size > self._shard_bytes:
                break
            needed |= {entry.file for entry in shard.files}
        self.files.keep_only(needed)

    @contextmanager
    def _warns(self, what: str) -> Iterator[None]:
        try:
            yield
        except (GearError, FileNotFoundError) as error:
            _log.warning("%s: %s: %s", self.name, what, error)
