"""The columns of recorded steps, and checks that steps have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.paths import is_utf8
from gear_data.errors import InvalidArgumentError, UnsupportedColumnError
from gear_data.ingest.pipeline.names import is_observation
from gear_data.schema import DTYPES, ColumnSpec, Schema

#: Python types of one number -> kinds of dtypes that hold the number exactly, or as a float.
_WEAK = {bool: "b", int: "iuf", float: "f"}

#: Columns that a Writer makes of the arguments of `end_episode`.
END_FLAGS = ("terminated", "truncated")


def flat_step(step: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a step by dotted name.

    The parts of Dict spaces are named by key, and the parts of Tuple spaces by index.
    """
    flat: dict[str, Any] = {}
    for name, value in step.items():
        if type(value) is np.ndarray:  # most values; checks of abstract classes are slow
            flat[name] = value
            continue
        if isinstance(value, tuple) and any(not isinstance(each, bool | int | float) for each in value):
            value = {str(number): each for number, each in enumerate(value)}
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": each for key, each in flat_step(value).items()}
        else:
            flat[name] = value
    return flat


def infer_columns(step: Mapping[str, Any], where: str) -> tuple[ColumnSpec, ...]:
    """Returns the columns of a first step.

    Args:
        step: dotted name -> value.
        where: the step, for errors.

    Raises:
        UnsupportedColumnError: a value is neither numbers, text nor bytes.
        InvalidArgumentError: the step has no values.
    """
    if not step:
        raise InvalidArgumentError(
            f"{where} has no columns of numbers, text or bytes", hint="give actions, rewards, ..."
        )
    return tuple(_infer(name, value, where) for name, value in step.items())


def check_joins(columns: Iterable[ColumnSpec], schema: Schema, dataset: str) -> None:
    """Checks that steps of some columns can join a dataset.

    Args:
        columns: of the steps.
        schema: of the dataset.
        dataset: its place, for errors.

    Raises:
        UnsupportedColumnError: a column is missing, new, or has another dtype or shape.
    """
    stored = (*schema.source_columns, *schema.videos)
    wanted = {column.name: column for column in stored if column.name not in END_FLAGS}
    given = {column.name: column for column in columns}
    for name in dict.fromkeys((*wanted, *given)):
        if name not in wanted or name not in given:
            lacks = "the dataset lacks it" if name in given else "the first step lacks it"
            raise UnsupportedColumnError(
                f"cannot be recorded: {lacks}",
                file=dataset,
                column=name,
                hint=f"the dataset's steps have the columns {', '.join(wanted)}",
            )
        if (wanted[name].video is None) != (given[name].video is None):
            raise UnsupportedColumnError(
                f"is {'no ' if wanted[name].video is None else 'a '}camera of the dataset", file=dataset, column=name,
                hint="leave it out of cameras" if wanted[name].video is None else "give it in cameras",
            )  # fmt: skip
        old, new = ((each[name].dtype, each[name].shape) for each in (wanted, given))
        if old != new:
            raise UnsupportedColumnError(
                f"the first step has {new[0]} {list(new[1])}, and the dataset has {old[0]} {list(old[1])}",
                file=dataset,
                column=name,
                hint="nothing is cast: convert the values before append",
            )
        if given[name].reorders(wanted[name]):
            raise UnsupportedColumnError(
                f"has the elements {', '.join(given[name].element_names)}, and the dataset has them in another order",
                file=dataset,
                column=name,
                hint=f"give them in the order {', '.join(wanted[name].element_names)}, and the dataset's schema",
            )


def _infer(name: str, value: Any, where: str) -> ColumnSpec:
    if isinstance(value, str | bytes):
        return ColumnSpec(name, "string" if isinstance(value, str) else "binary")
    array = as_array(value, None, name, where)
    if array.dtype.name not in DTYPES or 0 in array.shape:
        raise UnsupportedColumnError(
            f"{where} has a value of dtype {array.dtype} and shape {array.shape}",
            column=name,
            hint="give numbers, booleans, text or bytes",
        )
    return ColumnSpec(name, array.dtype.name, array.shape, has_final=is_observation(name))


def check_names(found: Iterable[str], columns: Mapping[str, Any], where: str) -> None:
    """Checks that a step has all columns and no others.

    Raises:
        InvalidArgumentError: a column is missing, or there is another one.
    """
    if (names := set(found)) != columns.keys():
        missing, more = sorted(columns.keys() - names), sorted(names - columns.keys())
        problem = f"lacks {', '.join(missing)}" if missing else f"has another column: {', '.join(more)}"
        raise InvalidArgumentError(f"{where} {problem}", hint=f"give these columns: {', '.join(columns)}")


