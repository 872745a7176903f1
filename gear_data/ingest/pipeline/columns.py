"""Selects the columns of a source to read, and their names."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace

from gear_data.common.paths import printable
from gear_data.errors import InvalidArgumentError, UnsupportedColumnError, unknown_name
from gear_data.ingest.pipeline.names import (
    DONES,
    INVALID_NAME,
    canonical_name,
    is_column_name,
    is_next,
    name_map,
    observations_before,
)
from gear_data.ingest.source import SourceOptions
from gear_data.schema import ColumnSpec

#: The hint of an error about a column that can be left out.
LEAVE_OUT = "name the columns to keep with --columns (columns=[...]), without this one"
#: Flags at the ends of episodes. They are always read, because they define the episodes.
END_FLAGS = frozenset({DONES, "terminated", "truncated"})

#: Other names of end flags -> the flag, and whether the column is 0 where the flag is set. The first names come first.
_OTHER_FLAGS = {
    "is_terminal": ("terminated", False),
    "masks": ("terminated", True),
    "discount": ("terminated", True),
    "is_last": (DONES, False),
    "not_done": (DONES, True),
    "not_dones": (DONES, True),
}

#: The shapes of one value per step. Replay buffers often store flags as [T, 1].
ONE_VALUE: tuple[tuple[int, ...], ...] = ((), (1,))
#: Columns of one value per step. An array [T, 1] of a source becomes [T].
SCALAR_COLUMNS = END_FLAGS | {"rewards"}

#: Usual names of columns that rise in an episode.
STEP_NUMBERS = (
    "step", "steps", "step_index", "step_idx", "step_id", "step_number", "elapsed_steps", "t", "timestep", "timesteps",
    "time_step", "timestamp", "frame", "frame_index", "frame_id", "tick",
)  # fmt: skip

#: Usual names of flags of the first step of an episode.
FIRST_FLAGS = frozenset({"is_first", "episode_starts"})

#: Columns that number the steps of tables with ids -> whether they begin with 0 in every episode. `index` numbers all.
ORDER_COLUMNS = {"frame_index": True, "index": False, "step_index": True, "step_id": False}

#: Usual names of the column of episode ids, in tables with one row per step.
EPISODE_COLUMNS = ("episode_index", "episode_id", "episode", "traj_id", "trajectory_id")


def other_flags(names: Collection[str]) -> dict[str, tuple[str, bool]]:
    """Returns the columns that are end flags under other names, if the usual ones do not say all.

    `discount` may also be a constant, so it says nothing beside a flag of a usual name. `masks` beside ends of
    trajectories may mark successes after which the trajectory goes on (OGBench).

    Args:
        names: the canonical names of all columns of one value per step.

    Returns:
        Name of a column -> the flag, and whether the column is 0 where the flag is set.
    """
    known = END_FLAGS & {*names}
    candidates = {name: each for name, each in _OTHER_FLAGS.items() if name in names}
    if known:
        candidates.pop("discount", None)
    if "truncated" in known:
        candidates.pop("masks", None)
    found = {}
    for name, (flag, is_zero) in candidates.items():
        if flag not in known and len(known) < 2:
            known |= {flag}
            found[name] = flag, is_zero
    return found


def choose_columns(names: Iterable[str], options: SourceOptions, *, structure: Iterable[str] = ()) -> dict[str, str]:
    """Returns the columns to read, as source name -> canonical name.

    Beside the chosen columns, these are the end flags, and the next observations of chosen observations: they give
    final observations.

    Args:
        names: the source's names of the columns that could be read.
        options: the user's options.
        structure: the source's names of the columns that say where episodes and steps are. `options.columns` may name
            them. They are not stored.

    Raises:
        UnknownNameError: `options.columns` or `options.rename` names a column that does not exist. Source and canonical
            names are valid.
        InvalidArgumentError: `options.rename` is invalid, see `name_map`.
        UnsupportedColumnError: the name of a column to read is invalid, see `is_column_name`.
    """
    structure, rename = set(structure), options.rename or {}
    mapping = name_map(names, {name: new for name, new in rename.items() if name not in structure})
    structure |= {rename[name] for name in structure & rename.keys()}
    chosen = mapping if options.columns is None else _selected(mapping, options.columns, structure)
    for source, name in chosen.items():
        check_column_name(name, printable(source))
    return chosen


def without_column(options: SourceOptions, name: str) -> SourceOptions | None:
    """Returns the options of a source that lacks a column, which may have the column's new name.

    Returns None if no option names it, or if `columns` names no other one.
    """
    rename, tables = dict(options.rename or {}), options.tables
    if not any(name in each for each in (options.columns or (), rename, tables.dtype, tables.fill_null)):
        return None
    new = rename.pop(name, None)
    columns = options.columns
    if columns is not None and name in columns:
        columns = tuple(each for each in (new if each == name else each for each in columns) if each is not None)
        if not columns:
            return None
    dtypes = {key: dtype for key, dtype in tables.dtype.items() if key != name}
    fills = {key: value for key, value in tables.fill_null.items() if key != name}
    tables = replace(tables, dtype=dtypes, fill_null=fills)
    return replace(options, columns=columns, rename=rename or None, tables=tables)


def column_spec(
    name: str, dtype: str, shape: tuple[int, ...] = (), *, source: str, has_final: bool = False
) -> ColumnSpec:
    """Returns the column of values of a source: `source` is their name there. One value a step, [T, 1], becomes [T]."""
    shape = () if name in SCALAR_COLUMNS and shape == (1,) else shape
    return ColumnSpec(name, dtype, shape, False, None if source == name else source, has_final)


def check_column_name(name: str, source: str | None = None) -> None:
    """Raises UnsupportedColumnError for a name that no column can have."""
    if not is_column_name(name):
        raise UnsupportedColumnError(
            f"a column cannot have the name {name!r}: the name, or one of its dotted parts, is {INVALID_NAME}",
            column=source,
            hint="rename it with --rename (rename={...}), or leave it out with --columns (columns=[...])",
        )


def _selected(mapping: Mapping[str, str], columns: Sequence[str], structure: Set[str]) -> dict[str, str]:
    wanted = set(columns)
    for name in columns:
        if name not in mapping and name not in mapping.values() and name not in structure:
            raise unknown_name("column", name, {*mapping.values(), *structure})
    if wanted and wanted <= structure:
        raise InvalidArgumentError(
            f"columns names only {', '.join(columns)}, which says where episodes or steps are and is not stored",
            hint="name at least one column of steps, such as observations",
        )
    chosen = {name for source, name in mapping.items() if source in wanted or name in wanted}
    flags = END_FLAGS | other_flags(mapping.values()).keys()
    return {
        source: name
        for source, name in mapping.items()
        if name in chosen or name in flags or observations_before(name, chosen) is not None
    }


def leave_out(column: str) -> str:
    """Returns the advice to leave out a column that cannot be read, by its name in the source.

    End flags and next observations are read beside any `columns`, unless they have another name.
    """
    name = canonical_name(column)
    if name in END_FLAGS | _OTHER_FLAGS.keys() or is_next(name):
        rename = shlex.quote(f"{column}=infos.{name}")
        return f"give it another name with --rename {rename} (rename={{...}}), and {LEAVE_OUT}"
    return LEAVE_OUT


def resolve_structure_columns(names: Iterable[str], options: SourceOptions) -> SourceOptions:
    """Checks the columns that define episodes, and turns `end_column` into a renaming.

    A column that the user renames may be named by either name; the options that are returned have the source's.

    Raises:
        UnknownNameError: `episode_column`, `step_column` or `end_column` names a column that does not exist.
    """
    rename, boundaries = options.rename or {}, options.episodes
    if not boundaries.columns:
        return options
    sources = {new: name for name, new in rename.items()} | {name: name for name in names}
    for name in boundaries.columns:
        if name not in sources:
            raise unknown_name("column", name, sources)
    step, end = (None if name is None else sources[name] for name in (boundaries.step_column, boundaries.end_column))
    ids = tuple(sources[name] for name in boundaries.episode_columns) or None
    boundaries = replace(boundaries, episode_column=ids, step_column=step, end_column=end)
    return replace(options, episodes=boundaries, rename=rename if end is None else {**rename, end: DONES})


def with_dtypes(columns: Sequence[ColumnSpec], dtypes: Mapping[str, str], file: str) -> tuple[ColumnSpec, ...]:
    """Returns columns with the dtypes that the user chose.

    Args:
        columns: the columns.
        dtypes: name of a column, the source's or canonical -> dtype.
        file: the name of the source, for the error.

    Raises:
        UnsupportedColumnError: a column with a dtype holds text.
    """
    found = []
    for spec in columns:
        dtype = dtypes.get(spec.source_name) or dtypes.get(spec.name) or spec.dtype
        if spec.variable_length and dtype != spec.dtype:
            raise UnsupportedColumnError(
                "holds text, which has no other dtype",
                file=file,
                column=spec.source_name,
                hint="leave its --dtype out",
            )
        found.append(spec if dtype == spec.dtype else replace(spec, dtype=dtype))
    return tuple(found)


def check_dtypes(dtypes: Collection[str], columns: Sequence[ColumnSpec]) -> None:
    """Raises UnknownNameError if the user chose the dtype of a column that does not exist."""
    known = {name for spec in columns for name in (spec.name, spec.source_name)}
    if unknown := [name for name in dtypes if name not in known]:
        raise unknown_name("column", unknown[0], known)
