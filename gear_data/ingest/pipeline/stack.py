"""Stacks columns of a source at conversion: several become one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.pipeline.columns import SCALAR_COLUMNS
from gear_data.ingest.pipeline.names import canonical_name
from gear_data.ingest.source import EpisodeSource, Unit
from gear_data.schema import ColumnSpec
from gear_data.stacking import Stack, stack_values, stacked_column
from gear_data.storage.episode_block import EpisodeBlock, Position


def stack_columns(source: EpisodeSource, stack: Stack) -> EpisodeSource:
    """Returns a source in which stacked columns take the place of their parts.

    Args:
        source: The opened source.
        stack: Canonical name of a new column -> canonical or source names of its parts.

    Raises:
        UnknownNameError: A part is no column.
        InvalidArgumentError: A part is a reward or an end flag, or the new name is taken or not canonical.
        UnsupportedColumnError: A part is text or bytes.
    """
    if not stack:
        return source
    known = {spec.name: spec for spec in source.columns}
    by_source = {spec.source: spec.name for spec in source.columns if spec.source is not None}
    parts: dict[str, tuple[ColumnSpec, ...]] = {}
    for name, given in stack.items():
        names = [part if part in known else by_source.get(part, part) for part in given]
        for part in names:
            if part not in known:
                raise unknown_name("column", part, known)
            if part in SCALAR_COLUMNS:
                raise InvalidArgumentError(
                    f"'{part}' cannot be part of '{name}': rewards and end flags are columns of their own", column=part
                )
        parts[name] = tuple(known[part] for part in names)
    used = {spec.name for specs in parts.values() for spec in specs}
    for name in parts:
        if name in known and name not in used:
            raise InvalidArgumentError(
                f"the source has a column '{name}' already",
                column=name,
                hint="make it a part of the stack, or give the stack another name",
            )
        if name in SCALAR_COLUMNS or canonical_name(name) != name:
            raise InvalidArgumentError(
                f"a stack cannot have the name '{name}'",
                column=name,
                hint=f"use a canonical name, such as '{canonical_name(name)}', but not of rewards and end flags",
            )
    return StackedSource(source, parts)


class StackedSource:
    """An `EpisodeSource` that stacks some columns of another source."""

    def __init__(self, source: EpisodeSource, parts: Mapping[str, Sequence[ColumnSpec]]) -> None:
        self.findings = source.findings
        self.resume_state = source.resume_state
        self.rows_are_steps = source.rows_are_steps
        self.metadata = source.metadata
        self._source = source
        self._parts = parts
        self._stacked = {name: stacked_column(name, specs) for name, specs in parts.items()}
        owner = {spec.name: name for name, specs in parts.items() for spec in specs}
        #: The columns in the order of the source: a stack stands where its first part stood.
        self.columns = tuple(
            dict.fromkeys(self._stacked[owner[spec.name]] if spec.name in owner else spec for spec in source.columns)
        )
        for name, specs in parts.items():
            without = [spec.name for spec in specs if not spec.has_final]
            if without and len(without) < len(specs):
                message = f"final observations; left out, because {', '.join(without)} has none"
                self.findings.add(Finding("final-left-out", message, column=name))

    @property
    def num_rows(self) -> int | None:
        return self._source.num_rows

    def units(self) -> Sequence[Unit]:
        return self._source.units()

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        for block in self._source.blocks(start, stop):
            yield self._stack(block)

    def _stack(self, block: EpisodeBlock) -> EpisodeBlock:
        columns: dict[str, Any] = dict(block.columns)
        finals: dict[str, Any] = dict(block.finals)
        for name, specs in self._parts.items():
            columns |= {name: stack_values(self._stacked[name], [columns.pop(spec.name) for spec in specs])}
            ends = [finals.pop(spec.name, None) for spec in specs]
            if self._stacked[name].has_final:
                finals[name] = stack_values(self._stacked[name], ends)
        has_final = block.has_final if finals or block.variable_finals else np.zeros(len(block), np.bool_)
        return replace(block, columns=columns, finals=finals, has_final=has_final)
