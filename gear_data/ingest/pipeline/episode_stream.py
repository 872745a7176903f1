"""Reads episodes one by one as mappings of arrays, and groups them into blocks.

Why: docs/explanation/decisions/canonical-form.md
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.paths import is_utf8
from gear_data.errors import BadEpisodeError, EmptySourceError, GearError, InvalidArgumentError
from gear_data.ingest.findings.log import BAD_EPISODE_HINT, NO_STEPS, Finding, FindingLog
from gear_data.ingest.pipeline.columns import END_FLAGS, check_dtypes, choose_columns, column_spec, with_dtypes
from gear_data.ingest.pipeline.episode_values import (
    cast_exactly,
    cast_values,
    flatten,
    is_scalar,
    reset_info_left_out,
    step_values,
)
from gear_data.ingest.pipeline.names import canonical_name, is_observation, usual_name
from gear_data.ingest.source import SourceOptions, Unit
from gear_data.ingest.sources.arrays.blocks import ReadEpisode, block_of
from gear_data.schema import ColumnSpec
from gear_data.storage.episode_block import END, EpisodeBlock, Position, Values, shaped

_BLOCK_BYTES = 16 << 20
#: The attributes to read from an episode that is an object and not a mapping.
_ATTRIBUTES = (
    "observations", "actions", "rewards", "terminations", "truncations", "terminated", "truncated", "dones", "infos",
)  # fmt: skip


@dataclass(frozen=True)
class _ColumnInput:
    """One column of one episode, as the source gives it.

    Attributes:
        spec: the column.
        array: its values, [T, ...] or [T + 1, ...].
        length: the number of steps of the episode, T.
        number: the index of the episode, for findings.
    """

    spec: ColumnSpec
    array: npt.NDArray[Any]
    length: int
    number: int


class EpisodeStream:
    """An `EpisodeSource` over a stream of episodes.

    All episodes must have the columns of the first episode.

    An episode is a mapping of arrays: `observations` [T + 1, ...] or [T, ...], `actions`, `rewards` and end flags [T].
    `infos` have T + 1 or T rows, and further arrays have T rows. If there are only T observations, the last row of
    `next_observations` gives the final observation (`take_next_observations`). An episode may also be an object with
    such attributes. An end flag may be one value, which is about the last step. Other scalars are facts about the
    episode.

    Args:
        name: the name of the source, for messages and the episode table.
        read: `read(start, stop)` yields the episodes of these indices. A stop of None is the end of the source. The
            constructor reads the first episode.
        options: the user's options.
        units: the units of the source.
        num_rows: the number of episodes, if known.
        metadata: the source's own metadata.
        prepare: turns an item that `read` yields into an episode. Its errors are about that episode.
    """

    rows_are_steps = False

    def __init__(
        self,
        name: str,
        read: Callable[[int, int | None], Iterator[Any]],
        options: SourceOptions,
        *,
        units: Sequence[Unit],
        num_rows: int | None,
        metadata: Mapping[str, Any] | None = None,
        prepare: Callable[[Any], Any] = lambda item: item,
    ) -> None:
        self.findings = FindingLog()
        self.resume_state: dict[str, Any] = {}
        self.metadata: Mapping[str, Any] = metadata or {}
        self.num_rows = num_rows
        self._name = name
        self._options = options
        self._read_episodes = read
        self._prepare = prepare
        self._units = units
        head = list(read(0, 1))
        if not head:
            raise EmptySourceError("holds no episode", file=name)
        try:
            first = prepare(head[0])
            values = _flat_values(first)
            _refuse_a_step(values, options.rename)
            steps = [key for key, value in values.items() if not is_scalar(value)]
            self._sources = choose_columns(steps, options)
            columns = self._infer(values, is_object=not isinstance(first, Mapping))
            self._dtypes = options.tables.dtype
            self.columns = with_dtypes(columns, self._dtypes, name)
        except GearError as error:
            error.file, error.row = name, 0
            if isinstance(error, BadEpisodeError):
                error.hint = error.hint or BAD_EPISODE_HINT
            raise
        check_dtypes(self._dtypes, self.columns)
        self._specs = {spec.name: spec for spec in self.columns}

    def units(self) -> Sequence[Unit]:
        return self._units

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        pending: list[ReadEpisode] = []
        size, row = 0, start.row
        last = None if stop == END else stop.row
        for number, item in enumerate(self._read_episodes(start.row, last), start.row):
            try:
                episode = self._read(item, number)
            except GearError as error:
                error.file, error.row = self._name, number
                if not isinstance(error, BadEpisodeError):
                    raise
                self.findings.add_bad_episode(error, skip=self._options.skip_bad)
                continue
            pending.append(episode)
            size += sum(values.nbytes for values in episode.columns.values())
            if size >= _BLOCK_BYTES:
                yield block_of(pending, self.columns, self._name, Position(0, row), number + 1 - row)
                pending, size, row = [], 0, number + 1
        if pending:
            yield block_of(pending, self.columns, self._name, Position(0, row), pending[-1].number + 1 - row)

    def _infer(self, values: Mapping[str, Any], *, is_object: bool) -> tuple[ColumnSpec, ...]:
        specs = []
        arrays = {name: step_values(values[source], source) for source, name in self._sources.items()}
        length = _length(arrays)
        for source, name in self._sources.items():
            array = arrays[name]
            dtype, shape = array.dtype.name, array.shape[1:]
            if array.dtype == object:
                dtype, shape = ("string" if len(array) and isinstance(array[0], str) else "binary"), ()
            elif 0 in shape:
                raise BadEpisodeError(f"a step of shape {shape} has no elements", column=source)
            elif name == "rewards" and dtype == "int64" and (is_object or isinstance(values[source], list)):
                # Lists of Python numbers become int64 if all rewards of an episode are whole, and float64 otherwise.
                # Minari builds its arrays in this way too.
                dtype = "float64"
            has_final = is_observation(name) and len(array) == length + 1
            specs.append(column_spec(name, dtype, shape, source=source, has_final=has_final))
        return tuple(specs)

    def _read(self, item: Any, number: int) -> ReadEpisode:
        values = _flat_values(self._prepare(item))
        arrays: dict[str, npt.NDArray[Any]] = {}
        for source, name in self._sources.items():
            if source not in values:
                raise BadEpisodeError("is missing in this episode; the first episode has it", column=source)
            arrays[name] = self._like_first(step_values(values[source], source), name, source, number)
        if self._options.columns is None:
            for source, value in values.items():
                if source not in self._sources and not is_scalar(value):
                    names = shlex.quote(",".join(self._sources.values()))
                    raise BadEpisodeError(
                        "is missing in the first episode; this episode has it",
                        column=source,
                        hint=f"keep only the columns of the first episode with --columns {names} (columns=[...]), or "
                        "give all episodes the same columns",
                    )
        length = _length(arrays)
        if length == 0:
            raise BadEpisodeError(NO_STEPS)
        if length == 1 and len(arrays.get("actions", ())) > 1:
            raise BadEpisodeError(
                f"has one row, and the episode {len(arrays['actions'])} actions",
                column=next(source for source, name in self._sources.items() if name == "rewards"),
                hint="if it is the reward of the whole episode, give it one row a step: 0, and the reward in the last",
            )
        columns: dict[str, Values] = {}
        finals: dict[str, Values] = {}
        for spec in self.columns:
            column = _ColumnInput(spec, arrays[spec.name], length, number)
            columns[spec.name], final = self._steps_and_final(column)
            if final is not None:
                finals[spec.name] = final
        missing = {spec.name for spec in self.columns if spec.has_final} - finals.keys()
        if finals and missing:
            raise BadEpisodeError("has no final observation, but other columns have one", column=min(missing))
        facts = {
            key: value.item() if hasattr(value, "item") else value for key, value in values.items() if is_scalar(value)
        }
        return ReadEpisode(number, length, columns, finals, facts)

    def _like_first(self, array: npt.NDArray[Any], name: str, source: str, number: int) -> npt.NDArray[Any]:
        """Casts values to the dtype of the first episode, or the dtype that the user chose.

        Returns the values unchanged if a number would change.
        """
        spec = self._specs.get(name)
        if spec is None or spec.variable_length or array.dtype.name == spec.dtype:
            return array
        is_chosen = not self._dtypes.keys().isdisjoint((name, source))
        cast = cast_values(array, spec.dtype, rounds=is_chosen) if is_chosen else cast_exactly(array, spec.dtype)
        if cast is None or is_chosen:
            return array if cast is None else cast
        message = f"{array.dtype.name} in some episodes; the same numbers are kept as {spec.dtype}"
        self.findings.add(Finding("dtype-differs", message, 1, self._name, number, source))
        return cast

    def _steps_and_final(self, column: _ColumnInput) -> tuple[Values, Values | None]:
        """Returns a column's T steps, and its final observation if it has one."""
        spec, array, length = column.spec, column.array, column.length
        if spec.name in END_FLAGS and not spec.variable_length and array.shape == (1,) and length != 1:
            # One flag of an episode is about its last step, as in d3rlpy.
            return shaped(np.concatenate([np.zeros(length - 1, array.dtype), array]), spec), None
        _check_values(column)
        if len(array) == length + 1 and is_observation(spec.name):
            return _observations_with_final(column)
        if len(array) == length + 1 and spec.name.startswith("infos"):
            # `reset` returned infos[0]; infos[t + 1] came with step t.
            self.findings.add(reset_info_left_out(1, self._name, column.number, spec.name))
            return shaped(array[1:], spec), None
        if len(array) != length:
            raise BadEpisodeError(f"has {len(array)} rows, and the episode {length} steps", column=spec.source_name)
        return shaped(array, spec), None


