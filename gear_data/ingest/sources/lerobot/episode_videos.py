"""Where the frames of LeRobot's episodes are: files and times, for each camera.

v2 has one file for an episode and camera, which begins at 0 s. v3 has several episodes in a file, and `meta/episodes`
says in which file and from when to when.

Files have names by the metadata's template, or the usual ones. Only files that were found below the source's root are
used, so a template cannot lead out of the folder. A template is read as a pattern of names, and never formatted: its
text is not trusted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gear_data.errors import CorruptSourceError
from gear_data.ingest.findings.video_files import DeclaredVideo
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.sources.lerobot.cameras import DeclaredCamera
from gear_data.ingest.sources.lerobot.metadata import VIDEOS, EpisodeList, LeRobotInfo, read_value
from gear_data.schema import ColumnSpec
from gear_data.video.declared_places import DeclaredPlaces
from gear_data.video.segments import VideoTimes

#: The number of an episode (v2); the numbers of a chunk and a file (v3).
FileKey = tuple[int, ...]

_MAX_TEMPLATE = 1000
_CAMERA = "video_key"
_FIELD = re.compile(r"\{(\w+)(?::0?(\d{0,2})d?)?\}")
#: Field of a template -> the group of its number; None for numbers that say nothing.
_FIELDS: Mapping[str, str | None] = {
    "episode_index": "episode",
    "episode_chunk": None,
    "chunk_index": "chunk",
    "file_index": "file",
}
_GROUPS = {2: ("episode",), 3: ("chunk", "file")}
#: The templates of LeRobot's versions. The first is the usual one.
_TEMPLATES = {
    2: (
        "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "videos/{video_key}/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.mp4",
        "videos/{video_key}/episode_{episode_index:06d}.mp4",
        "videos/{video_key}_episode_{episode_index:06d}.mp4",
    ),
    3: (
        "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "videos/chunk-{chunk_index:03d}/{video_key}/file-{file_index:03d}.mp4",
    ),
}
#: The folder of the templates, and the folder that some datasets have instead.
_FOLDER, _OTHER_FOLDER = "videos/", "video/"


@dataclass(frozen=True)
class VideoNames:
    """The names of a dataset's video files.

    Attributes:
        major: 2 or 3, the version of the layout.
        template: `video_path` of the metadata; None if there is none.
        chunk_size: episodes of a chunk (v2).
    """

    major: int
    template: str | None
    chunk_size: int

    def find(self, camera: str, files: Iterable[SourceFile]) -> dict[FileKey, SourceFile]:
        """Returns the video files of a camera.

        The template of the metadata comes first, then the usual templates, in `videos/` and in `video/`.

        Args:
            camera: LeRobot's name of the camera.
            files: the files of the source.

        Raises:
            CorruptSourceError: two files have the name of one video.
        """
        candidates = [file for file in files if camera in file.name]
        found: dict[FileKey, SourceFile] = {}
        for template in self._templates():
            pattern = _pattern(template, camera)
            if pattern is None or not {*_GROUPS[self.major]} <= pattern.groupindex.keys():
                continue
            matched: dict[FileKey, SourceFile] = {}
            for file in candidates:
                if (match := pattern.fullmatch(file.name)) is None:
                    continue
                key = tuple(int(match[group]) for group in _GROUPS[self.major])
                if key in matched:
                    raise CorruptSourceError(
                        f"has the name of the same video as {matched[key].name}",
                        file=file.name,
                        column=camera,
                        hint="keep one of the two files",
                    )
                matched[key] = file
            found = {**matched, **found}
        return found

    def expected(self, camera: str, key: FileKey) -> str:
        """Returns the name that a video should have, for messages."""
        numbers = dict(zip(_GROUPS[self.major], key, strict=True))

        def number(match: re.Match[str]) -> str:
            if match[1] == _CAMERA:
                return camera
            group = _FIELDS.get(match[1])
            value = key[0] // self.chunk_size if group is None else numbers.get(group, 0)
            return f"{value:0{int(match[2] or 0)}d}"

        usable = (each for each in self._templates() if _pattern(each, camera) is not None)
        return _FIELD.sub(number, next(usable))

    def _templates(self) -> list[str]:
        """Returns all templates in the order in which they count."""
        own = [] if self.template is None or len(self.template) > _MAX_TEMPLATE else [self.template]
        names = [*own, *_TEMPLATES[self.major]]
        others = [_OTHER_FOLDER + name.removeprefix(_FOLDER) for name in names if name.startswith(_FOLDER)]
        return [*names, *others]


def _pattern(template: str, camera: str) -> re.Pattern[str] | None:
    """Returns the pattern of a template's names; None if it has unknown fields."""
    if "{" in _FIELD.sub("", template):
        return None
    parts, end, seen = [], 0, set()
    for match in _FIELD.finditer(template):
        parts.append(re.escape(template[end : match.start()]))
        end = match.end()
        group = _FIELDS.get(match[1])
        if match[1] == _CAMERA:
            parts.append(re.escape(camera))
        elif match[1] not in _FIELDS:
            return None
        elif group is None:
            parts.append(r"\d{1,18}")
        else:
            parts.append(f"(?P={group})" if group in seen else rf"(?P<{group}>\d{{1,18}})")
            seen.add(group)
    return re.compile("".join([*parts, re.escape(template[end:])]))


