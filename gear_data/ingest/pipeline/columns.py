"""Which of a source's columns are read, and under which names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gear_data.common.paths import printable
from gear_data.errors import UnsupportedColumnError, unknown_name
from gear_data.ingest.pipeline.names import DONES, INVALID_NAME, is_column_name, name_map
from gear_data.ingest.source import SourceOptions

#: End flags are structure: they are read whatever `columns` says.
END_FLAGS = frozenset({DONES, "terminated", "truncated"})

#: Columns of one value a step: a source's [T, 1] becomes [T].
SCALAR_COLUMNS = END_FLAGS | {"rewards"}

#: Names of the column that numbers episodes, or names them, where a row is a step.
EPISODE_COLUMNS = ("episode_index", "episode_id", "episode", "traj_id", "trajectory_id")


def choose_columns(names: Iterable[str], options: SourceOptions) -> dict[str, str]:
    """Source name -> canonical name of the columns to read.

    Raises:
        UnknownNameError: `options.columns` has a name, source or canonical, that is not there.
        InvalidArgumentError: see `name_map`.
        UnsupportedColumnError: the name of a column to read cannot be one, see `is_column_name`.
    """
    mapping = name_map(names, options.rename)
    chosen = mapping if options.columns is None else _asked_for(mapping, options.columns)
    for source, name in chosen.items():
        if not is_column_name(name):
            raise UnsupportedColumnError(
                f"a column cannot have the name {name!r}: it, or a dotted part of it, is {INVALID_NAME}",
                column=printable(source),
                hint="give it another with --rename (rename={...}), or leave it out with --columns (columns=[...])",
            )
    return chosen


def _asked_for(mapping: Mapping[str, str], columns: Sequence[str]) -> dict[str, str]:
    wanted = set(columns)
    for name in columns:
        if name not in mapping and name not in mapping.values():
            raise unknown_name("column", name, mapping.values())
    return {source: name for source, name in mapping.items() if source in wanted or name in wanted or name in END_FLAGS}


def resolve_structure_columns(names: Iterable[str], options: SourceOptions) -> SourceOptions:
    """The options with what `end_column` says as a name of that column.

    Raises:
        UnknownNameError: a column that is to tell episodes apart, number steps or end episodes is not there.
    """
    names = list(names)
    for name in (options.episode_column, options.step_column, options.end_column):
        if name is not None and name not in names:
            raise unknown_name("column", name, names)
    if options.end_column is None:
        return options
    return replace(options, rename={**(options.rename or {}), options.end_column: DONES})
