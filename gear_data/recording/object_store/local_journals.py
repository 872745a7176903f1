"""The journals of a bucket's writers on this machine.

They are in `STATE/NAME-HASH.journal/NNN/`, a folder for each Writer that runs at the same time. STATE is
$GEAR_DATA_JOURNALS, or `gear-data/journals` in $XDG_STATE_HOME or ~/.local/state.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from pathlib import Path
from urllib.parse import quote

import msgspec
import xxhash

from gear_data.common.typed_json import resolved
from gear_data.storage.atomic import atomic_file
from gear_data.storage.writing.folder_lock import this_process

_NAME_FILE = "writer.json"
_WRITER = re.compile(r"[0-9a-f]{16}")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@resolved
class _WriterRecord(msgspec.Struct, frozen=True):
    name: str
    machine: str
    growth: str = ""


def journal_base(url: str) -> Path:
    """Returns the path whose journals are those of a URL: its folder of journals is beside it."""
    root = os.environ.get("GEAR_DATA_JOURNALS")
    if not root:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        root = str(Path(state, "gear-data", "journals"))
    last = quote(url.rstrip("/").rpartition("/")[2], safe="")[:40]
    return Path(root, f"{last}-{xxhash.xxh3_64_hexdigest(url.rstrip('/').encode())}")


class WriterName:
    """The name of a folder of journals among all writers of a bucket: 16 hexadecimal digits.

    Journals are numbered for each name, so two machines must not share one. A new folder gets a random name. A folder
    that was copied with the image of a machine, or that is older than the last start of this machine, gets another
    one for its later journals. So does a folder whose dataset was replaced by another one, which may have journals of
    the same name and numbers.

    Args:
        folder: the folder, which this process has locked.

    Attributes:
        name: the name of the journals that the folder has.
        is_ours: whether this machine chose the name since its last start. Else `renew` must be called before there are
            new journals.
        growth: the id of the dataset that was at the URL last; empty: there was none. See `Growth`.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME_FILE
        record = self._read()
        if record is None:
            self.renew()
        else:
            self.name, self.is_ours = record.name, record.machine == _this_machine()
            self.growth, self._machine = record.growth, record.machine

    def _read(self) -> _WriterRecord | None:
        try:
            record = msgspec.json.decode(self._path.read_bytes(), type=_WriterRecord)
        except (OSError, ValueError):
            return None
        return record if _WRITER.fullmatch(record.name) else None

    def renew(self) -> None:
        """Chooses another name.

        Raises:
            StorageFullError, UnwritableError: the folder cannot be written to.
        """
        self.name, self.is_ours, self._machine = secrets.token_hex(8), True, _this_machine()
        self.remember("")

    def remember(self, growth: str) -> None:
        """Keeps which dataset is at the URL.

        Raises:
            StorageFullError, UnwritableError: the folder cannot be written to.
        """
        self.growth = growth
        with atomic_file(self._path) as path:
            record = {"name": self.name, "machine": self._machine, "growth": growth}
            path.write_text(json.dumps(record), encoding="utf-8")


def _this_machine() -> str:
    """Returns a text that only this machine has, and that changes when it starts."""
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    return f"{this_process().host} {boot}"
