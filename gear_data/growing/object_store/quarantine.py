"""Sealed journals that cannot join the dataset of a bucket. See `sealed_objects`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from gear_data.common.paths import join
from gear_data.errors import ManifestError
from gear_data.growing.object_store.bucket import Bucket
from gear_data.growing.object_store.mirror import Mirror
from gear_data.growing.object_store.retirement import maker_of
from gear_data.growing.object_store.sealed_objects import SealedName, lasting_files, listed_journals
from gear_data.storage.generations.growth import JOURNALS
from gear_data.storage.journal.quarantine import EPISODES, Entry, entry_of
from gear_data.storage.manifest import MANIFEST_NAME
from gear_data.storage.writing.file_store import put_text


def refused_journals(url: str) -> list[Entry]:
    """Returns the journals that are set aside in a bucket, in order."""
    objects, found = Bucket(url).objects, []
    for name, files in listed_journals(objects.files(JOURNALS)).items():
        if name.reason in files:
            with suppress(FileNotFoundError, msgspec.DecodeError):  # another process removed it
                folder = join(objects.name, f"{JOURNALS}/{name}")
                found.append(entry_of(str(name), folder, EPISODES, objects.read(name.reason)))
    return found


def download(entry: Entry, folder: Path) -> None:
    """Makes a dataset of a journal that is set aside, in a new folder.

    Raises:
        ManifestError: its manifest is missing or damaged.
        CorruptShardError: a table is damaged.
        RemoteError: the server cannot be reached.
    """
    bucket, name = _place(entry)
    mirror = Mirror(folder, bucket.objects)
    manifest = bucket.manifest(name.manifest)
    if manifest is None:
        raise ManifestError("is missing", file=join(bucket.url, name.manifest), hint="drop the journal")
    mirror.fetch(manifest)
    for file in lasting_files(mirror, manifest, name):
        mirror.path(file)
    put_text(mirror, MANIFEST_NAME, manifest.to_text())


def drop(entry: Entry) -> None:
    """Removes a journal that is set aside.

    Raises:
        GearError: a file cannot be removed. A second call goes on.
    """
    bucket, name = _place(entry)
    objects = bucket.objects
    objects.remove_all([file for file in objects.files() if maker_of(file) == str(name) and file != name.reason])
    # The reason last: without it, the journal would wait for a generation.
    objects.remove(name.reason)


def _place(entry: Entry) -> tuple[Bucket, SealedName]:
    url, _, name = entry.folder.rpartition(f"/{JOURNALS}/")
    writer, _, number = name.partition("-")
    return Bucket(url), SealedName(writer, int(number))
