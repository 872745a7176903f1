"""Episodes one by one, each a mapping of its arrays: checked, made alike, and put together to blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.paths import is_utf8
from gear_data.errors import BadEpisodeError, EmptySourceError, GearError, InvalidArgumentError
from gear_data.ingest.findings.log import BAD_EPISODE_HINT, Finding, FindingLog
from gear_data.ingest.pipeline.columns import END_FLAGS, SCALAR_COLUMNS, choose_columns
from gear_data.ingest.pipeline.episode_values import cast_exactly, flatten, is_scalar, step_values
from gear_data.ingest.pipeline.names import canonical_name
from gear_data.ingest.source import SourceOptions, Unit
from gear_data.schema import ColumnSpec
from gear_data.storage.block import END, EpisodeBlock, Position

_BLOCK_BYTES = 16 << 20
#: What is looked for in an episode that is an object and no mapping.
_ATTRIBUTES = (
    "observations", "actions", "rewards", "terminations", "truncations", "terminated", "truncated", "dones", "infos",
)  # fmt: skip
_NEXT = "next_"


@dataclass(frozen=True)
class _Episode:
    """One episode as it goes into a block: name -> [T, ...], and [...] for finals."""

    number: int
    length: int
    columns: Mapping[str, npt.NDArray[Any]]
    finals: Mapping[str, npt.NDArray[Any]]
    facts: Mapping[str, Any]


class EpisodeStream:
    """An `EpisodeSource` over episodes that come one by one. All must have the columns of the first.

    An episode is a mapping of `observations` [T + 1, ...] or [T, ...], `actions`, `rewards`, end flags [T], `infos`
    [T + 1] or [T], and whatever else has T rows; or an object with such attributes. A flag may also be one value, for
    the last step; other single values are facts about the episode.
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
        """`read(start, stop)` gives the episodes of these numbers, where None is the end; it is first asked for one.
        `prepare` makes such an item an episode; what it raises is about that one."""
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
            values = _values(first)
            steps = [key for key, value in values.items() if not is_scalar(value)]
            self._sources = choose_columns(steps, options)
            self.columns = self._infer(values, is_object=not isinstance(first, Mapping))
        except GearError as error:
            raise self._placed(error, 0) from error.__cause__
        self._specs = {spec.name: spec for spec in self.columns}

    def units(self) -> Sequence[Unit]:
        return self._units

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        held: list[_Episode] = []
        size, row = 0, start.row
        last = None if stop == END else stop.row
        for number, item in enumerate(self._read_episodes(start.row, last), start.row):
            try:
                episode = self._read(item, number)
            except BadEpisodeError as error:
                if not self._options.skip_bad:
                    raise self._placed(error, number) from error.__cause__
                self.findings.add(
                    Finding("bad-episode", f"{error.message}; skipped", 1, self._name, number, error.column)
                )
                continue
            except GearError as error:
                raise self._placed(error, number) from error.__cause__
            held.append(episode)
            size += sum(values.nbytes for values in episode.columns.values())
            if size >= _BLOCK_BYTES:
                yield self._block(held, row, number + 1)
                held, size, row = [], 0, number + 1
        if held:
            yield self._block(held, row, held[-1].number + 1)

    def _placed(self, error: GearError, number: int) -> GearError:
        """The error with the episode it is about."""
        hint = error.hint or (BAD_EPISODE_HINT if isinstance(error, BadEpisodeError) else None)
        return type(error)(error.message, file=self._name, column=error.column, row=number, hint=hint)

    def _infer(self, values: Mapping[str, Any], *, is_object: bool) -> tuple[ColumnSpec, ...]:
        specs = []
        arrays = {name: step_values(values[source], source) for source, name in self._sources.items()}
        length = _length(arrays)
        for source, name in self._sources.items():
            array, known_as = arrays[name], None if source == name else source
            if array.dtype == object:
                dtype = "string" if len(array) and isinstance(array[0], str) else "binary"
                specs.append(ColumnSpec(name, dtype, source=known_as))
                continue
            shape = () if name in SCALAR_COLUMNS and array.shape[1:] == (1,) else array.shape[1:]
            if 0 in shape:
                raise BadEpisodeError(f"a step of shape {shape} has no elements", column=source)
            has_final = _is_observation(name) and (len(array) == length + 1 or _NEXT + name in arrays)
            dtype = array.dtype.name
            if name == "rewards" and dtype == "int64" and (is_object or isinstance(values[source], list)):
                # Lists of Python numbers, of which Minari too makes its arrays: whole rewards in one episode make
                # int64, in the next float64.
                dtype = "float64"
            specs.append(ColumnSpec(name, dtype, shape, False, known_as, has_final))
        finals = {_NEXT + spec.name for spec in specs if spec.has_final}
        wanted = set(self._options.columns or ())
        return tuple(spec for spec in specs if spec.name not in finals or spec.name in wanted)

    def _read(self, item: Any, number: int) -> _Episode:
        values = _values(self._prepare(item))
        arrays: dict[str, npt.NDArray[Any]] = {}
        for source, name in self._sources.items():
            if source not in values:
                raise BadEpisodeError("is missing; the first episode has it", column=source)
            arrays[name] = self._like_first(step_values(values[source], source), name, source, number)
        if self._options.columns is None:
            for source, value in values.items():
                if source not in self._sources and not is_scalar(value):
                    raise BadEpisodeError("is here, and not in the first episode", column=source)
        length = _length(arrays)
        if length == 0:
            raise BadEpisodeError("the episode has no steps")
        columns: dict[str, npt.NDArray[Any]] = {}
        finals: dict[str, npt.NDArray[Any]] = {}
        for spec in self.columns:
            steps, final = self._split(spec, arrays, length, number)
            columns[spec.name] = steps
            if final is not None:
                finals[spec.name] = final
        missing = {spec.name for spec in self.columns if spec.has_final} - finals.keys()
        if finals and missing:
            raise BadEpisodeError("has no final observation, where others have one", column=min(missing))
        facts = {key: _item(value) for key, value in values.items() if is_scalar(value)}
        return _Episode(number, length, columns, finals, facts)

    def _like_first(self, array: npt.NDArray[Any], name: str, source: str, number: int) -> npt.NDArray[Any]:
        """The same numbers in the column's dtype, where it can hold them; the values themselves where it cannot."""
        spec = self._specs.get(name)
        if spec is None or spec.variable_length or array.dtype.name == spec.dtype:
            return array
        cast = cast_exactly(array, spec.dtype)
        if cast is None:
            return array
        message = f"{array.dtype.name} in some episodes; the same numbers are kept as {spec.dtype}"
        self.findings.add(Finding("dtype-differs", message, 1, self._name, number, source))
        return cast

    def _split(
        self, spec: ColumnSpec, arrays: Mapping[str, npt.NDArray[Any]], length: int, number: int
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
        """A column's T steps, and its final observation where there is one."""
        array, source = arrays[spec.name], spec.source or spec.name
        rows = len(array)
        if spec.variable_length:
            kind = str if spec.dtype == "string" else bytes
            if array.dtype != object or not all(isinstance(value, kind) for value in array):
                raise BadEpisodeError(f"is no longer {spec.dtype}", column=source)
            if spec.dtype == "string" and not all(map(is_utf8, array)):
                raise BadEpisodeError("holds text that cannot be UTF-8", column=source)
        elif spec.name in END_FLAGS and rows == 1 != length and array.shape == (1,):
            # One flag, as d3rlpy has it, is about the last step.
            array = np.concatenate([np.zeros(length - 1, array.dtype), array])
            rows = length
        elif array.dtype.name != spec.dtype or math.prod(array.shape[1:]) != spec.size:
            found, first = f"{array.dtype.name} {array.shape[1:]}", f"{spec.dtype} {spec.shape}"
            raise BadEpisodeError(f"is {found}, in the first episode {first}", column=source)
        if rows == length + 1 and _is_observation(spec.name):
            if not spec.has_final and not spec.variable_length:
                raise BadEpisodeError(
                    f"has {rows} rows for {length} steps, and the first episode has no final observation", column=source
                )
            if spec.variable_length:
                message = "a final value of variable length cannot be kept; left out"
                self.findings.add(Finding("final-left-out", message, 1, self._name, number, spec.name))
                return array[:-1], None
            return self._shaped(array[:-1], spec), self._shaped(array[-1:], spec)[0]
        if rows == length + 1 and spec.name.startswith("infos"):
            # infos[0] is what reset returned; infos[t + 1] came with step t.
            message = "the info returned by reset belongs to no step; left out"
            self.findings.add(Finding("reset-info-left-out", message, 1, self._name, number, spec.name))
            array, rows = array[1:], length
        if rows != length:
            raise BadEpisodeError(f"has {rows} rows, and the episode {length} steps", column=source)
        if spec.variable_length:
            return array, None
        following = arrays.get(_NEXT + spec.name) if spec.has_final else None
        if following is None:
            return self._shaped(array, spec), None
        if following.dtype != array.dtype or following.shape != array.shape:
            raise BadEpisodeError("is not of the dtype and shape of the observations", column=_NEXT + spec.name)
        return self._shaped(array, spec), self._shaped(following[-1:], spec)[0]

    @staticmethod
    def _shaped(array: npt.NDArray[Any], spec: ColumnSpec) -> npt.NDArray[Any]:
        return array.reshape(len(array), *spec.shape)

    def _block(self, episodes: Sequence[_Episode], first: int, stop: int) -> EpisodeBlock:
        columns: dict[str, npt.NDArray[Any]] = {}
        variable: dict[str, pa.Array] = {}
        for spec in self.columns:
            values = np.concatenate([episode.columns[spec.name] for episode in episodes])
            if spec.variable_length:
                variable[spec.name] = pa.array(values.tolist(), spec.arrow_type)
            else:
                columns[spec.name] = np.ascontiguousarray(values)
        with_final = [episode for episode in episodes if episode.finals]
        finals = {
            spec.name: np.stack([episode.finals[spec.name] for episode in with_final])
            if with_final
            else np.empty((0, *spec.shape), spec.dtype)
            for spec in self.columns
            if spec.has_final
        }
        names = dict.fromkeys(name for episode in episodes for name in episode.facts)
        return EpisodeBlock(
            position=Position(0, first),
            lengths=np.array([episode.length for episode in episodes], np.int64),
            columns=columns,
            sources=[self._name] * len(episodes),
            rows=np.array([episode.number for episode in episodes], np.int64),
            has_final=np.array([bool(episode.finals) for episode in episodes]),
            finals=finals,
            metadata={name: [episode.facts.get(name) for episode in episodes] for name in names},
            variable=variable,
            source_rows=stop - first,
        )


def _values(item: Any) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        found = {name: getattr(item, name, None) for name in _ATTRIBUTES}
        item = {name: value for name, value in found.items() if value is not None}
    if not item:
        raise InvalidArgumentError(
            "an episode is a mapping of arrays, or an object with 'observations', 'actions' and 'rewards'"
        )
    values = flatten(item)
    flags = {key for key, value in values.items() if canonical_name(key) in END_FLAGS and is_scalar(value)}
    return {key: [value] if key in flags else value for key, value in values.items() if value is not None}


def _item(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _is_observation(name: str) -> bool:
    return name.split(".", 1)[0] == "observations"


def _length(arrays: Mapping[str, npt.NDArray[Any]]) -> int:
    """Steps: rows of the rewards, else of the actions, else of whatever has fewest."""
    for name in ("rewards", "actions"):
        if name in arrays:
            return len(arrays[name])
    return min((len(array) for array in arrays.values()), default=0)
