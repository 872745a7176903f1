"""Columns of a tree: the column that an array becomes, and its values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import BadEpisodeError, UnsupportedColumnError, unknown_name
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.layout import Column, ColumnRole
from gear_data.ingest.pipeline.columns import SCALAR_COLUMNS, column_spec, leave_out
from gear_data.ingest.pipeline.episode_values import cast_or_refuse
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.tree.view import TreeArray
from gear_data.schema import DTYPES, VARIABLE_TYPES, ColumnSpec

#: Limit for one step. HDF5 has the same one.
_MAX_ROW_BYTES = 1 << 30

Values: TypeAlias = npt.NDArray[Any] | pa.Array


@dataclass(frozen=True)
class TreeColumn:
    """A column, and where the layout says it comes from."""

    spec: ColumnSpec
    mapped: Column

    @property
    def name(self) -> str:
        return self.spec.name


def describe(array: TreeArray, mapped: Column) -> TreeColumn:
    """Returns the column that an array of [rows, ...] becomes.

    Byte strings of one size that are encoded images become `binary`, unless the layout gives another dtype.

    Args:
        array: the array.
        mapped: its entry in the layout.

    Raises:
        UnsupportedColumnError: no column can hold the values, or not as the dtype of the layout.
    """

    def error(message: str, hint: str = leave_out(mapped.path)) -> UnsupportedColumnError:
        return UnsupportedColumnError(message, column=array.path, hint=hint)

    if not array.shape:
        raise error("is a scalar, where one row per step is expected", "give it role: episode in the mapping")
    is_column = mapped.role not in (ColumnRole.ROW, ColumnRole.ROWS) and mapped.name not in SCALAR_COLUMNS
    if is_column and mapped.dtype is None and array.holds_images():
        mapped = replace(mapped, dtype="binary")
    dtype, shape = mapped.dtype or array.dtype, array.shape[1:]
    if dtype == "binary" and array.holds_bytes:
        shape = ()
    elif (dtype in VARIABLE_TYPES) != (array.dtype in VARIABLE_TYPES) or (dtype != array.dtype and not array.kind):
        if mapped.dtype is None or array.dtype not in (*DTYPES, *VARIABLE_TYPES):
            raise error(f"holds {array.dtype}, which is not a number, a boolean or text")
        raise error(f"holds {array.dtype}, which cannot be stored as {dtype}", "change its dtype in the mapping")
    elif dtype not in (*DTYPES, *VARIABLE_TYPES):
        raise error(f"holds {dtype}, which is not a number, a boolean or text")
    if dtype in VARIABLE_TYPES and shape:
        raise error(f"holds {math.prod(shape)} texts or byte strings per step, where one is expected")
    if 0 in shape:
        raise error(f"has steps of shape {shape}, which hold no values")
    if (
        dtype in DTYPES
        and math.prod(shape) * max(np.dtype(dtype).itemsize, np.dtype(array.dtype).itemsize) > _MAX_ROW_BYTES
    ):
        raise error(f"one step has shape {shape}, above the limit of {_MAX_ROW_BYTES} bytes")
    if mapped.fractions and array.kind in ("i", "u"):
        dtype = "float64"
    has_final = mapped.role == ColumnRole.WITH_FINAL or mapped.next is not None
    return TreeColumn(column_spec(mapped.name, dtype, shape, source=mapped.path, has_final=has_final), mapped)


def with_dtypes(columns: Sequence[Column], options: SourceOptions) -> tuple[Column, ...]:
    """Returns columns with the dtypes of `TableOptions.dtype`, by path or name.

    Raises:
        UnknownNameError: no column has the name.
    """
    dtypes = options.tables.dtype
    known = {name for column in columns for name in (column.path, column.name)}
    if unknown := [name for name in dtypes if name not in known]:
        raise unknown_name("column", unknown[0], known)
    return tuple(replace(each, dtype=dtypes.get(each.path) or dtypes.get(each.name) or each.dtype) for each in columns)


def check_matches(array: TreeArray, column: TreeColumn, row: int, model: str) -> None:
    """Checks that an array has the shape and the kind of dtype of a column.

    Args:
        array: the array of one episode.
        column: the column, as in the first episode.
        row: the number of the episode, for errors.
        model: the name of the first episode, for errors.

    Raises:
        BadEpisodeError: the array differs.
    """
    spec = column.spec
    if array.dtype == spec.dtype and array.kind and array.shape[:1] and array.shape[1:] == spec.shape:
        return
    try:
        found = describe(array, column.mapped).spec
    except UnsupportedColumnError as error:
        raise BadEpisodeError(error.message, column=array.path, row=row) from error
    both_numbers = array.kind in ("i", "u", "f") and not spec.variable_length and spec.dtype != "bool"
    if found.shape != spec.shape or (found.dtype != spec.dtype and not both_numbers):
        raise BadEpisodeError(
            f"is {found.dtype} {found.shape}, in {model} {spec.dtype} {spec.shape}", column=array.path, row=row
        )


def read_values(
    array: TreeArray, column: TreeColumn, start: int, stop: int, path: str, file: str, row: int, findings: FindingLog
) -> Values:
    """Reads the rows [start, stop) of an array as the values of a column.

    A dtype of the layout rounds floats. No other number changes.

    Args:
        array: the array.
        column: the column.
        start: the first row.
        stop: the row after the last.
        path: the name of the array, for errors and findings.
        file: the name of the file, for findings.
        row: the number of the episode, for errors.
        findings: receives a finding if the dtype differs from the first episode's.

    Raises:
        BadEpisodeError: a value does not fit the dtype.
    """
    spec = column.spec
    if spec.dtype == "binary" and array.dtype != "binary":
        return pa.array(array.byte_strings(start, stop), VARIABLE_TYPES["binary"])
    values = array.read(start, stop)
    if isinstance(values, pa.Array):
        return values
    values = values.reshape(-1, *spec.shape)
    if values.dtype == spec.numpy_dtype:
        return values
    rounds = column.mapped.dtype is not None
    cast = cast_or_refuse(values, spec.dtype, path, row, rounds=rounds, source=column.mapped.path)
    if not rounds:
        message = f"{array.dtype} in some episodes; the same numbers are kept as {spec.dtype}"
        findings.add(Finding("dtype-differs", message, 1, file, row, path))
    return cast
