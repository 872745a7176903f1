"""Quarantine: what a publication could not put into the dataset, in a folder beside it.

```
DATASET.quarantine/000-000003-5f0c2e9d8a71b346/   named by the journal and by the bytes
    reason.json                                   why it is here
    episodes.arrows                               a journal of episodes that cannot join the dataset
    damaged.bin                                   or bytes of a journal that are no episode
    videos/...                                    the videos that they name
```
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import xxhash

from gear_data.common.typed_json import resolved
from gear_data.storage.atomic import atomic_file, fsync, link_file, typed_write_errors
from gear_data.storage.journal.reading import Extent, Journal, is_absent
from gear_data.storage.journal.writing import END, stream_start
from gear_data.storage.journal.writing import SUFFIX as JOURNAL_SUFFIX

#: Suffix of the folder, beside the dataset's folder and the folder of its journals.
QUARANTINE = ".quarantine"
_REASON, _BYTES, _EPISODES = "reason.json", "damaged.bin", f"episodes{JOURNAL_SUFFIX}"
#: What an entry holds.
EPISODES, DAMAGED = "episodes", "damaged bytes"
#: A video, in the facts of an episode.
_VIDEO = re.compile(rb'"file":"(videos/[^"\\\0]+)"')


@resolved
class _Reason(msgspec.Struct, frozen=True):
    """The contents of `reason.json`."""

    reason: str
    journal: str
    first_byte: int
    bytes: int
    since: str


@dataclass(frozen=True)
class Entry:
    """Episodes or bytes in a quarantine.

    Attributes:
        name: of its folder.
        holds: `EPISODES` or `DAMAGED`.
        reason: why it is here.
        journal: the journal that had it, such as `000/000003.arrows`.
        first_byte: the place of its first byte there.
        bytes: their number.
        since: the time in UTC.
        folder: path or URL of its folder.
    """

    name: str
    holds: str
    reason: str
    journal: str
    first_byte: int
    bytes: int
    since: str
    folder: str

    @property
    def episodes(self) -> Path:
        """The journal of its episodes, in a folder of this machine."""
        return Path(self.folder, _EPISODES)


def entry_of(name: str, folder: str, holds: str, reason: bytes) -> Entry:
    """Returns the entry with a reason that `reason_file` returned.

    Raises:
        msgspec.DecodeError: it is no reason.
    """
    document = msgspec.structs.asdict(msgspec.json.decode(reason, type=_Reason))
    return Entry(name=name, holds=holds, **document, folder=folder)


def reason_file(reason: str, journal: str, first_byte: int, size: int) -> bytes:
    """Returns the contents of `reason.json`. See `Entry`."""
    since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    document = _Reason(reason, journal, first_byte, size, since)
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def quarantine_of(dataset: Path) -> Path:
    """Returns the quarantine of a dataset."""
    return dataset.with_name(f"{dataset.name}{QUARANTINE}")


def entries(dataset: Path) -> list[Entry]:
    """Returns what is in the quarantine of a dataset, in the order of the names."""
    found = []
    for folder in sorted(quarantine_of(dataset).glob("[!.]*")):
        with suppress(OSError, msgspec.DecodeError):  # another process removed it; or it is no entry
            holds = EPISODES if (folder / _EPISODES).exists() else DAMAGED
            found.append(entry_of(folder.name, str(folder), holds, (folder / _REASON).read_bytes()))
    return found


def set_aside(journal: Path, contents: Journal, extents: Sequence[Extent], reason: str) -> Path:
    """Copies bytes of a journal, and the videos that they name, into the quarantine of its dataset.

    The journal stays as it is. A second call for the same bytes changes nothing.

    Args:
        journal: the journal.
        contents: its contents.
        extents: records of episodes, also of `contents.lost`; or one of `contents.damaged`.
        reason: why they are not in the dataset.

    Returns:
        The folder in the quarantine.

    Raises:
        StorageFullError, UnwritableError: the quarantine cannot be written to.
    """
    data = _bytes_of(journal, extents)
    journals = journal.parent.parent
    name = f"{journal.parent.name}-{journal.stem}-{xxhash.xxh3_64_hexdigest(data)}"
    folder = quarantine_of(journals.with_name(journals.stem)) / name
    if folder.exists():
        return folder
    document = reason_file(reason, f"{journal.parent.name}/{journal.name}", extents[0].start, len(data))
    unfinished = folder.with_name(f".{name}.{os.getpid()}.tmp")
    with typed_write_errors(folder):
        for file in {each.decode(errors="replace") for each in _VIDEO.findall(data)}:
            source, target = journal.parent / file, unfinished / file
            if ".." not in source.parts and _is_file(source) and not link_file(source, target):
                shutil.copyfile(source, target)
                fsync(target)
        is_damaged = extents[0].number < 0
        with atomic_file(unfinished / (_BYTES if is_damaged else _EPISODES)) as path:
            path.write_bytes(data if is_damaged else _as_journal(contents, data))
        with atomic_file(unfinished / _REASON) as path:
            path.write_bytes(document)
        os.replace(unfinished, folder)
        fsync(folder.parent)
    return folder


def _is_file(path: Path) -> bool:
    """Returns whether there is a file. Raises any error that may pass: the video must not be left behind."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        if is_absent(error):
            return False
        raise


def keep_only(journal: Path, contents: Journal, records: Sequence[Extent]) -> None:
    """Removes all but some records from a journal. They keep their numbers.

    Args:
        journal: the journal, which is not written any more.
        contents: its contents.
        records: those that stay.

    Raises:
        StorageFullError, UnwritableError: the journal cannot be written. It is as before.
    """
    data = _as_journal(contents, _bytes_of(journal, records)) if records else b""
    with atomic_file(journal) as path:
        path.write_bytes(data)


def _bytes_of(journal: Path, extents: Sequence[Extent]) -> bytes:
    with journal.open("rb") as file:
        parts = []
        for extent in extents:
            file.seek(extent.start)
            parts.append(file.read(extent.end - extent.start))
    return b"".join(parts)


def _as_journal(contents: Journal, records: bytes) -> bytes:
    return stream_start(contents.columns, contents.cameras, contents.id) + records + END
