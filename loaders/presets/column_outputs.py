"""The output of one column: its dtype, shape, steps and padding, as a format says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.output import CHANNELS_FIRST, CHANNELS_LAST, DEPTH, Output, RelativeTo
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.presets.batch_format import BatchFormat
from gear_data.loaders.presets.batch_request import BatchColumn, BatchRequest, affine
from gear_data.loaders.presets.offsets import ColumnSteps
from gear_data.schema import ColumnSpec, Role


def column_output(batch_format: BatchFormat, request: BatchRequest, item: BatchColumn) -> Output:
    """Returns the output of a column.

    If the column is normalised, an element of standard deviation 0 becomes 0, unless `std_epsilon` is added to it.
    """
    spec = item.spec
    if item.own and batch_format.vectors and len(spec.shape) > 1:
        raise InvalidArgumentError(
            f"preset '{batch_format.name}' needs vectors, and this column has shape {spec.shape}",
            column=spec.name,
            hint="give another preset, with columns= to choose the columns",
        )
    positions, relative = column_positions(batch_format, request, spec), request.relative.get(spec.name)
    if relative is not None:
        _check_relative(batch_format, item, relative, positions)
    steps = None if relative is None else positions["width"]
    mean, scale = affine(request, spec.name, epsilon=batch_format.std_epsilon if item.own else 0.0, steps=steps)
    if relative is not None and positions.get("weights") is not None and mean is not None and scale is not None:
        _check_numbers(spec.name, mean, scale)
    if spec.video is not None:
        return _camera(batch_format, request, item, mean, scale)
    factor = batch_format.return_scale if item.own and spec.role is Role.RETURN_TO_GO else 1.0
    if factor != 1.0:
        mean = np.zeros(1) if mean is None else mean
        scale = np.full(1, factor) if scale is None else scale * factor
    dtype = _dtype(batch_format, request, item, normalised=mean is not None or relative is not None)
    fill: Any = batch_format.fill.get(spec.name, 0.0) if item.own else 0.0
    _check_fill(batch_format, spec, fill, dtype)
    if item.own and batch_format.normalize_padding and mean is not None and scale is not None:
        fill = (fill - mean) * scale
    return Output(
        item.key,
        spec.name,
        dtype,
        column_shape(batch_format, item),
        fill=fill,
        mean=mean,
        scale=scale,
        padding=batch_format.column_padding,
        shift=_shift(batch_format, item),
        relative=relative,
        **positions,
    )


def _check_relative(
    batch_format: BatchFormat, item: BatchColumn, relative: RelativeTo, positions: Mapping[str, Any]
) -> None:
    """Raises InvalidArgumentError if a relative column has steps that are not the window's own, or not in a row."""
    if item.next_step or _shift(batch_format, item):
        raise InvalidArgumentError(
            f"relative= names a column of which preset '{batch_format.name}' has another step in '{item.key}'",
            column=item.spec.name,
            hint="leave it out of relative, or leave the next or previous step out",
        )
    if relative.delta and positions.get("steps") is not None:
        raise InvalidArgumentError(
            "delta=True needs steps in a row, and offsets list them", column=item.spec.name,
            hint="give offsets a tuple (first, last), or leave delta out",
        )  # fmt: skip


def _check_numbers(column: str, mean: npt.NDArray[np.float64], scale: npt.NDArray[np.float64]) -> None:
    """Raises InvalidArgumentError if a relative column has other numbers at other steps, [steps, elements]."""
    if (mean != mean[0]).any() or (scale != scale[0]).any():
        raise InvalidArgumentError(
            "normalize has numbers for each step of this relative column, and Seconds interpolates steps",
            column=column,
            hint="give its Seconds fill='hold', or normalize numbers for each element",
        )


