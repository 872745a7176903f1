"""Offsets: the steps of a column relative to the first step of a window.

The argument `offsets` has tuples (first, last), `last` excluded, and lists of steps. The check makes a `range` of a
tuple, and a tuple of a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gear_data.errors import InvalidArgumentError

#: The argument of a loader: column -> (first, last), `last` excluded; or a list of steps.
Offsets = Mapping[str, tuple[int, int] | Sequence[int]]
#: Column -> its steps, checked.
ColumnSteps = Mapping[str, range | tuple[int, ...]]

_LIMIT = 1 << 31


def check_offsets(offsets: Offsets | None) -> ColumnSteps:
    """Returns column -> a range of steps, or a tuple of listed steps.

    Raises:
        InvalidArgumentError: not a mapping, neither a tuple of two integers nor a list of integers, or a range whose
            first is not below its last.
    """
    result: dict[str, range | tuple[int, ...]] = {}
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


def offsets_to_json(offsets: ColumnSteps) -> dict[str, Any]:
    """Returns offsets as JSON.

    A range is [first, last], and a list {"steps": [...]}.
    """
    return {
        name: [steps.start, steps.stop] if isinstance(steps, range) else {"steps": list(steps)}
        for name, steps in offsets.items()
    }


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
    return tuple(value) if isinstance(value, list) else value
