"""Values of an episode in memory: flattens mappings and converts lists to arrays."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gear_data.errors import BadEpisodeError, UnsupportedColumnError
from gear_data.ingest.findings.log import Finding
from gear_data.schema import DTYPES
from gear_data.storage.episode_block import Values

_MAX_DEPTH = 32


def flatten(item: Mapping[str, Any]) -> dict[str, Any]:
    """Flattens nested values to a mapping of dotted name -> value.

    Mappings (Dict spaces) are flattened by key, and tuples of arrays (Tuple spaces) by index.

    Raises:
        BadEpisodeError: the values are nested too deep, or a name is not text.
    """
    return dict(_leaves(item, "", 0))


def _leaves(item: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in item.items():
        name = f"{prefix}{key}"
        if not isinstance(key, str) or depth > _MAX_DEPTH:
            raise BadEpisodeError(
                f"is nested over {_MAX_DEPTH} levels deep, or has a key that is not text", column=name
            )
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{name}.", depth + 1)
        elif isinstance(value, tuple) and value and not any(is_scalar(part) for part in value):
            yield from _leaves({str(i): part for i, part in enumerate(value)}, f"{name}.", depth + 1)
        else:
            yield name, value


def is_scalar(value: Any) -> bool:
    """Returns whether a value is single, about the whole episode and not a step."""
    if value is None or isinstance(value, str | bytes | int | float):
        return True
    return not isinstance(value, list | tuple | Mapping) and getattr(value, "shape", None) == ()


def step_values(value: Any, column: str) -> npt.NDArray[Any]:
    """Converts a column of an episode to an array with one row per step.

    Args:
        value: an array, a tensor, or a list.
        column: the column's name, for messages.

    Returns:
        [T, ...] of a dtype that a column can have, or [T] of str or bytes objects.

    Raises:
        UnsupportedColumnError: the values are neither numbers nor text.
        BadEpisodeError: the values of the steps differ in shape, are mappings, or are masked.
    """
    refuse_masked(value, column)
    is_list = isinstance(value, list | tuple)
    if is_list and any(isinstance(step, Mapping) for step in value):
        raise BadEpisodeError(
            "is a list of mappings, one per step",
            column=column,
            hint="use one mapping of arrays instead: {'image': [T, ...], 'direction': [T]}",
        )
    if (is_list or (isinstance(value, np.ndarray) and value.dtype.kind == "O")) and len(value):
        for kind in (str, bytes):
            if all(isinstance(step, kind) for step in value):
                texts = np.empty(len(value), object)
                texts[:] = value
                return texts
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists; tensors that NumPy cannot hold
        raise BadEpisodeError(f"cannot be converted to an array: {error}", column=column) from error
    if array.dtype.kind in "US":
        return array.astype(object)
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    if native.dtype.name not in DTYPES:
        message = f"holds {native.dtype.name}, and a column holds numbers, booleans or text"
        if native.dtype == object and any(map(np.ndim, native)):
            message = "has steps of different shapes"
        raise UnsupportedColumnError(message, column=column, hint="leave it out with --columns (columns=[...])")
    return native


def refuse_masked(value: Any, column: str) -> None:
    """Refuses a masked array with masked values: below the mask may be anything.

    Raises BadEpisodeError.
    """
    if np.ma.is_masked(value):
        raise BadEpisodeError(
            "holds masked values, which a column cannot have",
            column=column,
            hint="put values in their place first: array.filled(numpy.nan)",
        )


def cast_exactly(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any] | None:
    """Casts numbers to another dtype; returns None if a number would change.

    Booleans are not cast.
    """
    if values.dtype.kind not in "iuf" or np.dtype(dtype).kind not in "iuf":
        return None
    with np.errstate(all="ignore"):
        cast = values.astype(dtype)
        exact = np.array_equal(cast.astype(values.dtype), values, equal_nan=values.dtype.kind == "f")
    # Integers wrap in both directions: -1 of int8 becomes 255 of uint8, and -1 again.
    return cast if exact and np.array_equal(cast < 0, values < 0) else None


def cast_values(values: npt.NDArray[Any], dtype: str, *, rounds: bool) -> npt.NDArray[Any] | None:
    """Casts numbers.

    Returns None if a number changes by more than the rounding of floats.
    """
    target = np.dtype(dtype)
    if values.dtype.kind == "b":
        return values.astype(dtype)
    if target.kind == "b":
        return None if ((values != 0) & (values != 1)).any() else values.astype(dtype)
    if rounds and values.dtype.kind == target.kind == "f":
        with np.errstate(over="ignore"):
            cast = values.astype(dtype)
        return None if (np.isinf(cast) & np.isfinite(values)).any() else cast
    return cast_exactly(values, dtype)


def cast_or_refuse(
    values: npt.NDArray[Any], dtype: str, column: str, row: int, *, rounds: bool, source: str
) -> npt.NDArray[Any]:
    """Casts numbers as `cast_values`.

    Raises BadEpisodeError, which names `column`, if a number changes. The hint names the dtype that holds all, for the
    column `source`.
    """
    cast = cast_values(values, dtype, rounds=rounds)
    if cast is None:
        wider = np.promote_types(values.dtype, dtype)
        raise BadEpisodeError(
            f"is {values.dtype}, and holds values that do not fit {dtype}",
            column=column,
            row=row,
            hint=f"read all episodes as one dtype: --dtype {shlex.quote(source)}={wider}",
        )
    return cast


def reset_info_left_out(count: int, file: str, row: int | None, column: str) -> Finding:
    """Returns the finding about T + 1 infos, of which `reset` returned the first."""
    message = "the first of T + 1 values belongs to the reset, not to a step; left out"
    return Finding("reset-info-left-out", message, count, file, row, column)


def rows_differ(a: Values, b: Values) -> npt.NDArray[np.bool_]:
    """Returns bool [n]: whether the rows of two columns of n rows differ.

    NaN equals NaN. Floats of two widths are compared as the narrower ones, because those were rounded.
    """
    if isinstance(a, pa.Array):
        return np.asarray(pc.not_equal(a, b).to_numpy(zero_copy_only=False), np.bool_)
    if a.dtype != b.dtype and a.dtype.kind == b.dtype.kind == "f":
        narrow = min(a.dtype, b.dtype, key=lambda dtype: dtype.itemsize)
        with np.errstate(over="ignore"):
            a, b = a.astype(narrow, copy=False), b.astype(narrow, copy=False)
    different = np.asarray(a != b)
    if a.dtype.kind == "f" and different.any():
        different &= ~((a != a) & (b != b))
    return np.asarray(different.any(axis=tuple(range(1, different.ndim))))