def _camera(
    batch_format: BatchFormat,
    request: BatchRequest,
    item: BatchColumn,
    mean: npt.NDArray[np.float64] | None,
    scale: npt.NDArray[np.float64] | None,
) -> Output:
    """Returns the output of a camera. A normalised camera has floats, and so has depth."""
    spec, shift = item.spec, _shift(batch_format, item)
    if shift < 0:
        raise InvalidArgumentError(
            "a camera cannot be one step late", column=spec.name, hint="leave it out of previous_step_columns"
        )
    height, width, channels = spec.shape
    floats = mean is not None or (item.own and batch_format.camera_frames == "float32")
    first = floats or (item.own and batch_format.camera_frames == "uint8_chw")
    fill: Any = batch_format.fill.get(spec.name, 0) if item.own else 0
    if item.own and batch_format.normalize_padding and mean is not None and scale is not None:
        fill = ((fill - mean) * scale).reshape(channels, 1, 1)
    if spec.depth is not None:
        dtype = _dtype(batch_format, request, item, normalised=mean is not None)
        camera = DEPTH[spec.depth.unit]
    else:
        dtype = (request.float_dtype or batch_format.dtype or "float32") if floats else "uint8"
        camera = CHANNELS_FIRST if first else CHANNELS_LAST
    _check_fill(batch_format, spec, fill if mean is None else 0, dtype)
    return Output(
        item.key,
        spec.name,
        dtype,
        (channels, height, width) if first else spec.shape,
        fill=fill,
        mean=mean,
        scale=scale,
        padding=batch_format.column_padding,
        shift=shift,
        camera=camera,
        **column_positions(batch_format, request, spec),
    )


def _check_fill(batch_format: BatchFormat, spec: ColumnSpec, fill: float, dtype: str) -> None:
    """Raises InvalidArgumentError if an array of integers or booleans cannot hold the number of its padding."""
    with np.errstate(invalid="ignore"):  # a number out of range becomes another one
        held = np.float64(fill).astype(dtype)
    if held.dtype.kind in "biu" and held != fill:
        raise InvalidArgumentError(
            f"preset '{batch_format.name}' fills the padding with {fill:g}, and the batch has {dtype}",
            column=spec.name,
            hint=f"give preset_options={{'fill': {{'{spec.name}': 0}}}}, or another number of {dtype}",
        )


def _shift(batch_format: BatchFormat, item: BatchColumn) -> int:
    """Returns the `shift` of a column's output."""
    if item.next_step:
        return 1
    return -1 if item.own and item.spec.name in batch_format.previous_step_columns else 0


def column_positions(batch_format: BatchFormat, request: BatchRequest, spec: ColumnSpec) -> dict[str, Any]:
    """Returns arguments of `Output`: the steps of a column, and their positions."""
    if spec.name in request.offsets:
        steps = request.offsets[spec.name]
        listed = None if isinstance(steps, range) else steps
        first = steps.start if isinstance(steps, range) else min(steps)
        weights = request.weights.get(spec.name)
        return {"first": first, "width": len(steps), "within_window": False, "steps": listed, "weights": weights}
    if batch_format.first_step_only(spec.role):
        return {"first": 0, "width": 1, "squeeze_time": True}
    return {"first": 0, "width": request.context, "pad_left": batch_format.pad_left}


def column_steps(batch_format: BatchFormat, offsets: ColumnSteps, context: int, spec: ColumnSpec) -> Sequence[int]:
    """Returns the steps of a column relative to its window's first step."""
    if spec.name in offsets:
        return offsets[spec.name]
    return range(1 if batch_format.first_step_only(spec.role) else context)


def _dtype(batch_format: BatchFormat, request: BatchRequest, item: BatchColumn, *, normalised: bool) -> str:
    kind, dtype = item.spec.numpy_dtype.kind, item.spec.dtype
    if item.own and batch_format.dtype is not None and (kind == "f" or batch_format.cast_integers):
        return request.float_dtype or batch_format.dtype
    if kind == "f" and request.float_dtype is not None:
        return request.float_dtype
    if normalised and dtype not in ("float32", "float64"):
        return request.float_dtype or "float32"
    return dtype


def column_shape(batch_format: BatchFormat, item: BatchColumn) -> tuple[int, ...]:
    return (
        (1,) if item.own and not item.spec.shape and item.spec.name in batch_format.unsqueeze_last else item.spec.shape
    )
