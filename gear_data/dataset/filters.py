"""Filters and weights: Polars expressions over the rows of a table.

Why: docs/explanation/decisions/expressions.md
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gear_data.dataset.polars_threads import check_polars_threads
from gear_data.error_text import shown
from gear_data.errors import EmptySourceError, InvalidArgumentError, UnsupportedColumnError, unknown_name
from gear_data.kernels.cuda import cudf

if TYPE_CHECKING:
    import polars as pl

#: A text or a name in quotes; or else the function `quantile`, which Polars' SQL has by the name `quantile_cont`.
_QUANTILE = re.compile(r"""('[^']*'|"[^"]*")|\bquantile(?=\s*\()""", re.IGNORECASE)
#: Largest number of rows that `check_row_wise` evaluates a second time: of a block, for each of true and false.
_PROBES = 8


def parse(expression: pl.Expr | str, names: Sequence[str]) -> pl.Expr:
    """Returns an expression over columns of the given names.

    Args:
        expression: a Polars expression, the name of a column, or SQL text (`polars.sql_expr`), which also has
            `quantile(x, p)`: the quantile with linear interpolation.
        names: the known columns.

    Raises:
        UnknownNameError: a column does not exist. The error lists the known columns.
        InvalidArgumentError: the argument is neither an expression nor text, or the SQL is invalid.
        ForkedProcessError: Polars cannot evaluate expressions here; see `check_polars_threads`.
    """
    check_polars_threads()
    import polars as pl

    if isinstance(expression, str):
        expression = pl.col(expression) if expression in names else _from_sql(expression)
    elif not isinstance(expression, pl.Expr):
        raise InvalidArgumentError(
            f"expected a Polars expression or SQL text, not {shown(expression)}", hint="such as 'return > 100'"
        )
    for name in column_names(expression):
        if name not in names:
            raise unknown_name("column", name, names)
    return expression


def _from_sql(text: str) -> pl.Expr:
    import polars as pl

    try:
        return pl.sql_expr(_QUANTILE.sub(lambda found: found[1] or "quantile_cont", text))
    except pl.exceptions.PolarsError as error:
        reason, hint = str(error), "put names with dots or spaces in double quotes"
        if "QUANTILE" in reason:
            reason = reason.replace("QUANTILE_CONT", "quantile")
            hint = "give values and a number from 0 to 1, such as quantile(return, 0.2)"
        raise InvalidArgumentError(f"{text!r} is not a valid SQL expression: {reason}", hint=hint) from error


def column_names(expression: pl.Expr) -> list[str]:
    """Returns the columns that an expression names, without repeats.

    Returns no names if the expression selects columns by pattern or type.
    """
    import polars as pl

    try:
        names = expression.meta.root_names()
    except pl.exceptions.PolarsError:
        return []
    # Before Polars 2, a pattern is a name between ^ and $, or a star.
    return [name for name in dict.fromkeys(names) if name != "*" and not name.startswith("^")]


def read_columns(expression: pl.Expr, names: Sequence[str]) -> Sequence[str]:
    """Returns the columns that an expression may read, of those with the given names.

    They are all columns, if the expression names none, or selects some by pattern or type.
    """
    return names if expression.meta.has_multiple_outputs() else column_names(expression) or names


def with_plain_text(frame: pl.DataFrame, expression: pl.Expr) -> pl.DataFrame:
    """Returns the frame with an expression's dictionary columns as strings.

    Text functions of Polars need strings.
    """
    import polars as pl

    encoded = [name for name in column_names(expression) if frame.schema[name] == pl.Categorical]
    return frame.with_columns(pl.col(encoded).cast(pl.String)) if encoded else frame


def true_rows(frame: pl.DataFrame, expression: pl.Expr) -> npt.NDArray[np.bool_]:
    """Returns the rows for which a Boolean expression is true, bool [rows].

    Null counts as false. cuDF evaluates the expression if it is installed, a GPU is present and the expression is
    supported. Otherwise Polars evaluates it on the CPU.

    Raises:
        InvalidArgumentError: the values are not Boolean or not one per row, or Polars cannot evaluate the expression.
    """
    import polars as pl

    values = cudf.true_values(frame, expression, column_names(expression))
    if values is None:
        values = evaluate(frame, expression)
    if values.dtype != pl.Boolean:
        raise InvalidArgumentError(
            f"a filter must be true or false, but {expression} is {values.dtype}",
            hint="compare it with a value, such as 'return > 100'",
        )
    if len(values) != len(frame):
        raise InvalidArgumentError(
            f"a filter must give a value for every row, but {expression} gives {len(values):,} for {len(frame):,}"
        )
    return values.fill_null(False).to_numpy()


