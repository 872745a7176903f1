"""The cameras of a LeRobot dataset: their names, and their declarations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.ingest.pipeline.columns import check_column_name
from gear_data.ingest.pipeline.names import canonical_name, check_lasts
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.lerobot.depth import depth_format, is_depth
from gear_data.ingest.sources.lerobot.metadata import LeRobotInfo
from gear_data.schema import ColumnSpec, VideoFormat, video_column

_VIDEO = "video"
#: The names that the axes of a frame have in `info.json`.
_AXES = {"height": "height", "width": "width", "channel": "channels", "channels": "channels"}


@dataclass(frozen=True)
class DeclaredCamera:
    """One camera.

    Attributes:
        key: LeRobot's name, such as `observation.images.front`. It is part of the names of files.
        spec: the column. A height, width or number of channels that is not declared is 0.
        codec: the declared codec, if any.
        depth: whether the frames are declared to be depth maps. `spec` says how depth is quantised, if it is.
    """

    key: str
    spec: ColumnSpec
    codec: str | None
    depth: bool

    @property
    def frames(self) -> VideoFormat:
        """The declared frames."""
        return self.spec.video or VideoFormat(0, 0)


def choose_cameras(
    info: LeRobotInfo, names: Collection[str], options: SourceOptions
) -> tuple[tuple[DeclaredCamera, ...], SourceOptions]:
    """Returns the cameras to read, and the options for the other columns.

    Args:
        info: the metadata with the declared features.
        names: the columns of the Parquet files. A camera that is one of them is read from there.
        options: the user's options. `columns` and `rename` may name cameras.

    Raises:
        UnknownNameError: `options.columns` has a name of no column and no camera.
        InvalidArgumentError: a camera cannot have its new name.
        UnsupportedColumnError: the name of a camera cannot be stored.
        CorruptSourceError: a camera's declaration is not clear: see `depth_format`.
    """
    features = {key: item for key, item in info.features.items() if item.get("dtype") == _VIDEO and key not in names}
    rename = dict(options.rename or {})
    renamed = {key: rename.pop(key) if key in rename else canonical_name(key) for key in features}
    _check_requested(renamed, names, options)
    wanted = options.columns
    chosen = {key: name for key, name in renamed.items() if wanted is None or key in wanted or name in wanted}
    for key, name in chosen.items():
        check_lasts(key, name)
        check_column_name(name)
    cameras = tuple(_camera(key, name, info, options) for key, name in chosen.items())
    if not features:
        return cameras, options
    columns = options.columns
    if columns is not None:
        rows = {*names, *(rename.get(name, canonical_name(name)) for name in names)}
        columns = tuple(name for name in columns if name in rows or name not in {*renamed, *renamed.values()})
    return cameras, replace(options, columns=columns, rename=rename or None)


def check_names(cameras: Iterable[DeclaredCamera], columns: Sequence[ColumnSpec]) -> None:
    """Raises InvalidArgumentError if a camera and another column have one name."""
    taken = {spec.name: spec.source_name for spec in columns}
    for camera in cameras:
        name = camera.spec.name
        if name in taken:
            raise InvalidArgumentError(
                f"the source's columns '{taken[name]}' and '{camera.key}' would both become '{name}'",
                hint=f"rename one of them: --rename {camera.key}=OTHER",
            )
        taken[name] = camera.key


def _check_requested(cameras: Mapping[str, str], names: Collection[str], options: SourceOptions) -> None:
    """Checks the names in `options.columns`. The error lists cameras, too."""
    rename = options.rename or {}
    columns = [rename.get(name, canonical_name(name)) for name in names]
    known = {*names, *columns, *cameras, *cameras.values(), *rename.values()}
    for name in options.columns or () if cameras else ():
        if name not in known:
            raise unknown_name("column", name, {*columns, *cameras.values()})


def _camera(key: str, name: str, info: LeRobotInfo, options: SourceOptions) -> DeclaredCamera:
    feature, depth = info.features[key], depth_format(info, key, options.videos)
    details = feature.get("info")
    details = details if isinstance(details, dict) else {}
    size = _sizes(feature, details)
    rate = details.get("video.fps")
    rate = rate if isinstance(rate, int | float) and not isinstance(rate, bool) else 0
    frames = VideoFormat(
        size.get("height", 0),
        size.get("width", 0),
        size.get("channels", 3) if depth is None else 1,
        float(rate) if 0 < rate < 1e6 else info.fps,
        depth,
    )
    codec = details.get("video.codec")
    return DeclaredCamera(
        key,
        video_column(name, frames, None if name == key else key),
        codec if isinstance(codec, str) else None,
        is_depth(info, key),
    )


def _sizes(feature: Mapping[str, Any], details: Mapping[str, Any]) -> dict[str, int]:
    """Returns the height, width and channels of a frame that are declared.

    The names of the axes say their order. Without names, the axis of one to four elements is the channels.
    """
    shape, names = feature.get("shape"), feature.get("names")
    if isinstance(shape, list) and len(shape) == 3 and all(_is_count(size) for size in shape):
        if isinstance(names, list) and {str(name) for name in names} <= _AXES.keys() and len(names) == 3:
            return {_AXES[str(name)]: size for name, size in zip(names, shape, strict=True)}
        axes = ("channels", "height", "width") if shape[0] <= 4 < shape[2] else ("height", "width", "channels")
        return dict(zip(axes, shape, strict=True))
    found = {axis: details.get(f"video.{axis}") for axis in ("height", "width", "channels")}
    return {axis: size for axis, size in found.items() if size is not None and _is_count(size)}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31
