"""Step arrays of one file or folder, and the rows of their episodes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import UnsupportedColumnError
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.pipeline.columns import column_spec, leave_out
from gear_data.schema import DTYPES, MAX_AXES, ColumnSpec

#: Limit for one step. A larger one is an archive bomb, or an array whose first axis is not the steps.
_MAX_ROW_BYTES = 1 << 30
#: Dtypes whose names are kept.
_DTYPES = 256


class RowArray(ABC):
    """An array of rows that has not been read: of a NumPy file, or of a Zarr store.

    Attributes:
        dtype: the stored dtype; its byte order may not be native.
        shape: the shape. The first axis is the rows.
        kinds: the values that a column of such arrays can have, for messages.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    kinds: ClassVar[str] = "a number or a boolean"

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.shape[1:]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.row_shape) * self.dtype.itemsize

    @property
    def is_bytes(self) -> bool:
        """Whether a row is a byte string, such as an encoded image."""
        return self.dtype.kind == "S" and len(self.shape) == 1 and self.dtype.itemsize > 0

    @property
    @abstractmethod
    def place(self) -> str:
        """The file and the name in it, for messages."""

    def column_dtype(self, column: str) -> str:
        """Returns the dtype of a step column with these values, in native byte order.

        Raises UnsupportedColumnError, which names `column`, if no column can hold them.
        """

        def error(message: str, hint: str | None = None) -> UnsupportedColumnError:
            return UnsupportedColumnError(message, file=self.place, column=column, hint=hint or leave_out(column))

        name, shape = "binary" if self.is_bytes else _native_name(self.dtype), self.row_shape
        if name not in DTYPES and not self.is_bytes:
            raise error(f"holds {name}, which is not {self.kinds}")
        if 0 in shape:
            raise error(f"has steps of shape {shape}, which hold no values")
        if len(shape) > MAX_AXES:
            raise error(f"has steps of shape {shape}, which has more than {MAX_AXES} axes")
        if self.row_bytes > _MAX_ROW_BYTES:
            message = f"one step has {self.row_bytes} bytes (shape {shape}), above the limit of {_MAX_ROW_BYTES}"
            raise error(message, "the first axis must be the steps")
        return name


@lru_cache(maxsize=_DTYPES)
def _native_name(dtype: np.dtype[Any]) -> str:
    return dtype.newbyteorder("=").name


class RowReader(Protocol):
    """A reader of the rows of arrays of one kind."""

    def read(self, array: Any, start: int, stop: int) -> npt.NDArray[Any] | pa.Array:
        """Returns the rows [start, stop), C-contiguous and in native byte order."""


@dataclass(frozen=True)
class EpisodeRanges:
    """The rows of n episodes in the arrays of one place.

    Attributes:
        lengths: int64 [n], steps of each episode, all positive.
        starts: int64 [n], row of each episode's first step.
        final_row_starts: int64 [n], the same in the columns of `StepArrays.final_row_columns`; None if equal to
            `starts`.
        facts: name -> n values, one fact per episode.
        flags: canonical name -> bool [n], end flags of the last steps.
        findings: about the episodes.
    """

    lengths: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    final_row_starts: npt.NDArray[np.int64] | None = None
    facts: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    flags: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True)
class StepArrays:
    """The step arrays of one file or folder.

    Attributes:
        name: the name of the file or folder.
        steps: the number of steps in all episodes.
        arrays: canonical name -> array of a step column, as the reader takes it.
        sources: canonical name -> name in the source.
        locate: finds the episodes; called once per pass over the arrays.
        final_row_columns: columns with T + 1 rows per episode; the last row is the final observation.
        next_arrays: canonical name -> array of the observations after each step. Its row at an episode's last step is
            the final observation.
        shifted: columns whose row t + 1 belongs to step t.
        episode_flags: names of the end flags that are given once per episode.
        seekable: whether reading may begin at any row at no cost.
        bytes: the stored bytes of the arrays; None if they are the file or folder.
    """

    name: str
    steps: int
    arrays: Mapping[str, Any]
    sources: Mapping[str, str]
    locate: Callable[[], EpisodeRanges]
    final_row_columns: frozenset[str] = frozenset()
    next_arrays: Mapping[str, Any] = field(default_factory=dict)
    shifted: frozenset[str] = frozenset()
    episode_flags: tuple[str, ...] = ()
    seekable: bool = False
    bytes: int | None = None

    @cached_property
    def layout(self) -> tuple[object, ...]:
        """A value on which `columns` depends alone. All arrays are a `RowArray`."""
        arrays = [(name, self.sources[name], array.dtype, array.shape[1:]) for name, array in self.arrays.items()]
        flags = [(name, self.sources[name]) for name in self.episode_flags]
        return arrays, flags, self.final_row_columns, self.next_arrays.keys()

    def columns(self) -> tuple[ColumnSpec, ...]:
        """Returns the step columns. All arrays are a `RowArray`.

        Raises UnsupportedColumnError for a dtype that no column has.
        """
        specs = []
        array: RowArray
        for name, array in self.arrays.items():
            source = self.sources[name]
            dtype = array.column_dtype(source)
            has_final = (name in self.final_row_columns or name in self.next_arrays) and dtype != "string"
            specs.append(column_spec(name, dtype, array.row_shape, source=source, has_final=has_final))
        return (*specs, *(column_spec(name, "bool", source=self.sources[name]) for name in self.episode_flags))
