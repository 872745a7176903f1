"""Facts that a table adds to the episodes of a dataset."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from gear_data.dataset.core import DatasetCore
from gear_data.error_text import shown
from gear_data.errors import EpisodeIndexError, InvalidArgumentError, UnsupportedColumnError
from gear_data.ingest.pipeline.names import is_storable
from gear_data.ingest.sources.tables.to_numpy import is_list
from gear_data.selection.windows import Int64Array
from gear_data.storage.episode_tables import EPISODE_SCHEMA, episode_metadata_names, with_plain_text

_ID, _TASK = "episode_id", "task"
#: Arrow's names of the index of a pandas frame that has no name. Rows that were filtered have one.
_INDEX = re.compile(r"__index_level_\d+__")
#: The kind at the beginning of the name of an Arrow type.
_KIND = re.compile(r"(?:large_|fixed_size_)?([a-z]+)")


def with_facts(dataset: DatasetCore, facts: Any) -> tuple[pa.Table, list[str]]:
    """Returns the episode table of the whole dataset with further facts, and the names of the facts.

    Args:
        dataset: a dataset or view.
        facts: see `Dataset.with_facts`.
    """
    found = _table(facts)
    episodes = with_plain_text(dataset.store.episode_table)
    rows = _rows(dataset, found)
    names = [name for name in found.column_names if name != _ID]
    if not names:
        raise InvalidArgumentError("the table has no facts", hint="give a column beside episode_id")
    known = episode_metadata_names(episodes.column_names, dataset.manifest.schema)
    index = np.full(dataset.manifest.episodes, -1, np.int64)
    index[rows] = np.arange(len(found))
    for name in names:
        _check_name(name, known, [*EPISODE_SCHEMA.names, *episodes.column_names])
        values = found.column(name).combine_chunks()
        if pa.types.is_null(values.type):
            values = values.cast(pa.large_string())
        values = _merged(name, values, episodes.column(name) if name in known else None, index)
        if name in known:
            place = episodes.schema.get_field_index(name)
            episodes = episodes.set_column(place, pa.field(name, values.type), values)
        else:
            episodes = episodes.append_column(pa.field(name, values.type), values)
    return episodes, names


def _table(facts: Any) -> pa.Table:
    try:
        if isinstance(facts, Mapping):
            facts = pa.table({name: pa.array(values) for name, values in facts.items()})
        elif hasattr(facts, "to_arrow"):  # of Polars
            facts = facts.to_arrow()
        table = facts if isinstance(facts, pa.Table) else pa.table(facts)
        table = with_plain_text(table.drop_columns([name for name in table.column_names if _INDEX.fullmatch(name)]))
        return table.cast(pa.schema([_stored_field(field) for field in table.schema]))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"expected a table of facts, not {shown(type(facts).__name__)}: {error}",
            hint="give a Polars frame, an Arrow table, or a dictionary of columns of one length",
        ) from error


def _stored_field(field: pa.Field) -> pa.Field:
    """Returns a field of a table as episode tables have it."""
    if str(field.type) in ("string", "string_view"):
        return pa.field(field.name, pa.large_string())
    return pa.field(field.name, field.type)


def _rows(dataset: DatasetCore, facts: pa.Table) -> Int64Array:
    """Returns the row in the store of each row of a table of facts."""
    shown_rows = np.arange(dataset.manifest.episodes) if dataset.view.rows is None else dataset.view.rows
    if facts.column_names.count(_ID) == 0:
        if len(facts) != len(shown_rows):
            raise InvalidArgumentError(
                f"the table has {len(facts)} rows, and the dataset {len(shown_rows)} episodes",
                hint="give a row for each episode, or a column episode_id",
            )
        return shown_rows
    column = facts.column(_ID)
    if not pa.types.is_integer(column.type) or column.null_count:
        raise InvalidArgumentError(f"must be integers without nulls, not {column.type}", column=_ID)
    ids: Int64Array = column.combine_chunks().cast(pa.int64()).to_numpy()
    unknown = ids[~np.isin(ids, shown_rows)]
    if len(unknown):
        raise EpisodeIndexError(
            f"the dataset or view has no episode {unknown[0]}", column=_ID, hint="ds.episodes lists the ids"
        )
    values, counts = np.unique(ids, return_counts=True)
    if len(values) != len(ids):
        raise InvalidArgumentError(
            f"episode {values[counts.argmax()]} has {counts.max()} rows", column=_ID, hint="give one row per episode"
        )
    return ids


def _check_name(name: str, known: list[str], taken: list[str]) -> None:
    if not is_storable(name) or (name in taken and name not in known):
        raise InvalidArgumentError(
            "the episode table has a column of this name that is no fact", column=name, hint="choose another name"
        )


def _merged(name: str, values: pa.Array, before: pa.ChunkedArray | None, index: Int64Array) -> pa.Array:
    """Returns a fact of all episodes.

    Args:
        name: the name of the fact.
        values: the new values.
        before: the values before; None: there is no such fact. Without a value, it has no type to keep, either.
        index: int64 [episodes], the new value of each episode; -1: none.
    """
    if name == _TASK and not pa.types.is_large_string(values.type):
        raise InvalidArgumentError(f"must be text, not {values.type}", column=name)
    if before is None or before.null_count == len(before) or (index >= 0).all():
        return values.take(pa.array(index, mask=index < 0))
    if values.null_count == len(values):
        values = pa.nulls(len(values), before.type)
    if not _is_of_kind(values.type, before.type):
        raise _other_type(name, values.type, before.type, "the two are of different kinds")
    try:
        values = values.cast(before.type)
    except (pa.ArrowException, ValueError) as error:
        raise _other_type(name, values.type, before.type, error) from error
    old = before.combine_chunks()
    return pa.concat_arrays([old, values]).take(pa.array(np.where(index < 0, np.arange(len(old)), index + len(old))))


def _other_type(name: str, new: pa.DataType, old: pa.DataType, reason: object) -> UnsupportedColumnError:
    return UnsupportedColumnError(
        f"has {old} values, and the new ones of some episodes are {new}: {reason}",
        column=name,
        hint="give values of that type, or values for all episodes",
    )


def _is_of_kind(new: pa.DataType, old: pa.DataType) -> bool:
    """Returns whether the values of two types are of one kind, in other widths or units.

    Casts between kinds change values: Arrow makes 2 to true, numbers to text, and text to numbers.
    """
    if new == old or pa.types.is_null(new):
        return True
    if is_list(new) and is_list(old):
        return _is_of_kind(new.value_type, old.value_type)
    if pa.types.is_struct(new) and pa.types.is_struct(old):
        fields = {field.name: field.type for field in old}
        return all(field.name in fields and _is_of_kind(field.type, fields[field.name]) for field in new)
    if pa.types.is_timestamp(new) and pa.types.is_timestamp(old):
        return (new.tz is None) == (old.tz is None)
    return _kind(new) == _kind(old)


def _kind(type_: pa.DataType) -> str:
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        return "number"
    # The name of the type without its width and unit: "string" of large_string, "time" of time64[us].
    found = _KIND.match(str(type_))
    return str(type_) if found is None else found[1]
