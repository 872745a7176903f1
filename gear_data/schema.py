"""What columns a dataset has: names, dtypes, shapes, roles."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from gear_data.errors import ManifestError, UnsupportedColumnError, unknown_name

#: dtypes of columns whose steps all take the same bytes. `bool` is stored as uint8 0/1: Arrow packs booleans into
#: bits, and bits cannot be gathered by copying bytes.
DTYPES = (
    "bool",
    "uint8", "uint16", "uint32", "uint64",
    "int8", "int16", "int32", "int64",
    "float16", "float32", "float64",
)  # fmt: skip

#: dtypes of columns of one value of any length a step: text, and bytes such as an encoded image.
VARIABLE_TYPES = {"string": pa.large_string(), "binary": pa.large_binary()}


class Role(enum.StrEnum):
    """What a column is for. Follows from its name (`role_of`)."""

    OBSERVATION = "observation"
    ACTION = "action"
    REWARD = "reward"
    TERMINATED = "terminated"
    TRUNCATED = "truncated"
    RETURN_TO_GO = "return_to_go"
    INFO = "info"
    EXTRA = "extra"


_ROLES = {
    "observations": Role.OBSERVATION,
    "actions": Role.ACTION,
    "rewards": Role.REWARD,
    "terminated": Role.TERMINATED,
    "truncated": Role.TRUNCATED,
    "returns_to_go": Role.RETURN_TO_GO,
    "infos": Role.INFO,
}


def role_of(name: str) -> Role:
    """The role of a column by its canonical name; `observations.image` is an observation."""
    return _ROLES.get(name.split(".", 1)[0], Role.EXTRA)


@dataclass(frozen=True)
class ColumnSpec:
    """One step column.

    Attributes:
        name: canonical name, such as `observations` or `infos.qpos`.
        dtype: NumPy name of the element type, one of `DTYPES`; or, of a column of variable length, one of
            `VARIABLE_TYPES`.
        shape: shape of one step; `()` for a scalar and for a column of variable length.
        derived: computed at conversion (return-to-go); left out of exports and of the fingerprint.
        source: the name the column had in the source, if it was another.
        has_final: the column belongs to the final observation kept after the last step.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    derived: bool = False
    source: str | None = None
    has_final: bool = False

    @property
    def role(self) -> Role:
        return role_of(self.name)

    @property
    def variable_length(self) -> bool:
        """Whether steps differ in bytes: text and encoded bytes. Stored as values and their offsets."""
        return self.dtype in VARIABLE_TYPES

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype users see: `object` for a column of variable length, whose values are str or bytes."""
        return np.dtype(object) if self.variable_length else np.dtype(self.dtype)

    @property
    def storage_dtype(self) -> np.dtype[Any]:
        """The dtype in the shard: as `numpy_dtype`, with uint8 for bool.

        Raises UnsupportedColumnError for a column of variable length, which has none; so does `row_bytes`.
        """
        if self.variable_length:
            raise UnsupportedColumnError(
                f"holds {self.dtype} values of variable length, where rows of a fixed size are needed",
                column=self.name,
                hint="leave the column out",
            )
        return np.dtype("uint8") if self.dtype == "bool" else np.dtype(self.dtype)

    @property
    def size(self) -> int:
        """Elements of one step."""
        return math.prod(self.shape)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one step."""
        return self.size * self.storage_dtype.itemsize

    @property
    def arrow_type(self) -> pa.DataType:
        """Primitive for a scalar, else one flat `FixedSizeList` (the shape is in the field's metadata); `large_string`
        or `large_binary` for a column of variable length."""
        if self.variable_length:
            return VARIABLE_TYPES[self.dtype]
        value = pa.from_numpy_dtype(self.storage_dtype)
        return pa.list_(pa.field("item", value, nullable=False), self.size) if self.shape else value

    @property
    def arrow_field(self) -> pa.Field:
        shape = ",".join(str(n) for n in self.shape)
        metadata = {"gear.dtype": self.dtype, "gear.shape": shape, "gear.role": self.role.value}
        return pa.field(self.name, self.arrow_type, nullable=False, metadata=metadata)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "role": self.role.value,
            "derived": self.derived,
            "source": self.source,
            "has_final": self.has_final,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ColumnSpec:
        """Raises ManifestError for a dtype or shape that no column can have."""
        shape, variable = tuple(data["shape"]), data["dtype"] in VARIABLE_TYPES
        known = data["dtype"] in DTYPES and all(type(n) is int and n > 0 for n in shape)
        if not known and not (variable and shape == () and not data["has_final"]):
            raise ManifestError(
                f"no column can have dtype {data['dtype']!r} and shape {shape!r}", column=str(data.get("name"))
            )
        return ColumnSpec(
            name=str(data["name"]),
            dtype=data["dtype"],
            shape=shape,
            derived=bool(data["derived"]),
            source=data["source"],
            has_final=bool(data["has_final"]),
        )


@dataclass(frozen=True)
class Schema:
    """The step columns of a dataset, in order."""

    columns: tuple[ColumnSpec, ...]

    def __iter__(self) -> Iterator[ColumnSpec]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __contains__(self, name: object) -> bool:
        return any(column.name == name for column in self.columns)

    def __getitem__(self, name: str) -> ColumnSpec:
        """Raises UnknownNameError, which lists the known columns."""
        return self.columns[self.index(name)]

    def index(self, name: str) -> int:
        """Position of a column. Raises UnknownNameError."""
        for i, column in enumerate(self.columns):
            if column.name == name:
                return i
        raise unknown_name("column", name, self.names)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def step_bytes(self) -> int:
        """Bytes of one step over all columns of a fixed size."""
        return sum(column.row_bytes for column in self.fixed_columns)

    @property
    def fixed_columns(self) -> tuple[ColumnSpec, ...]:
        """The columns whose steps all take the same bytes."""
        return tuple(column for column in self.columns if not column.variable_length)

    @property
    def variable_columns(self) -> tuple[ColumnSpec, ...]:
        """The columns of text and of encoded bytes."""
        return tuple(column for column in self.columns if column.variable_length)

    @property
    def source_columns(self) -> tuple[ColumnSpec, ...]:
        """The columns that came from the source: all but the derived ones."""
        return tuple(column for column in self.columns if not column.derived)

    @property
    def final_columns(self) -> tuple[ColumnSpec, ...]:
        return tuple(column for column in self.columns if column.has_final)

    def to_arrow(self) -> pa.Schema:
        return pa.schema([column.arrow_field for column in self.columns])

    def to_json(self) -> list[dict[str, Any]]:
        return [column.to_json() for column in self.columns]

    @staticmethod
    def from_json(data: list[dict[str, Any]]) -> Schema:
        return Schema(tuple(ColumnSpec.from_json(item) for item in data))
