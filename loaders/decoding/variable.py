"""Columns of text and encoded bytes, and facts, as lists or as a decoder's arrays."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.output import Output, Padding, check_alike
from gear_data.common.cancellation import call_user_function
from gear_data.errors import GearError, InvalidArgumentError, UnknownNameError
from gear_data.loaders.component import LoaderComponent, episode_ids
from gear_data.loaders.decoding.frames import frames_of
from gear_data.loaders.decoding.images import Decoder
from gear_data.loaders.decoding.pad_decoded import StepPositions, padded
from gear_data.loaders.presets.choices import Choice, drawn_numbers
from gear_data.loaders.presets.facts import Fact, FactValues
from gear_data.schema import Role
from gear_data.selection.windows import Int64Array, Windows


def check_decoders(components: Sequence[LoaderComponent], decoders: Mapping[str, Decoder]) -> None:
    """Checks that each decoder is for a column of text or bytes in the batches.

    Raises:
        UnknownNameError: another column; the message lists the possible columns.
        InvalidArgumentError: a decoder is not callable.
    """
    if not isinstance(decoders, Mapping):
        raise InvalidArgumentError(f"decoders must map columns to callables, not be {decoders!r}")
    known = sorted(
        {name for component in components for name in component.variable}
        | {choice.key for component in components for choice in component.choices if not choice.arrays}
        | {fact.key for component in components for fact in component.facts if fact.variable_length}
    )
    schemas = [component.request.schema for component in components]
    for name, decoder in decoders.items():
        if name not in known:
            hint = f"these are: {', '.join(known) or 'none'}; columns= puts more columns into a batch"
            if any(name in schema and schema[name].dtype == "uint8" for schema in schemas):
                hint = (
                    "the column holds numbers, because `convert` decodes images unless you give --keep-encoded; "
                    "change the numbers in transform="
                )
            raise UnknownNameError(
                "decoders name a column that is not one of text or bytes in these batches", column=name, hint=hint
            )
        if not callable(decoder):
            raise InvalidArgumentError(f"a decoder must be callable, and {decoder!r} cannot be called", column=name)


def check_joined(components: Sequence[LoaderComponent]) -> None:
    """Raises InvalidArgumentError if windows of these datasets cannot be in one batch."""
    first, *others = components
    for other in others:
        check_alike(_beside_tokens(first), _beside_tokens(other))
        check_alike(first.task_goals, other.task_goals)
        mine, yours = _layout(first), _layout(other)
        if any(mine.get(name) != yours.get(name) for name in {*mine, *yours} - first.absent - other.absent):
            raise InvalidArgumentError(
                "the datasets' batches differ in text, bytes and facts: (key, dtype, first step only) are "
                f"{mine} and {yours}",
                hint="choose common columns, or batches of one dataset each",
            )
        if other.choices != first.choices:
            drawn = [{choice.key: choice.columns for choice in each.choices} for each in (first, other)]
            raise InvalidArgumentError(
                f"the datasets' batches draw among several columns: {drawn[0]} and {drawn[1]}",
                hint="give all datasets one choose= for columns, or batches of one dataset each",
            )


def _beside_tokens(component: LoaderComponent) -> tuple[Output, ...]:
    """Returns the arrays that datasets of one batch must have alike."""
    return component.beside_tokens if component.batch_format.tokens is not None else component.all_outputs


class VariableColumns:
    """Adds columns of text and encoded bytes, and facts, to batches.

    Safe to call from several threads.

    Args:
        components: the loader's datasets.
        context: K, the steps of a sequence.
        decoders: column -> decoder of its texts or bytes.
        seed: seed of the loader.
        one_shape: whether the values of a decoder must have one shape in all batches.
    """

    def __init__(
        self,
        components: Sequence[LoaderComponent],
        context: int,
        decoders: Mapping[str, Decoder],
        seed: int,
        *,
        one_shape: bool = False,
    ) -> None:
        self._components = components
        self._context = context
        self._decoders = decoders
        self._readers = [component.dataset.store.reader() for component in components]
        self._facts = [
            {fact.key: FactValues(component.dataset, fact) for fact in component.facts} for component in components
        ]
        # Column that some datasets lack -> their numbers.
        self._lacking = {
            column: [number for number, each in enumerate(components) if column in each.absent]
            for column in {name for each in components for name in each.absent}
        }
        self._seed = seed
        #: For each dataset, name -> the shape of its values.
        self._shapes: list[dict[str, tuple[int, ...]] | None] = [{} if one_shape else None for _ in components]
        # HuggingFace's tokenizers fail if two threads call one at once ("Already borrowed").
        self._decoding = threading.Lock()

    def add(self, step: int, windows: Windows, batch: dict[str, Any]) -> None:
        """Adds the columns and facts to the batch of a step, which has these windows."""
        self.add_columns(windows, batch)
        self.add_facts(step, windows, batch)

    def add_columns(self, windows: Windows, batch: dict[str, Any]) -> None:
        """Adds the columns to a batch, which has these windows.

        A window of n valid steps has a list of n values. If the preset takes only the first step, the window has that
        value, as it has the value of a fact. For decoders see `gear_data.loaders.decoding.pad_decoded.padded`.

        Raises:
            CorruptShardError: damaged values.
            InvalidArgumentError: a decoder returns values that cannot be padded, or a key that the batch already has.
        """
        component = self._component(windows)
        for column, key in component.variable.items():
            if (
                component.batch_format.transitions is not None
                and component.request.schema[column].role is Role.OBSERVATION
            ):
                added = self._transitions(column, key, windows, batch.get("intervals"))
            else:
                added = self._column(column, key, windows)
            _add(batch, column, added)

    def add_facts(self, step: int, windows: Windows, batch: dict[str, Any]) -> None:
        """Adds choices and facts to the batch of a step, which has these windows."""
        component = self._component(windows)
        for choice in (each for each in component.choices if not each.arrays):
            numbers = choice.numbers(self._seed, step, windows)
            _add(batch, choice.key, self._column(choice.key, choice.key, windows, choice, numbers))
        for fact in component.facts:
            _add(batch, fact.key, self._fact(step, fact, windows))

    def _transitions(
        self, column: str, key: str, windows: Windows, intervals: npt.NDArray[np.int64] | None
    ) -> dict[str, Any]:
        """Returns a column and its next values, with their masks as for other columns.

        No final observation of such a column is stored.

        Args:
            column, key: the column, and its key in the batch.
            windows: the batch's windows.
            intervals: int64 [B], the steps to each row's next state; None: 1.
        """
        if not len(windows):
            zero = np.zeros(1, np.int64)
            source = windows.dataset
            one_row = self._transitions(column, key, Windows(zero, zero, zero + 1, source=source), None)
            return {name: value[:0] for name, value in one_row.items()}
        component = self._component(windows)
        stacked = column in component.request.offsets
        frames = frames_of(
            windows,
            windows.episode_steps([each.dataset.store.lengths for each in self._components]),
            np.ones(len(windows), np.int64) if intervals is None else intervals,
            component.request.offsets.get(column, (0,)),
            repeat=component.batch_format.column_padding is not Padding.FILL,
        )
        values = list(chain.from_iterable(self._values(column, frames.windows)))
        result: dict[str, Any] = {}
        if column in self._decoders:
            steps = StepPositions((len(values),), np.arange(len(values)))
            decoded = self._padded(column, key, self._decode(column, values, frames.windows), steps, windows)
            for name, of_steps in decoded.items():
                own, following = frames.spread(of_steps)
                result[name], result[f"next_{name}"] = (own, following) if stacked else (own[:, 0], following[:, 0])
        else:
            lists = frames.spread_list(values)
            result[key], result[f"next_{key}"] = lists if stacked else [[row[0] for row in half] for half in lists]
        transitions = component.batch_format.transitions
        if stacked:
            result[f"{column}_mask"], result[f"next_{column}_mask"] = frames.inside
        elif transitions is not None and transitions.missing_next == "mark":
            result[f"next_{column}_mask"] = frames.inside[1, :, 0]
        return result

    def _component(self, windows: Windows) -> LoaderComponent:
        return self._components[windows.dataset]

    def _column(
        self, column: str, key: str, windows: Windows, choice: Choice | None = None, numbers: Int64Array | None = None
    ) -> dict[str, Any]:
        """Returns a column, or its decoder's arrays.

        Args:
            column, key: the column, and its key in the batch.
            windows: the batch's windows.
            choice: columns, of which each window has one. None: each has `column`.
            numbers: int64 [B], which of them.
        """
        lacking = self._lacking.get(column, []) if choice is None else choice.lacking
        owner = windows.dataset
        if owner in lacking:
            owner = next(number for number in range(len(self._components)) if number not in lacking)
        empty = np.isin(np.broadcast_to(np.asarray(windows.source), len(windows)), lacking) if lacking else None
        if not len(windows) or (empty is not None and empty.all()):
            # A rank may have no row of a short batch. Any step gives the keys and dtypes of the other rows.
            zero = np.zeros(1, np.int64)
            one, number = Windows(zero, zero, zero + 1, source=owner), None
            if choice is not None:
                number = zero + choice.columns.index(choice.column_of(owner))
            return _zeros(self._column(column, key, one, choice, number), len(windows))
        component = self._components[owner]
        spec = component.request.schema[column if choice is None else choice.column_of(owner)]
        first_only = component.batch_format.first_step_only(spec.role)
        if first_only:
            windows = replace(windows, length=np.ones(len(windows), np.int64))
        if empty is not None:
            windows = replace(windows, length=np.where(empty, 0, windows.length))
        if choice is None or numbers is None:
            values = self._values(column, windows)
        else:
            values = [[] for _ in range(len(windows))]
            drawn = numbers if empty is None else np.where(empty, -1, numbers)
            for number in np.unique(drawn[drawn >= 0]).tolist():
                rows, name = np.flatnonzero(drawn == number), choice.columns[number]
                for row, own in zip(rows.tolist(), self._values(name, windows[rows]), strict=True):
                    values[row] = own
        if column not in self._decoders:
            nothing: Any = "" if spec.dtype == "string" else b""
            return {key: [each[0] if each else nothing for each in values] if first_only else values}
        decoded = self._decode(column, list(chain.from_iterable(values)), windows)
        if windows.packing is not None and not first_only:
            of_rows = (windows.packing.rows, windows.packing.steps)
            places = _packed_positions(windows, windows.packing.place)
            return self._padded(column, key, decoded, StepPositions(of_rows, places), windows)
        width = 1 if first_only else self._context
        positions = _positions(windows, width, pad_left=component.batch_format.pad_left)
        if first_only and empty is not None:
            positions = np.flatnonzero(~empty)
        shape = (len(windows),) if first_only else (len(windows), width)
        return self._padded(column, key, decoded, StepPositions(shape, positions), windows)

    def _values(self, column: str, windows: Windows) -> list[list[Any]]:
        """Returns B lists, the values of each window."""
        if isinstance(windows.source, int):
            return self._read(windows.source, column, windows)
        result: list[list[Any]] = [[] for _ in range(len(windows))]
        for number in np.unique(windows.source).tolist():
            rows = np.flatnonzero(windows.source == number)
            for row, values in zip(rows.tolist(), self._read(number, column, windows[rows]), strict=True):
                result[row] = values
        return result

    def _read(self, number: int, column: str, windows: Windows) -> list[list[Any]]:
        component = self._components[number]
        if column in component.absent:
            return [[] for _ in range(len(windows))]
        index = component.dataset.schema.index(component.stored_name(column))
        chunks = self._readers[number].values(index, windows)
        values = chunks.to_numpy().tolist()
        ends = windows.length.cumsum()
        return [values[first:last] for first, last in zip((ends - windows.length).tolist(), ends.tolist(), strict=True)]

    def _fact(self, step: int, fact: Fact, windows: Windows) -> dict[str, Any]:
        """Returns a fact, or its decoder's arrays [B, ...]."""
        if fact.key not in self._decoders:
            return {fact.key: self._fact_values(step, fact, windows)}
        having = np.array([bool(self._names(number, fact.key)) for number in range(len(self._components))])
        rows = np.flatnonzero(np.broadcast_to(having[windows.source], len(windows)))
        if not len(rows):
            # Another window gives keys and dtypes. An episode of the view has a value.
            owner = windows.dataset if having[windows.dataset] else int(having.argmax())
            view, zero = self._components[owner].dataset.view, np.zeros(1, np.int64)
            episode = zero if view.rows is None else view.rows[:1]
            one_row = self._fact(step, fact, Windows(episode, zero, zero + 1, source=owner))
            return {name: np.zeros((len(windows), *value.shape[1:]), value.dtype) for name, value in one_row.items()}
        windows = replace(windows, length=np.ones(len(windows), np.int64))
        values = self._fact_values(step, fact, windows)
        decoded = self._decode(fact.key, [values[row] for row in rows.tolist()], windows[rows])
        return self._padded(fact.key, fact.key, decoded, StepPositions((len(windows),), rows), windows)

    def _names(self, number: int, key: str) -> tuple[str, ...]:
        """Returns the columns of a fact in a dataset; none: the dataset lacks it."""
        return next(fact.names for fact in self._components[number].facts if fact.key == key)

    def _fact_values(self, step: int, fact: Fact, windows: Windows) -> Any:
        """Returns the values of a fact: an array [B], or a list of B texts or bytes."""
        parts: list[tuple[FactValues, Any]]
        if isinstance(windows.source, int):
            parts = [(self._facts[windows.source][fact.key], slice(None))]
        else:
            sources = np.unique(windows.source).tolist()
            parts = [(self._facts[number][fact.key], windows.source == number) for number in sources]
        numbers = np.zeros(len(windows), np.int64)
        if any(values.drawn for values, _ in parts):
            for values, rows in parts:
                numbers[rows] = values.counts(windows.episode_id[rows])
            numbers = drawn_numbers(self._seed, fact.key, step, windows.row, numbers)
        if len(parts) == 1:
            return parts[0][0].take(windows.episode_id, numbers)
        result: Any = np.empty(len(windows), object if fact.variable_length else fact.dtype)
        for values, rows in parts:
            result[rows] = values.take(windows.episode_id[rows], numbers[rows])
        return result.tolist() if fact.variable_length else result

    def _padded(
        self, column: str, key: str, decoded: Any, steps: StepPositions, windows: Windows
    ) -> dict[str, npt.NDArray[Any]]:
        """Returns what a decoder made of windows; see `padded`."""
        return padded(column, key, decoded, steps, self._shapes[windows.dataset])

    def _decode(self, column: str, values: list[Any], windows: Windows) -> Any:
        """Calls a column's decoder.

        If the decoder raises an error with a row, the error is raised with the row's episode and step.
        """
        try:
            with self._decoding:
                return call_user_function(self._decoders[column], values)
        except GearError as error:
            if error.row is None:
                raise
            ends = windows.length.cumsum()
            row = int(np.searchsorted(ends, error.row, "right"))
            step = int(windows.start[row] + error.row - ends[row] + windows.length[row])
            source = windows.source if isinstance(windows.source, int) else int(windows.source[row])
            [episode] = episode_ids(self._components, source, windows.episode_id[row : row + 1]).tolist()
            raise type(error)(
                f"episode {episode}, step {step}: {error.message}",
                file=str(self._components[source].dataset.path),
                column=column,
                hint=error.hint,
            ) from error


