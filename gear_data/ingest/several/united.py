"""The columns of several sources or datasets together."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gear_data.errors import UnsupportedColumnError
from gear_data.schema import ColumnSpec, Schema, mask_column

#: The columns of one of several sources, and its name for messages.
NamedColumns = tuple[str, Sequence[ColumnSpec]]


def united_columns(parts: Sequence[NamedColumns]) -> tuple[ColumnSpec, ...]:
    """Returns the columns of all parts, in the order of their first appearance.

    Raises:
        UnsupportedColumnError: a column has two dtypes or shapes, or is computed in only one part, or has the same
            named elements in two orders; or a part has final observations, but not of a column that has them in another
            part.
    """
    columns: dict[str, ColumnSpec] = {}
    owners: dict[str, str] = {}
    for name, part in parts:
        for column in part:
            known = columns.get(column.name)
            if known is None:
                columns[column.name], owners[column.name] = column, name
                continue
            if (known.dtype, known.shape, known.derived) != (column.dtype, column.shape, column.derived):
                hint = "with --rename, so that the names differ, or leave the column out with --columns"
                if known.shape == column.shape and (dtypes := _dtype_options(part, columns)):
                    hint = f"with {dtypes} (tables=TableOptions(dtype=...)), or {hint}"
                raise UnsupportedColumnError(
                    f"is {_described(column)} here, but {_described(known)} in {owners[column.name]}",
                    file=name,
                    column=column.name,
                    hint=f"nothing is cast: convert one of them again {hint}",
                )
            if column.reorders(known):
                raise UnsupportedColumnError(
                    f"has the elements {', '.join(column.element_names)} here, and the same elements in another order "
                    f"in {owners[column.name]}",
                    file=name,
                    column=column.name,
                    hint="convert one of them again with --rename, so that the names of the columns differ, or leave "
                    "the column out with --columns",
                )
            columns[column.name] = replace(
                known,
                element_names=known.element_names if known.element_names == column.element_names else (),
                source=known.source if known.source == column.source else None,
                has_final=known.has_final or column.has_final,
            )
    for name, part in parts:
        _check_finals(name, part, columns, parts)
    return tuple(columns.values())


def _dtype_options(part: Sequence[ColumnSpec], columns: Mapping[str, ColumnSpec]) -> str:
    """Returns the options that give all columns of numbers of a part the dtypes of the others; "" if none differs."""
    pairs = [(column, columns[column.name]) for column in part if column.name in columns and not column.derived]
    return " ".join(
        f"--dtype {shlex.quote(column.source_name)}={known.dtype}"
        for column, known in pairs
        if column.dtype != known.dtype
        and column.shape == known.shape
        and not {column.dtype, known.dtype} & {"bool", "string", "binary"}
    )


def _check_finals(
    name: str, part: Sequence[ColumnSpec], columns: dict[str, ColumnSpec], parts: Sequence[NamedColumns]
) -> None:
    """Checks that a part with final observations has all that other parts have."""
    if not any(column.has_final for column in part):
        return
    for column in part:
        if columns[column.name].has_final and not column.has_final:
            other = next(other for other, specs in parts if any(c.name == column.name and c.has_final for c in specs))
            raise UnsupportedColumnError(
                f"has no final observations here, where other columns have them, but has them in {other}",
                file=name,
                column=column.name,
                hint="convert one of them again without the column, or under another name (--rename)",
            )


def _described(column: ColumnSpec) -> str:
    computed = ", computed at conversion" if column.derived else ""
    return f"{column.dtype} {list(column.shape)}{computed}"


def with_masks(parts: Sequence[NamedColumns]) -> list[NamedColumns]:
    """Adds to each part the masks of columns that another part lacks.

    A part has the mask of each such column that the part has. In parts without the column, the mask is missing too.
    """
    names: list[set[str]] = [{column.name for column in columns} for _, columns in parts]
    known = Schema(tuple({column.name: column for _, columns in parts for column in columns}.values()))
    masks = {name for column in known if (name := known.mask_of(column.name)) is not None}
    missing = {column.name for column in known if not all(column.name in own for own in names)} - masks
    result: list[NamedColumns] = []
    for part, columns in parts:
        own = {column.name for column in columns}
        added = [mask_column(column.name) for column in columns if column.name in missing]
        result.append((part, (*columns, *(mask for mask in added if mask.name not in own))))
    return result
