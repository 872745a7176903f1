"""Views: some of a dataset's episodes, and steps; nothing of it is copied."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from gear_data.common.progress import progress_bar
from gear_data.dataset import filters
from gear_data.dataset.store import DatasetStore
from gear_data.errors import InvalidArgumentError
from gear_data.selection.step_mask import StepMask
from gear_data.selection.windows import Int64Array
from gear_data.storage.block import offsets_of
from gear_data.storage.manifest import fingerprint
from gear_data.storage.statistics import ColumnStatistics, RunningStatistics

if TYPE_CHECKING:
    import polars as pl

#: Column bytes that are looked at together.
_BLOCK_BYTES = 64 << 20


@dataclass(frozen=True)
class View:
    """What a view shows of its store.

    Attributes:
        ids: int64 [k], ascending: its episodes; None for all.
        mask: the steps that satisfy its step filters, by their number in the store; None where it has no step filter.
        mode: which steps of a window must satisfy them, `first` or `all`; None where it has no step filter.
    """

    ids: Int64Array | None = None
    mask: StepMask | None = None
    mode: str | None = None


def blocks(lengths: Int64Array, step_bytes: int, block_bytes: int) -> Iterator[tuple[int, int]]:
    """Runs of whole episodes, first to last, of at most so many bytes; an episode larger than that is one by itself."""
    offsets = offsets_of(lengths)
    budget = max(1, block_bytes // max(1, step_bytes))
    first = 0
    while first < len(lengths):
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + budget, side="right")) - 1)
        yield first, last
        first = last


def view_fingerprint(store: DatasetStore, ids: Int64Array) -> str:
    """What a conversion of these episodes alone would have."""
    contents = store.episode_table.column("content").combine_chunks()
    # Not one object an episode: 16 bytes each, side by side.
    start, hashes = 16 * contents.offset, contents.buffers()[1]
    rows = np.frombuffer(hashes, np.uint8, 16 * len(contents), start).reshape(-1, 16)
    return fingerprint(store.schema, [rows[ids].tobytes()])


def filtered_fingerprint(episodes: str, mask: StepMask, mode: str) -> str:
    """Of a view with a step filter: of its episodes' fingerprint, the steps and the mode."""
    digest = xxhash.xxh3_128(episodes.encode())
    digest.update(mask.digest().encode())
    digest.update(mode.encode())
    return digest.hexdigest()


def view_statistics(store: DatasetStore, ids: Int64Array) -> dict[str, ColumnStatistics]:
    """Statistics of these episodes, as converting them alone, in one task, would give, bit for bit. Reads all once."""
    running = RunningStatistics(store.schema)
    columns = store.schema.fixed_columns
    lengths = store.lengths[ids]
    with progress_bar(int(lengths.sum()), "statistics", "step", None) as bar:
        for first, last in blocks(lengths, store.schema.step_bytes, _BLOCK_BYTES):
            part = ids[first:last]
            running.update({spec.name: store.steps(spec.name, part) for spec in columns}, lengths[first:last])
            bar.update(int(lengths[first:last].sum()))
    return running.result()


def satisfying_steps(store: DatasetStore, ids: Int64Array, expression: pl.Expr) -> StepMask:
    """The steps of these episodes at which an expression over step columns holds; every other step's bit is 0.

    Raises:
        InvalidArgumentError: it names no column, is not Boolean, or looks at more than one step at a time.
        UnsupportedColumnError: it names a column that Polars cannot hold.
        EmptySourceError: no step satisfies it.
    """
    names = filters.step_columns(expression)
    lengths, firsts = store.lengths[ids], store.offsets[ids]
    step_bytes = sum(_step_bytes(store, name) for name in names)

    def flags() -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
        with progress_bar(int(lengths.sum()), "filter steps", "step", None) as bar:
            for first, last in blocks(lengths, step_bytes, _BLOCK_BYTES):
                part = ids[first:last]
                frame = filters.step_frame({name: _column(store, name, part) for name in names})
                found = filters.true_rows(frame, expression)
                filters.check_row_wise(frame, expression, found)
                bar.update(len(found))
                yield from _runs(firsts[first:last], lengths[first:last], found)

    mask = StepMask.from_blocks(store.manifest.steps, flags())
    if not mask.count:
        known = {name: store.statistics[name] for name in names if not store.schema[name].variable_length}
        ranges = {name: f"{np.fmin.reduce(item.min)} to {np.fmax.reduce(item.max)}" for name, item in known.items()}
        raise filters.nothing_found(expression, "step", ranges)
    return mask


def _step_bytes(store: DatasetStore, name: str) -> int:
    """Bytes of a step of a column, on average where they vary."""
    spec = store.schema[name]
    if not spec.variable_length:
        return spec.row_bytes
    return sum(shard.variable[name].bytes for shard in store.manifest.shards) // store.manifest.steps


def _column(store: DatasetStore, name: str, ids: Int64Array) -> Any:
    """Steps of episodes as Polars takes them without a Python object each."""
    return store.values(name, ids) if store.schema[name].variable_length else store.steps(name, ids)


def _runs(
    firsts: Int64Array, lengths: Int64Array, values: npt.NDArray[np.bool_]
) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
    """Values of episodes one after another, cut where the episodes do not follow each other in the store."""
    offsets = offsets_of(lengths)
    begins = [0, *(np.flatnonzero(firsts[1:] != firsts[:-1] + lengths[:-1]) + 1).tolist(), len(firsts)]
    for begin, end in pairwise(begins):
        yield int(firsts[begin]), values[offsets[begin] : offsets[end]]


def split_sizes(fractions: Mapping[str, float], count: int) -> dict[str, int]:
    """How many of `count` episodes each part gets: the method of largest remainders, in exact arithmetic.

    Raises:
        InvalidArgumentError: no parts; a fraction that is not positive; a sum other than 1; or a part of no episode.
    """
    if not isinstance(fractions, Mapping) or not fractions:
        raise InvalidArgumentError("no parts to split into", hint='such as {"train": 0.9, "val": 0.1}')
    for name, fraction in fractions.items():
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction < math.inf:
            raise InvalidArgumentError(f"the fraction of {name!r} must be a positive number, not {fraction!r}")
    total = math.fsum(fractions.values())
    if abs(total - 1) > 1e-9:
        raise InvalidArgumentError(f"the fractions must add up to 1, not {total:.12g}")
    # As they are written: 0.15 is 15/100, not the binary number beside it.
    exact = {name: Fraction(str(fraction)) for name, fraction in fractions.items()}
    shares = {name: fraction * count / sum(exact.values()) for name, fraction in exact.items()}
    sizes = {name: math.floor(share) for name, share in shares.items()}
    # A stable sort: of equal remainders the part named first is served first.
    for name in sorted(shares, key=lambda name: sizes[name] - shares[name])[: count - sum(sizes.values())]:
        sizes[name] += 1
    for name, size in sizes.items():
        if not size:
            raise InvalidArgumentError(
                f"{name!r} would get none of {count:,} episodes", hint="make its fraction larger"
            )
    return sizes


def split_places(sizes: Mapping[str, int], seed: int) -> dict[str, Int64Array]:
    """Places 0 to n - 1 divided at random into parts of these sizes, int64, ascending: the same on every machine."""
    from gear_data.kernels.cpu.random import DOMAIN_SPLIT, shuffled

    places = np.empty(sum(sizes.values()), np.int64)
    shuffled(np.uint64(seed), DOMAIN_SPLIT, 0, places)
    ends = np.cumsum(list(sizes.values())).tolist()
    return {name: np.sort(places[end - size : end]) for (name, size), end in zip(sizes.items(), ends, strict=True)}
