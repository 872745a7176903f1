"""What a decoder gives for the valid steps of a batch, as padded tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gear_data.errors import InvalidArgumentError


@dataclass(frozen=True)
class Steps:
    """Where the n valid steps of a batch stand.

    Attributes:
        shape: (B, K); or (B,), of which every place is a step.
        places: int64 [n], ascending: among the B * K places.
    """

    shape: tuple[int, ...]
    places: torch.Tensor

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """[n, ...] -> [*shape, ...], with zeros in padding."""
        whole = values.new_zeros((math.prod(self.shape), *values.shape[1:]))
        whole[self.places] = values
        return whole.reshape(*self.shape, *values.shape[1:])


def padded(column: str, key: str, made: Any, steps: Steps) -> dict[str, torch.Tensor]:
    """Key -> [*shape, ...], zeros in padding; dtypes stay.

    A mapping of names gives `KEY.name` each. A list of sequences is padded to the longest of the batch with zeros, and
    `KEY_length` int64 [*shape] has their lengths, unless the mapping has an `attention_mask`.

    Raises:
        InvalidArgumentError: not one thing a step, or what no tensor holds.
    """
    named = {f"{key}.{name}": value for name, value in made.items()} if isinstance(made, Mapping) else {key: made}
    masked = isinstance(made, Mapping) and "attention_mask" in made
    result = {}
    for name, value in named.items():
        try:
            tensor, lengths = _tensor(value, len(steps.places))
        except (TypeError, ValueError, RuntimeError) as error:
            what = error.message if isinstance(error, InvalidArgumentError) else f"what no tensor holds: {error}"
            raise InvalidArgumentError(
                f"its decoder gives for '{name}' {what}",
                column=column,
                hint="a decoder takes a list and gives one number, array or list of numbers for each of its items",
            ) from error
        result[name] = steps.spread(tensor)
        if lengths is not None and not masked:
            result[f"{name}_length"] = steps.spread(lengths)
    return result


def _tensor(value: Any, count: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """([n, ...], int64 [n] lengths of sequences)."""
    if isinstance(value, np.ndarray):
        # torch takes neither negative strides nor, without a warning, what is read-only.
        value = torch.from_numpy(np.require(value, requirements=("C", "W")))
    if not isinstance(value, torch.Tensor | list | tuple):
        raise InvalidArgumentError(f"a {type(value).__name__}")
    given = len(value) if not isinstance(value, torch.Tensor) or value.ndim else 1
    if given != count:
        raise InvalidArgumentError(f"{given} things for {count} steps")
    if isinstance(value, torch.Tensor):
        return value, None
    if all(isinstance(item, list | tuple) for item in value):
        return _of_lists(value)
    return _of_arrays(value)


def _of_lists(value: Sequence[Sequence[Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    items = [item for each in value for item in each]
    # Nothing at all would be float64 to NumPy; lists are tokens as a rule.
    flat = torch.from_numpy(np.asarray(items, None if items else np.int64))
    return _ragged(flat, torch.tensor([len(each) for each in value]))


def _of_arrays(value: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
    arrays = [item if isinstance(item, torch.Tensor) else torch.from_numpy(np.array(item)) for item in value]
    dtypes = sorted({str(array.dtype).removeprefix("torch.") for array in arrays})
    if len(dtypes) > 1:
        raise InvalidArgumentError(f"arrays of unlike dtype: {', '.join(dtypes)}")
    if all(array.ndim == 1 for array in arrays):
        return _ragged(torch.cat(arrays), torch.tensor([len(array) for array in arrays]))
    shapes = sorted({tuple(array.shape) for array in arrays})
    if len(shapes) > 1:
        raise InvalidArgumentError(f"arrays of unlike shape: {', '.join(map(str, shapes))}")
    return torch.stack(arrays), None


def _ragged(flat: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """([n, longest, ...], lengths) of sequences that lie one after another in `flat`."""
    longest = int(lengths.max())
    result = flat.new_zeros((len(lengths), longest, *flat.shape[1:]))
    result[torch.arange(longest) < lengths[:, None]] = flat
    return result, lengths
