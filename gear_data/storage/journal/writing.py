"""JournalWriter: appends finished episodes to a journal."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path

import xxhash

from gear_data.errors import GearError, StorageFullError, UnwritableError
from gear_data.schema import ColumnSpec, Schema
from gear_data.storage.atomic import fsync, fsync_names, typed_write_errors
from gear_data.storage.journal.frames import framed
from gear_data.storage.journal.record import RecordedEpisode, arrow_schema, describe_columns, to_batch

#: Suffix of a journal: an Arrow IPC stream.
SUFFIX = ".arrows"
#: The bytes that end the stream.
END = b"\xff\xff\xff\xff\0\0\0\0"
#: Key of the columns in the metadata of a journal's schema.
COLUMNS = b"gear.journal"
#: Key of the cameras there.
CAMERAS = b"gear.cameras"
#: Key of the id of the journal there. Journals of earlier versions have neither id nor frames.
ID = b"gear.id"
#: Key of the checksum of all of them there.
CHECKSUM = b"gear.checksum"
#: Bytes of a series: the second in which it began, and random ones. A journal's id has 3 more, of its number.
_SERIES, _SECONDS = 9, 4
#: Characters of a series.
_SERIES_TEXT = 15
#: What to do after a failure of the disk.
_PUBLISH = "the journal has all finished episodes: seal() publishes them. Until then, a loss of power may damage them"


class JournalWriter:
    """Appends finished episodes to a journal.

    A journal is an Arrow IPC stream, with a record batch for each episode. See `gear_data.storage.journal.frames`.

    An episode that `append` wrote outlives the process. After `sync`, it also outlives a loss of power. An interrupt
    leaves the numbers and the file in accord.

    Args:
        path: the journal, which must not exist.
        columns: all columns.
        cameras: a `gear_data.schema.video_column` for each camera.
        journal: its id, see `journal_id`; empty: random, as in journals of earlier versions.

    Attributes:
        path: the journal.
        episodes: number of episodes so far.
        bytes: of the journal so far.
        failure: the error of the first `sync` at which the disk failed; None: there was none.

    Raises:
        StorageFullError, UnwritableError: the file cannot be written.
    """

    def __init__(
        self, path: Path, columns: Sequence[ColumnSpec], cameras: Sequence[ColumnSpec] = (), journal: str = ""
    ) -> None:
        self.episodes = 0
        self.bytes = 0
        self.failure: GearError | None = None
        self.path = path
        self._columns, self._cameras = tuple(columns), tuple(cameras)
        self._id = (journal or secrets.token_hex(8)).encode()
        #: Videos of episodes since the last `sync`.
        self._videos: list[Path] = []
        #: Whether the disk has its name.
        self._is_named = False
        #: Episodes before the last `sync`, if there are cameras.
        self._synced = 0
        self._texts = describe_columns(columns), describe_cameras(cameras)
        with typed_write_errors(path):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def append(self, episode: RecordedEpisode) -> None:
        """Appends an episode, whole or not at all. Its videos are complete.

        Raises:
            StorageFullError, UnwritableError: the journal cannot be written. It ends with the episode before.
        """
        batch, facts = to_batch(episode, self._columns, self._synced)
        record = framed(batch, self._id, self.episodes, (*self._texts, facts))
        # The stream's schema is written with the first episode: an empty file is a journal without episodes.
        data = record if self.bytes else stream_start(self._columns, self._cameras, self._id) + record
        videos = [*self._videos, *(self.path.parent / video.file for video in episode.videos.values())]
        self._write(data, self.episodes + 1, videos)

    def sync(self) -> None:
        """Waits until the disk has all episodes, their videos, and the name of the journal.

        Raises:
            StorageFullError, UnwritableError: the disk failed, now or before. The journal has the episodes, and the
                disk may lack some of them.
        """
        if self.failure is not None:
            raise copy(self.failure)
        try:
            with typed_write_errors(self.path):
                # A video is in the folder of its camera, in the folder of videos, beside the journal.
                folders = {folder for video in self._videos for folder in video.parents[:3]}
                for path in (*self._videos, *folders):
                    fsync(path)
                os.fsync(self._file)
                # Without its name, the disk has the bytes in vain. The folders above may be as new.
                if not self._is_named:
                    fsync_names(self.path)
                    self._is_named = True
        except (StorageFullError, UnwritableError) as error:
            # Linux says it once: a second fsync succeeds, and the disk lacks the bytes all the same.
            error.hint = _PUBLISH
            self.failure = copy(error)
            raise
        self._videos, self._synced = [], self.episodes if self._cameras else 0

    def close(self) -> None:
        """Ends the journal and waits until the disk has it.

        Raises:
            StorageFullError, UnwritableError: see `sync`. After a failure the journal has no end, so that its videos
                are compared with their checksums.
        """
        try:
            if self.bytes and self.failure is None:
                self._write(END, self.episodes, self._videos)
            self.sync()
        finally:
            os.close(self._file)

    def _write(self, record: bytes, episodes: int, videos: list[Path]) -> None:
        """Writes bytes at the end of the file, in one call: a process that is killed seldom leaves a part of them.

        Args:
            record: the bytes.
            episodes: number of episodes with them.
            videos: those of episodes since the last `sync`.
        """
        data = memoryview(record)
        size = self.bytes + len(data)
        with typed_write_errors(self.path):
            try:
                done = 0
                while done < len(data):
                    done += os.pwrite(self._file, data[done:], self.bytes + done)
                # No call: an interrupt comes before it, and the bytes are removed, or after it.
                self.bytes, self.episodes, self._videos = size, episodes, videos
            except BaseException:
                with suppress(OSError):  # the first error is the one to report
                    os.ftruncate(self._file, self.bytes)
                raise


def new_series(after: str = "") -> str:
    """Returns a random series, for the journals of one Writer. No other Writer has it, so its numbers mean one journal.

    Series ascend with the times at which they began. Letters are lower case: some file systems do not tell the cases
    apart.

    Args:
        after: a series. The new one is larger, whatever this machine's clock says.
    """
    second = max(int(time.time()), int.from_bytes(_series_bytes(after)[:_SECONDS]) + 1 if after else 0)
    begin = min(max(second, 0), (1 << 8 * _SECONDS) - 1).to_bytes(_SECONDS)
    return _series_text(begin + secrets.token_bytes(_SERIES - _SECONDS))


def _series_text(series: bytes) -> str:
    return base64.b32hexencode(series).decode().lower()[:_SERIES_TEXT]


def _series_bytes(series: str) -> bytes:
    return base64.b32hexdecode(f"{series.upper()}=")


def is_series(text: str) -> bool:
    """Returns whether a text can be a series."""
    return re.fullmatch(f"[0-9a-v]{{{_SERIES_TEXT}}}", text) is not None


def journal_id(series: str, number: int) -> str:
    """Returns the id of a journal, 16 characters."""
    # 22 bits, so that the first character of the number is a capital. Ids of earlier versions have none.
    return base64.urlsafe_b64encode(_series_bytes(series) + (number % (1 << 22)).to_bytes(3)).decode()


def series_of(journal: bytes) -> str:
    """Returns the series of a journal with an id; empty: it has none."""
    if not re.fullmatch(rb"[\w-]{12}[A-P][\w-]{3}", journal):
        return ""
    return _series_text(base64.urlsafe_b64decode(journal)[:_SERIES])


def describe_cameras(cameras: Sequence[ColumnSpec]) -> bytes:
    """Returns cameras as JSON."""
    return json.dumps(Schema((), tuple(cameras)).videos_to_json()).encode()


def stream_start(columns: Sequence[ColumnSpec], cameras: Sequence[ColumnSpec], journal: bytes) -> bytes:
    """Returns the first bytes of a journal: the schema of its stream.

    Args:
        columns: all columns.
        cameras: all cameras.
        journal: id of the journal, 16 bytes; empty: a journal of an earlier version.
    """
    metadata = {COLUMNS: describe_columns(columns), CAMERAS: describe_cameras(cameras)}
    if journal:
        metadata[ID] = journal
    metadata[CHECKSUM] = metadata_checksum(metadata)
    return bytes(memoryview(arrow_schema(columns).with_metadata(metadata).serialize()))


def metadata_checksum(metadata: Mapping[bytes, bytes]) -> bytes:
    """Returns the checksum of what the metadata of a journal's schema says."""
    parts = [metadata[COLUMNS], metadata.get(CAMERAS, b""), *([metadata[ID]] if ID in metadata else [])]
    return xxhash.xxh3_128_hexdigest(b"\0".join(parts)).encode()
