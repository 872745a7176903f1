"""The values of one episode in memory: nested mappings made flat, lists made arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import BadEpisodeError, UnsupportedColumnError
from gear_data.schema import DTYPES

_MAX_DEPTH = 32


def flatten(item: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted name -> value: mappings (Dict spaces) and tuples of arrays (Tuple spaces, by number) are taken apart.

    Raises:
        BadEpisodeError: nested without end, or with names that are not text.
    """
    return dict(_leaves(item, "", 0))


def _leaves(item: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in item.items():
        name = f"{prefix}{key}"
        if not isinstance(key, str) or depth > _MAX_DEPTH:
            raise BadEpisodeError("is nested too deep, or has names that are not text", column=name)
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{name}.", depth + 1)
        elif isinstance(value, tuple) and value and not any(is_scalar(part) for part in value):
            yield from _leaves({str(i): part for i, part in enumerate(value)}, f"{name}.", depth + 1)
        else:
            yield name, value


def is_scalar(value: Any) -> bool:
    """Whether a value is one, not one a step."""
    if value is None or isinstance(value, str | bytes | int | float):
        return True
    return not isinstance(value, list | tuple | Mapping) and getattr(value, "shape", None) == ()


def step_values(value: Any, column: str) -> npt.NDArray[Any]:
    """An array with a row a step: [T, ...] of a dtype a column can have, or [T] of str or bytes objects.

    Args:
        value: an array, a tensor, or a list.
        column: for messages.

    Raises:
        UnsupportedColumnError: neither numbers nor text.
        BadEpisodeError: of unequal shapes, or a mapping a step.
    """
    is_list = isinstance(value, list | tuple)
    if is_list and any(isinstance(step, Mapping) for step in value):
        raise BadEpisodeError(
            "is a list with a mapping a step",
            column=column,
            hint="give one mapping of arrays instead: {'image': [T, ...], 'direction': [T]}",
        )
    if (is_list or _is_object_array(value)) and len(value):
        for kind in (str, bytes):
            if all(isinstance(step, kind) for step in value):
                texts = np.empty(len(value), object)
                texts[:] = value
                return texts
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists; tensors that NumPy cannot hold
        raise BadEpisodeError(f"is not an array: {error}", column=column) from error
    if array.dtype.kind == "U":
        return array.astype(object)
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    if native.dtype.name not in DTYPES:
        raise UnsupportedColumnError(
            f"holds {native.dtype.name}, which is not a number, a boolean or text",
            column=column,
            hint="leave it out with columns=[...]",
        )
    return native


def cast_exactly(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any] | None:
    """The same numbers in another dtype; None where it cannot hold them, and between numbers and booleans."""
    if values.dtype.kind not in "iuf" or np.dtype(dtype).kind not in "iuf":
        return None
    with np.errstate(all="ignore"):
        cast = values.astype(dtype)
        exact = np.array_equal(cast.astype(values.dtype), values, equal_nan=values.dtype.kind == "f")
    return cast if exact else None


def _is_object_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "O"