def _check_values(column: _ColumnInput) -> None:
    """Checks that values have the dtype and shape of the first episode.

    Raises BadEpisodeError.
    """
    spec, array = column.spec, column.array
    if spec.variable_length:
        kind = str if spec.dtype == "string" else bytes
        if array.dtype != object or not all(isinstance(value, kind) for value in array):
            raise BadEpisodeError(f"is not {spec.dtype} here, but is in the first episode", column=spec.source_name)
        if spec.dtype == "string" and not all(map(is_utf8, array)):
            raise BadEpisodeError("holds text that cannot be UTF-8", column=spec.source_name)
    elif array.dtype.name != spec.dtype or math.prod(array.shape[1:]) != spec.size:
        here, first = f"{array.dtype.name} {array.shape[1:]}", f"{spec.dtype} {spec.shape}"
        hint = None
        if math.prod(array.shape[1:]) == spec.size and array.dtype.kind in "iuf" and spec.numpy_dtype.kind in "iuf":
            dtype = f"{shlex.quote(spec.source_name)}={np.promote_types(array.dtype, spec.dtype)}"
            here, first = array.dtype.name, spec.dtype
            hint = (
                f"read all episodes as one dtype: --dtype {dtype} (tables=TableOptions(...)), or leave such episodes "
                "out with --on-bad-episode skip (on_bad_episode='skip')"
            )
        raise BadEpisodeError(f"is {here}, in the first episode {first}", column=spec.source_name, hint=hint)


