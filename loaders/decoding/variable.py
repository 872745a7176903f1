"""Columns of text and encoded bytes in a batch: lists, or what a decoder makes of them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch

from gear_data.collection.output import check_alike
from gear_data.dataset.internals import store_of
from gear_data.errors import GearError, InvalidArgumentError, UnknownNameError
from gear_data.loaders.component import LoaderComponent
from gear_data.loaders.decoding.images import Decoder
from gear_data.loaders.decoding.padding import Steps, padded
from gear_data.loaders.window_source import Draw
from gear_data.selection.windows import Windows


def check_decoders(parts: Sequence[LoaderComponent], decoders: Mapping[str, Decoder]) -> None:
    """That each is for a column of text or bytes of some batch.

    Raises:
        UnknownNameError: a column that is none; lists those there are.
        InvalidArgumentError: a decoder that cannot be called.
    """
    if not isinstance(decoders, Mapping):
        raise InvalidArgumentError(f"decoders are a mapping of column to a callable, not {decoders!r}")
    known = sorted({name for part in parts for name in part.variable})
    for name, decoder in decoders.items():
        if name not in known:
            hint = f"these are: {', '.join(known) or 'none'}; columns= puts more columns into a batch"
            if any(name in part.dataset.schema and part.dataset.schema[name].dtype == "uint8" for part in parts):
                hint = (
                    "it holds numbers: images are decoded by `convert`, unless with --keep-encoded; transform= has them"
                )
            raise UnknownNameError(
                "decoders name a column that is not one of text or bytes in these batches", column=name, hint=hint
            )
        if not callable(decoder):
            raise InvalidArgumentError(f"a decoder is called with a list, and {decoder!r} cannot be", column=name)


def check_joined(parts: Sequence[LoaderComponent]) -> None:
    """Raises InvalidArgumentError where windows of these parts cannot be in one batch."""
    first, *others = parts
    for other in others:
        check_alike(first.outputs, other.outputs)
        if _layout(other) != _layout(first):
            raise InvalidArgumentError(
                "the datasets' batches differ in text and bytes: (key, dtype, first step alone) are "
                f"{_layout(first)} and {_layout(other)}",
                hint="choose common columns, or batches of one dataset each",
            )


class VariableColumns:
    """Puts columns of text and encoded bytes into batches. Safe to call from several threads.

    Args:
        parts: the loader's datasets.
        context: K, steps of a sequence.
        decoders: column -> what makes of its texts or bytes.
    """

    def __init__(self, parts: Sequence[LoaderComponent], context: int, decoders: Mapping[str, Decoder]) -> None:
        self._parts = parts
        self._context = context
        self._decoders = decoders
        self._readers = [store_of(part.dataset).reader() for part in parts]
        # HuggingFace's tokenizers fail where two threads call one at once ("Already borrowed").
        self._decoding = threading.Lock()

    def add(self, batch: dict[str, Any], draw: Draw) -> None:
        """Adds the columns to the batch of a draw. Of n valid steps, a window has a list of n values; where the
        convention takes the first step alone, that value. With a decoder, see
        `gear_data.loaders.decoding.padding.padded`.

        Raises:
            CorruptShardError: damaged values.
            InvalidArgumentError: a decoder gives what cannot be padded, or a key that the batch has.
        """
        for column, key in self._part(draw).variable.items():
            for name, value in self._column(column, key, draw).items():
                if name in batch:
                    raise InvalidArgumentError(
                        f"its decoder gives '{name}', a key the batch has already", column=column
                    )
                batch[name] = value

    def _part(self, draw: Draw) -> LoaderComponent:
        return self._parts[draw.source if isinstance(draw.source, int) else 0]

    def _column(self, column: str, key: str, draw: Draw) -> dict[str, Any]:
        if not len(draw):
            # A rank may have no row of a short batch. Its keys and dtypes are the others': those of any step.
            zero = np.zeros(1, np.int64)
            source = draw.source if isinstance(draw.source, int) else 0
            some = self._column(column, key, Draw(Windows(zero, zero, zero + 1), source, draw.step))
            return {name: value[:0] for name, value in some.items()}
        part = self._part(draw)
        single = part.batch_format.first_step_only(part.dataset.schema[column].role)
        if single:
            one = replace(draw.windows, length=np.ones(len(draw), np.int64))
            draw = Draw(one, draw.source, draw.step)
        values = self._values(column, draw)
        if column not in self._decoders:
            return {key: [value for (value,) in values] if single else values}
        made = self._decoded(column, list(chain.from_iterable(values)), draw)
        width = 1 if single else self._context
        places = _places(draw.windows, width, pad_left=part.batch_format.pad_left)
        return padded(column, key, made, Steps((len(draw),) if single else (len(draw), width), places))

    def _values(self, column: str, draw: Draw) -> list[list[Any]]:
        """B lists of the values of each window."""
        if isinstance(draw.source, int):
            return self._read(draw.source, column, draw.windows)
        result: list[list[Any]] = [[] for _ in range(len(draw))]
        for number in np.unique(draw.source).tolist():
            rows = np.flatnonzero(draw.source == number)
            for row, values in zip(rows.tolist(), self._read(number, column, draw.windows[rows]), strict=True):
                result[row] = values
        return result

    def _read(self, number: int, column: str, windows: Windows) -> list[list[Any]]:
        chunks = self._readers[number].values(self._parts[number].dataset.schema.index(column), windows)
        values = chunks.to_numpy().tolist()
        ends = windows.length.cumsum()
        return [values[first:last] for first, last in zip((ends - windows.length).tolist(), ends.tolist(), strict=True)]

    def _decoded(self, column: str, values: list[Any], draw: Draw) -> Any:
        try:
            with self._decoding:
                return self._decoders[column](values)
        except GearError as error:
            if error.row is None:
                raise
            windows, ends = draw.windows, draw.windows.length.cumsum()
            row = int(np.searchsorted(ends, error.row, "right"))
            step = int(windows.start[row] + error.row - ends[row] + windows.length[row])
            source = draw.source if isinstance(draw.source, int) else int(draw.source[row])
            raise type(error)(
                f"episode {windows.episode_id[row]}, step {step}: {error.message}",
                file=str(self._parts[source].dataset.path),
                column=column,
                hint=error.hint,
            ) from error


def _layout(part: LoaderComponent) -> dict[str, tuple[str, str, bool]]:
    """Column -> (key, dtype, whether it is the first step alone)."""
    specs = {name: part.dataset.schema[name] for name in part.variable}
    return {
        name: (part.variable[name], spec.dtype, part.batch_format.first_step_only(spec.role))
        for name, spec in specs.items()
    }


def _places(windows: Windows, width: int, *, pad_left: bool) -> torch.Tensor:
    """int64 [n]: where the valid steps stand in [B, width]."""
    length = windows.length
    first = np.arange(len(windows)) * width + (width - length if pad_left else 0)
    before = length.cumsum() - length
    return torch.from_numpy(np.repeat(first - before, length) + np.arange(length.sum()))
