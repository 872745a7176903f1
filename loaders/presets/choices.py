"""Choices: keys of a batch whose windows have the value of one of several columns or facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import xxhash

from gear_data.collection.output import Output
from gear_data.error_text import shown
from gear_data.errors import InvalidArgumentError
from gear_data.kernels import cpu
from gear_data.loaders.presets.batch_format import BatchFormat
from gear_data.loaders.presets.batch_request import BatchRequest
from gear_data.loaders.presets.outputs import column_keys
from gear_data.loaders.presets.unlike import dim_mask_of
from gear_data.schema import ColumnSpec, Role, Schema
from gear_data.selection.windows import Int64Array, Windows

#: Key of the batch -> the columns or facts, of which each window has one.
Choose: TypeAlias = "Mapping[str, str | Sequence[str]]"


@dataclass(frozen=True)
class Choice:
    """A key of the batch whose windows have the values of one of several columns.

    Attributes:
        key: key of the batch.
        columns: the columns.
        arrays: new key -> the keys of the columns' arrays, in their order; empty if the columns have text or bytes.
        having: for each dataset of a mixture, the places of the columns that it draws among. A dataset that has none
            lacks the key. Empty: each dataset has all columns.
    """

    key: str
    columns: tuple[str, ...]
    arrays: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    having: tuple[tuple[int, ...], ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that it adds to a batch."""
        return tuple(self.arrays) or (self.key,)

    @property
    def lacking(self) -> list[int]:
        """The datasets that lack the key."""
        return [dataset for dataset, places in enumerate(self.having) if not places]

    def column_of(self, dataset: int) -> str:
        """Returns the first column of a dataset that has the key."""
        return self.columns[self.having[dataset][0] if self.having else 0]

    @cached_property
    def _places(self) -> tuple[Int64Array, Int64Array]:
        """For each dataset, the number of its columns, at least 1, and their places, int64 [datasets, columns]."""
        places = np.zeros((len(self.having), len(self.columns)), np.int64)
        for dataset, own in enumerate(self.having):
            places[dataset, : len(own)] = own
        return np.array([max(1, len(own)) for own in self.having], np.int64), places

    def numbers(self, seed: int, step: int, windows: Windows) -> Int64Array:
        """Returns which of the columns each window has, int64 [B]. See `drawn_numbers`.

        A window of a dataset that lacks the key has 0.
        """
        if not self.having:
            counts = np.full(len(windows), len(self.columns), np.int64)
            return drawn_numbers(seed, self.key, step, windows.row, counts)
        source, (of_dataset, places) = np.broadcast_to(np.asarray(windows.source), len(windows)), self._places
        drawn: Int64Array = places[source, drawn_numbers(seed, self.key, step, windows.row, of_dataset[source])]
        return drawn


def check_choose(choose: Any) -> dict[str, tuple[str, ...]]:
    """Returns the argument `choose`: key -> names.

    Raises:
        InvalidArgumentError: the argument is of another form.
    """
    found = {}
    for key, names in choose.items() if isinstance(choose, Mapping) else [(None, choose)]:
        each = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, list | tuple) else ()
        if not isinstance(key, str) or not each or not all(isinstance(name, str) for name in each):
            raise InvalidArgumentError(
                f"choose maps keys of the batch to a name or a list of names, and is {shown(choose)}",
                hint='for example choose={"instruction": ["language_instruction", "language_instruction_2"]}',
            )
        if len({*each}) < len(each):
            raise InvalidArgumentError(f"choose has a name twice: {', '.join(each)}", column=key)
        found[key] = each
    return found


def text_choice(batch_format: BatchFormat, schema: Schema, key: str, columns: Sequence[str]) -> Choice:
    """Returns the choice among columns of text or of bytes.

    Raises:
        InvalidArgumentError: the columns are of several kinds.
    """
    specs = [schema[name] for name in columns]
    kinds = {spec.name: spec.dtype for spec in specs}
    if len({*kinds.values()}) > 1:
        raise InvalidArgumentError(
            f"choose= draws among columns of one dtype, and these are {kinds}", column=key,
            hint="name columns of one dtype",
        )  # fmt: skip
    if len({batch_format.first_step_only(spec.role) for spec in specs}) > 1:
        raise InvalidArgumentError(
            f"preset '{batch_format.name}' takes all steps of some of these columns, and the first step of others",
            column=key,
            hint="name columns of one role",
        )
    _check_states(batch_format, key, specs)
    return Choice(key, tuple(columns))


def _check_states(batch_format: BatchFormat, key: str, specs: Sequence[ColumnSpec]) -> None:
    """Raises InvalidArgumentError if a preset has each of these columns twice."""
    if batch_format.transitions is not None and any(spec.role is Role.OBSERVATION for spec in specs):
        raise InvalidArgumentError(
            f"preset '{batch_format.name}' has two states in a row, and choose= draws one value",
            column=key,
            hint="name columns that are no observations",
        )


def array_choice(
    batch_format: BatchFormat, request: BatchRequest, outputs: Sequence[Output], key: str, columns: Sequence[str]
) -> Choice:
    """Returns the choice among columns of numbers or cameras.

    Args:
        batch_format: the preset, with its options.
        request: the arguments for the preset, with these columns.
        outputs: the arrays of its batches.
        key: key of the batch.
        columns: the columns.

    Raises:
        InvalidArgumentError: the columns have arrays of several shapes or dtypes, or become tokens.
    """
    if batch_format.tokens is not None:
        raise InvalidArgumentError(
            f"preset '{batch_format.name}' makes tokens, and choose= draws among arrays", column=key,
            hint="name facts, or give another preset",
        )  # fmt: skip
    _check_states(batch_format, key, [request.schema[name] for name in columns])
    of_key = {output.key: output for output in outputs}
    keys = column_keys(batch_format, request)
    found = {name: of_key[keys[name][0]] for name in columns}
    masks = tuple(mask for name in columns if (mask := keys[name][1]) in of_key)
    _check_forms(key, {name: (*_form(output), name in request.offsets) for name, output in found.items()})
    if len(masks) not in (0, len(columns)):
        raise _unlike(key, "some of these columns have a mask of steps, and others have none")
    arrays = {key: tuple(output.key for output in found.values())}
    if masks:
        arrays[batch_format.mask_of(key, key)] = masks
    return Choice(key, tuple(columns), arrays)


