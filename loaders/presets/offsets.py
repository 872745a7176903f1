"""Offsets: the steps of a column relative to the first step of a window.

The argument `offsets` has tuples (first, last), `last` excluded, lists of steps, and `Seconds`. The check makes a
`range` of a tuple, and a tuple of a list. Each dataset makes steps of `Seconds`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gear_data.errors import InvalidArgumentError
from gear_data.loaders.presets.seconds import DatasetRate, Seconds

#: The argument of a loader: column -> (first, last), `last` excluded; or a list of steps; or their times.
Offsets = Mapping[str, tuple[int, int] | Sequence[int] | Seconds]
#: Column -> its steps or times, checked.
CheckedOffsets = Mapping[str, range | tuple[int, ...] | Seconds]
#: Column -> its steps in a dataset.
ColumnSteps = Mapping[str, range | tuple[int, ...]]
#: Column -> for each of its steps, the share of the step after it. Other columns hold the steps themselves.
ColumnWeights = Mapping[str, tuple[float, ...]]

_LIMIT = 1 << 31


def check_offsets(offsets: Offsets | None) -> CheckedOffsets:
    """Returns column -> a range of steps, a tuple of listed steps, or times.

    Raises:
        InvalidArgumentError: not a mapping, neither a tuple of two integers nor a list of integers, or a range whose
            first is not below its last.
    """
    result: dict[str, range | tuple[int, ...] | Seconds] = {}
    if offsets is not None and not isinstance(offsets, Mapping):
        raise InvalidArgumentError(f"offsets must map columns to (first, last) or a list of steps, not be {offsets!r}")
    for name, value in (offsets or {}).items():
        if isinstance(value, tuple) and len(value) == 2:
            first, last = (_step(name, each) for each in value)
            if last <= first:
                raise InvalidArgumentError(
                    f"offsets must be (first, last) with first < last, not {value!r}",
                    column=name,
                    hint=f"a list, such as {sorted({last, first})}, has these steps only",
                )
            result[name] = range(first, last)
        elif isinstance(value, Seconds):
            result[name] = value
        elif isinstance(value, list) and value:
            result[name] = tuple(_step(name, each) for each in value)
        else:
            raise InvalidArgumentError(
                f"offsets must be a tuple (first, last) or a list of steps, not {value!r}", column=name
            )
    return result


def _step(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidArgumentError(f"offsets must be integers, not {value!r}", column=name)
    if not -_LIMIT <= value <= _LIMIT:
        raise InvalidArgumentError(f"offsets must be {-_LIMIT} to {_LIMIT}, not {value}", column=name)
    return int(value)


def dataset_steps(offsets: CheckedOffsets, rate: DatasetRate) -> tuple[ColumnSteps, ColumnWeights]:
    """Returns the steps of each column in a dataset, and the weights of interpolated columns.

    Args:
        offsets: the checked argument.
        rate: finds the dataset's steps per second.

    Raises:
        InvalidArgumentError: see `DatasetRate.steps_of`.
    """
    steps: dict[str, range | tuple[int, ...]] = {}
    weights = {}
    for name, value in offsets.items():
        if not isinstance(value, Seconds):
            steps[name] = value
            continue
        steps[name], own = rate.steps_of(name, value)
        if own is not None:
            weights[name] = own
    return steps, weights


def offsets_to_json(offsets: CheckedOffsets) -> dict[str, Any]:
    """Returns offsets as JSON.

    A range is [first, last], a list {"steps": [...]}, and times {"seconds": [...], ...}.
    """
    return {name: _to_json(value) for name, value in offsets.items()}


def _to_json(value: range | tuple[int, ...] | Seconds) -> Any:
    if isinstance(value, Seconds):
        return value.to_json()
    return [value.start, value.stop] if isinstance(value, range) else {"steps": list(value)}


def offsets_from_json(plain: Any) -> Any:
    """Returns the argument `offsets` from the result of `offsets_to_json`.

    Values of another form stay as they are; `check_offsets` refuses them.
    """
    if not isinstance(plain, Mapping):
        return plain
    return {name: _from_json(value) for name, value in plain.items()}


def _from_json(value: Any) -> Any:
    if isinstance(value, Mapping) and value.keys() == {"steps"}:
        return value["steps"]
    if isinstance(value, Mapping) and "seconds" in value:
        return Seconds.from_json(value)
    return tuple(value) if isinstance(value, list) else value
