"""Schedules: numbers that depend on the step.

A schedule is a number; breakpoints ((step, value), ...), with straight lines between them, the first value before the
first breakpoint, and the last value after the last one; or a function of the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gear_data.errors import InvalidArgumentError
from gear_data.selection.windows import Float64Array

Breakpoints = tuple[tuple[int, float], ...]
#: A schedule as a user gives it, and as `checked_schedule` returns it.
Schedule = float | Sequence[tuple[int, float]] | Callable[[int], float]
CheckedSchedule = float | Breakpoints | Callable[[int], float]


def checked_schedule(name: str, schedule: Any) -> CheckedSchedule:
    """Returns a schedule whose numbers are Python's.

    Raises:
        InvalidArgumentError: the schedule has another form; a value is negative or not finite; or the steps of the
            breakpoints do not ascend.
    """
    if callable(schedule):
        return schedule  # type: ignore[no-any-return]
    if _is_value(schedule):
        return _plain(schedule)
    if not isinstance(schedule, Sequence) or isinstance(schedule, str) or not schedule:
        raise _wrong_form(name, schedule)
    points: list[tuple[int, float]] = []
    for point in schedule:
        if not isinstance(point, tuple | list) or len(point) != 2 or not _is_value(point[1]):
            raise _wrong_form(name, point)
        step = point[0]
        if isinstance(step, bool) or not isinstance(step, int | np.integer) or step < 0:
            raise _wrong_form(name, point)
        if points and step <= points[-1][0]:
            raise InvalidArgumentError(
                f"the breakpoints of {name} have step {step} after step {points[-1][0]}",
                hint="give breakpoints in ascending order of their steps",
            )
        points.append((int(step), _plain(point[1])))
    return tuple(points)


def values_between(name: str, schedule: CheckedSchedule, first: int, last: int) -> Float64Array:
    """Returns the values at the steps first to last - 1, float64.

    The same on every machine for a number or breakpoints: each operation is one IEEE operation.

    Raises:
        InvalidArgumentError: a function returns a value that is negative, not finite, or no number.
    """
    if callable(schedule):
        return np.array([_returned(name, schedule, step) for step in range(first, last)], np.float64)
    if isinstance(schedule, int | float):
        return np.full(last - first, schedule, np.float64)
    steps, values = (np.array(column) for column in zip(*schedule, strict=True))
    at = np.arange(first, last)
    after = np.searchsorted(steps, at, side="right")
    left, right = np.maximum(after - 1, 0), np.minimum(after, len(steps) - 1)
    fraction = (at - steps[left]) / np.maximum(steps[right] - steps[left], 1)
    result: Float64Array = values[left] + (values[right] - values[left]) * np.where(right > left, fraction, 0.0)
    return result


def value_at(name: str, schedule: CheckedSchedule, step: int) -> float:
    """Returns the value at one step; raises as `values_between`."""
    if isinstance(schedule, int | float):
        return schedule
    return (
        _returned(name, schedule, step)
        if callable(schedule)
        else float(values_between(name, schedule, step, step + 1)[0])
    )


def last_change(schedule: CheckedSchedule) -> int | None:
    """Returns the step from which the value stays the same; None for a function."""
    if callable(schedule):
        return None
    return 0 if isinstance(schedule, int | float) else schedule[-1][0]


def schedule_json(schedule: CheckedSchedule) -> Any:
    """Returns the schedule, JSON-able; of a function only its name."""
    if callable(schedule):
        return {"function": getattr(schedule, "__qualname__", type(schedule).__qualname__)}
    return schedule if isinstance(schedule, int | float) else [list(point) for point in schedule]


def _is_value(value: Any) -> bool:
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return number and 0 <= value < math.inf


def _plain(value: Any) -> float:
    return int(value) if isinstance(value, int | np.integer) else float(value)


def _returned(name: str, function: Callable[[int], float], step: int) -> float:
    value = function(step)
    if not _is_value(value):
        raise InvalidArgumentError(
            f"the function of {name} returns {value!r} for step {step}",
            hint="return a finite number that is not negative, for every step from 0 on",
        )
    return float(value)


def _wrong_form(name: str, value: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{name} is a number, breakpoints or a function of the step, not {value!r}",
        hint="give a finite number that is not negative, or breakpoints such as [(0, 0.4), (100_000, 1.0)]",
    )
