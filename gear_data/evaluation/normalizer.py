"""Normalizer: maps values of columns to values of batches, and back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gear_data.collection.output import Output
from gear_data.common.regular_files import JSON_BYTES, read_regular
from gear_data.common.typed_json import check_json, parse_json, resolved
from gear_data.errors import InvalidArgumentError
from gear_data.storage.atomic import write_text

_VERSION = 1
_HINT = "give what Normalizer.save or to_json wrote"


@resolved
class _ColumnRecord(msgspec.Struct, frozen=True):
    mean: list[float]
    scale: list[float]
    shape: list[int]


@resolved
class _Record(msgspec.Struct, frozen=True):
    version: int
    columns: dict[str, _ColumnRecord]


@dataclass(frozen=True)
class AffineMap:
    """y = (x - mean) * scale, for each element of a column.

    Attributes:
        mean, scale: float64, which broadcast to a step: [*shape], [1], or numbers for each channel of an image.
    """

    mean: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]


class Normalizer:
    """The normalisation of a loader's columns.

    A trained model needs it in an environment. Columns that a batch holds as they are stay as they are. A Decision
    Transformer's returns-to-go are multiplied by 0.001, which is a map, too.

    Args:
        columns: name of a column -> its map.
    """

    def __init__(self, columns: Mapping[str, AffineMap]) -> None:
        self.columns = dict(columns)

    def normalize(self, column: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
        """Returns a column's values as a batch holds them.

        Args:
            column: name of the column in the dataset.
            values: [..., *shape].

        Returns:
            An array of the same shape and dtype; of integers, float64.
        """
        array = np.asarray(values)
        known = self.columns.get(column)
        return array if known is None else ((array - known.mean) * known.scale).astype(_float_dtype(array))

    def denormalize(self, column: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
        """Returns values of a batch as the dataset, and the environment, have them.

        It is the inverse of `normalize`.

        Raises:
            InvalidArgumentError: an element has the scale 0, so its values are lost.
        """
        array = np.asarray(values)
        known = self.columns.get(column)
        if known is None:
            return array
        if not known.scale.all():
            raise InvalidArgumentError("an element was multiplied by 0, so its values are lost", column=column)
        return (array / known.scale + known.mean).astype(_float_dtype(array))

    def to_json(self) -> dict[str, Any]:
        """Returns the form that `from_json` takes."""
        columns = {
            name: {
                "mean": each.mean.ravel().tolist(),
                "scale": each.scale.ravel().tolist(),
                "shape": list(each.mean.shape),
            }
            for name, each in self.columns.items()
        }
        return {"version": _VERSION, "columns": columns}

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
        if record.version != _VERSION:
            raise InvalidArgumentError(f"version {record.version} is not {_VERSION}", file=file, hint=_HINT)
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
            columns[name] = AffineMap(mean, scale)
        return Normalizer(columns)

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


def normalizer_of(outputs: Iterable[Output]) -> Normalizer:
    """Returns the maps of a batch's columns; of two arrays of one column, the first."""
    maps: dict[str, AffineMap] = {}
    for output in outputs:
        if output.column and output.mean is not None and output.scale is not None:
            maps.setdefault(output.source, AffineMap(output.mean, output.scale))
    return Normalizer(maps)


def shared_normalizer(datasets: Iterable[Iterable[Output]]) -> Normalizer:
    """Returns the normalizer of all datasets of a loader.

    Raises:
        InvalidArgumentError: the datasets have different maps.
    """
    normalizer, *others = (normalizer_of(outputs) for outputs in datasets)
    if any(other.to_json() != normalizer.to_json() for other in others):
        raise InvalidArgumentError(
            "the datasets of this mixture are normalised differently, so the loader has no single normalizer",
            hint="give normalize= a mapping of column to (mean, std), for all datasets",
        )
    return normalizer


def _float_dtype(array: npt.NDArray[Any]) -> np.dtype[Any]:
    """Returns the dtype of mapped values: integers become float64."""
    return array.dtype if array.dtype.kind == "f" else np.dtype(np.float64)
