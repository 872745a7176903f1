"""Tables with one wrong column: what damage leaves behind that was signed again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

_EXTREMES = (-1, 0, 1, 1 << 20, (1 << 31) - 1, (1 << 63) - 1, -(1 << 63))


def changed_tables(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yields (what was changed, table): each column in turn is dropped, doubled, renamed, retyped, or has other values.

    The table has at least two rows.
    """
    for index, field in enumerate(table.schema):
        name, column = field.name, table.column(index)
        yield f"{name} is dropped", table.remove_column(index)
        yield f"{name} is doubled", table.append_column(name, column)
        yield (
            f"{name} is renamed",
            table.rename_columns([*table.column_names[:index], "?", *table.column_names[index + 1 :]]),
        )
        yield f"{name} is text", table.set_column(index, name, pa.array(list(map(str, column.to_pylist()))))
        yield f"{name} is null", table.set_column(index, name, pa.nulls(len(table), field.type))
        lists = pa.ListArray.from_arrays(np.arange(len(table) + 1, dtype=np.int32), column.combine_chunks())
        yield f"{name} is a list", table.set_column(index, name, lists)
        yield f"{name} is reversed", table.set_column(index, field, column.take(list(reversed(range(len(table))))))
        if not pa.types.is_integer(field.type):
            continue
        for value in _EXTREMES:
            try:
                item = pa.array([value], field.type)
            except (OverflowError, pa.ArrowInvalid):
                continue
            values = pa.chunked_array([*column.slice(0, 1).chunks, item, *column.slice(2).chunks], field.type)
            yield f"the second {name} is {value}", table.set_column(index, field, values)
    yield "rows are reversed", table.take(list(reversed(range(len(table)))))
    yield "the last row is missing", table.slice(0, len(table) - 1)
    yield "the first row is repeated", pa.concat_tables([table, table.slice(0, 1)])
    yield "no row is left", table.slice(0, 0)
