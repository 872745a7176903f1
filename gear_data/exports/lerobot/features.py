"""A dataset's columns as LeRobot features: their names, what `meta/info.json` says of them, and their Arrow values.

Layout: LeRobot v3.0 (https://github.com/huggingface/lerobot, `lerobot/datasets/utils.py`). A feature of shape (1,) is a
scalar in Parquet, and a scalar has the shape (1,); arrays of more axes are nested lists.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gear_data.dataset.dataset import Dataset
from gear_data.errors import UnsupportedColumnError
from gear_data.exports.nested import nested_rows
from gear_data.ingest.pipeline.names import canonical_name
from gear_data.schema import ColumnSpec

#: Columns of LeRobot's own; a dataset may bring the first two along.
CLOCK, TASK = "timestamp", "task_index"
ORDER = ("frame_index", "episode_index", "index")
DONE = "next.done"
#: What a column of a dataset cannot be called: it would be taken for the order of steps.
_STRUCTURE = frozenset({*ORDER, DONE, "step_index", "step_id"})
_NAMES = {
    "observations": "observation.state",
    "actions": "action",
    "rewards": "next.reward",
    "terminated": "next.terminated",
    "truncated": "next.truncated",
}
_PREFIXES = (("observations.", "observation."), ("actions.", "action."))
#: `datasets` has arrays of 2 to 5 axes.
_MAX_AXES = 5


@dataclass(frozen=True)
class Feature:
    """One column on its way.

    Attributes:
        name: LeRobot's, such as `observation.state`.
        spec: of the dataset's column.
        declared: its entry in `meta/info.json`.
        to_arrow: steps, [n, *shape] or an array of variable length, to what stands in Parquet.
    """

    name: str
    spec: ColumnSpec
    declared: dict[str, Any]
    to_arrow: Callable[[Any], pa.Array]


def features(dataset: Dataset) -> list[Feature]:
    """The features of a dataset's source columns.

    Raises:
        UnsupportedColumnError: a column whose name LeRobot uses, or that could not be told from another's; more axes
            than `datasets` has; bytes that are not images.
    """
    names = feature_names(dataset)
    return [_feature(dataset, spec, names[spec.name]) for spec in dataset.schema.source_columns]


def feature_names(dataset: Dataset) -> dict[str, str]:
    """Column -> feature: LeRobot's name where the column's can be told from it again, else its own."""
    own = dataset.schema.source_columns
    names: dict[str, str] = {}
    for spec in own:
        if spec.name in _STRUCTURE or "/" in spec.name:
            raise UnsupportedColumnError(
                f"LeRobot cannot have a feature '{spec.name}' beside its own",
                column=spec.name,
                hint="give it another name at conversion: --rename",
            )
        usual = _NAMES.get(spec.name, spec.name)
        for prefix, replacement in _PREFIXES:
            if spec.name.startswith(prefix):
                usual = replacement + spec.name.removeprefix(prefix)
        names[spec.name] = usual if canonical_name(usual) == spec.name else spec.name
    return names


def _feature(dataset: Dataset, spec: ColumnSpec, name: str) -> Feature:
    if spec.name == TASK and (spec.dtype, spec.shape) != ("int64", ()):
        raise UnsupportedColumnError(f"LeRobot's {TASK} is one int64 a step", column=TASK, hint="rename it: --rename")
    if spec.name == CLOCK and (spec.numpy_dtype.kind, spec.shape) != ("f", ()):
        raise UnsupportedColumnError(f"LeRobot's {CLOCK} is seconds", column=CLOCK, hint="rename it: --rename")
    if spec.dtype == "string":
        return Feature(name, spec, _declared("string", (1,)), lambda values: values.cast(pa.string()))
    if spec.dtype == "binary":
        shape = _image_shape(dataset, spec)
        declared = {"dtype": "image", "shape": list(shape), "names": ["height", "width", "channels"]}
        return Feature(name, spec, declared, _image_files)
    if len(spec.shape) > _MAX_AXES:
        raise UnsupportedColumnError(
            f"has {len(spec.shape)} axes, and LeRobot's features have {_MAX_AXES} at most",
            column=spec.name,
            hint="export to Parquet",
        )
    if spec.shape in ((), (1,)):
        return Feature(name, spec, _declared(spec.dtype, (1,)), lambda values: pa.array(values.reshape(-1)))
    if len(spec.shape) == 1:
        return Feature(name, spec, _declared(spec.dtype, spec.shape), _fixed_lists)
    return Feature(name, spec, _declared(spec.dtype, spec.shape), lambda values: nested_rows(values, spec.name))


def _declared(dtype: str, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "names": None}


def _fixed_lists(values: Any) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def _image_files(values: pa.Array) -> pa.Array:
    """As `datasets.Image` has them."""
    return pa.StructArray.from_arrays([values.cast(pa.binary()), pa.nulls(len(values), pa.string())], ["bytes", "path"])


def _image_shape(dataset: Dataset, spec: ColumnSpec) -> tuple[int, int, int]:
    """Height, width and channels of the first image. LeRobot has no other bytes than images."""
    from PIL import Image, UnidentifiedImageError

    first = dataset.values(spec.name, 0, 1)[0].as_py()
    try:
        with Image.open(io.BytesIO(first)) as image:
            return image.height, image.width, len(image.getbands())
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise UnsupportedColumnError(
            f"LeRobot holds bytes of images alone, and these are none: {error}",
            column=spec.name,
            hint="export to Parquet",
        ) from error
