"""Exact statistics of relative columns, of one dataset or of several together.

Sums and counts of episodes are integers, and are added in any order. So threads, processes and a Ray cluster give the
same bits, and several datasets give the bits of one dataset that has all their episodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Never, get_args

import numpy as np
import numpy.typing as npt
import xxhash

from gear_data.common.environment import usable_cores
from gear_data.common.keywords import check_range, refuse_keywords_of
from gear_data.common.progress import progress_bar
from gear_data.dataset.core import DatasetCore
from gear_data.dataset.episode_blocks import block_ranges
from gear_data.dataset.relative.chunks import Chunks, Sums, check_present
from gear_data.dataset.relative.engines import run_calls
from gear_data.dataset.views import episodes_fingerprint
from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.relative import Relative, check_relative
from gear_data.storage.quantiles.exact import digit_passes, quantiles_by_counts
from gear_data.storage.quantiles.files import QUANTILES, load_quantiles, quantiles_file, save_quantiles
from gear_data.words import EngineName, Scaling

Float64Array = npt.NDArray[np.float64]

#: Quantiles that are kept.
_PROBABILITIES = (0.01, 0.99)
#: Rows of a file: counts, means, deviations, minima, maxima and quantiles.
_ROWS = 5 + len(_PROBABILITIES)
#: Parts of the datasets for each worker.
_PARTS = 8


@dataclass(frozen=True)
class RelativeStatistics:
    """Statistics of the elements of all chunks: arrays [elements], or [steps, elements] with `per_step`.

    Attributes:
        count: float64, the number of values.
        mean, std, min, max: float64; `std` is of the population.
        q01, q99: float64, the 1st and 99th percentile, interpolated as by `numpy.quantile`.
    """

    count: Float64Array
    mean: Float64Array
    std: Float64Array
    min: Float64Array
    max: Float64Array
    q01: Float64Array
    q99: Float64Array

    def normalization(self, mode: Scaling = "mean-std") -> tuple[Float64Array, Float64Array]:
        """Returns (mean, std) for the argument `normalize` of a loader.

        Args:
            mode: `mean-std`, `quantiles` (the percentiles to -1 and 1) or `minmax`.

        Raises:
            UnknownNameError: no such mode.
        """
        if mode not in get_args(Scaling):
            raise unknown_name("normalisation of differences", mode, get_args(Scaling))
        if mode == "mean-std":
            return self.mean, self.std
        return centre_and_half(*((self.min, self.max) if mode == "minmax" else (self.q01, self.q99)))


def centre_and_half(low: Float64Array, high: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Returns (mean, std) that make -1 of `low` and 1 of `high`.

    A constant element becomes -1, as by LeRobot and openpi. They divide by an epsilon, which makes other values huge.
    """
    constant = low == high
    return np.where(constant, low + 1, (low + high) / 2), np.where(constant, 1.0, (high - low) / 2)


def relative_statistics(
    datasets: DatasetCore | Sequence[DatasetCore],
    column: str,
    relative: str | Relative,
    steps: tuple[int, int] | Sequence[int],
    *,
    engine: EngineName = "local",
    jobs: int | None = None,
    progress: bool | None = None,
    **unknown: Never,
) -> RelativeStatistics:
    """Returns exact statistics of a relative column over all chunks of one dataset, or of several together.

    A chunk begins at each step of each episode. Steps beyond the episode are left out. The result is kept in the folder
    `sidecars` of the first dataset. A loader whose `normalize` needs the statistics of one dataset finds them there.

    Args:
        datasets: the dataset or view, or several with the same column.
        column: the column.
        relative: what is subtracted from it, as in `SequenceLoader`.
        steps: the steps of a chunk relative to its window's first step, as in the loader's `offsets`: a tuple
            (first, last), `last` excluded, or a list.
        engine: `local`, or `ray`: the cluster that this process is connected to, or the cluster of RAY_ADDRESS, or one
            on this machine. All give the same bits.
        jobs: the number of processes, or of Ray tasks that run at once. None: threads of this process, one for each
            core; Ray takes as many tasks as it has cores.
        progress: whether to show a progress bar. None: in the process whose output a user reads.

    Raises:
        UnknownNameError, InvalidArgumentError: see `Relative`; or other steps, or datasets with unlike columns.
        NonFiniteError: a value is NaN or infinite. The error names the dataset, the column and the place.
        WorkerError: a process or a Ray task ended.
        RemoteError: the Ray cluster cannot be reached.
        MissingExtraError: Ray is not installed.
    """
    refuse_keywords_of(relative_statistics, unknown)
    several = [datasets] if isinstance(datasets, DatasetCore) else list(datasets)
    own = check_relative({column: relative})[column]
    listed = _checked_steps(steps)
    if own.delta and listed != tuple(range(listed[0], listed[0] + len(listed))):
        raise InvalidArgumentError(
            f"delta=True needs steps in a row, not {list(listed)}",
            hint="give a tuple (first, last), or leave delta out",
        )
    names = frozenset(name for each in several for spec in each.schema for name in spec.element_names)
    chunks = [
        Chunks(each, (column,), (own.to,), own.elements(column, each.schema, names), listed, own.delta, own.per_step)
        for each in several
    ]
    widths = [len(each.elements) for each in chunks]
    if len({*widths}) != 1:
        raise InvalidArgumentError(
            f"statistics of several datasets need columns of one width, and the widths are {widths}",
            column=column,
            hint="give at least one dataset, and datasets whose columns have the same width",
        )
    return chunk_statistics(chunks, engine=engine, jobs=jobs, progress=progress)


