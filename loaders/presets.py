"""Presets: named batch conventions. Each turns a dataset's schema into the outputs of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection import MASK, TIMESTEPS, Output
from gear_data.errors import InvalidArgumentError, MissingColumnError, unknown_name
from gear_data.schema import ColumnSpec, Role, Schema

Normalization = Mapping[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]


@dataclass(frozen=True)
class BatchRequest:
    """What a loader asks a preset for.

    Attributes:
        schema: the dataset's.
        context: steps of a sequence.
        columns: raw: the columns wanted; other presets: columns to add to theirs. None: all, or none added.
        offsets: column -> (first, last) steps around the window's first step, last not included.
        normalize: column -> (mean, std), float64 [elements] or [1].
        float_dtype: what float columns become; None leaves them as they are.
    """

    schema: Schema
    context: int
    columns: tuple[str, ...] | None
    offsets: Mapping[str, tuple[int, int]]
    normalize: Normalization
    float_dtype: str | None


Preset = Callable[[BatchRequest], list[Output]]


def raw(request: BatchRequest) -> list[Output]:
    """The dataset's columns under their own names, [B, context, *shape], right-padded with zeros (after normalising);
    `mask` bool [B, context], True = valid; `timesteps` int64 [B, context], 0 in padding."""
    names = request.schema.names if request.columns is None else request.columns
    for reserved in ("mask", "timesteps", "valid_count"):
        if reserved in names:
            raise InvalidArgumentError(
                f"the dataset's column '{reserved}' has the name of a key that every batch has",
                column=reserved,
                hint="leave it out with columns=[...], or convert with --rename",
            )
    outputs = [_plain(request, request.schema[name], pad_left=False) for name in names]
    outputs.append(Output("timesteps", TIMESTEPS, "int64", (), 0, request.context, column=False))
    outputs.append(Output("mask", MASK, "bool", (), 0, request.context, column=False))
    return outputs + _offset_masks(request, names)


def decision_transformer(request: BatchRequest) -> list[Output]:
    """The batch of Decision Transformer (Chen et al., 2021) as `transformers.DecisionTransformerModel` takes it.

    Left-padded, float32: `states` [B, K, S] (padding is a zero state, then normalised like any other; std + 1e-6),
    `actions` [B, K, A] (padding -10), `rewards` and `returns_to_go` [B, K, 1] (padding 0; return-to-go / 1000),
    `timesteps` int64 [B, K] (padding 0), `attention_mask` [B, K] (1 = valid). Convention: the data collator of
    HuggingFace's "Train your first Decision Transformer" (2022).
    """
    sources = {
        "states": ("observations", 0.0, 1.0),
        "actions": ("actions", -10.0, 1.0),
        "rewards": ("rewards", 0.0, 1.0),
        "returns_to_go": ("returns_to_go", 0.0, 1e-3),
    }
    missing = [name for name, _, _ in sources.values() if name not in request.schema]
    if missing:
        raise MissingColumnError(
            f"preset 'decision_transformer' needs the columns {', '.join(missing)}, which the dataset lacks",
            column=missing[0],
            hint=f"it has: {', '.join(request.schema.names)}",
        )
    outputs = []
    for key, (name, fill, scale) in sources.items():
        spec = request.schema[name]
        if len(spec.shape) > 1:
            raise InvalidArgumentError(
                f"preset 'decision_transformer' needs vectors, and this column has shape {spec.shape}", column=name
            )
        first, width, pad_left = _range(request, name, pad_left=True)
        mean, inverse = _affine(request, name, epsilon=1e-6)
        padding: Any = fill
        if mean is not None and inverse is not None:
            padding = (fill - mean) * inverse * scale
        if scale != 1.0:
            mean = np.zeros(1) if mean is None else mean
            inverse = np.full(1, scale) if inverse is None else inverse * scale
        shape = spec.shape or (1,)
        dtype = request.float_dtype or "float32"
        outputs.append(Output(key, name, dtype, shape, first, width, pad_left, padding, mean, inverse))
    context = request.context
    outputs.append(Output("timesteps", TIMESTEPS, "int64", (), 0, context, True, column=False))
    outputs.append(Output("attention_mask", MASK, "float32", (), 0, context, True, column=False))
    extra = request.columns or ()
    outputs += [_plain(request, request.schema[name], pad_left=True) for name in extra]
    own = [name for name, _, _ in sources.values()]
    return outputs + _offset_masks(request, dict.fromkeys([*own, *extra]))


#: Name -> preset, as `preset=` takes them.
PRESETS: dict[str, Preset] = {"raw": raw, "decision_transformer": decision_transformer}


def batch_outputs(preset: str, request: BatchRequest) -> list[Output]:
    """The outputs of a batch.

    Raises:
        UnknownNameError: no such preset, or no such column.
        MissingColumnError: the preset needs a column the dataset lacks.
        InvalidArgumentError: a column the preset cannot take.
    """
    if preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    for name in (*request.offsets, *(request.columns or ())):
        request.schema.index(name)
    outputs = PRESETS[preset](request)
    keys = {"valid_count"}
    for output in outputs:
        if output.key in keys:
            raise InvalidArgumentError(
                f"preset '{preset}' would put two things under the key '{output.key}'",
                column=output.source if output.column else output.key,
                hint="name each column once, and convert with --rename where a column has the name of another key",
            )
        keys.add(output.key)
    used = {output.source for output in outputs if output.column}
    for name in request.offsets:
        if name not in used:
            raise InvalidArgumentError(
                f"offsets name a column that preset '{preset}' does not put in the batch", column=name
            )
    return outputs


def normalization_columns(schema: Schema, normalize: bool | str | Sequence[str]) -> tuple[str, ...]:
    """The columns to normalise: `True` means every float observation column.

    Raises:
        UnknownNameError: no such column.
        InvalidArgumentError: a column of booleans, or no names.
    """
    if isinstance(normalize, bool):
        return tuple(
            c.name for c in schema if normalize and c.role is Role.OBSERVATION and np.dtype(c.dtype).kind == "f"
        )
    if not isinstance(normalize, str | Sequence):
        raise InvalidArgumentError(
            f"normalize is True, a column, several, or a mapping of column to (mean, std), not {normalize!r}"
        )
    names = (normalize,) if isinstance(normalize, str) else tuple(normalize)
    for name in names:
        if schema[name].dtype == "bool":
            raise InvalidArgumentError("booleans cannot be normalised", column=name)
    return names


def _plain(request: BatchRequest, spec: ColumnSpec, *, pad_left: bool) -> Output:
    """A column under its own name; padding is zero after normalising. A constant element (std 0) becomes 0."""
    first, width, pad_left = _range(request, spec.name, pad_left=pad_left)
    mean, inverse = _affine(request, spec.name, epsilon=0.0)
    dtype = spec.dtype
    if np.dtype(dtype).kind == "f" and request.float_dtype is not None:
        dtype = request.float_dtype
    elif mean is not None and dtype not in ("float32", "float64"):
        dtype = request.float_dtype or "float32"
    return Output(spec.name, spec.name, dtype, spec.shape, first, width, pad_left, 0, mean, inverse)


def _range(request: BatchRequest, name: str, *, pad_left: bool) -> tuple[int, int, bool]:
    """(first, width, pad_left): a column with offsets of its own has every step at its own place."""
    if name not in request.offsets:
        return 0, request.context, pad_left
    first, last = request.offsets[name]
    return first, last - first, False


def _affine(
    request: BatchRequest, name: str, *, epsilon: float
) -> tuple[npt.NDArray[np.float64] | None, npt.NDArray[np.float64] | None]:
    """(mean, 1 / (std + epsilon)); a std of 0 without epsilon counts as 1."""
    if name not in request.normalize:
        return None, None
    mean, std = request.normalize[name]
    size, shape = request.schema[name].size, request.schema[name].shape or (1,)
    if np.size(mean) not in (1, size) or np.size(std) not in (1, size):
        raise InvalidArgumentError(
            f"normalize has {np.size(mean)} means and {np.size(std)} deviations for {size} elements", column=name
        )
    mean, std = (np.broadcast_to(np.ravel(a), size).astype(np.float64) for a in (mean, std))
    std = std + epsilon
    inverse = 1.0 / np.where(std == 0, 1.0, std)
    return mean.reshape(shape), inverse.reshape(shape)


def _offset_masks(request: BatchRequest, names: Iterable[str]) -> list[Output]:
    """`NAME_mask` bool [B, width], True = valid, for each column with offsets of its own."""
    return [
        Output(f"{name}_mask", MASK, "bool", (), request.offsets[name][0], _range(request, name, pad_left=False)[1],
               column=False)
        for name in names
        if name in request.offsets
    ]  # fmt: skip
