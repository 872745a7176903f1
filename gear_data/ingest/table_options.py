"""TableOptions: how the values of tables and trees are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gear_data.common.keywords import suggest_fields
from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.schema import DTYPES


@suggest_fields
@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How the values of tables are read.

    `convert(tables=...)` and `lint(tables=...)` take it.

    Attributes:
        dtype: column -> dtype of its numbers: `{"actions": "float64"}`. Names are the source's or canonical. NumPy
            files, and HDF5 and Zarr trees have this option, too.
        fill_null: column -> the number in place of nulls: `{"force": float("nan")}`.
        header: whether the first line of CSV files has the names of the columns. Without names, the columns are "0",
            "1", ... None expects names, and refuses a first line of numbers only.

    Raises:
        InvalidArgumentError: a value has the wrong type.
        UnknownNameError: there is no such dtype.
    """

    dtype: Mapping[str, str] = field(default_factory=dict)
    fill_null: Mapping[str, float | str] = field(default_factory=dict)
    header: bool | None = None

    def __post_init__(self) -> None:
        dtypes, fills = _checked("dtype", self.dtype), _checked("fill_null", self.fill_null)
        for name in dtypes.values():
            if name not in DTYPES:
                raise unknown_name("dtype", str(name), DTYPES)
        object.__setattr__(self, "dtype", dtypes)
        # Texts: JSON has no NaN, and NaN does not equal itself.
        object.__setattr__(self, "fill_null", {name: _number_text(name, value) for name, value in fills.items()})
        if not isinstance(self.header, bool | None):
            raise InvalidArgumentError(f"header must be True, False or None, not {self.header!r}")

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the values that are given."""
        return tuple(each.name for each in fields(self) if getattr(self, each.name) not in ({}, None))


def _checked(name: str, values: Any) -> dict[str, Any]:
    if not isinstance(values, Mapping) or not all(isinstance(column, str) for column in values):
        raise InvalidArgumentError(f"{name} must be a mapping of columns to values, not {values!r}")
    return dict(values)


def _number_text(column: str, value: Any) -> str:
    try:
        float(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"fill_null must be a number, not {value!r}", column=column) from error
    return str(int(value) if isinstance(value, bool) else value)
