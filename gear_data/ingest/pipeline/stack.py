"""Stacks columns of a source at conversion: several become one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gear_data.errors import InvalidArgumentError
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.pipeline.names import canonical_name
from gear_data.ingest.source import EpisodeSource, Unit
from gear_data.ingest.videos.source_videos import source_videos
from gear_data.schema import ColumnSpec
from gear_data.stacking import Stack, resolve_stack, stack_values, stacked_columns
from gear_data.storage.episode_block import EpisodeBlock, Position


def stack_columns(source: EpisodeSource, stack: Stack) -> EpisodeSource:
    """Returns a source in which stacked columns take the place of their parts.

    Args:
        source: the opened source.
        stack: canonical name of a new column -> canonical or source names of its parts.

    Raises:
        InvalidArgumentError: the new name is not canonical. Also raises the errors of `resolve_stack`.
        UnsupportedColumnError: a part is text or bytes.
    """
    for name in stack:
        if canonical_name(name) != name:
            raise InvalidArgumentError(
                f"a stack cannot have the name '{name}'", column=name, hint=f"use the name '{canonical_name(name)}'"
            )
    return StackedSource(source, resolve_stack(source.columns, stack)) if stack else source


class StackedSource:
    """An `EpisodeSource` that stacks some columns of another source."""

    def __init__(self, source: EpisodeSource, parts: Mapping[str, Sequence[ColumnSpec]]) -> None:
        self.findings = source.findings
        self.resume_state = source.resume_state
        self.rows_are_steps = source.rows_are_steps
        self.metadata = source.metadata
        self.videos = source_videos(source)
        self._source = source
        self._parts = parts
        self.columns = stacked_columns(source.columns, parts)
        self._stacked = {spec.name: spec for spec in self.columns if spec.name in parts}
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
