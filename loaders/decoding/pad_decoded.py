"""Decoded values of a batch's valid steps, as padded arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.output import BFLOAT16
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.frameworks.values import as_numpy
from gear_data.selection.windows import Int64Array

#: Dtypes that every framework has.
_DTYPES = (
    *(np.dtype(kind) for kind in ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")),
    *(np.dtype(kind) for kind in ("float16", "float32", "float64", "complex64", "complex128")),
    BFLOAT16,
)


@dataclass(frozen=True)
class StepPositions:
    """The positions of a batch's n valid steps.

    Attributes:
        shape: (B, K); or (B,) if every row is one step.
        positions: int64 [n], ascending, among the flattened positions of `shape`.
    """

    shape: tuple[int, ...]
    positions: Int64Array

    def spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Spreads [n, ...] to [*shape, ...], with zeros in padding."""
        whole = np.zeros((math.prod(self.shape), *values.shape[1:]), values.dtype)
        whole[self.positions] = values
        return whole.reshape(*self.shape, *values.shape[1:])


def padded(
    column: str,
    key: str,
    decoded: Any,
    steps: StepPositions,
    shapes: dict[str, tuple[int, ...]] | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """Pads the values that a decoder returns for n valid steps.

    Args:
        column: the decoded column.
        key: its key in the batch.
        decoded: an array or tensor [n, ...], a list of n values, or a mapping of names to such arrays or lists.
        steps: positions of the valid steps.
        shapes: name -> the one shape that its values have in all batches; new names are added. None: values may have
            other shapes in each batch.

    Returns:
        Key -> [*shape, ...], with zeros in padding and unchanged dtypes. A mapping gives `KEY.name` for each name. A
        list of sequences is padded with zeros to the longest of the batch; `KEY_length`, int64 [*shape], has their
        lengths, unless the mapping has an `attention_mask`.

    Raises:
        InvalidArgumentError: the number of values is not n, or an array cannot hold them; or values have another shape
            than `shapes` says.
    """
    is_mapping = isinstance(decoded, Mapping)
    named = {f"{key}.{name}": value for name, value in decoded.items()} if is_mapping else {key: decoded}
    masked = is_mapping and "attention_mask" in decoded
    result = {}
    for name, value in named.items():
        try:
            array, lengths = _array(value, len(steps.positions))
        except (TypeError, ValueError, RuntimeError) as error:
            problem = (
                error.message if isinstance(error, InvalidArgumentError) else f"values that no tensor holds: {error}"
            )
            raise InvalidArgumentError(
                f"its decoder returns for '{name}' {problem}",
                column=column,
                hint="a decoder takes a list and returns one number, array or list of numbers for each item",
            ) from error
        if shapes is not None:
            _check_shape(column, name, array, lengths, shapes)
        result[name] = steps.spread(array)
        if lengths is not None and not masked:
            result[f"{name}_length"] = steps.spread(lengths)
    return result


def _check_shape(
    column: str,
    name: str,
    array: npt.NDArray[Any],
    lengths: Int64Array | None,
    shapes: dict[str, tuple[int, ...]],
) -> None:
    unlike = lengths is not None and lengths.min() != lengths.max()
    if unlike or shapes.setdefault(name, array.shape[1:]) != array.shape[1:]:
        raise InvalidArgumentError(
            f"its decoder returns for '{name}' values of unlike shapes, and device= makes one array of the rows of all "
            "processes",
            column=column,
            hint="let the decoder pad or cut all values to one shape, such as tokenizer(texts, padding='max_length', "
            "truncation=True, max_length=64), or let transform= do it",
        )


def _array(value: Any, count: int) -> tuple[npt.NDArray[Any], Int64Array | None]:
    """Returns an array [n, ...], and for sequences their lengths, int64 [n]."""
    array = as_numpy(value)
    if array is None and not isinstance(value, list | tuple):
        raise InvalidArgumentError(f"a {type(value).__name__}")
    found = len(value) if array is None or array.ndim else 1
    if found != count:
        raise InvalidArgumentError(f"{found} values for {count} steps")
    if array is not None:
        return _checked(array), None
    if all(isinstance(item, list | tuple) for item in value):
        return _from_lists(value)
    return _from_arrays(value)


def _checked(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.dtype not in _DTYPES:
        raise TypeError(f"an array of {array.dtype}")
    return array


def _from_lists(value: Sequence[Sequence[Any]]) -> tuple[npt.NDArray[Any], Int64Array]:
    items = [item for each in value for item in each]
    # NumPy makes float64 of an empty list; lists are usually tokens.
    flat = _checked(np.asarray(items, None if items else np.int64))
    return _ragged(flat, np.array([len(each) for each in value], np.int64))


def _from_arrays(value: Sequence[Any]) -> tuple[npt.NDArray[Any], Int64Array | None]:
    known = [(item, as_numpy(item)) for item in value]
    arrays = [_checked(np.array(item) if array is None else array) for item, array in known]
    dtypes = sorted({str(array.dtype) for array in arrays})
    if len(dtypes) > 1:
        raise InvalidArgumentError(f"arrays of different dtypes: {', '.join(dtypes)}")
    if all(array.ndim == 1 for array in arrays):
        return _ragged(np.concatenate(arrays), np.array([len(array) for array in arrays], np.int64))
    shapes = sorted({array.shape for array in arrays})
    if len(shapes) > 1:
        raise InvalidArgumentError(f"arrays of different shapes: {', '.join(map(str, shapes))}")
    return np.stack(arrays), None


def _ragged(flat: npt.NDArray[Any], lengths: Int64Array) -> tuple[npt.NDArray[Any], Int64Array]:
    """Pads sequences to [n, longest, ...]; returns them and their lengths.

    The sequences lie one after another in `flat`.
    """
    longest = int(lengths.max())
    result = np.zeros((len(lengths), longest, *flat.shape[1:]), flat.dtype)
    result[np.arange(longest) < lengths[:, None]] = flat
    return result, lengths
