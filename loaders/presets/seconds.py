"""Seconds: the steps of a column by their times; each dataset's steps per second turn times into steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Never, get_args

import numpy as np
import numpy.typing as npt

from gear_data.collection.output import Output
from gear_data.common.keywords import refuse_keywords_of
from gear_data.dataset.core import DatasetCore
from gear_data.dataset.step_rate import TIMESTAMP, check_timestamps, measured_rate, stated_rate
from gear_data.error_text import shown
from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.words import Fill

#: As `tolerance_s` of LeRobot.
_TOLERANCE = 1e-4
#: Times and steps are compared to so many decimals: 0.58 * 50 is 28.999999999999996.
_DECIMALS = 9
_LIMIT = 1 << 31


@dataclass(frozen=True, init=False)
class Seconds:
    """Times of a column's steps in seconds, relative to the window's first step.

    A value of the argument `offsets` of `SequenceLoader`. Each dataset turns the times into its own steps, so datasets
    of 5 and of 50 steps per second give arrays of equal time and equal shape. `Seconds(times)` of LeRobot's
    `delta_timestamps` gives LeRobot's steps.

    A dataset has as many steps per second as its source states (LeRobot's `fps`, the control frequency in robomimic's
    arguments of the environment), or else `fps`. Without both, its column `timestamp` says it, in seconds. The
    steps must then be at their times in the whole dataset, within `tolerance`.

    Args:
        first: the times, such as `[0, 0.02, 0.04]`. With `last` and `hz` the times first, first + 1 / hz, ..., before
            `last`: `Seconds(0, 1, hz=50)` are 50 times.
        last, hz: see `first`.
        tolerance: a time is that of the nearest step if the step is not farther away than this, in seconds. Of two
            steps it is the earlier one.
        fill: what another time has. `hold`: the last step before it. `interpolate`: the value on the line between the
            steps before and after it, padding if one of them is. None: it is an error.
        fps: steps per second of datasets that do not state it. In a mixture, the option `fps` of a dataset replaces
            what the dataset states.

    Attributes:
        times: the times, in order.

    Raises:
        InvalidArgumentError: times that are no finite numbers, `last` without `hz`, or a number out of its range.
        UnknownNameError: another `fill`.
    """

    times: tuple[float, ...]
    tolerance: float
    fill: Fill | None
    fps: float | None

    def __init__(
        self, first: float | Sequence[float] | npt.NDArray[Any] | None = None, last: float | None = None, *,
        hz: float | None = None, tolerance: float = _TOLERANCE, fill: Fill | None = None, fps: float | None = None,
        **unknown: Never,
    ) -> None:  # fmt: skip
        refuse_keywords_of(Seconds, unknown)
        if fill is not None and fill not in get_args(Fill):
            raise unknown_name("fill of Seconds", fill, get_args(Fill))
        if not _is_number(tolerance) or tolerance < 0:
            raise InvalidArgumentError(f"the tolerance of Seconds must be at least 0, not {tolerance!r}")
        if fps is not None:
            check_fps("the fps of Seconds", fps)
        own = {
            "times": _times(first, last, hz), "tolerance": float(tolerance), "fill": fill,
            "fps": None if fps is None else float(fps),
        }  # fmt: skip
        for name, value in own.items():
            object.__setattr__(self, name, value)

    def to_json(self) -> dict[str, Any]:
        """Returns the times and options as JSON."""
        options = {"tolerance": self.tolerance, "fill": self.fill, "fps": self.fps}
        return {"seconds": list(self.times), **options}

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> Seconds:
        """Returns the Seconds of `to_json`; raises the errors of `Seconds`."""
        options = dict(plain)
        return Seconds(options.pop("seconds"), **options)

    def steps_of(self, rate: float) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Returns the step of each time, and the weight of the step after it.

        Args:
            rate: steps per second.

        Raises:
            InvalidArgumentError: a time has no step.
        """
        steps, weights = [], []
        for time in self.times:
            place = round(time * rate, _DECIMALS)
            nearest = math.ceil(place - 0.5)
            weight = 0.0
            if round(abs(place - nearest) / rate, _DECIMALS) > self.tolerance:
                if self.fill is None:
                    raise InvalidArgumentError(
                        f"no step is within {self.tolerance:g} s of {time:g} s: with {rate:g} steps per second the "
                        f"nearest one is at {nearest / rate:g} s",
                        hint="give Seconds fill='hold' for the last step before a time, fill='interpolate' for values "
                        f"between two steps, or tolerance={_most_away(self.times, rate)}",
                    )
                nearest = math.floor(place)
                weight = place - nearest if self.fill == "interpolate" else 0.0
            if abs(nearest) >= _LIMIT:
                raise InvalidArgumentError(f"the time {time:g} s is {nearest:,} steps away, of {rate:g} per second")
            steps.append(nearest)
            weights.append(weight)
        return tuple(steps), tuple(weights)