def row_values(frame: pl.DataFrame, expression: pl.Expr, purpose: str) -> npt.NDArray[np.float64]:
    """Returns the values of a numeric or Boolean expression, float64 [rows].

    Null becomes NaN, and true becomes 1. A single value is repeated.

    Args:
        frame: the rows.
        expression: expression over the columns of `frame`.
        purpose: name of the values in error messages, such as "weights".

    Raises:
        InvalidArgumentError: the values are not numeric or have another length, or Polars cannot evaluate the
            expression.
    """
    import polars as pl

    values = evaluate(frame, expression)
    if not (values.dtype.is_numeric() or values.dtype == pl.Boolean):
        raise InvalidArgumentError(f"{purpose} must be numbers, but {expression} is {values.dtype}")
    if len(values) not in (1, len(frame)):
        raise InvalidArgumentError(
            f"{purpose} must be one value per row, but {expression} gives {len(values):,} for {len(frame):,}"
        )
    numbers = values.cast(pl.Float64).fill_null(np.nan).to_numpy()
    return np.array(np.broadcast_to(numbers, len(frame)))


def evaluate(frame: pl.DataFrame, expression: pl.Expr) -> pl.Series:
    """Returns the values of an expression over the columns of a frame.

    Raises InvalidArgumentError if Polars cannot evaluate it, or if it gives several columns.
    """
    import polars as pl

    try:
        result = frame.select(expression)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise InvalidArgumentError(f"Polars cannot evaluate {expression}: {error}") from error
    if result.width != 1:
        raise InvalidArgumentError(
            f"expected one column, but {expression} gives {result.width}", hint="name one column, or combine them"
        )
    return result.to_series()


def step_columns(expression: pl.Expr) -> list[str]:
    """Returns the columns that a step expression reads.

    Raises InvalidArgumentError if the expression names no column.
    """
    names = column_names(expression)
    if not names:
        raise InvalidArgumentError(f"{expression} names no column", hint="name each step column: pl.col('rewards') > 0")
    return names


def check_row_wise(frame: pl.DataFrame, expression: pl.Expr, found: npt.NDArray[np.bool_]) -> None:
    """Checks that each value of an expression depends only on its own row.

    Evaluates some rows a second time, one at a time.

    Steps are read in blocks. The value of an expression over several rows, such as a mean, a shift or a rank, would
    depend on the block boundaries. Polars does not report whether an expression reads several rows. Therefore some rows
    where the expression is true and some where it is false are tried.

    Args:
        frame: a block of steps.
        expression: expression over the columns of `frame`.
        found: bool [rows], the expression's values over the block.

    Raises:
        InvalidArgumentError: a row evaluated separately has another value.
    """
    for outcome in (True, False):
        rows = np.flatnonzero(found == outcome)
        for row in rows[:: -(-len(rows) // _PROBES) or 1].tolist():
            if true_rows(frame.slice(row, 1), expression)[0] != outcome:
                raise InvalidArgumentError(
                    f"{expression} depends on more than one step",
                    hint="compare with a number that you computed before, such as ds.quantiles('rewards', [0.2])[0, 0]",
                )


def step_frame(columns: Mapping[str, Any]) -> pl.DataFrame:
    """Returns step columns as a frame.

    Args:
        columns: NumPy arrays [steps, *shape], which become `polars.Array` columns unless scalar; or Arrow arrays of
            text or bytes.

    Raises:
        UnsupportedColumnError: Polars cannot hold a column.
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


def no_rows_error(frame: pl.DataFrame, expression: pl.Expr, row_name: str) -> EmptySourceError:
    """Returns the error for a filter that no row satisfies.

    The hint has the range of each column that the expression names.

    Args:
        frame: the rows, none of which satisfies the expression.
        expression: the filter.
        row_name: name of a row in the message, such as "episode".
    """
    return empty_filter_error(expression, row_name, {name: _range(frame[name]) for name in column_names(expression)})


def empty_filter_error(expression: pl.Expr, row_name: str, ranges: dict[str, str]) -> EmptySourceError:
    """Returns the error of `no_rows_error` with given ranges, column -> text."""
    hint = "; ".join(f"{name} is {text}" for name, text in ranges.items())
    return EmptySourceError(f"no {row_name} satisfies {expression}", hint=hint or None)


def _range(values: pl.Series) -> str:
    import polars as pl

    present = values.drop_nulls()
    if not len(present):
        return "null"
    if values.dtype.is_nested() or values.dtype in (pl.Binary, pl.Object):
        return str(values.dtype)
    if not values.dtype.is_numeric():
        present = present.cast(pl.String)
    return f"{present.min()!r} to {present.max()!r}"
