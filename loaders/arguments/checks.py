"""Checks of a SequenceLoader's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from gear_data.collection.output import BFLOAT16
from gear_data.dataset.dataset import Dataset
from gear_data.error_text import shown
from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.loaders.normalization import MODES, mode_statistics
from gear_data.loaders.presets.outputs import normalization_columns
from gear_data.schema import ColumnSpec, Schema
from gear_data.selection.goals import Goals
from gear_data.words import Normalization

if TYPE_CHECKING:
    import torch

Normalize = bool | Normalization | str | Sequence[str] | Mapping[str, tuple[Any, Any] | str] | None

#: A dtype of float columns, by name or as a framework has it.
Dtype: TypeAlias = "Literal['float32', 'float64', 'float16', 'bfloat16'] | npt.DTypeLike | torch.dtype | None"
#: Name of a dtype -> the dtype that the collector computes in. Half precisions are rounded from float32.
_DTYPES = {"float32": "float32", "float64": "float64", "float16": "float32", "bfloat16": "float32"}


def check_range(name: str, value: Any, low: int, high: int | None = None) -> None:
    """Raises InvalidArgumentError unless `value` is an integer from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidArgumentError(f"{name} must be an integer, not {value!r}")
    if value < low or (high is not None and value > high):
        limit = f"at least {low}" if high is None else f"{low} to {high}"
        raise InvalidArgumentError(f"{name} must be {limit}, not {value}")


def check_bool(name: str, value: Any) -> None:
    """Raises InvalidArgumentError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{name} is True or False, not {value!r}")


def check_word(name: str, value: Any, words: Any) -> None:
    """Raises UnknownNameError unless `value` is one of a Literal's words."""
    if value not in get_args(words):
        raise unknown_name(name, value, get_args(words))


def check_end(steps: Any, epochs: Any) -> None:
    """Raises InvalidArgumentError unless each is None or at least 0, and one is None."""
    for name, value in (("steps", steps), ("epochs", epochs)):
        if value is not None:
            check_range(name, value, 0)
    if steps is not None and epochs is not None:
        raise InvalidArgumentError(
            f"steps is {steps} and epochs is {epochs}: both would end the iteration", hint="give only one of them"
        )


def check_rank(rank: int | None, world_size: int | None) -> None:
    """Raises InvalidArgumentError unless both are None, or both are given and fit."""
    if (rank is None) != (world_size is None):
        raise InvalidArgumentError(
            f"rank is {rank} and world_size is {world_size}", hint="give both rank and world_size, or neither"
        )
    if rank is not None and world_size is not None:
        check_range("world_size", world_size, 1)
        check_range("rank", rank, 0, world_size - 1)


def check_rank_rows(batch_size: int, world_size: int) -> None:
    """Raises InvalidArgumentError if some ranks would get empty batches."""
    if world_size > batch_size:
        raise InvalidArgumentError(
            f"batch_size is {batch_size} for {world_size} ranks: some ranks would get empty batches",
            hint=f"batch_size is the global batch, over all ranks: give at least {world_size}",
        )


def check_dataset(dataset: Any) -> Dataset:
    """Returns the dataset; raises InvalidArgumentError if it is not a Dataset."""
    if isinstance(dataset, list | tuple):
        raise InvalidArgumentError(
            f"a loader takes one Dataset or a Mixture, not a {type(dataset).__name__} of {len(dataset)}",
            hint="give gear_data.Mixture([a, b]) for equal shares, or gear_data.Mixture([(a, 0.7), (b, 0.3)])",
        )
    if not isinstance(dataset, Dataset):
        raise InvalidArgumentError(
            f"a loader takes a Dataset or a Mixture, not {shown(dataset)}", hint="open it with gear_data.open(path)"
        )
    return dataset


def check_dtype(dtype: Dtype) -> tuple[np.dtype[Any] | None, str | None]:
    """Resolves the loader's argument `dtype`.

    Returns:
        The half precision to which floats are rounded, and the NumPy dtype before rounding. Each may be None.

    Raises:
        InvalidArgumentError: another dtype.
    """
    if dtype is None:
        return None, None
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES and not isinstance(dtype, str) and dtype is not float:
        # `np.float32` and `jnp.bfloat16` are classes. Python's float could mean any.
        try:
            name = np.dtype(dtype).name  # type: ignore[arg-type]
        except (TypeError, ValueError):
            name = ""
    if name not in _DTYPES:
        raise InvalidArgumentError(f"dtype must be one of {', '.join(_DTYPES)}, not {dtype!r}")
    if _DTYPES[name] == name:
        return None, name
    return BFLOAT16 if name == "bfloat16" else np.dtype(name), _DTYPES[name]


def check_goals(goals: Any, anchor: str) -> Goals | None:
    """Returns the goals; raises InvalidArgumentError if no goals can be drawn."""
    if goals is None:
        return None
    if not isinstance(goals, Goals):
        raise InvalidArgumentError(f"goals must be a gear_data.Goals, not {goals!r}")
    if anchor == "random":
        raise InvalidArgumentError(
            "goals need a current step, and a window with anchor='random' has none",
            hint="give WindowOptions(anchor='start'), the window's first step, or anchor='end', its last step",
        )
    return goals


def normalization_statistics(
    dataset: Dataset, schema: Schema, parts: Mapping[str, Sequence[ColumnSpec]], normalize: Normalize
) -> dict[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
    """Returns column -> (mean, std), float64, of the columns to normalise.

    Args:
        dataset: the dataset.
        schema: its columns, with stacked columns in the place of their parts.
        parts: stacked column -> its parts, whose statistics it has.
        normalize: see `SequenceLoader`.

    Raises:
        UnknownNameError: no such column.
        InvalidArgumentError: `normalize` is of another form.
    """
    if normalize is None:
        return {}
    if isinstance(normalize, Mapping):
        normalization_columns(schema, tuple(normalize))
        return {name: _mean_and_std(dataset, parts, name, value) for name, value in normalize.items()}
    if isinstance(normalize, str) and normalize not in ("all", *MODES, *schema.names):
        raise unknown_name("column", normalize, ("all", *MODES, *schema.names))
    mode = normalize if isinstance(normalize, str) and normalize in MODES else "mean-std"
    names = normalization_columns(schema, True if mode == normalize else normalize)
    return {name: _statistics_of(dataset, parts, name, mode) for name in names}


def _statistics_of(
    dataset: Dataset, parts: Mapping[str, Sequence[ColumnSpec]], name: str, mode: str
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Returns the (mean, std) of a mode.

    A stacked column has its parts' values side by side.
    """
    if name not in parts:
        return mode_statistics(dataset, name, mode)
    means, deviations = zip(*(mode_statistics(dataset, part.name, mode) for part in parts[name]), strict=True)
    return np.concatenate(means), np.concatenate(deviations)


def _mean_and_std(
    dataset: Dataset, parts: Mapping[str, Sequence[ColumnSpec]], name: str, value: Any
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    if isinstance(value, str):
        if value not in MODES:
            raise unknown_name("normalisation", value, MODES)
        return _statistics_of(dataset, parts, name, value)
    try:
        mean, std = (np.asarray(each, np.float64) for each in value)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"normalize takes (mean, std) or a mode, not {value!r}", column=name, hint=f"modes: {', '.join(MODES)}"
        ) from error
    if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std >= 0).all()):
        raise InvalidArgumentError(
            f"normalize takes finite means, and finite deviations of at least 0, not {value!r}", column=name
        )
    return mean, std
