"""Presets as outputs: the arrays of a batch, from a format and a schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gear_data.collection.output import MASK, TIMESTEPS, NextState, Output, Padding
from gear_data.errors import InvalidArgumentError, MissingColumnError
from gear_data.loaders.presets import transitions
from gear_data.loaders.presets.batch_format import BatchFormat, Tokens
from gear_data.loaders.presets.batch_request import BatchColumn, BatchRequest
from gear_data.loaders.presets.column_outputs import column_output, column_positions, column_shape
from gear_data.loaders.presets.gato.patches import image_shape, patch_grid
from gear_data.loaders.presets.gato.tokens import (
    PATCH_COLUMNS,
    PATCH_ROWS,
    PATCHES,
    TARGETS,
    TOKENS,
    BatchRows,
    GatoPostprocess,
    TokenColumn,
    check_vocabulary,
)
from gear_data.loaders.presets.packed import SEGMENT_IDS
from gear_data.loaders.presets.policies.octo import octo_postprocess
from gear_data.loaders.presets.policies.outputs import mapped_columns, policy_outputs
from gear_data.loaders.presets.registry import PRESETS, resolve_preset
from gear_data.schema import ColumnSpec, Role, Schema

__all__ = [
    "PRESETS",
    "BatchRequest",
    "BatchFormat",
    "next_state",
    "preset_postprocess",
    "batch_outputs",
    "normalization_columns",
    "resolve_preset",
    "text_columns",
]

#: Turns a collected batch, key -> tensor [B, ...], of some rows into the preset's batch.
Postprocess = Callable[[dict[str, Any], BatchRows], dict[str, Any]]

#: `next_X` is column X of the next step.
_NEXT = "next_"
_N_STEP = "n_step_returns"


def batch_outputs(preset: str | BatchFormat, request: BatchRequest) -> list[Output]:
    """Returns the outputs of a batch.

    Raises:
        UnknownNameError: no such preset, or no such column.
        MissingColumnError: the preset needs a column that the dataset lacks.
        InvalidArgumentError: a column does not fit the preset.
    """
    batch_format = resolve_preset(preset)
    columns = _batch_columns(batch_format, request)
    for name in (*request.offsets, *batch_format.fill):
        _ = request.schema[name]
    for item in columns:
        if item.spec.variable_length and item.own and batch_format.vectors:
            raise InvalidArgumentError(
                f"preset '{batch_format.name}' needs vectors, and this column is {item.spec.dtype}",
                column=item.spec.name,
            )
    numeric = [item for item in columns if not item.spec.variable_length]
    outputs = [column_output(batch_format, request, item) for item in numeric]
    if request.n_step is not None and batch_format.transitions is None:
        outputs.append(_n_step_returns(batch_format, request))
    outputs += _common(batch_format, request)
    outputs += _column_masks(batch_format, request, numeric)
    text = [item for item in columns if item.spec.variable_length]
    _check_keys(batch_format, outputs, text)
    outputs = policy_outputs(batch_format, request, columns, outputs)
    state = next_state(batch_format, request)
    if state is not None:
        outputs = transitions.transition_outputs(
            outputs, state, own_keys(batch_format, request), n_step=request.n_step, discount=request.discount,
            dtype=request.float_dtype or batch_format.dtype or "float32",
        )  # fmt: skip
    _check_keys(batch_format, outputs, text)
    used = {item.spec.name for item in numeric}
    for name in request.relative.keys() - used:
        raise InvalidArgumentError(
            f"relative= names a column that preset '{batch_format.name}' does not put in the batch",
            column=name,
            hint="add it with columns=, or leave it out of relative",
        )
    for name in request.offsets:
        is_frame = batch_format.transitions is not None and request.schema[name].role is Role.OBSERVATION
        if request.schema[name].variable_length and not is_frame:
            raise InvalidArgumentError(
                "a column of text or bytes cannot have offsets", column=name, hint="leave it out of offsets"
            )
        if name not in used and not request.schema[name].variable_length:
            raise InvalidArgumentError(
                f"offsets name a column that preset '{batch_format.name}' does not put in the batch",
                column=name,
                hint="add it with columns=, or leave it out of offsets",
            )
    return outputs


def next_state(preset: str | BatchFormat, request: BatchRequest) -> NextState | None:
    """Returns the next state of a batch's transitions.

    Returns None if its rows are not transitions.

    Raises:
        UnknownNameError, MissingColumnError, InvalidArgumentError: see `batch_outputs`.
    """
    batch_format = resolve_preset(preset)
    if batch_format.transitions is None:
        return None
    if request.context != 1:
        raise InvalidArgumentError(
            f"preset '{batch_format.name}' has one step in each row, and context is {request.context}",
            hint="leave context out; offsets={'observations': (-3, 1)} stacks four observations, or use preset='raw'",
        )
    for name in batch_format.required_columns:
        if name in request.offsets and request.schema[name].role is not Role.ACTION:
            raise InvalidArgumentError(
                f"preset '{batch_format.name}' has one value of this column in each row, so it cannot have offsets",
                column=name,
                hint="leave it out of offsets",
            )
    following = [item.spec for item in _batch_columns(batch_format, request) if item.own and item.next_step]
    # A request may add columns such as `next_actions`.
    observations = [spec for spec in following if spec.role is Role.OBSERVATION]
    return transitions.next_state(observations, request.n_step)


def text_columns(preset: str | BatchFormat, request: BatchRequest) -> dict[str, str]:
    """Returns the columns of variable length in the batch -> their keys.

    The collector does not fill them.

    Raises:
        UnknownNameError, MissingColumnError: see `batch_outputs`.
    """
    columns = _batch_columns(resolve_preset(preset), request)
    return {item.spec.name: item.key for item in columns if item.spec.variable_length and not item.next_step}


def column_keys(batch_format: BatchFormat, request: BatchRequest) -> dict[str, tuple[str, str]]:
    """Returns column -> its key in the batch, and the key that its mask has if it has one.

    Raises:
        UnknownNameError, MissingColumnError: see `batch_outputs`.
    """
    items = _batch_columns(batch_format, request)
    return {item.name: (item.key, batch_format.mask_of(item.name, item.key)) for item in items}


def own_keys(batch_format: BatchFormat, request: BatchRequest) -> dict[str, str]:
    """Returns column -> its key in the batch, of the format's own columns.

    Raises:
        UnknownNameError, MissingColumnError: see `batch_outputs`.
    """
    items = _batch_columns(batch_format, request)
    return {item.name: item.key for item in items if item.own and not item.next_step}


def preset_postprocess(preset: str | BatchFormat, request: BatchRequest) -> Postprocess | None:
    """Returns the function that turns a collected batch into the preset's.

    Returns None if they are the same.

    The function can be pickled. The collected batch holds `valid_count`.

    Raises:
        InvalidArgumentError: observations or actions have offsets, and become tokens; or tokens have two meanings.
    """
    batch_format = resolve_preset(preset)
    if batch_format.chunks:
        return octo_postprocess(batch_format, request)
    return None if batch_format.tokens is None else _tokens(batch_format, batch_format.tokens, request)


def token_keys(batch_format: BatchFormat) -> tuple[str, ...]:
    """Returns the keys of a batch that only `GatoPostprocess` adds or reads; none if the format makes no tokens."""
    if batch_format.tokens is None:
        return ()
    return (TOKENS, TARGETS, SEGMENT_IDS, *((PATCHES, PATCH_ROWS, PATCH_COLUMNS) if batch_format.tokens.patch else ()))


def step_tokens(preset: str | BatchFormat, request: BatchRequest) -> int:
    """Returns the tokens of a step without its texts; 1 if the preset makes none."""
    batch_format = resolve_preset(preset)
    if batch_format.tokens is None:
        return 1
    return 1 + sum(_column_tokens(item.spec, batch_format.tokens) for item, _ in token_columns(batch_format, request))


def token_columns(batch_format: BatchFormat, request: BatchRequest) -> list[tuple[BatchColumn, TokenColumn]]:
    """Returns the columns that become tokens, in the order of their names.

    Without the option `patch` images stay in the batch, without `text` texts do.

    Raises:
        InvalidArgumentError: an image has no patches.
    """
    tokens, found = batch_format.tokens, []
    if tokens is None:
        return []
    for item in sorted(_batch_columns(batch_format, request), key=lambda item: item.name):
        spec = item.spec
        if not item.own or item.next_step or spec.role not in (Role.OBSERVATION, Role.ACTION):
            continue
        kind: Any = "values"
        if spec.variable_length:
            kind = {"string": "text"}.get(spec.dtype, "images")
            if spec.role is Role.ACTION or not (tokens.text if kind == "text" else tokens.patch):
                continue
        elif spec.role is Role.OBSERVATION and _is_image(spec, tokens):
            if not tokens.patch:
                continue
            kind = "images"
            if spec.dtype != "uint8" or spec.name in request.normalize:
                raise InvalidArgumentError(
                    "patches are of images of uint8",
                    column=spec.name,
                    hint="leave the column out of normalize, or give preset_options={'tokens': {'patch': 0}}",
                )
            image_shape(spec.shape, tokens.channels, spec.name)
        found.append((item, TokenColumn(item.key, spec.role, kind)))
    return found


def _is_image(spec: ColumnSpec, tokens: Tokens) -> bool:
    """Returns whether a step is an image. Grey images [H, W] were values before there were patches."""
    return len(spec.shape) > 2 or bool(tokens.patch and len(spec.shape) == 2 and spec.dtype == "uint8")


def _column_tokens(spec: ColumnSpec, tokens: Tokens) -> int:
    """Returns the tokens of a step of a column; 0 of text, and of encoded images."""
    if spec.variable_length:
        return 0
    if spec.role is Role.OBSERVATION and _is_image(spec, tokens):
        rows, columns = patch_grid(*image_shape(spec.shape, tokens.channels, spec.name)[:2], tokens.patch)
        return rows * columns
    return spec.size


def normalization_columns(schema: Schema, normalize: bool | str | Sequence[str]) -> tuple[str, ...]:
    """Returns the columns to normalise.

    Args:
        schema: the columns of the dataset.
        normalize: True: every float observation column. `all`: these, float actions, uint8 images and cameras of the
            observations. Else one column, or several.

    Raises:
        UnknownNameError: no such column.
        InvalidArgumentError: a column of booleans or of variable length, or `normalize` is of another type.
    """
    if isinstance(normalize, bool) or normalize == "all":
        every = normalize == "all"
        return tuple(
            c.name
            for c in (*schema.columns, *(schema.videos if every else ()))
            if normalize and not c.variable_length and _is_normalised(c, every)
        )
    if not isinstance(normalize, str | Sequence):
        raise InvalidArgumentError(
            f"normalize must be True, a column, several, or a mapping of column to (mean, std), not {normalize!r}"
        )
    names = (normalize,) if isinstance(normalize, str) else tuple(normalize)
    for name in names:
        if schema[name].dtype == "bool" or schema[name].variable_length:
            raise InvalidArgumentError("booleans, text and bytes cannot be normalised", column=name)
    return names


def _is_normalised(spec: ColumnSpec, every: bool) -> bool:
    if spec.role is Role.OBSERVATION:
        return spec.numpy_dtype.kind == "f" or (every and spec.dtype == "uint8" and len(spec.shape) > 1)
    return every and spec.role is Role.ACTION and spec.numpy_dtype.kind == "f"


def _batch_columns(batch_format: BatchFormat, request: BatchRequest) -> list[BatchColumn]:
    """Returns all columns of the batch, in order."""
    schema, requested = request.schema, request.columns
    missing = [name for name in batch_format.required_columns if name not in schema]
    if missing:
        raise MissingColumnError(
            f"preset '{batch_format.name}' needs the columns {', '.join(missing)}, which the dataset lacks",
            column=missing[0],
            hint=f"it has: {', '.join(schema.names)}",
        )
    roles, steps = batch_format.roles, (*schema.columns, *schema.videos)
    names = [*batch_format.required_columns, *(c.name for c in steps if roles is None or c.role.value in roles)]
    if roles is None and requested is not None:
        names, requested = list(requested), ()
    else:
        names = list(dict.fromkeys(names))
    if batch_format.mapped:
        keys = mapped_columns(batch_format, request)
        names = [name for name in dict.fromkeys((*names, *keys)) if batch_format.keys.get(name) != ""]
        batch_format = replace(batch_format, keys={**batch_format.keys, **keys})
    own = [_batch_column(batch_format, schema, name, own=True) for name in names]
    if batch_format.transitions is not None:
        observations = [item for item in own if item.spec.role is Role.OBSERVATION]
        if not observations:
            raise MissingColumnError(
                f"preset '{batch_format.name}' needs observations, which the dataset lacks",
                column="observations",
                hint=f"it has: {', '.join(schema.names)}",
            )
        rest = [item for item in own if item.spec.role is not Role.OBSERVATION]
        following = [_batch_column(batch_format, schema, _NEXT + item.name, own=True) for item in observations]
        own = [*observations, *rest, *following]
    return own + [_batch_column(batch_format, schema, name, own=False, own_names=names) for name in requested or ()]


def _batch_column(
    batch_format: BatchFormat, schema: Schema, name: str, *, own: bool, own_names: Sequence[str] = ()
) -> BatchColumn:
    """Returns the column of a requested name.

    `next_X` is treated like column X: it is the format's own if X is.

    Args:
        own: whether the format has the column.
        own_names: the format's own columns.
    """
    base = name.removeprefix(_NEXT)
    if name not in schema and base != name and base in schema:
        spec = schema[base]
        if spec.variable_length and not (batch_format.transitions and spec.role is Role.OBSERVATION):
            raise InvalidArgumentError(
                f"'{name}' is the next step of a column of text or bytes, which is not supported",
                column=base,
                hint="leave it out of columns",
            )
        return BatchColumn(spec, name, name, own or base in own_names)
    spec = schema[name]
    key = spec.source if batch_format.source_names and spec.source is not None else name
    return BatchColumn(spec, name, batch_format.keys.get(name, key) if own else key, own)


def _n_step_returns(batch_format: BatchFormat, request: BatchRequest) -> Output:
    if "rewards" not in request.schema:
        raise MissingColumnError(
            "n_step needs the column rewards, which the dataset lacks",
            column="rewards",
            hint=f"it has: {', '.join(request.schema.names)}",
        )
    spec = request.schema["rewards"]
    item = BatchColumn(spec, spec.name, _N_STEP, own=True)
    return Output(
        _N_STEP,
        spec.name,
        request.float_dtype or batch_format.dtype or ("float64" if spec.dtype == "float64" else "float32"),
        column_shape(batch_format, item),
        padding=batch_format.column_padding,
        discounts=tuple(request.discount**j for j in range(request.n_step or 0)),
        **column_positions(batch_format, request, spec),
    )


def _common(batch_format: BatchFormat, request: BatchRequest) -> list[Output]:
    """Returns the outputs of timesteps, mask and loss weight: [B, context]."""
    outputs = []
    sequence: dict[str, Any] = {
        "first": 0,
        "width": request.context,
        "pad_left": batch_format.pad_left,
        "column": False,
    }
    if batch_format.timesteps_key is not None:
        origin, padding = batch_format.timesteps_origin, Padding(batch_format.timesteps_padding)
        dtype = batch_format.timesteps_dtype
        outputs.append(
            Output(batch_format.timesteps_key, TIMESTEPS, dtype, (), origin=origin, padding=padding, **sequence)
        )
    if batch_format.mask_key is not None:
        valid = int(batch_format.mask_valid)
        outputs.append(
            Output(batch_format.mask_key, MASK, batch_format.mask_dtype, (), valid=valid, fill=1 - valid, **sequence)
        )
    if batch_format.loss_weight is not None:
        weight = batch_format.loss_weight
        outputs.append(Output("loss_weight", MASK, "float32", (), valid=weight, fill=weight, **sequence))
    return outputs


def _column_masks(batch_format: BatchFormat, request: BatchRequest, columns: Sequence[BatchColumn]) -> list[Output]:
    """Returns masks, bool, for columns whose valid steps differ from the window's."""
    masks = []
    valid = int(batch_format.mask_valid)
    for item in columns:
        positions = column_positions(batch_format, request, item.spec)
        needs_mask = batch_format.mask_key is None and "squeeze_time" not in positions
        marked = batch_format.transitions is None or batch_format.transitions.missing_next == "mark"
        if item.own and not item.next_step and _has_one_mask(batch_format, item.spec.role):
            continue
        if item.spec.name in request.offsets or (item.next_step and marked) or needs_mask:
            key = batch_format.mask_of(item.name, item.key)
            # Cameras have no final observations.
            mask_column = item.spec.name if item.next_step and item.spec.video is None else None
            masks.append(
                Output(
                    key, MASK, "bool", (), column=False, valid=valid, fill=1 - valid,
                    shift=int(item.next_step), mask_column=mask_column, **positions,
                )
            )  # fmt: skip
    return masks