def _form(output: Output) -> tuple[Any, ...]:
    return (
        output.steps or (output.first, output.width),
        output.shape,
        output.half or output.dtype,
        output.squeeze_time,
        output.camera,
    )


def _check_forms(key: str, forms: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises InvalidArgumentError if columns, each with its form, have several forms."""
    if len({*forms.values()}) > 1:
        listed = ", ".join(f"{form} of {name}" for name, form in forms.items())
        raise _unlike(key, f"(steps, shape, dtype, squeeze_time, camera, offsets) are {listed}")


def _unlike(key: str, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"choose= draws among arrays of one form, and {what}",
        column=key,
        hint="give cameras one size with resize=(H, W), and all columns the same offsets",
    )


def joint_choice(
    key: str, columns: Sequence[str], choices: Sequence[Choice | None], outputs: Sequence[Output]
) -> Choice:
    """Returns the choice of all datasets of a mixture whose arrays are padded.

    A dataset draws among the columns that it has. One that has none of them has an array of zeros, or empty texts.

    Args:
        key: key of the batch.
        columns: the columns, in the order in which datasets have them.
        choices: of each dataset, among its own columns; None: it lacks the key.
        outputs: the arrays of a dataset, padded.

    Raises:
        InvalidArgumentError: the arrays are not padded alike, or of several forms.
    """
    own = [each for each in choices if each is not None]
    columns = [name for name in columns if any(name in each.columns for each in own)]
    having = tuple(() if each is None else tuple(map(columns.index, each.columns)) for each in choices)
    if all(len(places) == len(columns) for places in having):
        having = ()
    arrays: dict[str, tuple[str, ...]] = {}
    for new in dict.fromkeys(new for each in own for new in each.arrays):
        sources = {
            name: source for each in own for name, source in zip(each.columns, each.arrays.get(new, ()), strict=False)
        }
        if len(sources) < len(columns):
            raise _unlike(key, "some of these columns have a mask of steps, and others have none")
        arrays[new] = tuple(sources[name] for name in columns)
    if arrays:
        arrays |= _padded_masks(key, columns, arrays[key], outputs)
    return Choice(key, tuple(columns), arrays, having)


def _padded_masks(
    key: str, columns: Sequence[str], sources: Sequence[str], outputs: Sequence[Output]
) -> dict[str, tuple[str, ...]]:
    """Returns the mask of the elements of a choice -> the masks of its arrays, if they are padded."""
    of_key = {output.key: output for output in outputs}
    masks = tuple(dim_mask_of(source) for source in sources)
    padded = [mask in of_key for mask in masks]
    shapes = {name: list(of_key[source].shape) for name, source in zip(columns, sources, strict=True)}
    if any(padded) != all(padded) or len({*map(tuple, shapes.values())}) > 1:
        raise InvalidArgumentError(
            f"choose= draws among arrays of one form, and with pad_to their steps are {shapes}",
            column=key,
            hint="give pad_to a mapping with the same elements for each of these columns: " + ", ".join(columns),
        )
    _check_forms(key, {name: _form(of_key[source]) for name, source in zip(columns, sources, strict=True)})
    return {dim_mask_of(key): masks} if any(padded) else {}


def choose_arrays(
    choices: Sequence[Choice], hidden: frozenset[str], seed: int, step: int, windows: Windows, batch: dict[str, Any]
) -> None:
    """Adds the arrays of choices to a batch, and removes arrays that only choices need.

    Args:
        choices: the choices.
        hidden: keys of the arrays to remove.
        seed: seed of the loader.
        step: the batch's step.
        windows: its windows.
        batch: key -> array [B, ...].
    """
    for choice in choices:
        if choice.arrays:
            numbers = choice.numbers(seed, step, windows)
            for key, sources in choice.arrays.items():
                batch[key] = batch[sources[0]].copy()
                for number, source in enumerate(sources[1:], 1):
                    rows = numbers == number
                    batch[key][rows] = batch[source][rows]
    for key in hidden:
        del batch[key]


def drawn_numbers(seed: int, key: str, step: int, row: int, counts: Int64Array) -> Int64Array:
    """Returns a number from 0 to counts[i] - 1 for each window, int64 [B].

    Window i is row + i of the global batch. The number is a function of (seed, key, step, row + i, counts[i]).

    Args:
        seed: seed of the loader.
        key: key of the batch; each key has numbers of its own.
        step: the batch's step.
        row: the row of the global batch at which the windows begin.
        counts: int64 [B], at least 1.
    """
    random = cpu.random
    seed_of_key = np.uint64(
        random.word64(np.uint64(seed), random.DOMAIN_CHOICE, 0, xxhash.xxh32_intdigest(key.encode()), 0)
    )
    numbers = np.zeros(len(counts), np.int64)
    # The rows of all ranks before this one are drawn, too.
    every = np.empty(row + len(counts), np.int64)
    for count in np.unique(counts).tolist():
        random.draw_below(seed_of_key, random.DOMAIN_CHOICE, step, count, every)
        chosen = counts == count
        numbers[chosen] = every[row:][chosen]
    return numbers
