"""Removes objects of a bucket that no reader needs.

Object stores have no locks, so a writer cannot know which generations are read. Objects that a generation replaced stay
for a while. Names are never used again: a file that a generation lists and the next one does not is in no later one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from gear_data.common.environment import env_seconds
from gear_data.errors import CorruptShardError
from gear_data.growing.next_generation import growth_of
from gear_data.growing.object_store.bucket import Bucket
from gear_data.growing.object_store.mirror import Mirror
from gear_data.growing.object_store.sealed_objects import (
    NAME,
    SealedName,
    lasting_files,
    listed_journals,
)
from gear_data.growing.part_statistics import part_file
from gear_data.ingest.videos.draft import kept_videos
from gear_data.storage.generations.growth import GENERATIONS, JOURNALS, TABLES, generation_file
from gear_data.storage.manifest import Manifest
from gear_data.storage.remote.conditional_store import PROBE

_KEEP_VARIABLE, _DEFAULT_KEEP = "GEAR_DATA_KEEP_SECONDS", 86400.0
#: A file that no generation lists may belong to a publication that goes on.
_UNFINISHED = timedelta(days=1)
#: Most generations that one publication removes, so that it does not take long.
_MOST = 16
#: The start of a name that was made for a generation.
_MADE = re.compile(r"(\d{6,})-[0-9a-f]{8}")


def keep_seconds() -> float:
    """Returns for how long the files of a generation stay after it was replaced.

    Raises:
        InvalidArgumentError: the environment variable has a wrong value.
    """
    return env_seconds(_KEEP_VARIABLE, _DEFAULT_KEEP)


def remove_replaced(bucket: Bucket, mirror: Mirror, newest: Manifest) -> None:
    """Removes generations that were replaced long ago, and the files that only they list.

    Args:
        bucket: the bucket.
        mirror: local copies of its files.
        newest: the newest manifest.

    Raises:
        GearError: a file cannot be read or removed. A later call goes on.
    """
    keep = timedelta(seconds=keep_seconds())
    # A manifest is copied here just before it is replaced. The newest copy is of this publication: its time is now.
    replaced = _replaced(bucket.objects.times(GENERATIONS))
    if not replaced:
        return
    now = max(replaced.values())
    expired = [generation for generation in sorted(replaced) if now - replaced[generation] > keep][:_MOST]
    for generation in expired:
        follower = min((each for each in (*replaced, newest.generation) if each > generation), default=None)
        if follower is None:  # another process published a later one meanwhile
            break
        old = bucket.manifest(generation_file(generation))
        new = newest if follower == newest.generation else bucket.manifest(generation_file(follower))
        if old is not None and new is not None:
            gone = sorted(_left_files(mirror, old) - _files(mirror, new))
            # Tables last: they name the videos.
            bucket.objects.remove_all([file for file in gone if not file.startswith(f"{TABLES}/")])
            bucket.objects.remove_all([file for file in gone if file.startswith(f"{TABLES}/")])
            mirror.forget(gone)
        bucket.objects.remove_all([generation_file(generation)])


def remove_published(
    bucket: Bucket, mirror: Mirror, journals: Mapping[SealedName, Sequence[str]], newest: Manifest
) -> None:
    """Removes sealed journals that the dataset has, except the files that the dataset took over.

    A shard may be joined with others or evicted by the same publication. Then no generation lists it.

    Args:
        bucket: the bucket.
        mirror: local copies of its files.
        journals: the sealed journals with their files in `journals/`.
        newest: the newest manifest.

    Raises:
        GearError: a file cannot be read or removed. A later call goes on.
    """
    growth = growth_of(newest)
    published = {
        name: files for name, files in journals.items() if name.is_published(growth) and name.reason not in files
    }
    if not published:
        return
    before = bucket.manifest(generation_file(newest.generation - 1)) if newest.generation > 1 else None
    earlier = growth_of(before)
    listed = _files(mirror, newest)
    for name, files in published.items():
        # The files of a journal of an earlier generation may have a reader: `remove_replaced` removes them.
        if not name.is_published(earlier) and (manifest := bucket.manifest(name.manifest)) is not None:
            with suppress(FileNotFoundError):
                mirror.fetch(manifest)
                bucket.objects.remove_all(sorted(lasting_files(mirror, manifest, name) - listed))
        # The manifest last: without it, the other files would look like those of an unfinished upload.
        bucket.objects.remove_all([file for file in files if file != name.manifest])
        bucket.objects.remove_all([name.manifest])


def remove_unfinished(bucket: Bucket) -> None:
    """Removes files of publications and uploads that ended without success more than a day ago.

    Raises:
        GearError: a file cannot be read or removed. A later call goes on.
    """
    # The listing first: a journal that it lacks, because it was published meanwhile, is in the newest generation.
    times = bucket.objects.times()
    newest = bucket.newest()
    if newest is None or newest.growth is None:
        return
    journals = listed_journals(list(times))
    replaced = _replaced({file: time for file, time in times.items() if file.startswith(f"{GENERATIONS}/")})
    listed: dict[int, set[str]] = {newest.generation: _listed(newest)}
    gone = []
    now = max(times.values(), default=datetime.now(UTC))
    for file in (file for file, time in times.items() if now - time > _UNFINISHED):
        name = maker_of(file)
        if file.startswith(PROBE):
            gone.append(file)
        elif (journal := SealedName.of(name)) is not None:
            if not journal.may_be_published(newest.growth) and journal.manifest not in journals.get(journal, ()):
                gone.append(file)
        elif (match := _MADE.match(name)) is not None and file not in listed[newest.generation]:
            # A file of generation g is in g and in all later ones up to some generation.
            made = int(match[1])
            number = max(made, min(replaced, default=made))
            if made <= newest.generation and number not in listed:
                manifest = bucket.manifest(generation_file(number))
                if manifest is None:
                    continue
                listed[number] = _listed(manifest)
            if made > newest.generation or file not in listed[number]:
                gone.append(file)
    bucket.objects.remove_all(gone)


def maker_of(file: str) -> str:
    """Returns the part of a file's name that says which sealed journal or generation made it."""
    folder, _, name = file.partition("/")
    if folder in (JOURNALS, "videos"):
        return name.partition("/")[0]
    name = name.partition(".")[0]
    if folder == TABLES:  # episodes-000012-89abcdef
        return name.partition("-")[2]
    if folder == "shards" and (match := re.fullmatch(rf"({NAME})-\d{{4}}", name)) is not None:
        return match[1]
    return name


def _replaced(times: Mapping[str, datetime]) -> dict[int, datetime]:
    """Returns the generations that were replaced, and when."""
    found = {}
    for file, time in times.items():
        number = file.removeprefix(f"{GENERATIONS}/").removesuffix(".json")
        if number.isdecimal():
            found[int(number)] = time
    return found


def _listed(manifest: Manifest) -> set[str]:
    """Returns the files that a generation lists, except videos."""
    parts = () if manifest.growth is None else manifest.growth.parts
    return {entry.file for entry in manifest.files} | {part_file(part.name) for part in parts}


def _files(mirror: Mirror, manifest: Manifest) -> set[str]:
    """Returns all files of a generation.

    Raises:
        FileNotFoundError, GearError: a table cannot be read. Then nobody knows which videos the generation has.
    """
    mirror.fetch(manifest)
    return _listed(manifest) | kept_videos(mirror.folder, manifest)


def _left_files(mirror: Mirror, manifest: Manifest) -> set[str]:
    """Returns the files that are left of a generation.

    An earlier call may have ended after it removed the tables, and so after the videos.
    """
    try:
        return _files(mirror, manifest)
    except (FileNotFoundError, CorruptShardError):
        return _listed(manifest)
