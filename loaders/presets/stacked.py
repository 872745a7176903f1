"""Several columns as one in batches, as if the dataset had been converted so.

A preset sees the stacked column. A kernel fills an array for each part, and the collector joins them. A padded
column has one part, and zeros behind it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gear_data.collection.joined import Joined
from gear_data.collection.output import MASK, Output, Padding, RelativeTo
from gear_data.errors import InvalidArgumentError
from gear_data.schema import ColumnSpec, Schema
from gear_data.stacking import ColumnPart, PartsOfStack, resolve_stack, stacked_columns

#: New column -> its parts.
Parts = Mapping[str, Sequence[ColumnSpec]]


def check_rename(rename: Any) -> dict[str, str]:
    """Returns the option `rename`; raises InvalidArgumentError unless it maps names to other names."""
    names = list(rename.items()) if isinstance(rename, Mapping) else [(None, None)]
    if not all(isinstance(each, str) and each for pair in names for each in pair):
        raise InvalidArgumentError(
            f"rename must map columns to new names, not be {rename!r}", hint="such as {'state': 'observations'}"
        )
    return dict(names)


def renamed_schema(schema: Schema, rename: Mapping[str, str]) -> Schema:
    """Returns the schema with other names of columns and cameras.

    Args:
        schema: the columns of a dataset.
        rename: column -> new name.

    Raises:
        UnknownNameError: no such column.
        InvalidArgumentError: two columns would have one name.
    """
    if not rename:
        return schema
    for name in rename:
        _ = schema[name]
    names = [rename.get(name, name) for name in schema.names]
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise InvalidArgumentError(
            f"rename would give two columns the name '{twice}'", column=twice, hint="rename the other column, too"
        )
    columns, videos = (
        tuple(
            dataclasses.replace(each, name=rename[each.name], source=None) if each.name in rename else each
            for each in some
        )
        for some in (schema.columns, schema.videos)
    )
    return Schema(columns, videos)


def stacked_schema(schema: Schema, stack: PartsOfStack) -> tuple[Schema, Parts]:
    """Returns the schema with the stacked columns, and their parts.

    Raises:
        InvalidArgumentError: only some parts of a column have a final observation. Also raises the errors of
            `resolve_stack`.
        UnsupportedColumnError: a part is text or bytes.
    """
    parts = resolve_stack(schema.columns, stack)
    for name, specs in parts.items():
        without = [spec.name for spec in specs if not spec.has_final]
        if 0 < len(without) < len(specs):
            raise InvalidArgumentError(
                f"{', '.join(without)} has no final observation, and other parts of '{name}' have one",
                column=name,
                hint="stack them at conversion (--stack), which leaves the final observations out",
            )
    return Schema(stacked_columns(schema.columns, parts), schema.videos), parts


def part_outputs(outputs: Sequence[Output], parts: Parts) -> tuple[tuple[Output, ...], tuple[Joined, ...]]:
    """Returns the outputs that a kernel fills, and the arrays that join them.

    An output of a stacked column becomes one output for each part. Zeros of a padded column are no output. A relative
    output becomes those of its column, of the column that is subtracted, and a mask.
    """
    first = {name: specs[0].name for name, specs in parts.items()}
    filled: list[Output] = []
    joined = []
    for output in outputs:
        own = _with_columns_of_parts(output, first)
        if own.relative is None:
            split = _split(own, parts.get(output.source, ()))
        else:
            split = _relative_parts(own, own.relative, parts)
        taken = _taken_elements(split, parts.get(output.source, ())) if own.relative is None else ()
        if len(split) > 1 or own.real is not None or taken:
            joined.append(Joined(output, len(filled), len(split), taken))
        filled += split
    return tuple(filled), tuple(joined)


def span_masks(listed: Mapping[int, Output], parts: Parts) -> dict[int, Output]:
    """Returns number of an array whose steps are interpolated -> the mask of the range of its steps.

    Args:
        listed: number of an array -> its output of listed steps.
        parts: the parts of stacked columns.
    """
    first = {name: specs[0].name for name, specs in parts.items()}
    return {
        number: _with_columns_of_parts(output.span_mask, first)
        for number, output in listed.items()
        if output.weights is not None and output.column
    }


def _taken_elements(split: Sequence[Output], parts: Sequence[ColumnSpec]) -> tuple[tuple[int, int], ...]:
    """Returns the elements [first, last) of each part's column; empty if all parts are whole columns."""
    if len(split) != len(parts) or not any(isinstance(part, ColumnPart) and part.size < part.whole for part in parts):
        return ()
    return tuple(
        (part.first, part.first + part.size) if isinstance(part, ColumnPart) else (0, part.size) for part in parts
    )


