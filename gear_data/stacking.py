"""Several columns as one: scalars and vectors, side by side in one vector.

`convert(..., stack={"observations": ["s_pos", "s_vel"]})` stores such a column, and `SequenceLoader(..., stack=...)`
makes it in batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError, UnsupportedColumnError, unknown_name
from gear_data.schema import ColumnSpec

#: Columns with one meaning and one value a step, which are no parts of another column.
_ALONE = frozenset({"rewards", "dones", "terminated", "truncated", "returns_to_go"})
#: Name of the stacked column -> names of its parts, in order.
Stack = Mapping[str, Sequence[str]]


def check_stack(stack: Any) -> dict[str, tuple[str, ...]]:
    """Checks the argument `stack` and returns it.

    Raises:
        InvalidArgumentError: it is no mapping of names to lists of names, or a part is given twice.
    """
    if stack is None:
        return {}
    if not isinstance(stack, Mapping):
        raise InvalidArgumentError(f"stack must map a column to a list of columns, not be {stack!r}")
    seen: set[str] = set()
    for name, parts in stack.items():
        is_list = isinstance(parts, list | tuple) and bool(parts) and all(isinstance(part, str) for part in parts)
        if not isinstance(name, str) or not name or not is_list:
            raise InvalidArgumentError(
                f"stack must map a column to a list of columns, and {name!r} is mapped to {parts!r}",
                hint="such as stack={'observations': ['position', 'velocity']}",
            )
        twice = next((part for i, part in enumerate(parts) if part in seen or part in parts[:i]), None)
        if twice is not None:
            raise InvalidArgumentError(f"the stack uses the column '{twice}' twice", column=twice, hint="give it once")
        seen.update(parts)
    return {name: tuple(parts) for name, parts in stack.items()}


def resolve_stack(
    columns: Sequence[ColumnSpec], stack: Mapping[str, Sequence[str]]
) -> dict[str, tuple[ColumnSpec, ...]]:
    """Returns new column -> its parts.

    Args:
        columns: the columns of a source or a dataset.
        stack: name of a new column -> names of its parts, which may be the names in the source.

    Raises:
        UnknownNameError: a part is no column.
        InvalidArgumentError: a part is a reward or an end flag, or another column has the new name.
    """
    known = {spec.name: spec for spec in columns}
    by_source = {spec.source: spec.name for spec in columns if spec.source is not None}
    parts: dict[str, tuple[ColumnSpec, ...]] = {}
    for name, given in stack.items():
        names = [part if part in known else by_source.get(part, part) for part in given]
        for part in names:
            if part not in known:
                raise unknown_name("column", part, known)
        for each in (name, *names):
            if each in _ALONE:
                raise InvalidArgumentError(
                    f"'{each}' cannot be part of a stack, nor the name of one",
                    column=each,
                    hint="leave it out of stack",
                )
        parts[name] = tuple(known[part] for part in names)
    used = {spec.name for specs in parts.values() for spec in specs}
    taken = next((name for name in parts if name in known and name not in used), None)
    if taken is not None:
        raise InvalidArgumentError(
            f"there is a column '{taken}' already",
            column=taken,
            hint="make it a part of the stack, or give the stack another name",
        )
    return parts


def stacked_columns(columns: Sequence[ColumnSpec], parts: Mapping[str, Sequence[ColumnSpec]]) -> tuple[ColumnSpec, ...]:
    """Returns the columns in which each stack stands in the place of its first part.

    Raises UnsupportedColumnError, as `stacked_column` does.
    """
    stacked = {name: stacked_column(name, specs) for name, specs in parts.items()}
    owner = {spec.name: name for name, specs in parts.items() for spec in specs}
    return tuple(dict.fromkeys(stacked[owner[spec.name]] if spec.name in owner else spec for spec in columns))


def stacked_column(name: str, parts: Sequence[ColumnSpec]) -> ColumnSpec:
    """Returns the column that the parts make: a vector with the elements of all parts.

    Its dtype is the one to which NumPy promotes the dtypes of the parts: float32 with float64, and float32 with int64,
    is float64. The column has a final observation if all parts have one.

    Raises:
        UnsupportedColumnError: a part is text or bytes.
    """
    for part in parts:
        if part.variable_length:
            raise UnsupportedColumnError(
                f"holds {part.dtype}, and only numbers can be stacked into '{name}'",
                column=part.source or part.name,
                hint="leave it out of stack",
            )
    dtype = np.result_type(*(part.numpy_dtype for part in parts)).name
    return ColumnSpec(
        name,
        dtype,
        (sum(part.size for part in parts),),
        has_final=all(part.has_final for part in parts),
        element_names=tuple(each for part in parts for each in part.element_names)
        if all(part.element_names for part in parts)
        else (),
    )


def stack_values(column: ColumnSpec, parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Returns the values of a stacked column, [n, elements].

    Args:
        column: the column of `stacked_column`.
        parts: the values of its parts, [n, ...] each.

    Raises:
        UnsupportedColumnError: a whole number is too large for the column's dtype.
    """
    values = np.empty((len(parts[0]), *column.shape), column.numpy_dtype)
    first = 0
    for part in parts:
        flat = part.reshape(len(part), -1)
        last = first + flat.shape[1]
        values[:, first:last] = flat
        if part.dtype.kind in "iu" and part.dtype.itemsize == 8 and values.dtype.kind == "f":
            limit = 1 << 53
            if len(flat) and (int(flat.max()) > limit or int(flat.min()) < -limit):
                raise UnsupportedColumnError(
                    f"has whole numbers above 2^53, which {column.dtype} cannot hold", column=column.name
                )
        first = last
    return values
