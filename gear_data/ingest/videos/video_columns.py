"""Cameras that the user names: `--video-column NAME=GLOB`, one file an episode.

Two ways lead from an episode to its file:

- The source has as many data files as the camera has videos, and the names have the same numbers, or none. Then each
  data file is one episode. Its video is the one with its number, or at its place. Tasks may read any part.
- Otherwise the n-th episode has the n-th video. Episodes are counted from the beginning, so the source is one unit.

If the names of videos have numbers, these count: 0, 1, 3 has no video for the episode 2.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import numpy as np

from gear_data.common.paths import is_remote, plain_path
from gear_data.errors import CorruptSourceError, InvalidArgumentError
from gear_data.ingest.findings.video_files import DeclaredVideo
from gear_data.ingest.location import Location, SourceFile, locate_files
from gear_data.ingest.pipeline.columns import EPISODE_COLUMNS
from gear_data.ingest.pipeline.mapped_source import MappedSource
from gear_data.ingest.source import EpisodeSource, SourceVideos, Unit, source_videos
from gear_data.schema import VideoFormat, video_column
from gear_data.storage.episode_block import BEGIN, END, EpisodeBlock, Position
from gear_data.video.segments import VideoTimes

_MAGIC = re.compile(r"[*?]")
_LAST_NUMBER = re.compile(r"(\d{1,18})(?!.*\d)")
#: The key of `resume_state` that counts episodes.
_COUNT = "video_column_episodes"
#: The key of the number of the first episode.
_FIRST = "video_column_first"


def add_video_columns(
    source: EpisodeSource, location: Location, columns: Mapping[str, str], suffixes: Sequence[str]
) -> EpisodeSource:
    """Returns a source with further cameras.

    Args:
        source: the opened source.
        location: its location.
        columns: name of a camera -> pattern of its files.
        suffixes: the suffixes of the source's data files.

    Raises:
        InvalidArgumentError: a pattern matches no file, or a camera has the name of another column.
    """
    if not columns:
        return source
    taken = {spec.name for spec in (*source.columns, *source_videos(source).columns)}
    cameras = []
    for name, pattern in columns.items():
        if name in taken:
            raise InvalidArgumentError("the source has a column of this name", column=name, hint="give another name")
        files = find_files(location, pattern)
        if not files:
            raise InvalidArgumentError(f"no file matches {pattern!r}", column=name, hint="patterns are case-sensitive")
        cameras.append(_camera(name, files, location, suffixes))
    return WithVideoColumns(source, cameras)


def find_files(location: Location, pattern: str) -> tuple[SourceFile, ...]:
    """Returns the files that a pattern names, in natural order.

    `*` and `?` match inside one folder's name, and `**/` any number of folders. A relative pattern begins at the
    source's folder, or at the folder of its file.
    """
    folder, rest = "", pattern
    if is_remote(pattern) or pattern.startswith("/"):
        magic = _MAGIC.search(pattern)
        cut = pattern.rindex("/", 0, magic.start() if magic else len(pattern))
        folder, rest = pattern[:cut] or "/", pattern[cut + 1 :]
        files = locate_files(plain_path(folder), follow_links=True).files
    elif location.folder:
        files = location.files
    elif location.files:
        files = locate_files(os.path.dirname(location.name) or ".", follow_links=True).files
    else:
        raise InvalidArgumentError(
            f"the pattern {pattern!r} has no folder to begin at: the source is in memory", hint="give a whole path"
        )
    matches = re.compile(_regex(rest)).fullmatch
    found = tuple(file for file in files if matches(file.name))
    if not found and files is location.files and (is_remote(location.name) or os.path.isdir(location.name)):
        # The location of one split has only the tables of the split.
        files = locate_files(location.name, follow_links=True).files
        found = tuple(file for file in files if matches(file.name))
    return found


def _regex(pattern: str) -> str:
    tokens = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    return "".join(tokens.get(part, re.escape(part)) for part in re.split(r"(\*\*/|\*|\?)", pattern.removeprefix("./")))


@dataclass(frozen=True)
class _Camera:
    """One camera.

    Attributes:
        name: the name of its column.
        files: its files, in natural order.
        by_data_file: name of a data file -> index of its video; None if episodes are counted.
        by_number: number in a name -> index of the video; None if names have no numbers.
        from_one: whether episodes are counted and the numbers are 1, 2, ... The episodes may be numbered from 0.
    """

    name: str
    files: tuple[SourceFile, ...]
    by_data_file: Mapping[str, int] | None
    by_number: Mapping[int, int] | None
    from_one: bool


def _camera(name: str, files: tuple[SourceFile, ...], location: Location, suffixes: Sequence[str]) -> _Camera:
    videos = {file.path for file in files}
    data = [file for file in location.with_suffix(*suffixes) if file.path not in videos] if suffixes else []
    numbers, data_numbers = _numbers(files), _numbers(data)
    by_data_file = None
    if len(data) == len(files):
        if numbers is None or data_numbers is None:
            by_data_file = {file.name: i for i, file in enumerate(data)}
        elif numbers.keys() == data_numbers.keys():
            by_data_file = {data[i].name: numbers[number] for number, i in data_numbers.items()}
    from_one = by_data_file is None and numbers is not None and min(numbers) == 1 and max(numbers) == len(numbers)
    return _Camera(name, files, by_data_file, numbers, from_one)


def _numbers(files: Sequence[SourceFile]) -> dict[int, int] | None:
    """Returns number -> index of the file with this number in its name.

    None if a name has no number, or two have the same.
    """
    found: dict[int, int] = {}
    for index, file in enumerate(files):
        match = _LAST_NUMBER.search(PurePosixPath(file.name).stem)
        if match is None or int(match[1]) in found:
            return None
        found[int(match[1])] = index
    return found


class WithVideoColumns(MappedSource):
    """An `EpisodeSource` with cameras whose files the user named."""

    def __init__(self, source: EpisodeSource, cameras: Sequence[_Camera]) -> None:
        self._cameras = cameras
        self._counts = any(camera.by_data_file is None for camera in cameras)
        self._left_out = 0
        self._first_episode: int | None = None
        videos = source_videos(source)
        self._first = {}
        files, declared = [*videos.files], [*videos.declared]
        for camera in cameras:
            self._first[camera.name] = len(files)
            files += camera.files
            declared += [DeclaredVideo(camera.name, file.name) for file in camera.files]
        specs = tuple(video_column(camera.name, VideoFormat(0, 0)) for camera in cameras)
        super().__init__(source, videos=SourceVideos((*videos.columns, *specs), tuple(files), tuple(declared)))

    def units(self) -> Sequence[Unit]:
        units = self._source.units()
        return [Unit(BEGIN, sum(unit.bytes for unit in units))] if self._counts and units else units

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        self._left_out = self._bad_episodes()
        position: Position | None = None
        before = count = int(self.resume_state.get(_COUNT, 0))
        self._first_episode = self.resume_state.get(_FIRST)
        for block in self._source.blocks(start, stop):
            if position != block.position:
                position, before = block.position, count
            number = before + block.first
            if self._counts and len(block):
                self._check_none_left_out(block)
            if self._first_episode is None and len(block):
                self._first_episode = _episode_number(block, 0, number)
            times = {camera.name: self._times(camera, block, number) for camera in self._cameras}
            # The source may replace the state when it begins or ends.
            self.resume_state[_COUNT] = count = number + len(block)
            if any(camera.from_one for camera in self._cameras):
                self.resume_state[_FIRST] = self._first_episode
            yield replace(block, video_times={**block.video_times, **times})
        for camera in self._cameras if stop == END else ():
            if camera.by_data_file is None and camera.by_number is None and count != len(camera.files):
                raise self._wrong_count(camera, f"the source has {count} episodes")

    def _bad_episodes(self) -> int:
        return sum(finding.count for finding in self.findings if finding.code == "bad-episode")

    def _check_none_left_out(self, block: EpisodeBlock) -> None:
        """Raises CorruptSourceError if episodes were left out.

        Later episodes would get wrong videos.
        """
        if self._bad_episodes() > self._left_out and not any(name in block.metadata for name in EPISODE_COLUMNS):
            camera = next(camera for camera in self._cameras if camera.by_data_file is None)
            raise CorruptSourceError(
                "a malformed episode was left out, and videos belong to episodes by their order, so that the videos "
                "of all later episodes are unknown",
                file=block.sources[0],
                column=camera.name,
                hint="repair the source, or leave --video-column out",
            )

    def _wrong_count(self, camera: _Camera, found: str) -> CorruptSourceError:
        return CorruptSourceError(
            f"{found}, and {len(camera.files)} videos, so that the video of an episode is not clear",
            column=camera.name,
            hint="give one video for each episode, or put the number of the episode into the videos' names",
        )

    def _unclear_numbers(self, camera: _Camera, block: EpisodeBlock, episode: int) -> CorruptSourceError:
        return CorruptSourceError(
            f"the videos are numbered from 1, and the first episode that can be read is {self._first_episode}, so that "
            "it is not clear whether the episodes are numbered from 0 or from 1",
            file=block.sources[episode],
            column=camera.name,
            row=int(block.rows[episode]),
            hint="number the episodes and the videos from 0, or repair the source",
        )

    def _times(self, camera: _Camera, block: EpisodeBlock, number: int) -> VideoTimes:
        """Returns the videos of a block that begins with the episode `number`."""
        indices, names = [], []
        for i in range(len(block)):
            index, name = self._video(camera, block, i, number + i)
            indices.append(-1 if index is None else self._first[camera.name] + index)
            names.append(name if index is None else camera.files[index].name)
        count = len(block)
        return VideoTimes(np.array(indices, np.int64), np.zeros(count), np.full(count, -1, np.int64), names)

    def _video(self, camera: _Camera, block: EpisodeBlock, i: int, number: int) -> tuple[int | None, str]:
        """Returns the index of an episode's video, and a name for messages."""
        source = block.sources[i]
        if camera.by_data_file is not None:
            if source not in camera.by_data_file:
                return None, f"the video of {source}"
            if int(block.rows[i]) != 0 or (i > 0 and block.sources[i - 1] == source):
                raise self._wrong_count(camera, f"{source} has several episodes")
            return camera.by_data_file[source], source
        if camera.by_number is not None:
            episode = _episode_number(block, i, number)
            from_zero = self._first_episode == 0
            if camera.from_one and not from_zero and (episode == 0 or self._bad_episodes() > self._left_out):
                raise self._unclear_numbers(camera, block, i)
            in_name = episode + int(camera.from_one and from_zero)
            return camera.by_number.get(in_name), f"the video of episode {episode}"
        if number >= len(camera.files):
            raise self._wrong_count(camera, f"the source has more than {number} episodes")
        return number, str(number)


def _episode_number(block: EpisodeBlock, i: int, number: int) -> int:
    """Returns the source's number of an episode; without one, its place."""
    for name in EPISODE_COLUMNS:
        value = block.metadata.get(name, [None] * len(block))[i]
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return number
