"""Values of a column that is added: an array, an expression over the step columns, or a function of an episode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.dataset import filters
from gear_data.dataset.editing.edit import ShardValues
from gear_data.dataset.episode import Episode
from gear_data.dataset.stores.store import DatasetStore
from gear_data.error_text import shown
from gear_data.errors import GearError, InvalidArgumentError, UnsupportedColumnError
from gear_data.ingest.sources.tables.to_numpy import IrregularRowsError, inner_shape, is_list, storage_array, to_numpy
from gear_data.schema import DTYPES, MAX_AXES, VARIABLE_TYPES, ColumnSpec

if TYPE_CHECKING:
    import polars as pl

    #: See `Dataset.with_column`. Arrow arrays have no types.
    ColumnValues: TypeAlias = npt.ArrayLike | pl.Series | pl.Expr | str | Callable[[Episode], Any]

#: Values of some steps: [steps, *shape] of native byte order, or an Arrow array of text or bytes.
_Values: TypeAlias = Any


def shard_values(store: DatasetStore, name: str, values: ColumnValues) -> ShardValues:
    """Returns the values of a new column, shard by shard. Shards are asked for once each, in order.

    Args:
        store: the dataset.
        name: the name of the column.
        values: see `Dataset.with_column`.

    Raises:
        InvalidArgumentError, UnsupportedColumnError, UnknownNameError: see `Dataset.with_column`.
    """
    ends = np.cumsum([shard.episodes for shard in store.manifest.shards]).tolist()
    ranges = [range(end - shard.episodes, end) for end, shard in zip(ends, store.manifest.shards, strict=True)]
    import polars as pl

    if isinstance(values, pl.Expr | str):
        pieces = partial(_of_expression, store, filters.parse(values, store.schema.names))
    elif callable(values):
        pieces = partial(_of_function, store, values)
    else:
        column = _column(values, store.manifest.steps, name, "the dataset has")
        return lambda number: (_spec(name, column), column[_steps(store, ranges[number])])
    known: list[ColumnSpec] = []

    def of_shard(number: int) -> tuple[ColumnSpec, _Values]:
        found = []
        for episode, piece in pieces(ranges[number]):
            column = _column(piece, int(store.lengths[episode]), name, f"episode {episode} has")
            spec = _spec(name, column)
            if not known:
                known.append(spec)
            if spec != known[0]:
                raise InvalidArgumentError(
                    f"{_described(spec)} in episode {episode}, and {_described(known[0])} before",
                    column=name,
                    row=int(store.offsets[episode]),
                    hint="return one dtype and shape for all episodes: np.asarray(values, np.float32)",
                )
            found.append(column)
        return known[0], pa.concat_arrays(found) if known[0].variable_length else np.concatenate(found)

    return of_shard


def described(values: Any) -> str:
    """Returns where the values of a column come from, in words."""
    if isinstance(values, str) or type(values).__name__ == "Expr":
        return f"of {values}"
    if callable(values):
        return f"of the function {getattr(values, '__qualname__', type(values).__qualname__)}"
    return "of values"


def _steps(store: DatasetStore, episodes: range) -> slice:
    return slice(int(store.offsets[episodes.start]), int(store.offsets[episodes.stop]))


def _of_function(store: DatasetStore, function: Callable[[Episode], Any], episodes: range) -> Iterator[tuple[int, Any]]:
    for episode in episodes:
        yield episode, function(Episode(store, episode))


def _of_expression(store: DatasetStore, expression: pl.Expr, episodes: range) -> Iterator[tuple[int, Any]]:
    """Yields the values of an expression over the steps of each episode. One value is repeated."""
    names = filters.read_columns(expression, [column.name for column in store.schema])
    if not expression.meta.root_names() and not expression.meta.has_multiple_outputs():
        names = ["terminated"]  # a constant
    for name in names:
        store.schema.index(name)  # refuses cameras
    rows = np.arange(episodes.start, episodes.stop)
    frame = filters.step_frame({name: store.values(name, rows) if store.schema[name].variable_length
                                else store.steps(name, rows) for name in names})  # fmt: skip
    first = 0
    for episode in episodes:
        length = int(store.lengths[episode])
        series = filters.evaluate(frame.slice(first, length), expression)
        yield episode, series.new_from_index(0, length) if len(series) == 1 else series
        first += length


def _spec(name: str, column: _Values) -> ColumnSpec:
    if isinstance(column, pa.Array):
        dtype = next(key for key, type_ in VARIABLE_TYPES.items() if column.type == type_)
        return ColumnSpec(name, dtype)
    return ColumnSpec(name, column.dtype.name, column.shape[1:])


def _described(spec: ColumnSpec) -> str:
    return f"{spec.dtype} values of shape {list(spec.shape)}" if spec.shape else f"{spec.dtype} values"


def _column(values: Any, steps: int, name: str, whose: str) -> _Values:
    """Returns values as a dataset stores them.

    Args:
        values: a sequence of values, as NumPy, Arrow, Polars or Python have it.
        steps: their number.
        name: the name of the column, for errors.
        whose: begins messages, such as "episode 3 has".

    Raises:
        InvalidArgumentError: there are more or fewer values, or some are null.
        UnsupportedColumnError: a dataset cannot store them.
    """
    found = _without_nulls(values, name, whose)
    if isinstance(found, str | bytes) or np.ndim(found) == 0:
        raise InvalidArgumentError(
            f"{whose} {steps} steps, and the value is {shown(values)}",
            column=name,
            hint="give one value per step, such as [value] * episode.length",
        )
    if len(found) != steps:
        raise InvalidArgumentError(
            f"{whose} {steps} steps, and there are {len(found)} values",
            column=name,
            hint="give one value per step; of a function, episode.length values (len(episode) counts columns)",
        )
    if isinstance(found, pa.Array):
        return found
    if found.dtype.name not in DTYPES or found.ndim - 1 > MAX_AXES or not found.size:
        raise UnsupportedColumnError(
            f"has dtype {found.dtype} and shape {list(found.shape[1:])} of a step",
            column=name,
            hint=f"convert it to text, bytes, or one of {', '.join(DTYPES)}",
        )
    return np.ascontiguousarray(found)


def _without_nulls(values: Any, name: str, whose: str) -> Any:
    """Returns values as an Arrow array of text or bytes, or as a NumPy array. One text stays as it is.

    Args, Raises: see `_column`.
    """
    if isinstance(values, str | bytes):
        return values
    import polars as pl

    # NumPy makes NaN of the nulls inside of arrays; Arrow tells them.
    if isinstance(values, pl.Series) and values.dtype in (pl.String, pl.Binary, pl.Categorical, pl.Enum, pl.Array):
        values = values.to_arrow()
    if isinstance(values, pa.Array | pa.ChunkedArray):
        values = storage_array(values)
    nulls = values.null_count if hasattr(values, "null_count") else 0
    if callable(nulls):
        nulls = nulls()
    if isinstance(values, Sequence) or getattr(values, "dtype", None) == np.object_:
        nulls = sum(value is None for value in values)
    if nulls:
        raise InvalidArgumentError(f"{nulls} values are null", column=name, hint="fill them: .fill_null(0)")
    if any(map(_is_masked, values if isinstance(values, Sequence) else [values])):
        raise InvalidArgumentError("values are masked", column=name, hint="fill them: .filled(numpy.nan)")
    try:
        if isinstance(values, pa.Array):
            return _of_arrow(values)
        if isinstance(values, Sequence) and len(values) and isinstance(values[0], str | bytes):
            return pa.array(values, VARIABLE_TYPES["string" if isinstance(values[0], str) else "binary"])
        found = np.asarray(values)
        if found.dtype.kind in "OUS" and found.ndim == 1 and len(found):
            if isinstance(values, Sequence) and found.dtype.kind != "O":
                _check_texts(values, name, whose)
            texts = found.tolist()
            return pa.array(texts, VARIABLE_TYPES["string" if isinstance(texts[0], str) else "binary"])
        return found.astype(found.dtype.newbyteorder("="), copy=False)
    except GearError:
        raise
    # RuntimeError: a tensor with a gradient
    except (IrregularRowsError, pa.ArrowException, RuntimeError, TypeError, ValueError) as error:
        raise UnsupportedColumnError(
            f"cannot be stored: {error}", column=name, hint="give numbers of one shape, text, or bytes"
        ) from error


def _is_masked(value: Any) -> bool:
    """Returns whether a value is an array with masked values. NumPy would store what is below the mask."""
    return isinstance(value, np.ma.MaskedArray) and bool(np.ma.is_masked(value))


def _check_texts(values: Sequence[Any], name: str, whose: str) -> None:
    """Checks that all values of a sequence are text or bytes. NumPy makes text of numbers beside text.

    Raises:
        UnsupportedColumnError: a value is something else.
    """
    for index, value in enumerate(values):
        if not isinstance(value, str | bytes):
            raise UnsupportedColumnError(
                f"{whose} text beside other values: value {index} is {shown(value)}",
                column=name,
                hint="give text for every step, such as str(value), or a number for every step",
            )


def _of_arrow(values: pa.Array) -> _Values:
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    name = str(values.type)
    if name in ("string", "large_string", "string_view"):
        return values.cast(VARIABLE_TYPES["string"])
    if name in ("binary", "large_binary", "binary_view"):
        return values.cast(VARIABLE_TYPES["binary"])
    if pa.types.is_boolean(values.type) or pa.types.is_primitive(values.type):
        return values.to_numpy(zero_copy_only=False)
    if is_list(values.type):  # Python has one kind of integer and of float
        return to_numpy(values, inner_shape(values))
    return np.asarray(values.to_pylist())
