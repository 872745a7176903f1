"""Names of LeRobot's video files: by the metadata's template, or the usual ones.

Only files that were found below the source's root are used, so a template cannot lead out of the folder. A template is
read as a pattern of names, and never formatted: its text is not trusted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gear_data.errors import CorruptSourceError
from gear_data.ingest.location import SourceFile

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
