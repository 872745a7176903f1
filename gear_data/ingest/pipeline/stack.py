"""Stacks columns of a source at conversion: several become one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gear_data.errors import InvalidArgumentError
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.pipeline.mapped_source import MappedSource
from gear_data.ingest.pipeline.names import canonical_name
from gear_data.ingest.source import EpisodeSource
from gear_data.schema import ColumnSpec
from gear_data.stacking import Stack, resolve_stack, stack_values, stacked_columns
from gear_data.storage.episode_block import EpisodeBlock


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


class StackedSource(MappedSource):
    """An `EpisodeSource` that stacks some columns of another source."""

    def __init__(self, source: EpisodeSource, parts: Mapping[str, Sequence[ColumnSpec]]) -> None:
        super().__init__(source, stacked_columns(source.columns, parts))
        self._parts = parts
        self._stacked = {spec.name: spec for spec in self.columns if spec.name in parts}
        for name, specs in parts.items():
            without = [spec.name for spec in specs if not spec.has_final]
            if without and len(without) < len(specs):
                message = f"final observations; left out, because {', '.join(without)} has none"
                self.findings.add(Finding("final-left-out", message, column=name))

    def _mapped(self, piece: EpisodeBlock) -> Iterator[EpisodeBlock]:
        columns: dict[str, Any] = dict(piece.columns)
        finals: dict[str, Any] = dict(piece.finals)
        for name, specs in self._parts.items():
            columns |= {name: stack_values(self._stacked[name], [columns.pop(spec.name) for spec in specs])}
            ends = [finals.pop(spec.name, None) for spec in specs]
            if self._stacked[name].has_final:
                finals[name] = stack_values(self._stacked[name], ends)
        has_final = piece.has_final if finals else np.zeros(len(piece), np.bool_)
        yield replace(piece, columns=columns, finals=finals, has_final=has_final)
