"""Finds out whether a row of tables is a step or an episode, from names, types and the first rows.

The names are those that the user gives (`Location.rename`), and otherwise the usual ones. Columns without data, and the
index that pandas wrote beside the data, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gear_data.errors import UnknownFormatError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.ideas.next_observations import next_pairs
from gear_data.ingest.location import Location
from gear_data.ingest.pipeline.columns import END_FLAGS, EPISODE_COLUMNS, FIRST_FLAGS, SCALAR_COLUMNS, STEP_NUMBERS
from gear_data.ingest.pipeline.names import usual_name
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.tables.stream import TableStream
from gear_data.ingest.sources.tables.to_numpy import is_list, leaf_type, list_depth, list_lengths, storage_array

#: Rows that are read to see what they are.
_HEAD_ROWS = 64
_BOTH = "give --format step-rows or --format episode-rows"


def episode_column(schema: pa.Schema, rename: Mapping[str, str]) -> str | None:
    """Returns the episode column.

    Integers are preferred, because a text column may hold the kind of episode. A table that was one array of floats has
    floats.
    """
    for has_type in (pa.types.is_integer, is_text, is_float):
        for usual in EPISODE_COLUMNS:
            for field in schema:
                if rename.get(field.name, field.name) == usual and has_type(field.type):
                    return str(field.name)
    return None


def is_text(type_: pa.DataType) -> bool:
    """Returns whether a type is text."""
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def is_float(type_: pa.DataType) -> bool:
    """Returns whether a type is a float of 32 or 64 bits, which may hold whole numbers."""
    return bool(pa.types.is_float32(type_) or pa.types.is_float64(type_))


def why_rows_are_steps(location: Location, tables: TableStream) -> str | None:
    """Returns the reason if a row of the tables is a step; otherwise None."""
    if (episode := episode_column(tables.schema, location.rename)) is not None:
        verb = "names" if is_text(tables.schema.field(episode).type) else "numbers"
        return f"a row is a step: '{episode}' {verb} the episodes"
    fields = {usual_name(field.name, location.rename): field for field in tables.schema}
    for name, field in fields.items():
        if name in END_FLAGS and not is_list(field.type):
            return f"a row is a step: '{field.name}' ends the episodes"
        if name in FIRST_FLAGS and (pa.types.is_boolean(field.type) or pa.types.is_integer(field.type)):
            return f"a row is a step: '{field.name}' begins the episodes"
    if (pairs := next_pairs(fields)) and "rewards" in fields and not is_list(fields["rewards"].type):
        return f"a row is a step: '{fields[next(iter(pairs))].name}' holds the observation after it"
    return None


def why_rows_are_episodes(location: Location, tables: TableStream) -> str | None:
    """Returns the reason if a row of the tables is an episode; otherwise None.

    Raises UnknownFormatError if a row may as well be a step.
    """
    scalars = {
        field.name: list_depth(field.type)
        for field in tables.schema
        if usual_name(field.name, location.rename) in SCALAR_COLUMNS
    }
    for name, depth in scalars.items():
        if depth:
            _refuse_lists_of_one(tables, name, scalars)
            return f"a row is an episode: '{name}' is a list"
    nested = next((field.name for field in tables.schema if list_depth(field.type) >= 2), None)
    if nested is None or any(usual_name(name, location.rename) == "rewards" for name in scalars):
        return None
    return _why_lists_of_lists(location, tables, nested, flags=bool(scalars))


def _why_lists_of_lists(location: Location, tables: TableStream, nested: str, *, flags: bool) -> str | None:
    """Returns the reason if lists of lists hold the steps of an episode; None if each belongs to one step.

    A step may have a stack of frames, a chunk of actions or a grey image. Then these have one length, and rows that
    follow each other have the same episode.

    Args:
        location: the source.
        tables: its tables.
        nested: a column of lists of lists.
        flags: whether a row has one end flag.

    Raises:
        UnknownFormatError: names, types and the first rows contradict each other.
    """
    ids = episode_column(tables.schema, location.rename)
    counts = [
        field.name
        for field in tables.schema
        if location.rename.get(field.name, field.name) in STEP_NUMBERS and pa.types.is_integer(field.type)
    ]
    reason = f"a row is an episode: '{nested}' is a list of lists"
    if (flags and ids is not None) or not (flags or ids or counts):
        return None if flags else reason
    lists = [field.name for field in tables.schema if list_depth(field.type)]
    tables.select([*lists, *([ids] if ids is not None else []), *counts])
    head = tables.head(_HEAD_ROWS)
    if head is None or len(head) < 2:
        return None if flags else reason
    lengths = np.stack([list_lengths(storage_array(head.column(name))) for name in lists])
    # Lists of steps have one length in a row, or one more of observations; other lists have one length in a column.
    as_episodes = bool((np.ptp(lengths, axis=0) <= 1).all() and np.ptp(lengths, axis=1).all())
    if flags:
        return f"a row is an episode: the lists of '{nested}' have several lengths" if as_episodes else None
    if ids is not None and pc.any(_equal_to_next(head.column(ids))).as_py():
        if not as_episodes:
            return None
        clue = f"'{ids}' is the same in rows that follow each other"
    elif as_episodes or not (counting := [name for name in counts if _counts(head.column(name))]):
        return reason
    else:
        clue = f"'{counting[0]}' counts the rows"
    raise UnknownFormatError(
        f"could mean two things: '{nested}' is a list of lists, so a row may be an episode; {clue}, so a row may be a "
        "step",
        column=nested,
        hint=_BOTH,
    )


def _equal_to_next(column: pa.ChunkedArray) -> pa.Array:
    values = storage_array(column)
    return pc.equal(values[1:], values[:-1])


def _counts(column: pa.ChunkedArray) -> bool:
    """Returns whether integers mostly rise by 1."""
    values = storage_array(column).drop_null().to_numpy()
    return bool(np.mean(np.diff(values) == 1) > 0.5) if len(values) > 1 else False


def _refuse_lists_of_one(tables: TableStream, column: str, scalars: Collection[str]) -> None:
    """Refuses tables whose rewards or flags are lists of one value, beside vectors.

    A row may be a step, where the lists come from arrays [N, 1], or an episode of one step. A list of lists in another
    column shows that a row is an episode. Raises UnknownFormatError.
    """
    depths = [list_depth(field.type) for field in tables.schema if field.name not in scalars]
    if 1 not in depths or max(depths) > 1:
        return
    tables.select([column])
    head = tables.head(_HEAD_ROWS)
    if head is None or len(head) < 2 or (list_lengths(storage_array(head.column(column)).drop_null()) != 1).any():
        return
    raise UnknownFormatError(
        f"could mean two things: each of the first {len(head)} lists has one value, so a row may be a step or an "
        "episode of one step",
        column=column,
        hint=_BOTH,
    )


#: An index without a name: in Parquet, and in CSV files, also in those that pandas read and wrote again.
_INDEX = re.compile(r"__index_level_\d+__|Unnamed: 0(\.\d+)?")


def leave_out_columns(schema: pa.Schema, file: str, options: SourceOptions, findings: FindingLog) -> list[str]:
    """Returns the names of the columns to read.

    A column that an option names is no index. Unless the user has chosen columns, each column that is left out makes a
    finding.
    """
    chosen = options.columns or ()
    named = {*chosen, *(options.rename or ()), *options.episodes.columns}
    left_out: dict[str, Finding] = {}
    for field in schema:
        if pa.types.is_null(leaf_type(field.type)) and field.name not in chosen:
            message = "the column's type is null, so it holds no values; left out"
            left_out[field.name] = Finding("null-column", message, file=file, column=field.name)
        elif _INDEX.fullmatch(field.name) and pa.types.is_integer(field.type) and field.name not in named:
            message = f"'{field.name}' is the row index that pandas wrote; left out. Name it with --columns to keep it"
            left_out[field.name] = Finding("index-left-out", message, file=file, column=field.name)
    if options.columns is None:
        findings.extend(left_out.values())
    return [name for name in schema.names if name not in left_out]