def checked_value(value: Any, column: ColumnSpec, where: str) -> Any:
    """Returns a value of one step as an array [*shape] of the column's dtype, or text or bytes.

    Raises InvalidArgumentError as `checked_rows` does.
    """
    if column.variable_length:
        return _checked_objects([value], column, 1, where)[0]
    return _checked_array(value, column, column.shape, where)


def checked_rows(value: Any, column: ColumnSpec, rows: int, where: str) -> npt.NDArray[Any]:
    """Returns values as an array [rows, *shape] of the column's dtype.

    Numbers of Python become the column's dtype as NumPy converts them: whole numbers fit into floats.

    Raises:
        InvalidArgumentError: the values have another dtype or shape.
    """
    if column.variable_length:
        return _checked_objects(value, column, rows, where)
    return _checked_array(value, column, (rows, *column.shape), where)


def _checked_array(value: Any, column: ColumnSpec, shape: tuple[int, ...], where: str) -> npt.NDArray[Any]:
    dtype, array = column.numpy_dtype, as_array(value, None, column.name, where)
    if array.dtype != dtype and _is_weak(value, dtype):
        array = as_array(value, dtype, column.name, where)
    if array.dtype != dtype or array.shape != shape:
        hint = f"convert it: numpy.asarray(value, '{dtype}')" if array.dtype != dtype else None
        raise InvalidArgumentError(
            f"{where} has {array.dtype} {list(array.shape)}, and the column has {dtype} {list(shape)}",
            column=column.name,
            hint=hint,
        )
    return array


def as_array(value: Any, dtype: np.dtype[Any] | None, column: str, where: str) -> npt.NDArray[Any]:
    """Returns `numpy.asarray(value, dtype)`.

    Raises InvalidArgumentError for what is no array, such as ragged lists, and for numbers that the dtype cannot hold.
    """
    try:
        return np.asarray(value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"{where} has a value that is no array: {error}", column=column) from error


def _is_weak(value: Any, dtype: np.dtype[Any]) -> bool:
    """Returns whether a value is made of Python's numbers, which a dtype holds."""
    if isinstance(value, list | tuple):
        return all(_is_weak(each, dtype) for each in value)
    return dtype.kind in _WEAK.get(type(value), "")


def _checked_objects(value: Any, column: ColumnSpec, rows: int, where: str) -> npt.NDArray[Any]:
    kind = str if column.dtype == "string" else bytes
    values = list(value)
    for each in values:
        if not isinstance(each, kind):
            raise InvalidArgumentError(
                f"{where} has a {type(each).__name__}, and the column has {column.dtype}", column=column.name
            )
        if isinstance(each, str) and not each.isascii() and not is_utf8(each):
            raise InvalidArgumentError(f"{where} has text that is not UTF-8", column=column.name)
    if len(values) != rows:
        raise InvalidArgumentError(f"{where} has {len(values)} values for {rows} rows", column=column.name)
    array = np.empty(rows, object)
    array[:] = values
    return array


def one_row(value: Any) -> Any:
    """Returns a value, or the values of a mapping or tuple, with a first axis of one row."""
    if isinstance(value, Mapping):
        return {name: one_row(each) for name, each in value.items()}
    if isinstance(value, tuple) and any(not isinstance(each, bool | int | float) for each in value):
        return tuple(one_row(each) for each in value)
    return [value] if isinstance(value, str | bytes) else np.asarray(value)[None]


def num_rows(steps: Mapping[str, Any]) -> int:
    """Returns the number of rows of the first column. Raises InvalidArgumentError without columns."""
    if not steps:
        raise InvalidArgumentError("a step has no columns", hint="give observations, actions, rewards, ...")
    return len(next(iter(steps.values())))


def first_row(steps: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of the first row. Raises InvalidArgumentError if a column has no rows."""
    row = {}
    for name, value in steps.items():
        try:
            row[name] = value[0]
        except (TypeError, IndexError, KeyError):
            raise InvalidArgumentError(
                f"is {type(value).__name__}, not an array with a row for each environment", column=name
            ) from None
    return row


def checked_flags(value: Any, count: int, name: str) -> npt.NDArray[np.bool_]:
    """Returns the end flags of a step, bool [count].

    Raises InvalidArgumentError if they have another dtype or shape.
    """
    flags = (
        np.zeros(count, np.bool_) if value is None else as_array(value, None, name, f"a step of {count} environments")
    )
    if flags.dtype != np.bool_ or flags.shape != (count,):
        raise InvalidArgumentError(f"{name} must be bool [{count}], not {flags.dtype} {list(flags.shape)}")
    return flags