def chunk_statistics(
    chunks: Sequence[Chunks], *, engine: EngineName = "local", jobs: int | None = None, progress: bool | None = None
) -> RelativeStatistics:
    """Returns the statistics of the chunks of several datasets together; see `relative_statistics`."""
    if jobs is not None:
        check_range("jobs", jobs, 1)
    first = chunks[0]
    shape = (first.groups, len(first.elements))
    path = _path(chunks)
    rows = load_quantiles(path, (_ROWS, shape[0] * shape[1]))
    if rows is None:
        for each in chunks:
            check_present(each.dataset, (*each.columns, *each.state))
        rows = _computed(chunks, engine, jobs, progress)
        save_quantiles(path, rows)
    return RelativeStatistics(*(row.reshape(shape) if first.per_step else row for row in rows))


def _path(chunks: Sequence[Chunks]) -> Path:
    facts = [
        [
            episodes_fingerprint(each.dataset.store, each.dataset.view.rows), each.columns, each.state, each.elements,
            each.steps, each.delta, each.per_step,
        ]
        for each in chunks
    ]  # fmt: skip
    key = xxhash.xxh3_128_hexdigest(json.dumps(["relative", *facts]).encode())
    store = chunks[0].dataset.store
    return store.files.sidecars(key) / QUANTILES / quantiles_file(store.manifest, key)


def _computed(chunks: Sequence[Chunks], engine: EngineName, jobs: int | None, progress: bool | None) -> Float64Array:
    """Returns the rows of a file."""
    first, total = chunks[0], sum(each.dataset.num_steps for each in chunks)
    workers = usable_cores() if jobs is None else jobs
    parts = [
        (number, *part)
        for number, each in enumerate(chunks)
        for part in block_ranges(each.dataset.lengths, 1, -(-total // (_PARTS * workers)))
    ]
    width, dtype = first.groups * len(first.elements), np.dtype(np.float64)
    sums = Sums.empty(first.groups, len(first.elements))
    with (
        run_calls(engine, list(chunks), workers, processes=jobs is not None) as run,
        progress_bar(total * (1 + digit_passes(dtype)), "statistics", "step", progress) as bar,
    ):

        def results(name: str, *arguments: Any) -> Iterator[Any]:
            for place, result in run([(number, name, (*part, *arguments)) for number, *part in parts]):
                number, begin, end = parts[place]
                bar.update(int(chunks[number].dataset.lengths[begin:end].sum()))
                yield result

        for found in results("sums"):
            sums.add(found)
        quantiles = quantiles_by_counts(
            lambda shift, prefixes: sum(results("digits", shift, prefixes)), dtype, width, _PROBABILITIES
        )
    counts = np.repeat(sums.counts, len(first.elements))
    mean, std = _moments(sums)
    low, high = (np.where(counts > 0, values.ravel(), np.nan) for values in (sums.low, sums.high))
    return np.vstack([counts, mean, std, low, high, quantiles])


def _moments(sums: Sums) -> tuple[Float64Array, Float64Array]:
    """Returns the means and deviations, float64 [groups * width] each, from the exact sums."""
    groups, _, width, _ = sums.limbs.shape
    mean, std = np.full((2, groups, width), np.nan)
    for group in range(groups):
        count = int(sums.counts[group])
        for element in range(width if count else 0):
            total, squares = (_number(limbs) for limbs in sums.limbs[group, :, element])
            mean[group, element] = total / count
            # Squares are rounded, if to twice the precision of float64.
            constant = sums.low[group, element] == sums.high[group, element]
            variance = 0 if constant else (squares - total * total / count) / count
            std[group, element] = max(0.0, float(variance)) ** 0.5
    return mean.ravel(), std.ravel()


def _number(limbs: npt.NDArray[np.int64]) -> Fraction:
    """Returns an exact sum: see `gear_data.kernels.cpu.statistics`."""
    return Fraction(sum(limb << (32 * place) for place, limb in enumerate(limbs.tolist())), 1 << 1074)


def _checked_steps(steps: Any) -> tuple[int, ...]:
    integers = isinstance(steps, tuple | list) and all(
        isinstance(each, int | np.integer) and not isinstance(each, bool) for each in steps
    )
    is_range = integers and isinstance(steps, tuple) and len(steps) == 2
    found = tuple(range(*steps)) if is_range else tuple(steps) if integers and isinstance(steps, list) else ()
    if not found:
        raise InvalidArgumentError(
            f"steps must be a tuple (first, last) with first < last, or a list of integers, not {steps!r}",
            hint="such as (0, 16) for a chunk of 16 steps",
        )
    return tuple(int(each) for each in found)