_CHUNK_SIZE = 1000


@dataclass(frozen=True)
class _EpisodeVideo:
    """The frames of one episode in one camera.

    Attributes:
        key: the key of the file.
        start: the time of the first frame in seconds.
        stop: the time after the last frame in seconds; NaN if unknown.
        frames: the declared number of frames; -1 if unknown.
    """

    key: FileKey
    start: float
    stop: float
    frames: int


@dataclass(frozen=True)
class _CameraVideos:
    """The videos of one camera.

    Attributes:
        key: LeRobot's name of the camera.
        episodes: number of an episode -> its frames.
        numbers: key of a file -> its number; missing files have none.
        order: number of an episode -> its place among the episodes of its file, by their starts.
    """

    key: str
    episodes: Mapping[int, _EpisodeVideo]
    numbers: Mapping[FileKey, int]
    order: Mapping[int, int]


@dataclass(frozen=True)
class EpisodeVideos:
    """The video files of some cameras, and which of them has an episode.

    Attributes:
        files: the files of all cameras.
        declared: the declared facts of each file.
    """

    files: tuple[SourceFile, ...]
    declared: tuple[DeclaredVideo, ...]
    _names: VideoNames
    _cameras: Mapping[str, _CameraVideos]

    def times(self, episodes: npt.NDArray[np.int64]) -> dict[str, VideoTimes]:
        """Returns where the frames of some episodes are, by name of the camera's column.

        Args:
            episodes: int64 [n], numbers of the episodes.
        """
        return {name: self._times(videos, episodes.tolist()) for name, videos in self._cameras.items()}

    def _times(self, camera: _CameraVideos, episodes: Sequence[int]) -> VideoTimes:
        videos = [camera.episodes.get(episode) for episode in episodes]
        numbers = [-1 if video is None else camera.numbers.get(video.key, -1) for video in videos]
        names = [
            self.files[number].name if number >= 0 else self._missing_name(camera, episode)
            for number, episode in zip(numbers, episodes, strict=True)
        ]
        return VideoTimes(
            np.array(numbers, np.int64),
            np.array([0.0 if video is None else video.start for video in videos], np.float64),
            np.array([camera.order.get(episode, -1) for episode in episodes], np.int64),
            names,
        )

    def _missing_name(self, camera: _CameraVideos, episode: int) -> str:
        """Returns the name of the file that an episode should have."""
        video = camera.episodes.get(episode)
        if video is None and self._names.major == 3:
            return f"videos/{camera.key}/ (meta/episodes does not say which file)"
        return self._names.expected(camera.key, (max(episode, 0),) if video is None else video.key)

    def check_present(self, rows: Sequence[ColumnSpec], episode: int) -> None:
        """Checks that every camera has a file.

        Args:
            rows: the other columns of the source, for the hint.
            episode: the number of an episode.

        Raises:
            CorruptSourceError: all files of a camera are missing.
        """
        absent = {name: camera for name, camera in self._cameras.items() if not camera.numbers}
        if not absent:
            return
        first = next(iter(absent.values()))
        others = [*(spec.name for spec in rows), *(name for name in self._cameras if name not in absent)]
        subject = "every video of the camera is" if len(absent) == 1 else f"every video of {len(absent)} cameras is"
        raise CorruptSourceError(
            f"{subject} missing ({', '.join(camera.key for camera in absent.values())}); the first one should be "
            f"{self._missing_name(first, episode)}",
            column=first.key,
            hint=f"download the folder videos/, or leave the camera out with --columns {','.join(others)}",
        )


