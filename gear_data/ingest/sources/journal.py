"""Journals of `gear_data.Writer`: finished episodes that are not in shards yet.

A journal is an Arrow IPC stream (`gear_data.storage.journal`). The journals of a folder are read in the order of their
names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from gear_data.errors import EmptySourceError, UnknownFormatError, UnsupportedColumnError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.findings.video_files import DeclaredVideo
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.pipeline.columns import choose_columns
from gear_data.ingest.source import Format, SourceOptions, SourceVideos, Unit, files_between
from gear_data.ingest.sources.arrays.blocks import ReadEpisode, block_of
from gear_data.schema import ColumnSpec, VideoFormat
from gear_data.storage.episode_block import EpisodeBlock, Position
from gear_data.storage.journal.reading import Journal, is_journal, read_journal
from gear_data.storage.journal.record import RecordedEpisode, RecordedVideo
from gear_data.storage.journal.writing import SUFFIX
from gear_data.video.segments import VideoTimes

_BLOCK_BYTES = 16 << 20
#: End flags, of which a journal stores one value for each episode.
_FLAGS = ("terminated", "truncated")


@dataclass(frozen=True)
class _JournalFile:
    """A journal on this machine."""

    file: SourceFile

    @cached_property
    def contents(self) -> Journal:
        return read_journal(Path(self.file.path))


def _journal_files(location: Location) -> list[SourceFile]:
    return [file for file in location.files if file.name.endswith(SUFFIX)]


def probe(location: Location) -> str | None:
    """Returns the reason if a local Arrow stream is a journal; otherwise None."""
    for file in _journal_files(location):
        if file.filesystem is None and is_journal(Path(file.path)):
            return f"{file.name} is a journal of a Writer"
    return None


def open_(location: Location, options: SourceOptions) -> JournalSource:
    """Opens journals.

    Raises:
        UnknownFormatError: there is no journal, or the journals are at a URL.
        CorruptSourceError: a journal cannot be read.
        UnsupportedColumnError: the journals have different columns.
        EmptySourceError: no journal has an intact finished episode.
    """
    files = _journal_files(location)
    if not files or any(file.filesystem is not None for file in files):
        raise UnknownFormatError("holds no journal on this machine", hint="leave --format out")
    return JournalSource([_JournalFile(file) for file in files], location.name, options)


class JournalSource:
    """Journals as a source. See `EpisodeSource`.

    A position is (journal, episode in the journal).
    """

    rows_are_steps = False

    def __init__(self, journals: Sequence[_JournalFile], name: str, options: SourceOptions) -> None:
        self.findings = FindingLog()
        self.resume_state: dict[str, Any] = {}
        self._journals = journals
        filled = [each for each in journals if each.contents.episodes]
        if not filled:
            raise EmptySourceError("has no finished episode", file=name)
        self._recorded, cameras = filled[0].contents.columns, filled[0].contents.cameras
        for each in filled:
            if (each.contents.columns, each.contents.cameras) != (self._recorded, cameras):
                raise UnsupportedColumnError(
                    f"has other columns than {filled[0].file.name}",
                    file=each.file.name,
                    hint="convert the journals one by one, and merge the datasets",
                )
        for each in journals:
            if each.contents.torn:
                message = f"the last {each.contents.torn:,} bytes are of an unfinished episode; left out"
                self.findings.add(Finding("journal-torn", message, 1, each.file.name))
            if damaged := each.contents.damaged:
                texts = [f"bytes {part.start:,} to {part.end:,}: {part.damage}" for part in damaged[:3]]
                message = f"{sum(part.end - part.start for part in damaged):,} bytes are left out: {'; '.join(texts)}"
                self.findings.add(Finding("journal-damaged", message, len(damaged), each.file.name))
            if lost := each.contents.lost:
                texts = [record.damage for record in lost[:3]]
                message = f"videos that no flush followed were lost with the power; left out: {'; '.join(texts)}"
                self.findings.add(Finding("journal-torn", message, len(lost), each.file.name))
        self._names = choose_columns([column.name for column in (*self._recorded, *cameras)], options)
        self._cameras = [camera for camera in cameras if camera.name in self._names]
        #: Camera and journal -> number of the first video among `videos.files`, which are in this order.
        self._first_video: dict[tuple[str, int], int] = {}
        self.videos = self._videos()
        chosen = [column for column in self._recorded if column.name in self._names]
        self.columns: tuple[ColumnSpec, ...] = (
            *(replace(each, name=self._names[each.name], source=_renamed(each, self._names)) for each in chosen),
            *(ColumnSpec(flag, "bool") for flag in _FLAGS),
        )

    def _videos(self) -> SourceVideos:
        """Returns the cameras and their files. A file that is missing has no size."""
        files: list[SourceFile] = []
        declared: list[DeclaredVideo] = []
        for camera in self._cameras:
            frames = camera.video or VideoFormat(0, 0)
            for number, journal in enumerate(self._journals):
                self._first_video[camera.name, number] = len(files)
                for episode in journal.contents.episodes:
                    video = episode.videos[camera.name]
                    files.append(_video_file(journal.file, video))
                    declared.append(
                        DeclaredVideo(
                            camera.name, files[-1].name, frames.height, frames.width, frames.fps,
                            frames=episode.steps, checksum=video.checksum,
                        )
                    )  # fmt: skip
        return SourceVideos(
            tuple(
                replace(each, name=self._names[each.name], source=_renamed(each, self._names)) for each in self._cameras
            ),
            tuple(files),
            tuple(declared),
        )

    @property
    def num_rows(self) -> int:
        return sum(len(each.contents.episodes) for each in self._journals)

    @property
    def metadata(self) -> Mapping[str, Any]:
        # A Writer does not publish these episodes again.
        contents = [each.contents for each in self._journals]
        return {
            "journals": {each.id.decode(): each.records[-1].number for each in contents if each.id and each.records}
        }

    def units(self) -> Sequence[Unit]:
        filled = [(i, each.file.size) for i, each in enumerate(self._journals) if each.contents.episodes]
        return [Unit(Position(i if n else 0, 0), size) for n, (i, size) in enumerate(filled)]

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        for number, first, last in files_between(start, stop, len(self._journals)):
            file, episodes = self._journals[number].file.name, self._journals[number].contents.episodes[:last]
            size, begin = 0, first
            for row in range(first, len(episodes)):
                size += sum(int(values.nbytes) for values in episodes[row].columns.values())
                if size >= _BLOCK_BYTES or row + 1 == len(episodes):
                    yield self._block(file, episodes[begin : row + 1], Position(number, begin))
                    size, begin = 0, row + 1

    def _block(self, file: str, episodes: Sequence[RecordedEpisode], position: Position) -> EpisodeBlock:
        read = [self._read(row, episode) for row, episode in enumerate(episodes, position.row)]
        times = {self._names[each.name]: self._times(each.name, position, episodes) for each in self._cameras}
        return replace(block_of(read, self.columns, file, position, len(episodes)), video_times=times)

    def _read(self, row: int, episode: RecordedEpisode) -> ReadEpisode:
        """Returns an episode under the names of the columns to read."""
        columns = {new: episode.columns[name] for name, new in self._names.items() if name in episode.columns}
        for flag in _FLAGS:
            columns[flag] = np.zeros(episode.steps, np.bool_)
            columns[flag][-1] = getattr(episode, flag)
        finals = {self._names[name]: value[None] for name, value in episode.finals.items() if name in self._names}
        return ReadEpisode(row, episode.steps, columns, finals, dict(episode.facts))

    def _times(self, camera: str, position: Position, episodes: Sequence[RecordedEpisode]) -> VideoTimes:
        count = len(episodes)
        first = self._first_video[camera, position.file] + position.row
        names = [episode.videos[camera].file for episode in episodes]
        return VideoTimes(np.arange(first, first + count), np.zeros(count), np.full(count, -1), names)


def _renamed(column: ColumnSpec, names: Mapping[str, str]) -> str | None:
    return None if names[column.name] == column.name else column.name


def _video_file(journal: SourceFile, video: RecordedVideo) -> SourceFile:
    """Returns a video beside its journal. Its size is 0 if it is missing."""
    path = Path(journal.path).parent / video.file
    name = str(PurePosixPath(journal.name).parent / video.file)
    try:
        status = path.stat()
    except OSError:
        return SourceFile(str(path), name, 0)
    return SourceFile(str(path), name, status.st_size, str(status.st_mtime_ns))


FORMAT = Format("journal", probe, open_, suffixes=(SUFFIX,), beside=".*")