def _observations_with_final(column: _ColumnInput) -> tuple[Values, Values | None]:
    """Splits T + 1 observations."""
    spec, array = column.spec, column.array
    if not spec.has_final:
        raise BadEpisodeError(
            f"has {len(array)} rows for {column.length} steps, and the first episode has no final observation",
            column=spec.source_name,
        )
    return shaped(array[:-1], spec), shaped(array[-1:], spec)


def _flat_values(item: Any) -> dict[str, Any]:
    """Returns an episode's values under dotted names. Single end flags become lists."""
    kind = type(item).__name__
    if not isinstance(item, Mapping):
        found = {name: getattr(item, name, None) for name in _ATTRIBUTES}
        item = {name: value for name, value in found.items() if value is not None}
    if not item:
        raise InvalidArgumentError(
            "an episode must be a mapping of arrays, or an object with 'observations', 'actions' and 'rewards', "
            f"not {kind}"
        )
    values = flatten(item)
    flags = {key for key, value in values.items() if canonical_name(key) in END_FLAGS and is_scalar(value)}
    return {key: [value] if key in flags else value for key, value in values.items() if value is not None}


def _refuse_a_step(values: Mapping[str, Any], rename: Mapping[str, str] | None) -> None:
    """Refuses a step in the place of an episode. Its observation would be read as the steps, and its reward as a fact.

    Raises InvalidArgumentError.
    """
    keys = {usual_name(key, rename): key for key in values}
    numbers = {
        name for name, key in keys.items() if is_scalar(values[key]) and not isinstance(values[key], str | bytes)
    }
    if "rewards" in numbers:
        found = "actions" in numbers or not any(map(_has_two_axes, values.values()))
    else:
        found = "actions" in numbers and "rewards" not in keys
    if found:
        raise InvalidArgumentError(
            "is one value, as of a step, where an episode has a value a step",
            column=keys["rewards" if "rewards" in numbers else "actions"],
            hint="in place of a list of steps give arrays: {key: numpy.stack([step[key] for step in steps]) for key in "
            "steps[0]}; in an episode give each step its own reward and action",
        )


def _has_two_axes(value: Any) -> bool:
    """Returns whether the rows of a value are arrays or lists."""
    if isinstance(value, list | tuple):
        return not all(map(is_scalar, value))
    return bool(getattr(value, "ndim", 0) > 1)


def _length(arrays: Mapping[str, npt.NDArray[Any]]) -> int:
    """Returns the number of steps: the rows of the rewards, or else of the actions.

    An episode without both has as many steps as its shortest column has rows.
    """
    for name in ("rewards", "actions"):
        if name in arrays:
            return len(arrays[name])
    return min((len(array) for array in arrays.values()), default=0)
