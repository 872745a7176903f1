"""Expressions over tables: a Polars expression, or SQL text for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import EmptySourceError, InvalidArgumentError, UnsupportedColumnError, unknown_name
from gear_data.kernels.cuda import cudf

if TYPE_CHECKING:
    import polars as pl

#: Rows of a block whose result is computed again from the row alone, of each outcome.
_PROBES = 8


def parse(expression: pl.Expr | str, names: Sequence[str]) -> pl.Expr:
    """An expression over columns of these names. Text is the name of a column, or else SQL (`polars.sql_expr`).

    Raises:
        UnknownNameError: it names a column that is not there; lists those that are.
        InvalidArgumentError: neither an expression nor text, or no SQL.
    """
    import polars as pl

    if isinstance(expression, str):
        expression = pl.col(expression) if expression in names else _from_sql(expression)
    elif not isinstance(expression, pl.Expr):
        raise InvalidArgumentError(f"expected a Polars expression or SQL text, not {expression!r}")
    for name in column_names(expression):
        if name not in names:
            raise unknown_name("column", name, names)
    return expression


def _from_sql(text: str) -> pl.Expr:
    import polars as pl

    try:
        return pl.sql_expr(text)
    except pl.exceptions.PolarsError as error:
        raise InvalidArgumentError(
            f"{text!r} is no SQL expression: {error}", hint="put names with dots or spaces in double quotes"
        ) from error


def column_names(expression: pl.Expr) -> list[str]:
    """The columns an expression names, each once; none where it selects them by pattern or type."""
    import polars as pl

    try:
        names = expression.meta.root_names()
    except pl.exceptions.PolarsError:
        return []
    # Before version 2 a pattern is a name between ^ and $, or a star.
    return [name for name in dict.fromkeys(names) if name != "*" and not name.startswith("^")]


def with_plain_text(frame: pl.DataFrame, expression: pl.Expr) -> pl.DataFrame:
    """The frame, with the dictionary columns that the expression names as plain strings, which text functions want."""
    import polars as pl

    encoded = [name for name in column_names(expression) if frame.schema[name] == pl.Categorical]
    return frame.with_columns(pl.col(encoded).cast(pl.String)) if encoded else frame


def true_rows(frame: pl.DataFrame, expression: pl.Expr) -> npt.NDArray[np.bool_]:
    """bool [rows]: where a Boolean expression holds; null counts as false. On a GPU where one serves.

    Raises:
        InvalidArgumentError: not Boolean, not a value a row, or Polars cannot evaluate it.
    """
    import polars as pl

    values = cudf.true_values(frame, expression, column_names(expression))
    if values is None:
        values = _evaluate(frame, expression)
    if values.dtype != pl.Boolean:
        raise InvalidArgumentError(f"a filter must be true or false, but {expression} is {values.dtype}")
    if len(values) != len(frame):
        raise InvalidArgumentError(
            f"a filter must give a value for every row, but {expression} gives {len(values):,} for {len(frame):,}"
        )
    return values.fill_null(False).to_numpy()


def row_values(frame: pl.DataFrame, expression: pl.Expr, what: str) -> npt.NDArray[np.float64]:
    """float64 [rows]: a numeric or Boolean expression; null becomes NaN, and one value stands for all rows.

    Raises:
        InvalidArgumentError: not numeric, of another length, or Polars cannot evaluate it; `what` says what it is for.
    """
    import polars as pl

    values = _evaluate(frame, expression)
    if not (values.dtype.is_numeric() or values.dtype == pl.Boolean):
        raise InvalidArgumentError(f"{what} must be numbers, but {expression} is {values.dtype}")
    if len(values) not in (1, len(frame)):
        raise InvalidArgumentError(
            f"{what} must be one value a row, but {expression} gives {len(values):,} for {len(frame):,}"
        )
    numbers = values.cast(pl.Float64).fill_null(np.nan).to_numpy()
    return np.array(np.broadcast_to(numbers, len(frame)))


def _evaluate(frame: pl.DataFrame, expression: pl.Expr) -> pl.Series:
    import polars as pl

    try:
        result = frame.select(expression)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise InvalidArgumentError(f"Polars cannot evaluate {expression}: {error}") from error
    if result.width != 1:
        raise InvalidArgumentError(f"expected one column, but {expression} gives {result.width}")
    return result.to_series()


def step_columns(expression: pl.Expr) -> list[str]:
    """The columns a step expression reads. Raises InvalidArgumentError where it names none."""
    names = column_names(expression)
    if not names:
        raise InvalidArgumentError(
            f"{expression} names no column", hint="name the step columns one by one: pl.col(...)"
        )
    return names


def check_row_wise(frame: pl.DataFrame, expression: pl.Expr, found: npt.NDArray[np.bool_]) -> None:
    """Evaluates some rows by themselves and compares with what was found for them among the others.

    Steps are read in blocks; an expression that looks at other rows (a mean, a shift, a rank) would depend on where
    blocks end. Polars does not say of an expression whether it does, so this is tried out, on rows of both outcomes.

    Raises:
        InvalidArgumentError: a row by itself has another outcome.
    """
    for outcome in (True, False):
        rows = np.flatnonzero(found == outcome)
        for row in rows[:: -(-len(rows) // _PROBES) or 1].tolist():
            alone = true_rows(frame.slice(row, 1), expression)
            if alone[0] != outcome:
                raise InvalidArgumentError(
                    f"{expression} looks at more than one step at a time",
                    hint="compare with a number worked out before, such as ds.statistics['rewards'].mean",
                )


def step_frame(columns: Mapping[str, Any]) -> pl.DataFrame:
    """Step columns as a frame: NumPy arrays [steps, *shape], scalars as they are, others as `polars.Array` of that
    shape; and Arrow arrays of text or bytes.

    Raises:
        UnsupportedColumnError: a column that Polars cannot hold.
    """
    import polars as pl

    series = []
    for name, values in columns.items():
        try:
            shape = values.shape if isinstance(values, np.ndarray) else ()
            flat = pl.Series(name, values.reshape(-1) if len(shape) > 1 else values)
            series.append(flat.reshape(shape) if len(shape) > 1 else flat)
        except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
            raise UnsupportedColumnError(f"cannot be filtered by: {error}", column=name) from error
    return pl.DataFrame(series)


def nothing_holds(frame: pl.DataFrame, expression: pl.Expr, what: str) -> EmptySourceError:
    """The error for a filter that leaves nothing: with the range of the columns it looks at."""
    return nothing_found(expression, what, {name: _range(frame[name]) for name in column_names(expression)})


def nothing_found(expression: pl.Expr, what: str, ranges: dict[str, str]) -> EmptySourceError:
    """The same, with the ranges of the columns given: column -> text."""
    known = "; ".join(f"{name} is {text}" for name, text in ranges.items())
    return EmptySourceError(f"no {what} satisfies {expression}", hint=known or None)


def _range(values: pl.Series) -> str:
    import polars as pl

    known = values.drop_nulls()
    if not len(known):
        return "null"
    if values.dtype.is_nested() or values.dtype in (pl.Binary, pl.Object):
        return str(values.dtype)
    if not values.dtype.is_numeric():
        known = known.cast(pl.String)
    return f"{known.min()!r} to {known.max()!r}"
