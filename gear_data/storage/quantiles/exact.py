"""Exact quantiles of a column, in a few passes and with bounded memory.

Values become unsigned keys in the same order. Each pass counts the next 11 bits of the keys that may still be the value
of a rank, so the ranks' values are exact: three passes for 32 bits, six for 64. NaN and Inf are skipped, as in
`gear_data.storage.statistics`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.kernels import cpu

Float64Array = npt.NDArray[np.float64]
#: Yields the blocks of a column, each [steps, *shape]; called once for each pass.
Blocks = Callable[[], Iterable[npt.NDArray[Any]]]
#: Counts the digits at a bit of the keys that begin with a prefix: count(bit, prefixes), of uint64 [width, n], returns
#: int64 [width, n, digits].
Count = Callable[[int, npt.NDArray[np.uint64]], npt.NDArray[np.int64]]


def exact_quantiles(blocks: Blocks, dtype: np.dtype[Any], width: int, probabilities: Sequence[float]) -> Float64Array:
    """Returns the quantiles of the finite values of a column.

    Between two values the quantile is interpolated, as by `numpy.quantile`.

    Args:
        blocks: yields the column's values.
        dtype: their dtype: integers, booleans or floats of up to 64 bits.
        width: number of elements that have separate quantiles; 1: the quantiles are of all elements together.
        probabilities: 0 to 1 each.

    Returns:
        float64 [probabilities, width]; NaN for an element without finite values.
    """
    least, most = _finite_keys(dtype)

    def count(shift: int, prefixes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        counts = np.zeros((*prefixes.shape, 1 << cpu.statistics.DIGIT_BITS), np.int64)
        for block in blocks():
            if not len(block):  # all steps are masked
                continue
            keys = _keys(block).reshape(len(block), width, -1)
            cpu.statistics.count_digits(keys, least, most, np.uint64(shift), prefixes, counts)
        return counts

    return quantiles_by_counts(count, dtype, width, probabilities)


def digit_passes(dtype: np.dtype[Any]) -> int:
    """Returns how often `quantiles_by_counts` counts."""
    passes: int = -(-8 * dtype.itemsize // cpu.statistics.DIGIT_BITS)
    return passes


def quantiles_by_counts(count: Count, dtype: np.dtype[Any], width: int, probabilities: Sequence[float]) -> Float64Array:
    """Returns the quantiles of values whose digits are counted: see `exact_quantiles`.

    Args:
        count: counts digits; called once for each pass.
        dtype, width, probabilities: see `exact_quantiles`.
    """
    digit, passes = cpu.statistics.DIGIT_BITS, digit_passes(dtype)
    # One prefix in the first pass, and then one for each rank: the values below and above each quantile.
    prefixes = np.zeros((width, 1), np.uint64)
    total = np.zeros(width, np.int64)
    ranks = np.zeros((width, 0), np.int64)
    for number in range(passes):
        distinct, numbers = _distinct(prefixes)
        counts = np.take_along_axis(count(digit * (passes - 1 - number), distinct), numbers[..., None], axis=1)
        if not number:
            total = counts[:, 0].sum(axis=1)
            ranks = _ranks(total, probabilities)
            counts = np.broadcast_to(counts, (width, ranks.shape[1], 1 << digit))
            prefixes = np.zeros(ranks.shape, np.uint64)
        before = np.cumsum(counts, axis=2)
        found = (before <= ranks[..., None]).sum(axis=2).clip(max=(1 << digit) - 1)
        inside = np.take_along_axis(before - counts, found[..., None], axis=2)[..., 0]
        ranks = ranks - inside
        prefixes = (prefixes << np.uint64(digit)) | found.astype(np.uint64)
    values = _values(prefixes, dtype)
    position = np.outer(np.asarray(probabilities, np.float64), np.maximum(total - 1, 0))
    part = position - np.floor(position)
    low, high = values[:, 0::2].T, values[:, 1::2].T
    # The formula of `numpy.quantile`, which is exact at both ends.
    result = np.where(part < 0.5, low + (high - low) * part, high - (high - low) * (1 - part))
    return np.where(total > 0, result, np.nan)


def _distinct(prefixes: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Returns the distinct prefixes of each element, and the number of each prefix among them.

    Most ranks of an element share their prefix in the first passes. Elements with fewer prefixes than others have some
    that no key has.
    """
    found = [np.unique(own, return_inverse=True) for own in prefixes]
    distinct = np.full((len(prefixes), max(len(own) for own, _ in found)), (1 << 64) - 1, np.uint64)
    for row, (own, _) in zip(distinct, found, strict=True):
        row[: len(own)] = own
    return distinct, np.stack([numbers for _, numbers in found])


def _ranks(count: npt.NDArray[np.int64], probabilities: Sequence[float]) -> npt.NDArray[np.int64]:
    """Returns the ranks of the values below and above each quantile.

    The result is int64 [width, 2 * probabilities].
    """
    last = np.maximum(count - 1, 0)
    below = [np.floor(probability * last).astype(np.int64) for probability in probabilities]
    return np.stack([rank for each in below for rank in (each, np.minimum(each + 1, last))], axis=1)


def _keys(values: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Returns unsigned keys in the order of the values."""
    keys: npt.NDArray[np.uint64]
    if values.dtype.kind in "ub":
        keys = values.astype(np.uint64)
        return keys
    bits = np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")
    sign = bits.dtype.type(1 << (8 * values.dtype.itemsize - 1))
    if values.dtype.kind == "i":
        keys = (bits ^ sign).astype(np.uint64)
        return keys
    keys = np.where(bits & sign, ~bits, bits | sign).astype(np.uint64)
    return keys


def _values(keys: npt.NDArray[np.uint64], dtype: np.dtype[Any]) -> Float64Array:
    """Returns the values of keys, as float64."""
    if dtype.kind in "ub":
        return keys.astype(np.float64)
    bits = keys.astype(f"u{dtype.itemsize}")
    sign = bits.dtype.type(1 << (8 * dtype.itemsize - 1))
    bits = bits ^ sign if dtype.kind == "i" else np.where(bits & sign, bits ^ sign, ~bits)
    return bits.view(dtype).astype(np.float64)


def _finite_keys(dtype: np.dtype[Any]) -> tuple[np.uint64, np.uint64]:
    """Returns the keys of the least and of the largest finite value."""
    if dtype.kind != "f":
        return np.uint64(0), np.uint64((1 << 8 * dtype.itemsize) - 1)
    limits = np.finfo(dtype)
    least, most = _keys(np.array([limits.min, limits.max], dtype))
    return least, most
