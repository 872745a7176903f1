"""What policies take beside a preset's columns: named cameras, a fixed width, a history of observations.

The fields of `BatchFormat` from `mapped` on say which of it a format has. `registry` names the sources.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gear_data.collection.output import CHANNELS_FIRST, CHANNELS_LAST, DEPTH, MASK, Output, Padding
from gear_data.errors import InvalidArgumentError, MissingColumnError
from gear_data.loaders.presets.batch_format import BatchFormat
from gear_data.loaders.presets.batch_request import BatchColumn, BatchRequest
from gear_data.loaders.presets.offsets import ColumnSteps
from gear_data.loaders.presets.policies.octo import octo_outputs
from gear_data.loaders.presets.unlike import constant, widened
from gear_data.schema import ColumnSpec, Role, Schema


def mapped_columns(batch_format: BatchFormat, request: BatchRequest) -> dict[str, str]:
    """Returns column -> its key, of the columns that a `mapped` format has.

    Raises:
        MissingColumnError: no column has a key of `widths`.
        InvalidArgumentError: an image has no key, and a camera of the format has no image.
    """
    schema = request.schema
    keys = {name: key for name, key in batch_format.keys.items() if name in schema and key}
    images = [spec for spec in (*schema.columns, *schema.videos) if _is_image(spec)]
    unnamed = [spec.name for spec in images if spec.name not in batch_format.keys]
    used = {*(request.columns or ()), *itertools.chain.from_iterable(request.chosen.values())}
    unnamed = [name for name in unnamed if name not in used]
    if batch_format.camera_key:
        keys |= {name: batch_format.camera_key.replace("{name}", _last(name)) for name in unnamed}
        unnamed = []
    free = [key for key in batch_format.cameras if key not in keys.values() and key not in request.chosen]
    if unnamed and free:
        raise InvalidArgumentError(
            f"preset '{batch_format.name}' has no image for '{free[0]}', and this column has no key",
            column=unnamed[0],
            hint=f"give BatchOptions(preset_options={{'keys': {{'{unnamed[0]}': '{free[0]}'}}}}), or the key '' to "
            "leave the column out",
        )
    for key in batch_format.widths:
        if key not in keys.values():
            raise MissingColumnError(
                f"preset '{batch_format.name}' has the key '{key}', and no column of the dataset has it",
                column=key,
                hint=f"give BatchOptions(preset_options={{'keys': {{COLUMN: '{key}'}}}}); the columns are "
                f"{', '.join(schema.names)}",
            )
    return keys


def _is_image(spec: ColumnSpec) -> bool:
    return spec.role is Role.OBSERVATION and len(spec.shape) == 3 and spec.depth is None


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def history_steps(
    batch_format: BatchFormat, schema: Schema, context: int, offsets: ColumnSteps, chosen: Mapping[str, Sequence[str]]
) -> ColumnSteps:
    """Returns the offsets of a loader, with those of a format with a history.

    Args:
        batch_format: the preset, with its options.
        schema: the columns.
        context: steps of a window.
        offsets: the loader's argument.
        chosen: the loader's argument `choose`.

    Raises:
        InvalidArgumentError: the format has chunks for each step of the history, and the loader has offsets, too.
    """
    if not batch_format.history:
        return offsets
    first = 1 - batch_format.history
    names = [name for name, key in batch_format.keys.items() if key]
    own = {
        name: range(first, 1) if schema[name].role is Role.OBSERVATION else range(first, context)
        for name in (*names, *itertools.chain.from_iterable(chosen.values()))
        if name in schema and (batch_format.chunks or schema[name].role is Role.OBSERVATION)
    }
    if batch_format.camera_key:
        own |= {spec.name: range(first, 1) for spec in (*schema.columns, *schema.videos) if _is_image(spec)}
    for name in own.keys() & offsets.keys():
        if batch_format.chunks:
            raise InvalidArgumentError(
                f"preset '{batch_format.name}' has steps of its own for this column, and offsets are {offsets[name]!r}",
                column=name,
                hint="leave it out of offsets; context is the number of actions, and "
                "preset_options={'history': ...} the number of observations",
            )
    return {**own, **offsets}


def policy_outputs(
    batch_format: BatchFormat, request: BatchRequest, columns: Sequence[BatchColumn], outputs: Iterable[Output]
) -> list[Output]:
    """Returns the outputs of a format as its policy takes them, with the outputs that no column has.

    Args:
        batch_format: the preset, with its options.
        request: the arguments for the preset.
        columns: the columns of the batch, also those of text.
        outputs: the outputs of the columns of numbers and cameras.

    Raises:
        InvalidArgumentError: a column is no vector, or is wider than the format; an image is not uint8 [H, W, 3].
    """
    result = [_checked(batch_format, output) for output in outputs]
    if not batch_format.mapped:
        return result
    taken = {item.key for item in columns} | {*request.chosen}
    steps: dict[str, Any] = {"first": 0, "width": 1, "squeeze_time": True}
    if batch_format.history:
        steps = {"first": 1 - batch_format.history, "width": batch_format.history, "within_window": False}
    for key, size in batch_format.cameras.items():
        if key not in taken:
            result.append(_black(batch_format, key, size, steps))
        if batch_format.camera_mask:
            mask = batch_format.camera_mask.replace("{name}", _last(key))
            result.append(constant(mask, np.full(batch_format.history or (), key in taken)))
    if batch_format.element_mask:
        actions = batch_format.keys.get("actions", "actions") or _key_of_actions(columns)
        for output in result:
            if output.column and output.key == actions:
                result.append(_element_mask(batch_format.element_mask, output, chunks=batch_format.chunks))
                break
    if batch_format.chunks:
        result += octo_outputs(request, result, steps)
    return result


def _key_of_actions(columns: Sequence[BatchColumn]) -> str:
    """Returns the key of the actions, for a format whose `keys` leave the column `actions` out. Its own come first."""
    found = [item for item in columns if item.spec.role is Role.ACTION and not item.next_step]
    return next((item.key for item in sorted(found, key=lambda item: not item.own)), "")


def _checked(batch_format: BatchFormat, output: Output) -> Output:
    """Returns the output of a column, as wide as the format says."""
    if not output.column:
        return output
    other = output.camera in DEPTH.values() or (output.camera is None and output.shape[2:] != (3,))
    if output.key in batch_format.cameras and other:
        raise InvalidArgumentError(
            f"preset '{batch_format.name}' takes images [H, W, 3], and a step has {list(output.shape)}",
            column=output.source,
            hint="leave it out of columns and of the option keys, or convert with --rename",
        )
    width = batch_format.widths.get(output.key)
    if width is None:
        return output
    if len(output.shape) != 1:
        raise InvalidArgumentError(
            f"preset '{batch_format.name}' has a vector with the key '{output.key}', and a step has "
            f"{list(output.shape)}",
            column=output.source,
            hint=f"give another column this key: preset_options={{'keys': {{COLUMN: '{output.key}'}}}}",
        )
    if output.shape[0] > width:
        raise InvalidArgumentError(
            f"preset '{batch_format.name}' has {width} elements, and the dataset has {output.shape[0]}",
            column=output.source,
            hint=f"give preset_options={{'widths': {{'{output.key}': {output.shape[0]}}}}}, and a model of this width",
        )
    return widened(output, width)


def _black(batch_format: BatchFormat, key: str, size: int, steps: Mapping[str, Any]) -> Output:
    """Returns the output of a camera that the dataset lacks."""
    first = batch_format.camera_frames != "uint8"
    shape = (3, size, size) if first else (size, size, 3)
    dtype = "float32" if batch_format.camera_frames == "float32" else "uint8"
    return Output(key, key, dtype, shape, camera=CHANNELS_FIRST if first else CHANNELS_LAST, **steps).as_absent()


def _element_mask(key: str, actions: Output, *, chunks: bool) -> Output:
    """Returns the mask of the elements of actions.

    It is float32 [B, width, elements] and 1 at elements of valid steps; or, for chunks, bool [B, elements]. A step
    that is interpolated between a step and padding is padding.
    """
    real = np.arange(actions.shape[0]) < (actions.real or actions.shape[0])
    if chunks:
        return constant(key, real)
    return replace(
        actions, key=key, source=MASK, dtype="float32", half=None, column=False, valid=real.astype(np.float32),
        fill=0, padding=Padding.FILL, mean=None, scale=None, relative=None, real=None, shift=0,
    )  # fmt: skip