def _has_one_mask(batch_format: BatchFormat, role: Role) -> bool:
    """Returns whether columns of a role have the steps of a format's history, without a mask each."""
    return batch_format.history > 0 and (role is Role.OBSERVATION or batch_format.chunks)


def _check_keys(batch_format: BatchFormat, outputs: Sequence[Output], text: Sequence[BatchColumn]) -> None:
    named = [(output.key, output.source if output.column else output.key) for output in outputs]
    named += [(item.key, item.spec.name) for item in text]
    keys = {"valid_count", *token_keys(batch_format)}
    for key, column in named:
        if key in keys:
            raise InvalidArgumentError(
                f"preset '{batch_format.name}' would give two arrays of the batch the key '{key}'",
                column=column,
                hint="name each column once; leave a column that has the name of another key out with columns=, or "
                "convert with --rename",
            )
        keys.add(key)


def _tokens(batch_format: BatchFormat, tokens: Tokens, request: BatchRequest) -> Postprocess:
    """Returns the function that makes tokens of a batch."""
    columns = [item for item in _batch_columns(batch_format, request) if not item.spec.variable_length]
    taken = token_columns(batch_format, request)
    for item, _ in taken:
        if item.name in request.offsets:
            raise InvalidArgumentError(
                f"preset '{batch_format.name}' makes tokens of whole steps, so this column cannot have offsets",
                column=item.name,
            )
    floats = {*request.normalize, *request.relative}
    for item, column in taken:
        if column.kind == "values" and (item.spec.numpy_dtype.kind == "f" or item.name in floats):
            check_vocabulary(tokens, item.name)
    used = {item.key for item, _ in taken}
    sequences = [item.key for item in columns if item.spec.name not in request.offsets and item.key not in used]
    ordered = [column for _, column in taken if column.role is Role.OBSERVATION]
    ordered += [column for _, column in taken if column.role is Role.ACTION]
    # Only arrays that the batch has: a fact may have the name of another one.
    sequences += [output.key for output in _common(batch_format, request) if output.key != batch_format.mask_key]
    sequences += [_N_STEP] if request.n_step is not None else []
    varies = any(item.spec.variable_length for item, _ in taken)
    return GatoPostprocess(
        tokens,
        tuple(ordered),
        # Without repetition: a column may have the name of an array that other formats add.
        sequences=tuple(dict.fromkeys(sequences)),
        pad_left=batch_format.pad_left,
        mask_key=batch_format.mask_key,
        mask_dtype=batch_format.mask_dtype,
        mask_valid=batch_format.mask_valid,
        width=None if varies else request.context * step_tokens(batch_format, request),
    )