def parts_json(parts: Parts) -> dict[str, list[Any]]:
    """Returns the parts of stacked columns, JSON-able."""
    return {
        name: [spec.to_json() if isinstance(spec, ColumnPart) else spec.name for spec in specs]
        for name, specs in parts.items()
    }


def check_absolute(parts: Parts, relative: Mapping[str, RelativeTo]) -> None:
    """Checks that no difference is of some elements of a column, or of values with another sign or range.

    Raises:
        InvalidArgumentError: one is.
    """
    for column, of in relative.items():
        for name in (column, of.source):
            if any(isinstance(part, ColumnPart) for part in parts.get(name, ())):
                raise InvalidArgumentError(
                    "relative= makes differences of this column, of which the stack takes elements, signs or ranges",
                    column=name,
                    hint="stack whole columns, and name the elements that stay absolute: Relative(..., absolute=[6])",
                )


def _with_columns_of_parts(output: Output, first: Mapping[str, str]) -> Output:
    """Returns an output that asks for the final observations of a part.

    The dataset has no final observations of the stacked column itself.
    """
    state, column = output.next_state, output.mask_column
    if state is not None and state.finals is not None:
        state = dataclasses.replace(state, finals=first.get(state.finals, state.finals))
    if column is not None:
        column = first.get(column, column)
    return dataclasses.replace(output, next_state=state, mask_column=column)


def _relative_parts(output: Output, relative: RelativeTo, parts: Parts) -> list[Output]:
    """Returns the outputs from which a relative one is computed: see `gear_data.collection.relative`."""
    plain: dict[str, Any] = {"mean": None, "scale": None, "fill": 0, "half": None, "relative": None, "real": None}
    values = dataclasses.replace(output.without_zeros, dtype="float64", **plain)
    state = Output(
        output.key, relative.source, "float64", (relative.size,), 0, 1, within_window=False, squeeze_time=True
    )
    mask = dataclasses.replace(
        values, source=MASK, column=False, dtype="bool", shape=(), padding=Padding.FILL, fill=0, valid=1
    )
    return [*_split(values, parts.get(output.source, ())), *_split(state, parts.get(relative.source, ())), mask]


def _split(output: Output, parts: Sequence[ColumnSpec]) -> list[Output]:
    """Returns the outputs of the parts.

    parts: of a stacked column; empty of another one.
    """
    output = output.without_zeros
    if output.absent or not output.column or not parts:
        return [output]
    size = sum(part.size for part in parts)
    split, begin = [], 0
    for part in parts:
        end = begin + part.size
        own_values: dict[str, Any] = {
            name: np.broadcast_to(value, (size,))[begin:end].copy()
            for name, value in (("mean", output.mean), ("scale", output.scale), ("fill", np.asarray(output.fill)))
            if value is not None
        }
        if isinstance(part, ColumnPart):
            own_values = _values_of_column(part, own_values)
        size_read = part.whole if isinstance(part, ColumnPart) else part.size
        split.append(dataclasses.replace(output, source=part.name, shape=(size_read,), **own_values))
        begin = end
    return split


def _values_of_column(part: ColumnPart, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the mean, scale and fill of a whole column, of which an array takes a part.

    Args:
        part: its elements, as p = scale * value + offset.
        values: those of the part: the array has (p - mean) * scale.
    """
    mean, scale = values.get("mean"), values.get("scale")
    if part.is_changed:
        mean = (np.zeros(part.size) if mean is None else mean) - part.offset
        mean, scale = mean / part.scale, (np.ones(part.size) if scale is None else scale) * part.scale
    found = {"fill": np.zeros(part.whole, np.asarray(values["fill"]).dtype)}
    if mean is not None or scale is not None:
        found |= {"mean": np.zeros(part.whole), "scale": np.ones(part.whole)}
    here = slice(part.first, part.first + part.size)
    for name, value in (("fill", values["fill"]), ("mean", mean), ("scale", scale)):
        if value is not None:
            found[name][here] = value
    return found