@dataclass(frozen=True)
class DatasetRate:
    """Finds the steps per second of a dataset, if a column needs them.

    Attributes:
        dataset: the dataset or view.
        rename: column of the dataset -> its name in batches.
        fps: replaces what the dataset states; None: nothing does.
    """

    dataset: DatasetCore
    rename: Mapping[str, str]
    fps: float | None

    def steps_of(self, column: str, seconds: Seconds) -> tuple[range | tuple[int, ...], tuple[float, ...] | None]:
        """Returns the steps of a column, and the weights of the steps after them.

        Weights are None if all are 0. Steps are a range if they follow each other.

        Raises:
            InvalidArgumentError: the steps per second are unknown, timestamps are irregular, or a time has no step.
        """
        rate = self.fps or stated_rate(self.dataset) or seconds.fps
        stamps = None
        if rate is None:
            stamps = {new: name for name, new in self.rename.items()}.get(TIMESTAMP, TIMESTAMP)
            rate = measured_rate(self.dataset, stamps, _HOW_TO_STATE)
        try:
            steps, weights = seconds.steps_of(rate)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                error.message, file=str(self.dataset.path), column=column, hint=error.hint
            ) from error
        if stamps is not None:
            check_timestamps(
                self.dataset, stamps, _times_of_steps(seconds, rate, steps, weights), seconds.tolerance,
                f"give Seconds a larger tolerance; or, to take all steps for equally long, {_HOW_TO_STATE}",
            )  # fmt: skip
        if any(weights):
            return steps, weights
        # The same batches: also in a list, an absent step has the nearest one of the steps from 0 on.
        whole = range(steps[0], steps[-1] + 1)
        return whole if 0 in whole and steps == tuple(whole) else steps, None


def _times_of_steps(
    seconds: Seconds, rate: float, steps: Sequence[int], weights: Sequence[float]
) -> Iterator[tuple[int, float]]:
    """Yields steps, and where they must be: at the time itself, or, for a time between steps, where the rate says."""
    for time, step, weight in zip(seconds.times, steps, weights, strict=True):
        is_near = round(abs(time - step / rate), _DECIMALS) <= seconds.tolerance
        yield step, time if is_near else step / rate
        if weight:
            yield step + 1, (step + 1) / rate


_HOW_TO_STATE = (
    "give Seconds(..., fps=50), or whatever the steps per second are; in a mixture, give the dataset the option "
    "{'fps': 50}"
)


def check_interpolated(
    outputs: Sequence[Output], texts: Mapping[str, str], weighted: Mapping[str, Any], file: str
) -> None:
    """Raises InvalidArgumentError if a column whose steps are interpolated does not hold floats in the batch.

    Args:
        outputs: the arrays of a batch.
        texts: the columns of text or bytes.
        weighted: the columns whose steps are interpolated.
        file: the dataset.
    """
    found = {output.source: output.dtype for output in outputs if output.weights is not None and output.column}
    kinds = {**found, **dict.fromkeys((name for name in texts if name in weighted), "text or bytes")}
    for name, kind in kinds.items():
        if kind == "text or bytes" or np.dtype(kind).kind != "f" or _is_camera(outputs, name):
            raise InvalidArgumentError(
                f"the batch has {kind} of this column, and fill='interpolate' needs floats",
                file=file,
                column=name,
                hint="give its Seconds fill='hold'",
            )


def check_fps(name: str, fps: Any) -> None:
    """Raises InvalidArgumentError unless a number of steps per second is finite and above 0."""
    if not _is_number(fps) or not fps > 0:
        raise InvalidArgumentError(f"{name} must be steps per second above 0, not {fps!r}")


def _is_camera(outputs: Sequence[Output], name: str) -> bool:
    return any(output.source == name and output.camera is not None for output in outputs)


def _times(first: Any, last: Any, hz: Any) -> tuple[float, ...]:
    """Returns the times of the arguments of `Seconds`."""
    example = "Seconds([0, 0.02, 0.04]), or Seconds(0, 1, hz=50)"
    if _is_number(first):
        if not _is_number(last) or not _is_number(hz) or not hz > 0 or not last > first:
            raise InvalidArgumentError(
                f"Seconds of a range needs first < last and hz > 0, not {first!r}, {last!r}, hz={hz!r}", hint=example
            )
        count = math.ceil(round((last - first) * hz, _DECIMALS))
        if count >= _LIMIT:
            raise InvalidArgumentError(f"Seconds({first!r}, {last!r}, hz={hz!r}) are {count:,} times", hint=example)
        return tuple(float(first + number / hz) for number in range(count))
    if last is not None or hz is not None:
        raise InvalidArgumentError(
            f"Seconds takes times, or first, last and hz, not both: {shown(first)}", hint=example
        )
    if isinstance(first, np.ndarray):
        first = first.tolist()
    if not isinstance(first, list | tuple) or not first or not all(_is_number(time) for time in first):
        raise InvalidArgumentError(f"Seconds takes a list of finite numbers, not {shown(first)}", hint=example)
    return tuple(float(time) for time in first)


def _most_away(times: Sequence[float], rate: float) -> float:
    """Returns a tolerance with which all times have a step, in whole microseconds."""
    away = max(abs(time * rate - round(time * rate)) / rate for time in times)
    return math.ceil(away * 1e6) / 1e6


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return is_number and math.isfinite(value)
