"""LeRobot features of a dataset's columns.

A feature has a name, an entry in `meta/info.json`, and Arrow values.

Layout: LeRobot v3.0 (https://github.com/huggingface/lerobot, `lerobot/datasets/utils.py`). LeRobot has no shape ():
scalars have the shape (1,) in `meta/info.json`. Features of shape (1,) are scalars in Parquet. Arrays with more axes
are nested lists.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gear_data.common.extras import PIL
from gear_data.dataset.dataset import Dataset
from gear_data.errors import UnsupportedColumnError
from gear_data.exports.exporter import rename_hint
from gear_data.exports.nested import narrow_values, nested_rows
from gear_data.ingest.pipeline.names import canonical_name
from gear_data.schema import ColumnSpec

#: LeRobot's own columns. A dataset may have the first two.
CLOCK, TASK = "timestamp", "task_index"
ORDER = ("frame_index", "episode_index", "index")
DONE = "next.done"
#: Names that a dataset's column must not have, because readers take them for the order of steps.
_STRUCTURE = frozenset({*ORDER, DONE, "step_index", "step_id"})
_NAMES = {
    "observations": "observation.state",
    "actions": "action",
    "rewards": "next.reward",
    "terminated": "next.terminated",
    "truncated": "next.truncated",
}
_PREFIXES = (("observations.", "observation."), ("actions.", "action."))
#: Largest number of axes of an array in `datasets`.
_MAX_AXES = 5


@dataclass(frozen=True)
class Feature:
    """One column as a LeRobot feature.

    Attributes:
        name: LeRobot's name, such as `observation.state`.
        spec: the dataset's column.
        declared: entry in `meta/info.json`.
        to_arrow: converts steps, [n, *shape] or a variable-length array, to the values in Parquet.
    """

    name: str
    spec: ColumnSpec
    declared: dict[str, Any]
    to_arrow: Callable[[Any], pa.Array]


@dataclass(frozen=True)
class VideoFeature:
    """A camera, or a column of frames, as a LeRobot feature. See `Feature`."""

    name: str
    spec: ColumnSpec

    @property
    def declared(self) -> dict[str, Any]:
        """Entry in `meta/info.json`, without `info`."""
        return {"dtype": "video", "shape": list(self.spec.shape), "names": ["height", "width", "channels"]}


def features(dataset: Dataset, *, videos: bool = False) -> tuple[list[Feature], list[VideoFeature]]:
    """Returns the features of a dataset's source columns, and the videos.

    Args:
        dataset: the dataset.
        videos: whether columns of uint8 frames [H, W, 3] become videos, too.

    Raises:
        UnsupportedColumnError: a column has a name that LeRobot reserves, or more axes than `datasets` supports, or
            bytes that are not images; or no column can be a video.
    """
    names = feature_names(dataset)
    frames = [spec for spec in dataset.schema.source_columns if videos and _holds_frames(spec)]
    if videos and not frames and not dataset.schema.videos:
        raise UnsupportedColumnError(
            f"no column has uint8 frames [H, W, 3] to write as video; the columns are {', '.join(names)}",
            hint="export without videos=True (--videos)",
        )
    columns = [spec for spec in dataset.schema.source_columns if spec not in frames]
    return (
        [_feature(dataset, spec, names[spec.name]) for spec in columns],
        [VideoFeature(names[spec.name], spec) for spec in (*frames, *dataset.schema.videos)],
    )


def _holds_frames(spec: ColumnSpec) -> bool:
    return spec.dtype == "uint8" and len(spec.shape) == 3 and spec.shape[-1] == 3


def feature_names(dataset: Dataset) -> dict[str, str]:
    """Returns column -> feature name.

    This is LeRobot's usual name if reading it back gives the column's name, otherwise the column's name.
    """
    names: dict[str, str] = {}
    for spec in (*dataset.schema.source_columns, *dataset.schema.videos):
        if spec.name in _STRUCTURE or "/" in spec.name:
            raise UnsupportedColumnError(
                f"LeRobot reserves the name '{spec.name}'",
                column=spec.name,
                hint=rename_hint(spec.name),
            )
        usual = _NAMES.get(spec.name, spec.name)
        for prefix, replacement in _PREFIXES:
            if spec.name.startswith(prefix):
                usual = replacement + spec.name.removeprefix(prefix)
        names[spec.name] = usual if canonical_name(usual) == spec.name else spec.name
    return names


def _feature(dataset: Dataset, spec: ColumnSpec, name: str) -> Feature:
    if spec.name == TASK and (spec.dtype, spec.shape) != ("int64", ()):
        raise UnsupportedColumnError(
            f"LeRobot's {TASK} must be one int64 per step", column=TASK, hint=rename_hint(TASK)
        )
    if spec.name == CLOCK and (spec.numpy_dtype.kind, spec.shape) != ("f", ()):
        raise UnsupportedColumnError(
            f"LeRobot's {CLOCK} must be one float per step, in seconds", column=CLOCK, hint=rename_hint(CLOCK)
        )
    if spec.dtype == "string":
        return Feature(name, spec, _declared("string", (1,)), lambda values: narrow_values(values, spec.name))
    if spec.dtype == "binary":
        shape = _image_shape(dataset, spec)
        declared = {"dtype": "image", "shape": list(shape), "names": ["height", "width", "channels"]}
        return Feature(name, spec, declared, lambda values: _image_files(values, spec.name))
    if len(spec.shape) > _MAX_AXES:
        raise UnsupportedColumnError(
            f"has {len(spec.shape)} axes, but LeRobot's features have at most {_MAX_AXES}",
            column=spec.name,
            hint="export to Parquet",
        )
    if spec.shape in ((), (1,)):
        declared = _declared(spec.dtype, (1,), spec.element_names)
        return Feature(name, spec, declared, lambda values: pa.array(values.reshape(-1)))
    if len(spec.shape) == 1:
        return Feature(name, spec, _declared(spec.dtype, spec.shape, spec.element_names), _fixed_lists)
    return Feature(name, spec, _declared(spec.dtype, spec.shape), lambda values: nested_rows(values, spec.name))


def _declared(dtype: str, shape: tuple[int, ...], names: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "names": list(names) or None}


def _fixed_lists(values: Any) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def _image_files(values: pa.Array, name: str) -> pa.Array:
    """Converts encoded images to the struct of `datasets.Image`."""
    arrays = [narrow_values(values, name), pa.nulls(len(values), pa.string())]
    return pa.StructArray.from_arrays(arrays, ["bytes", "path"])


def _image_shape(dataset: Dataset, spec: ColumnSpec) -> tuple[int, int, int]:
    """Returns (height, width, channels) of the first image."""
    first = dataset.values(spec.name, 0, 1)[0].as_py()
    try:
        with PIL.Image.open(io.BytesIO(first)) as image:
            return image.height, image.width, len(image.getbands())
    except (OSError, ValueError, PIL.Image.DecompressionBombError) as error:
        raise UnsupportedColumnError(
            f"LeRobot stores bytes only of images, but the first value is not an image: {error}",
            column=spec.name,
            hint="export to Parquet",
        ) from error
