"""Sealed journals in a bucket: episodes that wait for the next generation.

The shards, videos and statistics of a sealed journal have their final names. Its tables and its own manifest are in
`journals/WRITER-NUMBER/`. The manifest is written last, and only once. Any writer may publish a sealed journal: it
becomes a part of the dataset when a manifest of the dataset has its number in `sealed`.

Before its first file, the journal claims its name by a conditional put. So only one of two copies of a machine writes
files of that name.

A journal that cannot join the dataset stays there, with the file `reason.json`: this is its quarantine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gear_data.growing.added_journals import AddedJournal, placed
from gear_data.growing.draft import draft_of
from gear_data.growing.next_generation import REMEMBERED
from gear_data.growing.object_store.bucket import Bucket
from gear_data.growing.object_store.mirror import Mirror
from gear_data.growing.part_statistics import part_file
from gear_data.ingest.videos.draft import kept_videos
from gear_data.storage.atomic import link_file
from gear_data.storage.generations.growth import JOURNALS, Growth, Part
from gear_data.storage.journal.writing import is_series
from gear_data.storage.manifest import MANIFEST_NAME, FileEntry, Manifest
from gear_data.storage.writing.staging import manifest_text, write_table
from gear_data.video.index_tables import FILES_TABLE

#: A series of journals; or 16 hexadecimal digits for a journal without a series, of an earlier version.
NAME = r"([0-9a-v]{15}|[0-9a-f]{16})-(\d{6,})"


@dataclass(frozen=True, order=True)
class SealedName:
    """The name of a sealed journal. Generations take sealed journals in this order.

    Attributes:
        writer: series of the journal. See `new_series`.
        number: of the journal.
    """

    writer: str
    number: int

    def __str__(self) -> str:
        return f"{self.writer}-{self.number:06d}"

    @property
    def manifest(self) -> str:
        """The file of its manifest."""
        return f"{JOURNALS}/{self}/{MANIFEST_NAME}"

    @property
    def claim(self) -> str:
        """The file that keeps other episodes from having this name. It has the fingerprint of the episodes."""
        return f"{JOURNALS}/{self}/claim"

    @property
    def reason(self) -> str:
        """The file that says why it cannot join the dataset."""
        return f"{JOURNALS}/{self}/reason.json"

    @staticmethod
    def of(text: str) -> SealedName | None:
        """Returns the name in a text; None if it is no name."""
        match = re.fullmatch(NAME, text)
        return None if match is None else SealedName(match[1], int(match[2]))

    def is_published(self, growth: Growth) -> bool:
        """Returns whether a dataset has the journal."""
        return growth.has_journal(self.writer, self.number)

    def may_be_published(self, growth: Growth) -> bool:
        """Returns whether a dataset has the journal, or may have forgotten that it has it."""
        # An id of an earlier version does not say when its journal began. So it may be one that was forgotten.
        is_old = not is_series(self.writer) and len(growth.sealed) >= REMEMBERED
        return is_old or self.is_published(growth) or growth.has_forgotten(self.writer)


def listed_journals(files: Sequence[str]) -> dict[SealedName, list[str]]:
    """Returns the files of sealed journals in `journals/`, by the names of the journals in order."""
    found: dict[SealedName, list[str]] = {}
    for file in files:
        parts = file.split("/")
        if len(parts) == 3 and parts[0] == JOURNALS and (name := SealedName.of(parts[1])) is not None:
            found.setdefault(name, []).append(file)
    return dict(sorted(found.items()))


def waiting_journals(listed: Mapping[SealedName, Sequence[str]]) -> list[SealedName]:
    """Returns the sealed journals that are complete and not set aside, in order."""
    return [name for name, files in listed.items() if name.manifest in files and name.reason not in files]


def have_gaps(names: Sequence[SealedName], growth: Growth) -> bool:
    """Returns whether numbers are missing below those of some journals.

    Args:
        names: the journals that a dataset lacks, in order.
        growth: of the dataset.
    """
    numbers = {writer: last.number for writer, last in growth.sealed.items()}
    for name in names:
        if name.number != numbers.get(name.writer, -1) + 1:
            return True
        numbers[name.writer] = name.number
    return False


def claim_name(bucket: Bucket, name: SealedName, fingerprint: str) -> bool:
    """Claims the name of a sealed journal, until it is published. Returns whether no other episodes have it.

    Raises:
        RemoteError: the server cannot be reached.
        UnwritableError: the bucket cannot be written to.
    """
    return bucket.conditional.put(name.claim, fingerprint.encode(), None)


def upload_sealed(mirror: Mirror, bucket: Bucket, folder: Path, name: SealedName) -> Manifest:
    """Uploads a sealed journal: whole, or nobody sees it. A second call for the same journal changes nothing.

    Args:
        mirror: local copies of the bucket's files.
        bucket: the bucket.
        folder: the dataset into which the journal was sealed.
        name: its name, which it has claimed.

    Returns:
        The manifest in the bucket.

    Raises:
        RemoteError: the server cannot be reached.
        StorageFullError, UnwritableError: the bucket or the mirror cannot be written to.
    """
    manifest = Manifest.load(folder)
    if (uploaded := bucket.manifest(name.manifest)) is not None:  # by a process that was killed then
        return uploaded
    draft = placed(mirror, folder, manifest, str(name))
    tables = {}
    for table, entry in manifest.tables.items():
        file = f"{JOURNALS}/{name}/{table}.arrow"
        if table == FILES_TABLE and draft.videos is not None:
            tables[table] = write_table(mirror, file, draft.videos.files)
        else:
            tables[table] = _moved(mirror, folder, entry, file)
    manifest = replace(manifest, shards=draft.shards, tables=tables)
    mirror.upload([*sorted(lasting_files(mirror, manifest, name)), *(entry.file for entry in tables.values())])
    text = manifest_text(manifest, mirror, "record shorter episodes").encode()
    bucket.conditional.put(name.manifest, text, None)  # or a copy of this machine has put the same episodes
    return manifest


def lasting_files(mirror: Mirror, manifest: Manifest, name: SealedName) -> set[str]:
    """Returns the files of a sealed journal that become files of the dataset.

    Args:
        mirror: local copies, which have the tables of the journal.
        manifest: its manifest in the bucket.
        name: its name.
    """
    shards = {shard.entry.file for shard in manifest.shards}
    return shards | kept_videos(mirror.folder, manifest) | {part_file(str(name))}


def _moved(mirror: Mirror, folder: Path, entry: FileEntry, file: str) -> FileEntry:
    moved = FileEntry(file, entry.bytes, entry.checksum)
    if not link_file(folder / entry.file, mirror.folder / file):
        with mirror.writing(file) as path:
            path.write_bytes((folder / entry.file).read_bytes())
    return moved


def read_sealed(mirror: Mirror, manifest: Manifest, name: SealedName) -> AddedJournal:
    """Returns a sealed journal of the bucket.

    Args:
        mirror: local copies of the bucket's files. The tables of the journal are fetched.
        manifest: its manifest in the bucket.
        name: its name.

    Raises:
        FileNotFoundError: it was removed after its publication.
        GearError: it cannot be read.
    """
    mirror.fetch(manifest)
    draft = draft_of(mirror.folder, manifest, [Part(str(name), len(manifest.shards))])
    return AddedJournal(name.writer, name.number, {}, manifest, draft)
