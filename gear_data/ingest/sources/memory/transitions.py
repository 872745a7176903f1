"""Objects in memory, told by their types: tables, arrays, and transitions (s, a, r, s', done) in the order of time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import BadEpisodeError, UnsupportedColumnError
from gear_data.ingest.pipeline.episode_values import flatten, rows_differ
from gear_data.ingest.pipeline.names import DONES, canonical_name

_NEXT = "next_observations"
_COLUMNS = ("observations", "actions", "rewards", _NEXT, "terminated", "truncated")
_FLAGS = ("terminated", "truncated")
_ORDER = f"give ({', '.join(_COLUMNS[:4])}, done), or terminated and truncated in place of done; no infos"
#: Names of the fields of named tuples that no column has.
_FIELDS = {
    "state": "observations",
    "s": "observations",
    "a": "actions",
    "r": "rewards",
    "next_state": _NEXT,
    "s_": _NEXT,
    "s2": _NEXT,
    "s_next": _NEXT,
    "d": DONES,
}


def transition_episodes(transitions: Sequence[Sequence[Any]], name: str) -> list[dict[str, Any]]:
    """Returns the episodes of transitions, as mappings of arrays.

    They have a final observation. Observations that are mappings become columns with dotted names. An episode ends at a
    flag, and where s' differs from the next s.

    Args:
        transitions: tuples (s, a, r, s', done) or (s, a, r, s', terminated, truncated), or named tuples with usual
            names of fields. `done` is a terminal step.
        name: the name of the source, for errors.

    Raises:
        BadEpisodeError: a transition has other values than the first, or values of another shape; or the values are not
            in this order.
        UnsupportedColumnError: the field of a named tuple is unknown.
    """
    columns = _columns_of(transitions[0], name)
    for row, transition in enumerate(transitions):
        if not isinstance(transition, tuple | list) or len(transition) != len(columns):
            raise BadEpisodeError(
                f"is not a tuple of the {len(columns)} values that the first transition has",
                file=name,
                row=row,
                hint=f"give ({', '.join(columns)}) for each step",
            )
    arrays: dict[str, npt.NDArray[Any]] = {}
    for column, values in zip(columns, zip(*transitions, strict=True), strict=True):
        arrays |= _stacked(column, values, name)
    after = {key: arrays.pop(f"next_{key}") for key in list(arrays) if f"next_{key}" in arrays}
    _check_order(arrays, after, name)
    ends = np.zeros(len(transitions), np.bool_)
    ends[-1] = True
    for key in _FLAGS:
        if key in arrays:
            ends |= arrays[key].astype(np.bool_).reshape(len(ends), -1).any(1)
    for key in after:
        ends[:-1] |= rows_differ(after[key][:-1], arrays[key][1:])
    bounds = [0, *(np.flatnonzero(ends) + 1)]
    return [
        {
            key: np.concatenate([values[a:b], after[key][b - 1 : b]]) if key in after else values[a:b]
            for key, values in arrays.items()
        }
        for a, b in pairwise(bounds)
    ]


def _check_order(arrays: Mapping[str, npt.NDArray[Any]], after: Mapping[str, npt.NDArray[Any]], name: str) -> None:
    """Refuses tuples of another order, such as (s, a, r, done, s').

    Args:
        arrays: column -> values of all transitions.
        after: column of observations -> the observations after each step.
        name: the name of the source, for the error.

    Raises:
        BadEpisodeError: a flag is not one number, or s' is not like s.
    """
    problems = {
        key: f"is {array.dtype} {array.shape[1:]}, where one flag is expected"
        for key, array in arrays.items()
        if key in _FLAGS and (array[0].size != 1 or array.dtype.kind not in "biuf")
    }
    for key, values in after.items():
        own = arrays[key]
        if values.shape != own.shape or (values.dtype.kind == "b") != (own.dtype.kind == "b"):
            found = f"is {values.dtype} {values.shape[1:]}, where '{key}' is {own.dtype} {own.shape[1:]}"
            problems[f"next_{key}"] = found
    for key, problem in problems.items():
        raise BadEpisodeError(problem, file=name, column=key, row=0, hint=_ORDER)


def _columns_of(first: Sequence[Any], name: str) -> list[str]:
    """Returns the column of each value of a transition."""
    fields = getattr(first, "_fields", None)
    if fields is None:
        return list(_COLUMNS[: len(first)])
    columns = [_FIELDS.get(field, canonical_name(field)) for field in fields]
    columns = ["terminated" if column == DONES else column for column in columns]
    for field, column in zip(fields, columns, strict=True):
        if column not in _COLUMNS or columns.count(column) > 1:
            raise UnsupportedColumnError(
                f"is a field of the tuples {type(first).__name__}({', '.join(fields)}), and no part of a transition",
                file=name,
                column=field,
                hint=f"use tuples ({', '.join(_COLUMNS[:4])}, done)",
            )
    return columns


def _stacked(column: str, values: Sequence[Any], name: str) -> dict[str, npt.NDArray[Any]]:
    """Stacks the values of all transitions; mappings by key."""
    missing = next((row for row, value in enumerate(values) if value is None), None)
    if missing is not None:
        raise BadEpisodeError(
            "is None",
            file=name,
            column=column,
            row=missing,
            hint="give the observation after the last step of an episode, too" if column == _NEXT else None,
        )
    infos = next((row for row, value in enumerate(values) if isinstance(value, Mapping) and value), None)
    if infos is not None and column in _FLAGS:
        raise BadEpisodeError("is a mapping, not a flag", file=name, column=column, row=infos, hint=_ORDER)
    if not isinstance(values[0], Mapping):
        return {column: _array(column, values, name)}
    flat = [flatten(value) if isinstance(value, Mapping) else {} for value in values]
    for row, value in enumerate(flat):
        if value.keys() != flat[0].keys():
            raise BadEpisodeError("has other keys than in the first transition", file=name, column=column, row=row)
    return {f"{column}.{key}": _array(f"{column}.{key}", [value[key] for value in flat], name) for key in flat[0]}


def _array(column: str, values: Sequence[Any], name: str) -> npt.NDArray[Any]:
    parts: list[npt.NDArray[Any]] = []
    for row, value in enumerate(values):
        try:
            part = np.asarray(value)
        except (ValueError, TypeError, RuntimeError) as error:  # tuples; tensors that NumPy cannot hold
            raise BadEpisodeError(
                f"cannot be converted to an array: {error}",
                file=name,
                column=column,
                row=row,
                hint="give an array, a number or a mapping: the first part of (observation, info), as reset returns; "
                "or tensor.detach().cpu() of a tensor with a gradient, or on a GPU",
            ) from error
        parts.append(part)
        if part.shape != parts[0].shape:
            raise BadEpisodeError(
                f"has the shape {part.shape}, in the first transition {parts[0].shape}",
                file=name,
                column=column,
                row=row,
            )
    return np.stack(parts)


#: (s, a, r, s', done) and (s, a, r, s', terminated, truncated).
_TRANSITION_LENGTHS = (5, 6)


def as_table(source: Any) -> pa.Table | None:
    """Returns a pandas, Polars or Arrow table as an Arrow table, or None.

    All objects with an Arrow stream are tables, such as a relation of DuckDB. Of the index of a pandas table, levels
    with a name are columns.

    Raises:
        UnsupportedColumnError: a column holds objects of several types, or two have one name.
    """
    name = type(source).__name__
    try:
        if type(source).__module__.partition(".")[0] == "pandas" and name == "DataFrame":
            levels = [level for level in source.index.names if level is not None]
            frame = source.reset_index(level=levels) if levels else source
            return pa.Table.from_pandas(frame, preserve_index=False)
        if type(source).__module__.partition(".")[0] == "polars" and name == "LazyFrame":
            source = source.collect()
        return pa.table(source) if hasattr(source, "__arrow_c_stream__") else None
    except (ValueError, TypeError, NotImplementedError) as error:  # of Arrow, and of pandas for names
        raise UnsupportedColumnError(
            f"cannot be converted to an Arrow table: {error}",
            file=f"{name} in memory",
            hint="give each column one type: numbers, texts, or lists of numbers; and each column and level of the "
            "index a name of its own",
        ) from error


def holds_transitions(source: Any) -> bool:
    """Returns whether an object is a list of tuples (s, a, r, s', done).

    The list may also be a tuple or a deque. Two end flags, terminated and truncated, may end the tuples. Named tuples
    of arrays [T, ...] are episodes.
    """
    if not isinstance(source, list | tuple | deque) or not source:
        return False
    first = source[0]
    if hasattr(first, "_fields"):
        rewards = [value for key, value in zip(first._fields, first, strict=True) if canonical_name(key) == "rewards"]
        return all(np.size(value) == 1 for value in rewards)
    return isinstance(first, tuple | list) and len(first) in _TRANSITION_LENGTHS


def holds_arrays(source: Any) -> bool:
    """Returns whether an object is a mapping of arrays."""
    return isinstance(source, Mapping) and len(source) > 0
