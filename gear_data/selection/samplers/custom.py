"""CustomSampler: a sampler that a user wrote, as one of gear-data's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from gear_data.common.cancellation import call_user_function
from gear_data.error_text import shown
from gear_data.errors import InvalidArgumentError
from gear_data.kernels import cpu
from gear_data.kernels.window_plan import WITHIN_OFFSET
from gear_data.selection.anchors import Anchors
from gear_data.selection.prefix_table import PrefixTable
from gear_data.selection.samplers.sampler import Candidates, Sampler, Selector
from gear_data.selection.window_sampler import SamplingPlan, WindowSampler
from gear_data.selection.windows import Float64Array, Int64Array, Windows


@dataclasses.dataclass(frozen=True)
class CustomSampler:
    """The `BuiltInSampler` of a user's sampler.

    Raises:
        InvalidArgumentError: the sampler is not a frozen dataclass, or a field cannot be saved.
    """

    sampler: Sampler

    def __post_init__(self) -> None:
        kind = type(self.sampler)
        if not dataclasses.is_dataclass(kind) or not kind.__dataclass_params__.frozen:
            raise InvalidArgumentError(
                f"the sampler {kind.__qualname__} is not a frozen dataclass, so its parameters could change unseen",
                hint="write @dataclass(frozen=True) above the class, with the parameters as its fields",
            )
        self.parameters()

    @property
    def name(self) -> str:
        return self.sampler.name

    def parameters(self) -> dict[str, Any]:
        """Returns the fields of the sampler, JSON-able; of arrays a hash."""
        fields = dataclasses.fields(self.sampler)  # type: ignore[arg-type]
        return {f.name: _plain(getattr(self.sampler, f.name), self.name, f.name) for f in fields}

    def bind(self, candidates: Candidates, seed: int) -> Selector:
        """Returns the selector for these candidates."""
        return CustomSelector(self, candidates.anchors, seed)


class CustomSelector:
    """A `Selector` of a user's sampler. The CPU draws its windows.

    Args:
        custom: the sampler.
        anchors: the episodes and their anchors.
        seed: 0 to 2^64 - 1.
    """

    def __init__(self, custom: CustomSampler, anchors: Anchors, seed: int) -> None:
        self._custom, self._seed, self._prefix = custom, seed, anchors.prefix
        self._counts = anchors.counts()
        self._counts.flags.writeable = False
        table = PrefixTable(anchors.prefix)
        self._windows = WindowSampler(anchors, table, seed, cpu.random.DOMAIN_SHUFFLE, WITHIN_OFFSET)
        self._seen_twice = False

    def select(self, step: int, count: int, position: int) -> Windows:
        points = self._draw(step, count, position)
        if not self._seen_twice:
            self._check_again(points, step, count, position)
        return self._windows.windows(points, step)

    def _draw(self, step: int, count: int, position: int) -> Int64Array:
        """Returns the numbers of the drawn windows in the dataset, int64 [count]."""
        name = self._custom.name
        draw = self._custom.sampler.draw
        drawn = call_user_function(draw, self._counts, self._seed, step, position, position + count)
        if not isinstance(drawn, tuple) or len(drawn) != 2:
            raise InvalidArgumentError(
                f"sampler '{name}' returns {shown(drawn)} for step {step}",
                hint="return two arrays: the episodes' positions, and the numbers of the windows in their episodes",
            )
        episodes, numbers = (
            _checked(values, f"sampler '{name}' returns {noun}", step, count)
            for values, noun in zip(drawn, ("episodes", "window numbers"), strict=True)
        )
        outside = (episodes < 0) | (episodes >= len(self._counts))
        if outside.any():
            row = int(outside.argmax())
            raise InvalidArgumentError(
                f"sampler '{name}' returns episode {episodes[row]} for slot {position + row} of step {step}; positions "
                f"are 0 to {len(self._counts) - 1}"
            )
        outside = (numbers < 0) | (numbers >= self._counts[episodes])
        if outside.any():
            row = int(outside.argmax())
            raise InvalidArgumentError(
                f"sampler '{name}' returns window {numbers[row]} of episode {episodes[row]} for slot {position + row} "
                f"of step {step}; the episode has {self._counts[episodes[row]]} windows",
                hint="draw numbers from 0 to counts[episode] - 1; an episode without windows cannot be drawn",
            )
        return self._prefix[episodes] + numbers

    def _check_again(self, points: Int64Array, step: int, count: int, position: int) -> None:
        """Draws the first batch again.

        Raises:
            InvalidArgumentError: it has other windows.
        """
        different = self._draw(step, count, position) != points
        if different.any():
            raise InvalidArgumentError(
                f"sampler '{self._custom.name}' returns two windows for slot {position + int(different.argmax())} of "
                f"step {step}: it must be a pure function of its arguments",
                hint="draw random numbers by numpy.random.default_rng([seed, step]), and keep nothing between calls",
            )
        self._seen_twice = True

    def sampling_plan(self, count: int) -> SamplingPlan | None:
        return None

    def epoch_slots(self, epochs: int) -> int | None:
        return None

    def shares(self) -> Float64Array:
        raise InvalidArgumentError(
            f"sampler '{self._custom.name}' does not say how often it draws each episode",
            hint="plans, reports and selection='decentralized' need a sampler of gear-data",
        )

    def identity(self) -> dict[str, Any]:
        return {"name": self._custom.name, "parameters": self._custom.parameters()}


def _checked(values: Any, what: str, step: int, count: int) -> Int64Array:
    """Returns int64 [count]; raises InvalidArgumentError if the values are not `count` integers."""
    array: npt.NDArray[Any] = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"{what} of dtype {array.dtype} for step {step}", hint="return arrays of integers, such as int64"
        )
    if array.shape != (count,):
        raise InvalidArgumentError(
            f"{what} of shape {array.shape} for the {count} slots of step {step}",
            hint="return one number for each slot: arrays of shape (last - first,)",
        )
    return array.astype(np.int64, copy=False)


def _plain(value: Any, name: str, field: str) -> Any:
    """Returns a parameter of a sampler, JSON-able; of an array its hash."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        contents = np.ascontiguousarray(value)
        return {
            "dtype": value.dtype.str,
            "shape": list(value.shape),
            "xxh3": xxhash.xxh3_128(contents.data).hexdigest(),
        }
    if isinstance(value, list | tuple):
        return [_plain(each, name, field) for each in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(each, name, field) for key, each in value.items()}
    raise InvalidArgumentError(
        f"the field {field} of sampler '{name}' is {shown(value)}, which a loader's state cannot hold",
        hint="fields are numbers, texts, arrays of numbers, or lists and mappings of them",
    )
