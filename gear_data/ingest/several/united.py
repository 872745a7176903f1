"""The columns of several sources or datasets together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gear_data.errors import UnsupportedColumnError
from gear_data.schema import ColumnSpec

#: The columns of one of several sources, and its name for messages.
NamedColumns = tuple[str, Sequence[ColumnSpec]]


def united_columns(parts: Sequence[NamedColumns]) -> tuple[ColumnSpec, ...]:
    """Returns the columns of all parts, in the order of their first appearance.

    Raises:
        UnsupportedColumnError: A column has two dtypes or shapes, or is computed in only one part; or a part has final
            observations, but not of a column that has them in another part.
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
                raise UnsupportedColumnError(
                    f"is {_described(column)} here, but {_described(known)} in {owners[column.name]}",
                    file=name,
                    column=column.name,
                    hint="nothing is cast: convert one of them again with --rename, so that the names differ, or "
                    "leave the column out with --columns",
                )
            columns[column.name] = replace(
                known,
                source=known.source if known.source == column.source else None,
                has_final=known.has_final or column.has_final,
            )
    for name, part in parts:
        _check_finals(name, part, columns, parts)
    return tuple(columns.values())


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


def check_equal_columns(parts: Sequence[NamedColumns]) -> None:
    """Checks that all parts have the same columns.

    Raises:
        UnsupportedColumnError: A column is missing in one part.
    """
    first, columns = parts[0]
    names = [column.name for column in columns]
    for part, specs in parts[1:]:
        own = [column.name for column in specs]
        for name in [*names, *own]:
            if (name in names) is not (name in own):
                place, other = (first, part) if name in own else (part, first)
                raise UnsupportedColumnError(
                    f"is missing here, but {other} has it",
                    file=place,
                    column=name,
                    hint="leave the column out with --columns, which applies to every source",
                )
