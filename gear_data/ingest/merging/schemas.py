"""The columns of several datasets together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gear_data.errors import UnsupportedColumnError
from gear_data.ingest.merging.inputs import MergeInput
from gear_data.schema import ColumnSpec, Schema


def check_equal_columns(inputs: Sequence[MergeInput]) -> None:
    """Checks that all shards have the same columns in the same order.

    Raises:
        UnsupportedColumnError: a column is missing in one dataset, or stands in another place.
    """
    first = inputs[0]
    names = first.manifest.schema.names
    for item in inputs[1:]:
        own = item.manifest.schema.names
        for name in [*names, *own]:
            if (name in names) is not (name in own):
                place, other = (first, item) if name in own else (item, first)
                raise UnsupportedColumnError(
                    f"is missing here, but {other.name} has it",
                    file=place.name,
                    column=name,
                    hint="convert one of them again, with --columns without it",
                )
        if names != own:
            raise UnsupportedColumnError(
                f"the columns stand in the order {', '.join(own)} here, but {', '.join(names)} in {first.name}",
                file=item.name,
                hint="convert one of them again",
            )


def united_schema(inputs: Sequence[MergeInput]) -> Schema:
    """Returns the columns of all datasets, in the order of their first appearance.

    Raises:
        UnsupportedColumnError: a column has two dtypes or shapes, or is computed in only one dataset; or a dataset has
            a column without the final observations that another dataset has.
    """
    columns: dict[str, ColumnSpec] = {}
    owners: dict[str, MergeInput] = {}
    for item in inputs:
        for column in item.manifest.schema:
            known = columns.get(column.name)
            if known is None:
                columns[column.name], owners[column.name] = column, item
                continue
            if (known.dtype, known.shape, known.derived) != (column.dtype, column.shape, column.derived):
                raise UnsupportedColumnError(
                    f"is {_described(column)} here, but {_described(known)} in {owners[column.name].name}",
                    file=item.name,
                    column=column.name,
                    hint="nothing is cast: convert one of them again with --rename, so that the names differ, or "
                    "leave the column out with --columns",
                )
            columns[column.name] = replace(
                known,
                source=known.source if known.source == column.source else None,
                has_final=known.has_final or column.has_final,
            )
    for item in inputs:
        if not (own := item.manifest.schema).final_columns:
            continue
        for column in columns.values():
            if column.has_final and column.name in own and not own[column.name].has_final:
                other = next(
                    other.name
                    for other in inputs
                    if column.name in other.manifest.schema and other.manifest.schema[column.name].has_final
                )
                raise UnsupportedColumnError(
                    f"has no final observations here, where other columns have them, but has them in {other}",
                    file=item.name,
                    column=column.name,
                    hint="convert one of them again without the column, or under another name (--rename)",
                )
    return Schema(tuple(columns.values()))


def _described(column: ColumnSpec) -> str:
    computed = ", computed at conversion" if column.derived else ""
    return f"{column.dtype} {list(column.shape)}{computed}"