def _zeros(one_row: dict[str, Any], rows: int) -> dict[str, Any]:
    """Returns zeros, or empty values, of the keys and dtypes of one row."""
    return {
        name: [type(value[0])() for _ in range(rows)]
        if isinstance(value, list)
        else np.zeros((rows, *value.shape[1:]), value.dtype)
        for name, value in one_row.items()
    }


def _layout(component: LoaderComponent) -> dict[str, tuple[str, str, bool]]:
    """Returns column or key of a fact -> (key, dtype, whether the batch has only the first step)."""
    schema = component.request.schema
    taken = component.absent | component.tokenized
    columns = {name: (key, schema[name]) for name, key in component.variable.items() if not {name, key} & taken}
    columns |= {
        choice.key: (choice.key, schema[choice.columns[0]])
        for choice in component.choices
        if not choice.arrays and not choice.having
    }
    return {
        name: (key, spec.dtype, component.batch_format.first_step_only(spec.role))
        for name, (key, spec) in columns.items()
    } | {fact.key: (fact.key, fact.dtype, True) for fact in component.facts}


def _add(batch: dict[str, Any], column: str, added: dict[str, Any]) -> None:
    for name, value in added.items():
        if name in batch:
            raise InvalidArgumentError(f"its decoder returns '{name}', a key that the batch has already", column=column)
        batch[name] = value


def _positions(windows: Windows, width: int, *, pad_left: bool) -> Int64Array:
    """Returns int64 [n], the positions of the valid steps in [B, width], flattened."""
    length = windows.length
    first = np.arange(len(windows)) * width + (width - length if pad_left else 0)
    before = length.cumsum() - length
    positions: Int64Array = np.repeat(first - before, length) + np.arange(length.sum())
    return positions


def _packed_positions(windows: Windows, place: Int64Array) -> Int64Array:
    """Returns int64 [n], the positions of the valid steps in packed rows, flattened; place: see `Packing`."""
    length = windows.length
    before = length.cumsum() - length
    positions: Int64Array = np.repeat(place - before, length) + np.arange(length.sum())
    return positions
