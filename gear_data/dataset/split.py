"""Division of episodes into parts: at random, or by the values of a column."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.kernels import cpu
from gear_data.selection.windows import Int64Array

_MAX_SEED = (1 << 64) - 1
#: Types whose values can name parts.
_NAME_TYPES = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_date,
    pa.types.is_string,
    pa.types.is_large_string,
)


def split_sizes(fractions: Mapping[str, float], count: int) -> dict[str, int]:
    """Returns how many of `count` episodes each part gets.

    Sizes are rounded by the method of largest remainders, in exact arithmetic.

    Raises:
        InvalidArgumentError: there are no parts, a fraction is not positive, or the fractions do not add up to 1.
    """
    if not isinstance(fractions, Mapping) or not fractions:
        raise InvalidArgumentError(
            f"fractions must be a mapping with at least one part, not {fractions!r}",
            hint='such as {"train": 0.9, "val": 0.1}',
        )
    for name, fraction in fractions.items():
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction < math.inf:
            raise InvalidArgumentError(f"the fraction of {name!r} must be a positive number, not {fraction!r}")
    total = math.fsum(fractions.values())
    if abs(total - 1) > 1e-9:
        raise InvalidArgumentError(f"the fractions must add up to 1, but they add up to {total:.12g}")
    # The decimal digits count: 0.15 is 15/100, not the nearest binary fraction.
    exact = {name: Fraction(str(fraction)) for name, fraction in fractions.items()}
    shares = {name: fraction * count / sum(exact.values()) for name, fraction in exact.items()}
    sizes = {name: math.floor(share) for name, share in shares.items()}
    # The sort is stable: of parts with equal remainders, the first part gets an episode first.
    for name in sorted(shares, key=lambda name: sizes[name] - shares[name])[: count - sum(sizes.values())]:
        sizes[name] += 1
    return sizes


def check_sizes(sizes: Mapping[str, int], fractions: Mapping[str, float]) -> None:
    """Checks that each part gets an episode.

    Raises:
        InvalidArgumentError: a part gets none.
    """
    count = sum(sizes.values())
    for name, size in sizes.items():
        if not size:
            raise InvalidArgumentError(
                f"part {name!r} gets none of the {count:,} episodes: its fraction is {fractions[name]}",
                hint="make the fraction larger",
            )


def positions_by_value(table: pa.Table, name: str) -> dict[Any, Int64Array]:
    """Groups the rows of a table by the values of a column.

    Args:
        table: the table.
        name: a column of text, integers, booleans or dates.

    Returns:
        Value -> int64 [rows with this value], ascending. Values are in the order of their first row; null is None.

    Raises:
        UnknownNameError: the column does not exist. The error lists the columns.
        InvalidArgumentError: the values have another type.
    """
    if name not in table.column_names:
        raise unknown_name("column", name, table.column_names)
    array = table.column(name).combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not any(is_name(array.type) for is_name in _NAME_TYPES):
        raise InvalidArgumentError(
            f"episodes can be divided by names, not by the column '{name}' of type {array.type}",
            hint="choose a column of text, integers or booleans, or use ds.filter",
        )
    encoded = array.dictionary_encode(null_encoding="encode")
    codes = encoded.indices.to_numpy()
    rows = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(encoded.dictionary))).tolist()
    return {
        value: rows[first:last]
        for value, first, last in zip(encoded.dictionary.to_pylist(), [0, *ends], ends, strict=False)
    }


def split_positions(
    fractions: Mapping[str, float], count: int, groups: Sequence[Int64Array] | None, seed: int
) -> dict[str, Int64Array]:
    """Divides positions 0 to count - 1 at random into parts.

    Equal seeds give equal parts on every machine.

    Args:
        fractions: name of a part -> its fraction of each group.
        count: number of positions.
        groups: int64 arrays, ascending: each position is in one of them. None: all positions are one group.
        seed: 0 to 2^64 - 1.

    Returns:
        Name of a part -> int64 [size], ascending.

    Raises:
        InvalidArgumentError: see `split_sizes`; a part gets no episode; or the seed is not an integer from 0 to
            2^64 - 1.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed <= _MAX_SEED:
        raise InvalidArgumentError(f"seed must be an integer from 0 to 2^64 - 1, not {seed!r}")
    sizes = [split_sizes(fractions, size) for size in ([count] if groups is None else map(len, groups))]
    check_sizes({name: sum(size[name] for size in sizes) for name in fractions}, fractions)
    # Positions are shuffled, and the first ones of a group make its first part. Only the part of each position counts,
    # so the shuffle is undone on the parts, or on the places: less memory moves than with a shuffle and sorts.
    numbers = np.arange(len(fractions), dtype=np.uint8 if len(fractions) <= 256 else np.int64)
    if groups is None:
        part_of = np.repeat(numbers, list(sizes[0].values()))
        _unshuffle(part_of, seed)
    else:
        places = np.arange(count)
        _unshuffle(places, seed)
        part_of = np.empty(count, numbers.dtype)
        for group, size in zip(groups, sizes, strict=True):
            part_of[group[np.argsort(places[group])]] = np.repeat(numbers, list(size.values()))
    return {name: np.flatnonzero(part_of == number) for name, number in zip(fractions, numbers, strict=True)}


def _unshuffle(values: npt.NDArray[Any], seed: int) -> None:
    """Puts the value of each shuffled place where the position that the shuffle put there was before."""
    cpu.random.unshuffle(np.uint64(int(seed)), cpu.random.DOMAIN_SPLIT, 0, values)
