"""Several columns as one: scalars and vectors, side by side in one vector.

`convert(..., stack={"observations": ["s_pos", "s_vel"]})` stores such a column, and `SequenceLoader(..., stack=...)`
makes it in batches. There a part may be some elements of a column, with another sign or range.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError, UnsupportedColumnError, unknown_name
from gear_data.schema import ColumnSpec

#: Columns with one meaning and one value a step, which are no parts of another column.
ALONE = frozenset({"rewards", "dones", "terminated", "truncated", "returns_to_go"})
#: Name of the stacked column -> names of its parts, in order.
Stack = Mapping[str, Sequence[str]]
#: The same in batches, where a part may be a mapping with the keys `_PART_KEYS`.
PartsOfStack = Mapping[str, Sequence[str | Mapping[str, Any]]]
_PART_KEYS = ("column", "elements", "scale", "offset")


@dataclass(frozen=True)
class ColumnPart(ColumnSpec):
    """Some elements of a column, as scale * value + offset. `shape` has their number.

    Attributes:
        first: the first element.
        whole: elements of a step of the column.
        scale, offset: see above.
    """

    first: int = 0
    whole: int = 1
    scale: float = 1.0
    offset: float = 0.0

    @property
    def is_changed(self) -> bool:
        """Whether the values are not the column's own."""
        return self.scale != 1 or self.offset != 0

    def to_json(self) -> dict[str, Any]:
        """Returns the mapping that `check_stack` takes."""
        elements = [self.first, self.first + self.size]
        return {"column": self.name, "elements": elements, "scale": self.scale, "offset": self.offset}


def check_parts(stack: Any) -> dict[str, tuple[str | dict[str, Any], ...]]:
    """Checks the argument `stack` of batches and returns it.

    Raises:
        InvalidArgumentError: as `check_stack`; a mapping of a part is of another form; or two parts have one element.
        UnknownNameError: a mapping of a part has another key.
    """
    if not isinstance(stack, Mapping) or not any(
        isinstance(part, Mapping) for parts in stack.values() if isinstance(parts, list | tuple) for part in parts
    ):
        return dict(check_stack(stack))
    checked = {
        name: tuple(_checked_part(part) if isinstance(part, Mapping) else part for part in parts)
        if isinstance(parts, list | tuple)
        else parts
        for name, parts in stack.items()
    }
    taken: dict[str, list[range | None]] = {}
    for name, parts in checked.items():
        # Refuses another form.
        check_stack({name: [f"{number}" if isinstance(part, dict) else part for number, part in enumerate(parts)]})
        for part in parts:
            column, elements = (part["column"], part.get("elements")) if isinstance(part, dict) else (part, None)
            mine = None if elements is None else range(*elements)
            for other in taken.setdefault(column, []):
                if mine is None or other is None or max(mine[0], other[0]) <= min(mine[-1], other[-1]):
                    raise InvalidArgumentError(
                        f"the stack uses the column '{column}' twice", column=column, hint="give each element once"
                    )
            taken[column].append(mine)
    return checked


