"""Decoded values of a batch's valid steps, as padded tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gear_data.errors import InvalidArgumentError


@dataclass(frozen=True)
class StepPositions:
    """The positions of a batch's n valid steps.

    Attributes:
        shape: (B, K); or (B,) if every row is one step.
        positions: int64 [n], ascending, among the flattened positions of `shape`.
    """

    shape: tuple[int, ...]
    positions: torch.Tensor

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """Spreads [n, ...] to [*shape, ...], with zeros in padding."""
        whole = values.new_zeros((math.prod(self.shape), *values.shape[1:]))
        whole[self.positions] = values
        return whole.reshape(*self.shape, *values.shape[1:])


def padded(column: str, key: str, decoded: Any, steps: StepPositions) -> dict[str, torch.Tensor]:
    """Pads the values that a decoder returns for n valid steps.

    Args:
        column: the decoded column.
        key: its key in the batch.
        decoded: an array or tensor [n, ...], a list of n values, or a mapping of names to such arrays or lists.
        steps: positions of the valid steps.

    Returns:
        Key -> [*shape, ...], with zeros in padding and unchanged dtypes. A mapping gives `KEY.name` for each name. A
        list of sequences is padded with zeros to the longest of the batch; `KEY_length`, int64 [*shape], has their
        lengths, unless the mapping has an `attention_mask`.

    Raises:
        InvalidArgumentError: the number of values is not n, or a tensor cannot hold them.
    """
    is_mapping = isinstance(decoded, Mapping)
    named = {f"{key}.{name}": value for name, value in decoded.items()} if is_mapping else {key: decoded}
    masked = is_mapping and "attention_mask" in decoded
    result = {}
    for name, value in named.items():
        try:
            tensor, lengths = _tensor(value, len(steps.positions))
        except (TypeError, ValueError, RuntimeError) as error:
            problem = (
                error.message if isinstance(error, InvalidArgumentError) else f"values that no tensor holds: {error}"
            )
            raise InvalidArgumentError(
                f"its decoder returns for '{name}' {problem}",
                column=column,
                hint="a decoder takes a list and returns one number, array or list of numbers for each item",
            ) from error
        result[name] = steps.spread(tensor)
        if lengths is not None and not masked:
            result[f"{name}_length"] = steps.spread(lengths)
    return result


def _tensor(value: Any, count: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns a tensor [n, ...], and for sequences their lengths, int64 [n]."""
    if isinstance(value, np.ndarray):
        # torch takes no negative strides, and warns about read-only arrays.
        value = torch.from_numpy(np.require(value, requirements=("C", "W")))
    if not isinstance(value, torch.Tensor | list | tuple):
        raise InvalidArgumentError(f"a {type(value).__name__}")
    found = len(value) if not isinstance(value, torch.Tensor) or value.ndim else 1
    if found != count:
        raise InvalidArgumentError(f"{found} values for {count} steps")
    if isinstance(value, torch.Tensor):
        return value, None
    if all(isinstance(item, list | tuple) for item in value):
        return _from_lists(value)
    return _from_arrays(value)


def _from_lists(value: Sequence[Sequence[Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    items = [item for each in value for item in each]
    # NumPy makes float64 of an empty list; lists are usually tokens.
    flat = torch.from_numpy(np.asarray(items, None if items else np.int64))
    return _ragged(flat, torch.tensor([len(each) for each in value]))


def _from_arrays(value: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
    arrays = [item if isinstance(item, torch.Tensor) else torch.from_numpy(np.array(item)) for item in value]
    dtypes = sorted({str(array.dtype).removeprefix("torch.") for array in arrays})
    if len(dtypes) > 1:
        raise InvalidArgumentError(f"arrays of different dtypes: {', '.join(dtypes)}")
    if all(array.ndim == 1 for array in arrays):
        return _ragged(torch.cat(arrays), torch.tensor([len(array) for array in arrays]))
    shapes = sorted({tuple(array.shape) for array in arrays})
    if len(shapes) > 1:
        raise InvalidArgumentError(f"arrays of different shapes: {', '.join(map(str, shapes))}")
    return torch.stack(arrays), None


def _ragged(flat: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Pads sequences to [n, longest, ...]; returns them and their lengths.

    The sequences lie one after another in `flat`.
    """
    longest = int(lengths.max())
    result = flat.new_zeros((len(lengths), longest, *flat.shape[1:]))
    result[torch.arange(longest) < lengths[:, None]] = flat
    return result, lengths
