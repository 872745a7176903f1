"""The cameras of several sources or datasets together.

All of them must have the same cameras: a step without frames has no place in a video.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gear_data.errors import UnsupportedColumnError
from gear_data.ingest.findings.video_files import DeclaredVideo
from gear_data.ingest.location import SourceFile
from gear_data.ingest.source import SourceVideos
from gear_data.schema import ColumnSpec, VideoFormat, video_column

#: The name of one of several sources for messages, its columns, and its cameras.
NamedCameras = tuple[str, Sequence[ColumnSpec], Sequence[ColumnSpec]]


def united_cameras(parts: Sequence[NamedCameras]) -> tuple[ColumnSpec, ...]:
    """Returns the cameras that all parts have, in the order of the first part.

    The rate is unknown if it differs.

    Raises:
        UnsupportedColumnError: a part lacks a camera, or has an ordinary column of its name, or another kind of depth.
    """
    names = dict.fromkeys(spec.name for _, _, cameras in parts for spec in cameras)
    found: list[ColumnSpec] = []
    for name in names:
        specs = [next((spec for spec in cameras if spec.name == name), None) for _, _, cameras in parts]
        for (part, columns, _), spec in zip(parts, specs, strict=True):
            if spec is None:
                taken = any(column.name == name for column in columns)
                owner = next(other for (other, _, _), each in zip(parts, specs, strict=True) if each is not None)
                raise UnsupportedColumnError(
                    f"is {'no camera' if taken else 'missing'} here, and a camera in {owner}",
                    file=part,
                    column=name,
                    hint="leave the camera out with --columns, or convert the sources separately",
                )
        known = [spec for spec in specs if spec is not None]
        for (part, _, _), spec in zip(parts, known, strict=True):
            if spec.depth != known[0].depth:
                raise UnsupportedColumnError(
                    f"has {_depth_text(spec)} here, but {_depth_text(known[0])} in {parts[0][0]}",
                    file=part,
                    column=name,
                    hint="convert each by itself, with --videos frames and one --depth-unit, and merge the datasets; "
                    "or leave the camera out with --columns",
                )
        found.append(_united(known))
    return tuple(found)


def _depth_text(spec: ColumnSpec) -> str:
    if spec.depth is None:
        return "RGB"
    kind = "logarithmic" if spec.depth.logarithmic else "linear"
    return (
        f"{kind} depth of {spec.depth.minimum:g} to {spec.depth.maximum:g} m, shifted by {spec.depth.shift:g} m, in "
        f"{spec.depth.unit}"
    )


def check_frame_sizes(parts: Sequence[NamedCameras]) -> None:
    """Checks that the frames of each camera have one size in all parts.

    Raises:
        UnsupportedColumnError: a camera has frames of two sizes.
    """
    known: dict[str, tuple[str, ColumnSpec]] = {}
    for part, _, cameras in parts:
        for spec in cameras:
            owner, first = known.setdefault(spec.name, (part, spec))
            if spec.shape != first.shape:
                raise UnsupportedColumnError(
                    f"has frames of {spec.shape[0]} x {spec.shape[1]} here, but of {first.shape[0]} x "
                    f"{first.shape[1]} in {owner}",
                    file=part,
                    column=spec.name,
                    hint="convert both with --videos frames --video-size "
                    "(videos=VideoStorage(mode='frames', size=...)), or leave the camera out with --columns",
                )


def _united(specs: Sequence[ColumnSpec]) -> ColumnSpec:
    first = specs[0]
    rates = {spec.video.fps for spec in specs if spec.video is not None}
    height, width, channels = first.shape
    frames = VideoFormat(height, width, channels, rates.pop() if len(rates) == 1 else None, first.depth)
    return video_column(first.name, frames, first.source if len({spec.source for spec in specs}) == 1 else None)


@dataclass(frozen=True)
class SequenceVideos:
    """The cameras of several sources that are read one after another.

    Attributes:
        videos: their cameras and the files of all sources.
        first_files: for each source, the number of its first file.
    """

    videos: SourceVideos
    first_files: tuple[int, ...]


def videos_in_sequence(parts: Sequence[tuple[str, Sequence[ColumnSpec], SourceVideos]]) -> SequenceVideos:
    """Returns the cameras of several sources.

    Raises the errors of `united_cameras`.
    """
    columns = united_cameras([(name, own, videos.columns) for name, own, videos in parts])
    shown = {spec.name: spec.source_name for spec in columns}
    files: list[SourceFile] = []
    declared: list[DeclaredVideo] = []
    firsts: list[int] = []
    for _, _, videos in parts:
        own_names = {spec.source_name: shown[spec.name] for spec in videos.columns}
        firsts.append(len(files))
        files += videos.files
        declared += [replace(each, camera=own_names.get(each.camera, each.camera)) for each in videos.declared]
    return SequenceVideos(SourceVideos(columns, tuple(files), tuple(declared)), tuple(firsts))
