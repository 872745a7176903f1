"""Checks of a SequenceLoader's arguments."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from gear_data.collection.output import BFLOAT16
from gear_data.common.keywords import check_range
from gear_data.dataset.dataset import Dataset
from gear_data.error_text import shown
from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.selection.goals import Goals

if TYPE_CHECKING:
    import torch

#: A dtype of float columns, by name or as a framework has it.
Dtype: TypeAlias = "Literal['float32', 'float64', 'float16', 'bfloat16'] | npt.DTypeLike | torch.dtype | None"
#: Name of a dtype -> the dtype that the collector computes in. Half precisions are rounded from float32.
_DTYPES = {"float32": "float32", "float64": "float64", "float16": "float32", "bfloat16": "float32"}

_log = logging.getLogger(__name__)


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


def warn_of_padding(context: int, datasets: Sequence[Dataset]) -> None:
    """Writes a warning to the log, once in a process, for each dataset of which every window has padding."""
    for dataset in datasets:
        longest = int(dataset.lengths.max(initial=0))
        if 0 < longest < context:
            _warn_of_padding(str(dataset.path), context, longest)


@lru_cache(maxsize=1024)
def _warn_of_padding(path: str, context: int, longest: int) -> None:
    text = "%s: context is %d, and the longest episode has %d steps: the rest of each window is padding"
    _log.warning(f"{text}; give context=%d or less", path, context, longest, longest)


@lru_cache(maxsize=1024)
def warn_of_empty_batches(rows: int, world_size: int) -> None:
    """Writes a warning to the log, once in a process, if some ranks have no row of the last batch of a pass.

    rows: of the last batch.
    """
    if rows < world_size:
        text = "the last batch of a pass has %d rows for %d ranks: some ranks have none, and their mean loss is NaN"
        _log.warning(f"{text}; give steps= instead of epochs=, so that every batch is whole", rows, world_size)


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