def _checked_part(part: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the mapping of a part, of Python's lists and numbers."""
    example = "such as {'column': 'actions', 'elements': (6, 7), 'scale': -1, 'offset': 1}"
    for key in part:
        if key not in _PART_KEYS:
            raise unknown_name("key of a part", key, _PART_KEYS)
    column, elements = part.get("column"), part.get("elements")
    if not isinstance(column, str) or not column:
        raise InvalidArgumentError(f"a part of a stack has the column {column!r}", hint=example)
    checked: dict[str, Any] = {"column": column}
    if elements is not None:
        is_pair = isinstance(elements, list | tuple) and len(elements) == 2
        if not is_pair or not all(isinstance(each, int) and not isinstance(each, bool) for each in elements):
            raise InvalidArgumentError(f"a part takes the elements {elements!r}", column=column, hint=example)
        if not 0 <= elements[0] < elements[1]:
            raise InvalidArgumentError(
                f"a part takes the elements [{elements[0]}, {elements[1]}), which are none", column=column, hint=example
            )
        checked["elements"] = list(elements)
    for name in ("scale", "offset"):
        value = part.get(name)
        if value is None:
            continue
        is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or (name == "scale" and value == 0):
            raise InvalidArgumentError(f"a part has the {name} {value!r}", column=column, hint=example)
        checked[name] = float(value)
    return checked


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


def resolve_stack(columns: Sequence[ColumnSpec], stack: PartsOfStack) -> dict[str, tuple[ColumnSpec, ...]]:
    """Returns new column -> its parts.

    Args:
        columns: the columns of a source or a dataset.
        stack: name of a new column -> names of its parts, which may be the names in the source; or see `check_parts`.

    Raises:
        UnknownNameError: a part is no column.
        InvalidArgumentError: a part is a reward or an end flag, or has elements that its column lacks; or another
            column has the new name.
        UnsupportedColumnError: a part of integers has a scale or an offset.
    """
    known = {spec.name: spec for spec in columns}
    by_source = {spec.source: spec.name for spec in columns if spec.source is not None}
    parts: dict[str, tuple[ColumnSpec, ...]] = {}
    for name, given in stack.items():
        names = [each if isinstance(each, str) else each["column"] for each in given]
        names = [each if each in known else by_source.get(each, each) for each in names]
        for part in names:
            if part not in known:
                raise unknown_name("column", part, known)
        for each in (name, *names):
            if each in ALONE:
                raise InvalidArgumentError(
                    f"'{each}' cannot be part of a stack, nor the name of one",
                    column=each,
                    hint="leave it out of stack",
                )
        parts[name] = tuple(
            known[part] if isinstance(each, str) else _part(known[part], each)
            for part, each in zip(names, given, strict=True)
        )
    used = {spec.name for specs in parts.values() for spec in specs}
    taken = next((name for name in parts if name in known and name not in used), None)
    if taken is not None:
        raise InvalidArgumentError(
            f"there is a column '{taken}' already",
            column=taken,
            hint="make it a part of the stack, or give the stack another name",
        )
    return parts


def _part(column: ColumnSpec, given: Mapping[str, Any]) -> ColumnSpec:
    """Returns the part of a column that a mapping describes."""
    if column.variable_length:
        return column  # `stacked_column` refuses it
    first, last = given.get("elements", (0, column.size))
    if last > column.size:
        raise InvalidArgumentError(
            f"the stack takes the elements [{first}, {last}), and a step has {column.size}",
            column=column.name,
            hint=f"the elements are 0 to {column.size - 1}, and the second number is not included",
        )
    own: dict[str, Any] = {each.name: getattr(column, each.name) for each in dataclasses.fields(column)}
    own |= {"shape": (last - first,), "element_names": column.element_names[first:last]}
    numbers = {name: given[name] for name in ("scale", "offset") if name in given}
    part = ColumnPart(**own, first=first, whole=column.size, **numbers)
    if part.is_changed and column.numpy_dtype.kind != "f":
        raise UnsupportedColumnError(
            f"holds {column.dtype}, and a scale or an offset needs floats", column=column.name,
            hint=f"leave them out of the stack, or convert with --dtype {shlex.quote(column.name)}=float32",
        )  # fmt: skip
    return part


def stacked_columns(columns: Sequence[ColumnSpec], parts: Mapping[str, Sequence[ColumnSpec]]) -> tuple[ColumnSpec, ...]:
    """Returns the columns in which each stack stands in the place of its first part.

    Raises UnsupportedColumnError, as `stacked_column` does.
    """
    stacked = {name: stacked_column(name, specs) for name, specs in parts.items()}
    owners: dict[str, list[ColumnSpec]] = {}
    for name, specs in parts.items():
        for spec in specs:
            owners.setdefault(spec.name, []).append(stacked[name])
    return tuple(dict.fromkeys(each for spec in columns for each in owners.get(spec.name, [spec])))


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
                column=part.source_name,
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
