"""Checks of what a SequenceLoader is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gear_data.dataset.dataset import Dataset
from gear_data.errors import DeviceError, InvalidArgumentError
from gear_data.loaders.presets.outputs import normalization_columns

#: What `dtype=` takes, and the dtype the collector writes for it; half precisions are rounded from float32.
_DTYPES = {"float32": "float32", "float64": "float64", "float16": "float32", "bfloat16": "float32"}


def check_range(name: str, value: Any, low: int, high: int | None = None) -> None:
    """Raises InvalidArgumentError unless `value` is an integer from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidArgumentError(f"{name} must be an integer, not {value!r}")
    if value < low or (high is not None and value > high):
        limit = f"at least {low}" if high is None else f"{low} to {high}"
        raise InvalidArgumentError(f"{name} must be {limit}, not {value}")


def check_numbers(
    batch_size: Any, context: Any, prefetch: Any, seed: Any, stride: Any, steps: Any, epochs: Any, n_step: Any
) -> None:
    """Raises InvalidArgumentError unless each is in its range, and `steps` or `epochs` is None."""
    check_range("batch_size", batch_size, 1)
    check_range("context", context, 1)
    check_range("prefetch", prefetch, 0)
    check_range("seed", seed, 0, (1 << 64) - 1)
    check_range("stride", stride, 1)
    for name, value, low in (("steps", steps, 0), ("epochs", epochs, 0), ("n_step", n_step, 1)):
        if value is not None:
            check_range(name, value, low)
    if steps is not None and epochs is not None:
        raise InvalidArgumentError("give steps or epochs, not both")


def check_placement(rank: int | None, world_size: int | None) -> None:
    """Raises InvalidArgumentError unless both are given, and fit, or neither is."""
    if (rank is None) != (world_size is None):
        raise InvalidArgumentError("give both rank and world_size, or neither")
    if rank is not None and world_size is not None:
        check_range("world_size", world_size, 1)
        check_range("rank", rank, 0, world_size - 1)


def check_dataset(dataset: Any) -> Dataset:
    """Raises InvalidArgumentError for what is no dataset."""
    if not isinstance(dataset, Dataset):
        raise InvalidArgumentError(
            f"a loader takes a Dataset or a Mixture, not {dataset!r}", hint="gear_data.open(path)"
        )
    return dataset


def check_pin_memory(pin_memory: bool | None, device: torch.device) -> bool:
    """Whether to pin. Raises DeviceError where it was asked for and there is no GPU to pin memory for."""
    if pin_memory and not torch.cuda.is_available():
        raise DeviceError("memory is pinned for a GPU, and torch sees none here", hint="leave pin_memory out")
    return device.type == "cuda" if pin_memory is None else pin_memory


def check_device(device: str | torch.device) -> torch.device:
    """Raises DeviceError if there is no such device here."""
    try:
        result = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise DeviceError(f"unknown device {device!r}", hint="use 'cpu', 'cuda' or 'cuda:N'") from error
    if result.type not in ("cpu", "cuda"):
        raise DeviceError(f"batches go to 'cpu' and 'cuda', not to {device!r}")
    if result.type == "cuda" and (result.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"device {device!r} is not here: torch sees {torch.cuda.device_count()} CUDA devices",
            hint="use device='cpu'; 'gear-data doctor' says what is missing",
        )
    return result


def check_dtype(dtype: str | torch.dtype | None) -> tuple[torch.dtype | None, str | None]:
    """(the half precision that floats are rounded to or None, NumPy dtype they have before or None).

    Raises InvalidArgumentError for another dtype.
    """
    if dtype is None:
        return None, None
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise InvalidArgumentError(f"dtype must be one of {', '.join(_DTYPES)}, not {dtype!r}")
    half = getattr(torch, name) if _DTYPES[name] != name else None
    return half, _DTYPES[name]


def check_offsets(offsets: Mapping[str, tuple[int, int]] | None) -> dict[str, tuple[int, int]]:
    """Column -> (first, last), first < last. Raises InvalidArgumentError."""
    result = {}
    if offsets is not None and not isinstance(offsets, Mapping):
        raise InvalidArgumentError(f"offsets are a mapping of column to (first, last), not {offsets!r}")
    for name, value in (offsets or {}).items():
        if not isinstance(value, Sequence) or len(value) != 2:
            raise InvalidArgumentError(f"offsets are (first, last), not {value!r}", column=name)
        first, last = value
        check_range("offsets", first, -(1 << 31), 1 << 31)
        check_range("offsets", last, -(1 << 31), 1 << 31)
        if last <= first:
            raise InvalidArgumentError(f"offsets are (first, last) with first < last, not {value!r}", column=name)
        result[name] = (int(first), int(last))
    return result


def normalization_statistics(
    dataset: Dataset, normalize: bool | str | Sequence[str] | Mapping[str, tuple[Any, Any]] | None
) -> dict[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
    """Column -> (mean, std), float64, of the columns to normalise.

    Raises:
        UnknownNameError: no such column.
        InvalidArgumentError: not what `normalize` takes.
    """
    if normalize is None:
        return {}
    if isinstance(normalize, Mapping):
        normalization_columns(dataset.schema, tuple(normalize))
        return {name: _mean_and_std(name, value) for name, value in normalize.items()}
    names = normalization_columns(dataset.schema, normalize)
    return {name: (dataset.statistics[name].mean, dataset.statistics[name].std) for name in names}


def _mean_and_std(name: str, value: Any) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    try:
        mean, std = (np.asarray(each, np.float64) for each in value)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"normalize takes (mean, std), not {value!r}", column=name) from error
    if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std >= 0).all()):
        raise InvalidArgumentError(f"normalize takes finite means and deviations from 0 on, not {value!r}", column=name)
    return mean, std
