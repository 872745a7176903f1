"""Quarantine: what a publication could not put into the dataset, in a folder beside it.

```
DATASET.quarantine/000-000003-5f0c2e9d8a71b346/   named by the journal and by the bytes
    reason.json                                   why it is here
    damaged.bin                                   the bytes of the journal
    videos/...                                    the videos that they name
```
"""

from __future__ import annotations

import json
import os
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

import xxhash

from gear_data.storage.atomic import atomic_file, fsync, link_file, typed_write_errors
from gear_data.storage.journal.reading import Extent

#: Suffix of the folder, beside the dataset's folder and the folder of its journals.
QUARANTINE = ".quarantine"
_REASON, _BYTES = "reason.json", "damaged.bin"
#: A video, in the facts of an episode.
_VIDEO = re.compile(rb'"file":"(videos/[^"\\\0]+)"')


def quarantine_of(journal: Path) -> Path:
    """Returns the quarantine of the dataset to which a journal belongs."""
    journals = journal.parent.parent
    return journals.with_name(f"{journals.stem}{QUARANTINE}")


def set_aside(journal: Path, extent: Extent) -> Path:
    """Copies damaged bytes of a journal, and the videos that they name, into the quarantine.

    The journal stays as it is. A second call for the same bytes changes nothing.

    Returns:
        The folder in the quarantine.

    Raises:
        StorageFullError, UnwritableError: the quarantine cannot be written to.
    """
    with journal.open("rb") as file:
        file.seek(extent.start)
        data = file.read(extent.end - extent.start)
    name = f"{journal.parent.name}-{journal.stem}-{xxhash.xxh3_64_hexdigest(data)}"
    folder = quarantine_of(journal) / name
    if folder.exists():
        return folder
    reason = {
        "reason": extent.damage,
        "journal": f"{journal.parent.name}/{journal.name}",
        "first_byte": extent.start,
        "bytes": len(data),
        "since": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
    }
    unfinished = folder.with_name(f".{name}.{os.getpid()}.tmp")
    with typed_write_errors(folder):
        for file in {each.decode(errors="replace") for each in _VIDEO.findall(data)}:
            source, target = journal.parent / file, unfinished / file
            if ".." not in source.parts and source.is_file() and not link_file(source, target):
                shutil.copyfile(source, target)
                fsync(target)
        with atomic_file(unfinished / _BYTES) as path:
            path.write_bytes(data)
        with atomic_file(unfinished / _REASON) as path:
            path.write_text(json.dumps(reason, indent=1) + "\n", encoding="utf-8")
        os.replace(unfinished, folder)
        fsync(folder.parent)
    return folder
