"""Several columns as one in batches, as if the dataset had been converted so.

A preset sees the stacked column. The collector fills an array for each part, and `JoinParts` makes one array of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gear_data.collection.output import Output
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.presets.outputs import Postprocess
from gear_data.schema import ColumnSpec, Schema
from gear_data.stacking import Stack, resolve_stack, stacked_columns

#: New column -> its parts.
Parts = Mapping[str, Sequence[ColumnSpec]]


def stacked_schema(schema: Schema, stack: Stack) -> tuple[Schema, Parts]:
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
    return Schema(stacked_columns(schema.columns, parts)), parts


def part_outputs(outputs: Sequence[Output], parts: Parts) -> tuple[Output, ...]:
    """Returns the outputs that the collector fills: an output of a stacked column becomes one for each part."""
    first = {name: specs[0].name for name, specs in parts.items()}
    collected: list[Output] = []
    for output in outputs:
        output = _with_columns_of_parts(output, first)
        collected += _split(output, parts[output.source]) if output.column and output.source in parts else [output]
    return tuple(collected)


def _with_columns_of_parts(output: Output, first: Mapping[str, str]) -> Output:
    """Returns the output with a part in the place of a stacked column whose final observations count."""
    state, column = output.next_state, output.mask_column
    if state is not None and state.finals is not None:
        state = dataclasses.replace(state, finals=first.get(state.finals, state.finals))
    if column is not None:
        column = first.get(column, column)
    return dataclasses.replace(output, next_state=state, mask_column=column)


def _split(output: Output, parts: Sequence[ColumnSpec]) -> list[Output]:
    """Returns the outputs of the parts. The array of part i has the key `_part_key(key, i)`."""
    size = sum(part.size for part in parts)
    split, begin = [], 0
    for number, part in enumerate(parts):
        end = begin + part.size
        own: dict[str, Any] = {
            name: np.broadcast_to(value, (size,))[begin:end].copy()
            for name, value in (("mean", output.mean), ("scale", output.scale), ("fill", np.asarray(output.fill)))
            if value is not None
        }
        key = _part_key(output.key, number)
        split.append(dataclasses.replace(output, key=key, source=part.name, shape=(part.size,), **own))
        begin = end
    return split


def _part_key(key: str, number: int) -> str:
    return f"{key}\0{number}"


@dataclass(frozen=True)
class JoinParts:
    """Postprocessing that joins the arrays of parts, and then does the preset's own.

    Attributes:
        counts: key of a stacked column -> number of its parts.
        then: the preset's own postprocessing; None: nothing.
    """

    counts: Mapping[str, int]
    then: Postprocess | None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        for key, count in self.counts.items():
            batch[key] = np.concatenate([batch.pop(_part_key(key, number)) for number in range(count)], axis=-1)
        return batch if self.then is None else self.then(batch)


def join_parts(outputs: Sequence[Output], parts: Parts, then: Postprocess | None) -> Postprocess | None:
    """Returns the postprocessing of collected batches; `then` if no output has parts."""
    counts = {each.key: len(parts[each.source]) for each in outputs if each.column and each.source in parts}
    return JoinParts(counts, then) if counts else then
