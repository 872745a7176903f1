"""Steps per second of a dataset: what its source says, or what its timestamps say."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.dataset.core import DatasetCore
from gear_data.dataset.episode_blocks import BLOCK_BYTES, block_ranges
from gear_data.errors import InvalidArgumentError
from gear_data.selection.windows import Int64Array

#: The column of timestamps that is read if the source states no steps per second.
TIMESTAMP = "timestamp"
#: Bytes of a step's numbers here: a block has a million steps.
_STEP_BYTES = 64
#: Gaps of other lengths, by this factor, do not count: steps were dropped there.
_MOST_GAP = 1.5


def stated_rate(dataset: DatasetCore) -> float | None:
    """Returns the steps per second that the source of a dataset states; None if it does not.

    LeRobot states `fps`, and robosuite's `control_freq` is in the environment's arguments of robomimic.

    Raises:
        InvalidArgumentError: the dataset was converted or merged from sources of several rates.
    """
    rates = _rates_of(dataset.manifest.provenance)
    known = sorted(rate for rate in rates if rate is not None)
    if len(known) > 1:
        raise InvalidArgumentError(
            f"the dataset was converted from sources of {' and '.join(f'{rate:g}' for rate in known)} steps per second",
            file=str(dataset.path),
            hint="convert them one by one, and give the loader a Mixture; or give the steps per second of all: fps of "
            "drop_idle, or the option fps of a mixture's dataset",
        )
    return known[0] if len(rates) == 1 and known else None


def _rates_of(provenance: Any) -> set[float | None]:
    """Returns the steps per second of all sources of a dataset; None is of those that state none."""
    if not isinstance(provenance, Mapping):
        return {None}
    view = provenance.get("view")
    if isinstance(view, Mapping) and isinstance(view.get("provenance"), Mapping):
        return _rates_of(view["provenance"])  # `Dataset.save` keeps what the sources of its dataset say
    merged, parts = (_mappings(provenance.get(name)) for name in ("merged", "parts"))
    if merged:
        return {rate for part in merged for rate in _rates_of(part.get("provenance"))}
    return {rate for each in parts or [provenance] for rate in _rates_of_source(each.get("metadata"))}


def _rates_of_source(metadata: Any) -> set[float | None]:
    """Returns the steps per second of a source, by its metadata. A dataset that was merged has several sources."""
    origin = metadata.get("dataset") if isinstance(metadata, Mapping) else None
    if isinstance(origin, Mapping) and isinstance(origin.get("provenance"), Mapping):
        return _rates_of(origin["provenance"])
    return {_rate_of(metadata)}


def _mappings(values: Any) -> list[Mapping[str, Any]]:
    return [each for each in values if isinstance(each, Mapping)] if isinstance(values, list) else []


def _rate_of(metadata: Any) -> float | None:
    """Returns the steps per second in the metadata of a source."""
    if not isinstance(metadata, Mapping):
        return None
    rate, environment = metadata.get("fps"), metadata.get("env_args")
    if rate is None and isinstance(environment, str):
        try:
            rate = json.loads(environment)["env_kwargs"]["control_freq"]
        except (ValueError, RecursionError, LookupError, TypeError):
            return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < float("inf"):
        return None
    return float(rate)


def measured_rate(dataset: DatasetCore, column: str, hint: str) -> float:
    """Returns the steps per second by the timestamps of the first million steps.

    It is the mean of the gaps that are about as long as most.

    Args:
        dataset: the dataset or view.
        column: the dataset's column of timestamps, in seconds.
        hint: what the user can do.

    Raises:
        InvalidArgumentError: there is no such column, it does not hold one float a step, or the timestamps do not
            ascend.
    """
    if column not in dataset.schema:
        raise InvalidArgumentError(
            "the steps per second are unknown: the source states none, and there is no column of this name",
            file=str(dataset.path),
            column=column,
            hint=hint,
        )
    spec = dataset.schema[column]
    if spec.variable_length or spec.video is not None or spec.numpy_dtype.kind != "f" or spec.size != 1:
        raise InvalidArgumentError(
            f"the timestamps are {spec.dtype} {list(spec.shape)} a step, and must be one float in seconds",
            file=str(dataset.path),
            column=column,
            hint=hint,
        )
    gaps = np.empty(0)
    for _, stamps, left in _blocks(dataset, column):
        found = _gaps(stamps, left, 1)[1]
        gaps = found[np.isfinite(found)]
        if len(gaps):
            break
    # One of the gaps, also of an even number.
    half = (len(gaps) - 1) // 2
    middle = float(np.partition(gaps, half)[half]) if len(gaps) else 0.0
    if not middle > 0:
        raise InvalidArgumentError(
            f"the timestamps do not say the steps per second: the median of {len(gaps):,} gaps is {middle:g} s",
            file=str(dataset.path),
            column=column,
            hint=hint,
        )
    usual = gaps[(gaps > middle / _MOST_GAP) & (gaps < middle * _MOST_GAP)]
    return len(usual) / float(usual.sum())


def check_timestamps(
    dataset: DatasetCore, column: str, times: Iterable[tuple[int, float]], tolerance: float, hint: str
) -> None:
    """Checks that some steps before or after each step are at their times.

    Args:
        dataset: the dataset or view.
        column: the dataset's column of timestamps, in seconds.
        times: pairs of a distance in steps and in seconds.
        tolerance: seconds by which a step may be elsewhere. The rounding of the timestamps is allowed for.
        hint: what the user can do.

    Raises:
        InvalidArgumentError: a step is elsewhere.
    """
    distances = sorted({(abs(step), abs(time)) for step, time in times if step})
    for first, stamps, left in _blocks(dataset, column):
        allowed = tolerance + np.spacing(np.abs(stamps)).astype(np.float64)
        for distance, time in distances:
            at, gaps = _gaps(stamps, left, distance)
            wrong = ~(np.abs(gaps - time) <= allowed[at + distance])  # NaN is wrong
            if wrong.any():
                number = int(np.argmax(wrong))
                position, step = _place(dataset, first, int(at[number]))
                raise InvalidArgumentError(
                    f"step {step + distance} of episode {position} is {gaps[number]:.6g} s after step {step}, and not "
                    f"{time:.6g} s",
                    file=str(dataset.path),
                    column=column,
                    hint=hint,
                )


def _blocks(dataset: DatasetCore, column: str) -> Iterator[tuple[int, npt.NDArray[Any], Int64Array]]:
    """Yields the timestamps of episodes, block by block.

    Each item is the position of its first episode, the timestamps [n], and the steps up to each step's episode's end,
    int64 [n].
    """
    for first, last in block_ranges(dataset.lengths, _STEP_BYTES, BLOCK_BYTES):
        lengths = dataset.lengths[first:last]
        stamps = dataset.steps(column, first, last).reshape(-1)
        yield first, stamps, np.repeat(lengths.cumsum(), lengths) - np.arange(len(stamps))


def _gaps(
    stamps: npt.NDArray[Any], left: Int64Array, distance: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Returns the steps that have a step of their episode this far behind them, and the seconds to that step."""
    at = np.flatnonzero(left > distance)
    with np.errstate(invalid="ignore"):  # infinities
        return at, stamps[at + distance].astype(np.float64) - stamps[at]


def _place(dataset: DatasetCore, first: int, step: int) -> tuple[int, int]:
    """Returns the id of an episode, and a step in it.

    Args:
        dataset: the dataset or view.
        first: the position of a block's first episode.
        step: a step of the block.
    """
    ends = dataset.lengths[first:].cumsum()
    number = int(np.searchsorted(ends, step, "right"))
    position = first + number
    episode = position if dataset.episode_ids is None else int(dataset.episode_ids[position])
    return episode, step - int(ends[number] - dataset.lengths[position])
