"""Normalizer: maps values of columns to values of batches, and back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gear_data.collection.output import Output, RelativeTo, output_from_json
from gear_data.common.keywords import suggest_keywords
from gear_data.common.regular_files import JSON_BYTES, read_regular
from gear_data.common.typed_json import check_json, parse_json, resolved
from gear_data.error_text import shown
from gear_data.errors import InvalidArgumentError
from gear_data.storage.atomic import write_text

#: Of a file with relative columns, and of another one.
_RELATIVE_VERSION, _VERSION = 2, 1
_HINT = "give what Normalizer.save or to_json wrote"


@resolved
class _RelativeRecord(msgspec.Struct, frozen=True):
    source: str
    size: int
    elements: list[int]
    delta: bool


@resolved
class _ColumnRecord(msgspec.Struct, frozen=True):
    mean: list[float]
    scale: list[float]
    shape: list[int]
    relative: _RelativeRecord | None = None


@resolved
class _Record(msgspec.Struct, frozen=True):
    version: int
    columns: dict[str, _ColumnRecord]


@dataclass(frozen=True)
class AffineMap:
    """y = (x - mean) * scale, for each element of a column.

    Attributes:
        mean, scale: float64, which broadcast to a step: [*shape], [1], or numbers for each channel of an image. Of a
            relative column, also [steps, elements].
        relative: what is subtracted from x first; None: nothing.
    """

    mean: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]
    relative: RelativeTo | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON form of a column's record."""
        plain = {
            "mean": self.mean.ravel().tolist(),
            "scale": self.scale.ravel().tolist(),
            "shape": list(self.mean.shape),
        }
        return plain if self.relative is None else {**plain, "relative": asdict(self.relative)}

    def check(self, values: npt.NDArray[Any], first: npt.NDArray[np.float64], column: str) -> None:
        """Raises InvalidArgumentError if values are no steps of the column: NumPy would repeat them, or fail.

        Args:
            values: see `Normalizer.normalize`.
            first: see `subtracted`.
            column: the column, for errors.
        """
        own = self.mean.shape
        if (self.relative is not None or self.mean.size > 1) and not _fits(own, values.shape):
            raise InvalidArgumentError(
                f"the values have the shape {values.shape}, and the column is normalised by numbers of the shape {own}",
                column=column,
                hint="give steps as the dataset has them"
                + (f"; of an array with zeros behind them, values[..., :{own[0]}]" if len(own) == 1 else ""),
            )
        if self.relative is not None and not _fits(_aligned(values, first).shape, values.shape):
            raise InvalidArgumentError(
                f"relative_to has the shape {(*first.shape[:-1], self.relative.size)}, and the values {values.shape}",
                column=column,
                hint="give one value for each window: the shape of the values without the axis of steps",
            )

    def reference(self, state: npt.ArrayLike | None, column: str) -> npt.NDArray[np.float64]:
        """Returns the values that are subtracted from a step, [..., elements]: 0 for elements that stay absolute.

        Args:
            state: [..., size], the other column at the first step of each window.
            column: the column, for errors.

        Raises:
            InvalidArgumentError: there is no state, or it has another shape.
        """
        relative = self.relative
        if relative is None:
            return np.zeros(1)
        other = np.asarray(np.nan if state is None else state, np.float64)
        if other.shape[-1:] != (relative.size,):
            found = "is missing" if state is None else f"has the shape {other.shape}"
            raise InvalidArgumentError(
                f"the column is relative to '{relative.source}', and its value {found}",
                column=column,
                hint=f"give relative_to= [..., {relative.size}], its value at the first step of each window",
            )
        elements = np.array(relative.elements)
        return np.where(elements >= 0, other[..., elements], 0.0)

    def subtracted(self, values: npt.NDArray[Any], first: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Returns the values of a relative column minus what they are relative to, float64.

        Args:
            values: [..., steps, elements], or [..., elements] of one step.
            first: [..., elements], what the first step is relative to; without `delta`, each step.
        """
        result, aligned = values.astype(np.float64), _aligned(values, first)
        if self._has_deltas(aligned):
            later = np.where(self._relative_elements, result[..., :-1, :], 0.0)
            result[..., 1:, :] -= later
            result[..., :1, :] -= aligned
            return result
        return result - aligned

    def restored(self, values: npt.NDArray[Any], first: npt.NDArray[np.float64], column: str) -> npt.NDArray[Any]:
        """Returns the values x of values y: see `Normalizer.denormalize`.

        first: see `subtracted`.
        """
        if not self.scale.all():
            raise InvalidArgumentError("an element was multiplied by 0, so its values are lost", column=column)
        own = values / self.scale + self.mean
        return (own if self.relative is None else self._added(own, first)).astype(_float_dtype(values))

    def _added(self, values: npt.NDArray[Any], first: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Returns the values of which `subtracted` made these."""
        result, aligned = values.astype(np.float64), _aligned(values, first)
        if self._has_deltas(aligned):
            result[..., :1, :] += aligned
            return np.where(self._relative_elements, np.cumsum(result, axis=-2), result)
        return result + aligned

    def _has_deltas(self, aligned: npt.NDArray[np.float64]) -> bool:
        """Returns whether values have steps of which only the first is relative to the other column."""
        return self.relative is not None and self.relative.delta and aligned.ndim > 1 and aligned.shape[-2] == 1

    @property
    def _relative_elements(self) -> npt.NDArray[np.bool_]:
        chosen: npt.NDArray[np.bool_] = np.array(() if self.relative is None else self.relative.elements) >= 0
        return chosen


def _fits(part: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Returns whether NumPy repeats an array of a shape to another one, which stays as it is."""
    pairs = zip(reversed(part), reversed(whole), strict=False)
    return len(part) <= len(whole) and all(size in (1, other) for size, other in pairs)


def _aligned(values: npt.NDArray[Any], first: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns what values are relative to, with an axis of steps if they have one; see `AffineMap.subtracted`."""
    if values.ndim < 2:
        return first
    return first[..., None, :] if values.ndim == first.ndim + 1 else np.atleast_2d(first)


@suggest_keywords
class Normalizer:
    """The normalisation of a loader's columns.

    A trained model needs it in an environment. Columns that a batch holds as they are stay as they are. A Decision
    Transformer's returns-to-go are multiplied by 0.001, which is a map, too.

    Args:
        columns: name of a column -> its map.
    """

    def __init__(self, columns: Mapping[str, AffineMap]) -> None:
        self.columns = dict(columns)

    def normalize(
        self, column: str, values: npt.ArrayLike, *, relative_to: npt.ArrayLike | None = None
    ) -> npt.NDArray[Any]:
        """Returns a column's values as a batch holds them, before the option `clip` of a preset.

        Args:
            column: name of the column in the dataset; of a mixture's dataset, after its option `rename`.
            values: [..., *shape]; of a relative column [..., steps, elements], or [..., elements] of one step.
            relative_to: of a relative column: [..., elements], the value that is subtracted, at the first step of each
                window.

        Returns:
            An array of the same shape and dtype; of integers, float64.

        Raises:
            InvalidArgumentError: the values have other elements or steps than the column; or the column is relative,
                and `relative_to` is missing or has another shape.
        """
        array = np.asarray(values)
        known = self.columns.get(column)
        if known is None:
            return array
        first = known.reference(relative_to, column)
        known.check(array, first, column)
        own = array if known.relative is None else known.subtracted(array, first)
        return ((own - known.mean) * known.scale).astype(_float_dtype(array))

    def denormalize(
        self, column: str, values: npt.ArrayLike, *, relative_to: npt.ArrayLike | None = None
    ) -> npt.NDArray[Any]:
        """Returns values of a batch as the dataset, and the environment, have them.

        It is the inverse of `normalize`, with the same arguments.

        Raises:
            InvalidArgumentError: an element has the scale 0, so its values are lost. Also as for `normalize`.
        """
        array = np.asarray(values)
        known = self.columns.get(column)
        if known is None:
            return array
        first = known.reference(relative_to, column)
        known.check(array, first, column)
        return known.restored(array, first, column)

    def to_json(self) -> dict[str, Any]:
        """Returns the form that `from_json` takes."""
        relative = any(each.relative is not None for each in self.columns.values())
        columns = {name: each.to_json() for name, each in self.columns.items()}
        return {"version": _RELATIVE_VERSION if relative else _VERSION, "columns": columns}

    @staticmethod
    def from_json(data: Any, file: str = "normalizer") -> Normalizer:
        """Returns the normalizer of `to_json`.

        Args:
            data: what `to_json` returned.
            file: the name of its file, for errors.

        Raises:
            InvalidArgumentError: the data are not a normalizer's.
        """
        record = check_json(data, _Record, error=InvalidArgumentError, file=file, hint=_HINT)
        if record.version not in (_VERSION, _RELATIVE_VERSION):
            raise InvalidArgumentError(
                f"version {record.version} is not {_VERSION} or {_RELATIVE_VERSION}", file=file, hint=_HINT
            )
        columns = {}
        for name, each in record.columns.items():
            if not len(each.mean) == len(each.scale) == np.prod(each.shape, dtype=np.int64):
                raise InvalidArgumentError(
                    f"{len(each.mean)} means and {len(each.scale)} scales do not have the shape {each.shape}",
                    file=file,
                    column=name,
                    hint=_HINT,
                )
            mean, scale = (np.array(values, np.float64).reshape(each.shape) for values in (each.mean, each.scale))
            columns[name] = AffineMap(mean, scale, _relative(each.relative))
        return Normalizer(columns)

    @staticmethod
    def from_spec(spec: Mapping[str, Any]) -> Normalizer:
        """Returns the normalizer of a loader's batches.

        Args:
            spec: what `SequenceLoader.spec` returned, maybe read from JSON; of a mixture, one of `spec["datasets"]`.

        Raises:
            InvalidArgumentError: it is no spec, of a mixture, or malformed.
        """
        return normalizer_of(spec_outputs(spec, "Normalizer"))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the normalizer as JSON, atomically.

        Raises:
            UnwritableError: the file cannot be written.
            StorageFullError: the disk is full.
        """
        write_text(Path(path), json.dumps(self.to_json(), indent=1) + "\n")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Normalizer:
        """Reads what `save` wrote.

        Raises:
            InvalidArgumentError: the file cannot be read, or is not a normalizer's.
        """
        try:
            text = read_regular(path, JSON_BYTES)
        except OSError as error:
            raise InvalidArgumentError(f"cannot be read: {error}", file=str(path), hint=_HINT) from error
        data = parse_json(text, dict[str, Any], error=InvalidArgumentError, file=str(path), hint=_HINT)
        return Normalizer.from_json(data, str(path))


def spec_outputs(spec: Any, kind: str) -> list[Output]:
    """Returns the arrays of the batches that a spec describes.

    Args:
        spec: what `SequenceLoader.spec` returned; of a mixture, one of `spec["datasets"]`.
        kind: the class that takes it, for errors.

    Raises:
        InvalidArgumentError: it is something else, of a mixture, or malformed.
    """
    # A loader, for example: `in` would take batches of it, without an end.
    if not isinstance(spec, Mapping):
        raise InvalidArgumentError(
            f"{kind}.from_spec takes what a loader's spec() returns, not {shown(spec)}",
            hint=f"gear_data.{kind}.from_spec(loader.spec())",
        )
    if "outputs" not in spec:
        raise InvalidArgumentError(
            "the spec has no outputs", hint="of a mixture, give one of spec['datasets']: each has its own maps"
        )
    return [output_from_json(each) for each in spec["outputs"]]


def normalizer_of(outputs: Iterable[Output]) -> Normalizer:
    """Returns the maps of a batch's columns; of two arrays of one column, the first."""
    maps: dict[str, AffineMap] = {}
    for output in outputs:
        mean, scale = output.mean, output.scale
        if output.column and output.relative is not None:
            maps.setdefault(output.source, _relative_map(output.relative, mean, scale))
        elif output.column and mean is not None and scale is not None:
            maps.setdefault(output.source, AffineMap(mean, scale))
    return Normalizer(maps)


def _relative_map(
    relative: RelativeTo, mean: npt.NDArray[np.float64] | None, scale: npt.NDArray[np.float64] | None
) -> AffineMap:
    """Returns the map of a relative column. Numbers that all steps share have the shape of one step."""
    if mean is None or scale is None:
        return AffineMap(np.zeros(len(relative.elements)), np.ones(len(relative.elements)), relative)
    shared = bool((mean == mean[0]).all() and (scale == scale[0]).all())
    return AffineMap(mean[0], scale[0], relative) if shared else AffineMap(mean, scale, relative)


def _relative(record: _RelativeRecord | None) -> RelativeTo | None:
    return None if record is None else RelativeTo(record.source, record.size, tuple(record.elements), record.delta)


def shared_normalizer(datasets: Iterable[Iterable[Output]]) -> Normalizer:
    """Returns the normalizer of all datasets of a loader.

    Raises:
        InvalidArgumentError: datasets have different maps of a column.
    """
    maps: dict[str, AffineMap | None] = {}
    for outputs in datasets:
        listed = list(outputs)
        own = normalizer_of(listed).columns
        for name in dict.fromkeys(output.source for output in listed if output.column and not output.absent):
            if _map_json(maps.setdefault(name, own.get(name))) != _map_json(own.get(name)):
                raise InvalidArgumentError(
                    "the datasets of this mixture are normalised differently, so the loader has no single normalizer",
                    column=name,
                    hint="take one dataset's: Normalizer.from_spec(loader.spec()['datasets'][0]); or share statistics "
                    "with Mixture(..., statistics='embodiment') or normalize= a mapping of column to (mean, std)",
                )
    return Normalizer({name: each for name, each in maps.items() if each is not None})


def _map_json(known: AffineMap | None) -> dict[str, Any] | None:
    return None if known is None else known.to_json()


def _float_dtype(array: npt.NDArray[Any]) -> np.dtype[Any]:
    """Returns the dtype of mapped values: integers become float64."""
    return array.dtype if array.dtype.kind == "f" else np.dtype(np.float64)