def find_videos(
    location: Location,
    info: LeRobotInfo,
    listed: EpisodeList | None,
    cameras: Sequence[DeclaredCamera],
    wanted: tuple[int, ...] | None = None,
) -> EpisodeVideos:
    """Finds the video files of some cameras.

    Args:
        location: the source.
        info, listed: its metadata.
        cameras: the cameras.
        wanted: the numbers of the episodes that are read; None: all. Files that have none of them are left out.

    Raises:
        CorruptSourceError: the metadata has a wrong value, or two files have the name of one video.
    """
    template, size = info.facts.get("video_path"), info.facts.get("chunks_size")
    names = VideoNames(
        info.major,
        template if isinstance(template, str) else None,
        size if isinstance(size, int) and size > 0 else _CHUNK_SIZE,
    )
    files: list[SourceFile] = []
    declared: list[DeclaredVideo] = []
    placed = {}
    for camera in cameras:
        found = names.find(camera.key, location.files)
        episodes = _videos_v2(found, listed) if info.major == 2 else _videos_v3(camera, info, listed)
        by_file: dict[FileKey, list[int]] = {}
        for number, video in episodes.items():
            by_file.setdefault(video.key, []).append(number)
        numbers = {}
        order = {}
        for key, members in by_file.items():
            members.sort(key=lambda number: episodes[number].start)
            order.update({number: place for place, number in enumerate(members)})
            if key in found and (wanted is None or not {*wanted}.isdisjoint(members)):
                numbers[key] = len(files)
                files.append(found[key])
                videos = [episodes[number] for number in members]
                declared.append(_declared(camera, found[key].name, videos, info.fps))
        placed[camera.spec.name] = _CameraVideos(camera.key, episodes, numbers, order)
    return EpisodeVideos(tuple(files), tuple(declared), names, placed)


def _declared(camera: DeclaredCamera, file: str, videos: Sequence[_EpisodeVideo], fps: float | None) -> DeclaredVideo:
    frames = [video.frames for video in videos]
    return DeclaredVideo(
        camera.key,
        file,
        height=camera.frames.height or None,
        width=camera.frames.width or None,
        fps=camera.frames.fps,
        codec=camera.codec,
        frames=sum(frames) if min(frames) >= 0 else None,
        depth=camera.depth and camera.spec.depth is None,
        places=DeclaredPlaces(
            np.array([video.start for video in videos], np.float64),
            np.array([video.stop for video in videos], np.float64),
            np.array(frames, np.int64),
            fps,
        ),
    )


def _videos_v2(found: Mapping[FileKey, SourceFile], listed: EpisodeList | None) -> dict[int, _EpisodeVideo]:
    """Returns one video for each episode that is listed, or has a file."""
    lengths = {} if listed is None else dict(zip(listed.ids.tolist(), listed.lengths.tolist(), strict=True))
    numbers = sorted({*lengths, *(key[0] for key in found)})
    return {
        number: _EpisodeVideo((number,), 0.0, math.nan, lengths.get(number, -1)) for number in numbers if number >= 0
    }


def _videos_v3(camera: DeclaredCamera, info: LeRobotInfo, listed: EpisodeList | None) -> dict[int, _EpisodeVideo]:
    """Returns the videos that `meta/episodes` lists."""
    if listed is None:
        return {}
    prefix = f"{VIDEOS}{camera.key}/"
    columns = {name: values for name, values in listed.videos.items() if name.startswith(prefix)}
    if not {prefix + each for each in ("chunk_index", "file_index", "from_timestamp")} <= columns.keys():
        return {}
    videos = {}
    for row, (number, length) in enumerate(zip(listed.ids.tolist(), listed.lengths.tolist(), strict=True)):
        record = {name: values[row] for name, values in columns.items()}
        if record[f"{prefix}chunk_index"] is None or record[f"{prefix}file_index"] is None:
            continue
        key = tuple(read_value(record, prefix + each, listed.name, row) for each in ("chunk_index", "file_index"))
        start = float(read_value(record, f"{prefix}from_timestamp", listed.name, row, kind="a time in seconds"))
        end = read_value(record, f"{prefix}to_timestamp", listed.name, row, kind="a time in seconds", optional=True)
        stop = math.nan if end is None else float(end)
        if length < 0 and info.fps is not None and stop >= start:
            length = round((stop - start) * info.fps)
        videos[number] = _EpisodeVideo(key, start, stop, max(length, -1))
    return videos
