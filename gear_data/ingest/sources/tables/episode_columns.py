"""Columns of tables with one row per episode, and their roles."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gear_data.errors import EmptySourceError, InvalidArgumentError, UnknownFormatError, UnsupportedColumnError
from gear_data.ingest.pipeline.columns import END_FLAGS, column_spec, leave_out
from gear_data.ingest.pipeline.names import DONES, is_observation
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.tables.stream import TableStream
from gear_data.ingest.sources.tables.to_numpy import (
    inner_shape,
    is_list,
    leaf_dtype,
    list_depth,
    list_lengths,
    storage_array,
    variable_dtype,
)
from gear_data.schema import VARIABLE_TYPES, ColumnSpec
from gear_data.storage.episode_tables import FACT_MARK, needs_mark

_FINAL = "final_"
_FINAL_OBSERVATION = "final_observations"
_HEAD_ROWS = 64


@dataclass(frozen=True)
class ColumnRoles:
    """The columns to read, by role.

    Attributes:
        steps: source name -> canonical name, lists of steps.
        finals: source name -> canonical name of the step column, final observations.
        facts: source name -> name, values that are facts about the episode.
        flags: source name -> canonical name, one end flag for the episode. It is about the last step.
        order: source name of the list of step numbers, or None.
        reference: source name of the step column whose lengths the other lists must have.
    """

    steps: Mapping[str, str]
    finals: Mapping[str, str]
    facts: Mapping[str, str]
    flags: Mapping[str, str]
    order: str | None
    reference: str

    @property
    def counter(self) -> str:
        """Source name of the list that has one value for each step, also if observations have one more."""
        sources = {name: source for source, name in self.steps.items()}
        usual = ("actions", "rewards", *sorted(END_FLAGS))
        return next((sources[name] for name in usual if name in sources), self.reference)

    @property
    def lists(self) -> list[str]:
        """Source names of the columns with one value per step."""
        return [*self.steps, *([self.order] if self.order is not None else [])]

    @property
    def sources(self) -> list[str]:
        """Source names of all columns."""
        return [*self.lists, *self.finals, *self.facts, *self.flags]


def marked_facts(schema: pa.Schema) -> frozenset[str]:
    """Returns the names of the columns with the `FACT_MARK`."""
    return frozenset(field.name for field in schema if FACT_MARK.items() <= (field.metadata or {}).items())


def check_structure_options(types: Mapping[str, pa.DataType], options: SourceOptions) -> None:
    """Checks the options that name columns: episode, end and step column.

    Raises:
        InvalidArgumentError: an episode column is given.
        UnsupportedColumnError: the end column or the step column is not a list as needed.
    """
    if options.episodes.episode_columns:
        raise InvalidArgumentError(
            "a row is an episode, so no column can tell the episodes apart",
            column=options.episodes.episode_columns[0],
            hint="leave --episode-column out, or read rows as steps with --format step-rows",
        )
    end, step = options.episodes.end_column, options.episodes.step_column
    if end is not None and not is_list(types[end]):
        raise UnsupportedColumnError(
            f"holds {types[end]}, where a list with one flag per step is expected",
            column=end,
            hint="leave --end-column out",
        )
    if step is not None and not (is_list(types[step]) and pa.types.is_integer(types[step].value_type)):
        raise UnsupportedColumnError(
            f"holds {types[step]}, where a list with one integer per step is expected",
            column=step,
            hint="leave --step-column out",
        )


def assign_roles(
    chosen: Mapping[str, str], types: Mapping[str, pa.DataType], marked: Container[str], order: str | None
) -> ColumnRoles:
    """Assigns a role to every chosen column.

    Args:
        chosen: source name -> canonical name, without `order`.
        types: source name -> Arrow type.
        marked: source names of columns with the `FACT_MARK`.
        order: source name of the list of step numbers, if there is one.

    Raises:
        UnknownFormatError: no column is a list of steps.
        UnsupportedColumnError: a fact is nested, or bytes.
    """
    lists = {source: name for source, name in chosen.items() if is_list(types[source]) and source not in marked}
    finals = _final_columns(chosen, lists, types)
    steps = {source: name for source, name in lists.items() if source not in finals}
    flags = _flag_columns(chosen, types)
    known = {*steps, *finals, *flags}
    facts = {source: name for source, name in chosen.items() if source not in known}
    if not steps:
        raise UnknownFormatError("no column is a list of steps", hint="leave --format out")
    for source in facts:
        type_ = types[source]
        if source not in marked and needs_mark(type_):
            raise UnsupportedColumnError(f"holds {types[source]}", column=source, hint="leave it out with --columns")
    sources = {name: source for source, name in steps.items()}
    reference = sources.get("observations", next(iter(steps)))
    return ColumnRoles(steps, finals, facts, flags, order, reference)


def _flag_columns(chosen: Mapping[str, str], types: Mapping[str, pa.DataType]) -> dict[str, str]:
    """Returns the columns with one end flag for each episode: source name -> canonical name.

    The `terminal` of `imitation`, which is beside `acts`, is the environment's done flag: it is also set at a time
    limit.
    """
    flags = {
        source: name
        for source, name in chosen.items()
        if name in END_FLAGS and not is_list(types[source]) and pa.types.is_primitive(types[source])
    }
    if "terminal" in flags and "acts" in chosen and DONES not in chosen.values():
        flags["terminal"] = DONES
    return flags


def _final_columns(
    chosen: Mapping[str, str], lists: Mapping[str, str], types: Mapping[str, pa.DataType]
) -> dict[str, str]:
    """Returns columns of final values: source name -> name of the step column.

    A final column needs its step column: `final_reward` without `reward` is a column like others. A final number is
    accepted for observations only; for other columns it is a fact.
    """
    by_name = {name: source for source, name in lists.items()}
    finals = {}
    for source, name in chosen.items():
        steps = by_name.get(name.removeprefix(_FINAL)) if name.startswith(_FINAL) else None
        if steps is None:
            continue
        is_number = types[source] == types[steps].value_type and pa.types.is_primitive(types[source])
        if source in lists or (name.startswith(_FINAL_OBSERVATION) and is_number):
            finals[source] = name.removeprefix(_FINAL)
    return finals


def infer_columns(
    tables: TableStream, types: Mapping[str, pa.DataType], roles: ColumnRoles, options: SourceOptions
) -> tuple[ColumnSpec, ...]:
    """Infers the step columns from the types and the first rows.

    Raises:
        EmptySourceError: there are no rows, or no steps with values.
        UnsupportedColumnError: a column does not hold numbers, texts or bytes, or final observations have another
            dtype than the steps.
    """
    dtypes = {
        source: variable_dtype(types[source].value_type, name) or leaf_dtype(types[source].value_type, source)
        for source, name in roles.steps.items()
    }
    _check_final_dtypes(types, roles, dtypes)
    head = tables.head(_HEAD_ROWS)
    if head is None:
        raise EmptySourceError("the source holds no episode")
    specs = []
    steps_of = list_lengths(storage_array(head.column(roles.counter)))
    for source, name in roles.steps.items():
        extra = list_lengths(storage_array(head.column(source))) - steps_of
        has_final = name in roles.finals.values() or (is_observation(name) and bool(np.mean(extra == 1) >= 0.5))
        if dtypes[source] in VARIABLE_TYPES:
            specs.append(column_spec(name, dtypes[source], source=source, has_final=has_final))
            continue
        steps = storage_array(head.column(source)).flatten()
        if len(steps) == 0 and options.skip_bad is False:
            # The first rows are empty episodes: reading reports the first of them.
            shape: tuple[int, ...] = (1,) * list_depth(steps.type)
        else:
            shape = inner_shape(steps)
        if 0 in shape:
            raise EmptySourceError(
                f"no step with values in the first {len(head)} rows", column=source, hint=leave_out(source)
            )
        specs.append(column_spec(name, dtypes[source], shape, source=source, has_final=has_final))
    return (*specs, *(column_spec(name, "bool", source=source) for source, name in roles.flags.items()))


def _check_final_dtypes(types: Mapping[str, pa.DataType], roles: ColumnRoles, dtypes: Mapping[str, str]) -> None:
    """Checks that final observations have the dtype of their step column.

    Raises UnsupportedColumnError otherwise.
    """
    final_dtypes = {source: leaf_dtype(types[source], source) for source in roles.finals}
    for source, name in roles.finals.items():
        steps = next(step for step, column in roles.steps.items() if column == name)
        if final_dtypes[source] != dtypes[steps]:
            raise UnsupportedColumnError(
                f"holds {final_dtypes[source]}, where '{steps}' holds {dtypes[steps]}",
                column=source,
                hint="cast one of the two to the dtype of the other, or leave this one out with --columns",
            )
