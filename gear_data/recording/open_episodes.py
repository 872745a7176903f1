"""OpenEpisodes: the steps of episodes that have not ended, of many environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.schema import ColumnSpec

Int64Array = npt.NDArray[np.int64]
#: Steps for which memory is reserved at first. It doubles as an episode grows.
_STEPS = 256


class OpenEpisodes:
    """The steps of open episodes, in one array for each column: [slots, steps, ...].

    An environment has a slot. So the steps of an episode lie one after another.

    Args:
        columns: all columns.
    """

    def __init__(self, columns: Sequence[ColumnSpec]) -> None:
        self._columns = columns
        self._slots: dict[int, int] = {}
        #: The environments of the last call of `slots`, and its result. Vector environments repeat them.
        self._last: tuple[Sequence[int], Int64Array] = ((), np.zeros(0, np.int64))
        #: Slot -> steps of its open episode.
        self._lengths = np.zeros(0, np.int64)
        self._arrays: dict[str, npt.NDArray[Any]] = {
            column.name: np.empty((0, 0, *column.shape), column.numpy_dtype) for column in columns
        }
        self._capacity = 0

    def slots(self, environments: Sequence[int]) -> Int64Array:
        """Returns the slot of each environment, int64 [n]. A new environment gets a new slot.

        The caller changes neither the environments nor the result.
        """
        if environments != self._last[0]:
            self._last = environments, np.fromiter(map(self.slot, environments), np.int64, len(environments))
        return self._last[1]

    def slot(self, environment: int) -> int:
        """Returns the slot of an environment. A new environment gets a new slot."""
        slot = self._slots.get(environment)
        if slot is None:
            slot = len(self._slots)
            if slot >= len(self._lengths):
                count = max(slot + 1, 2 * len(self._lengths))
                lengths = np.concatenate([self._lengths, np.zeros(count - len(self._lengths), np.int64)])
                self._resize(count, max(_STEPS, self._capacity))
                self._lengths = lengths
            self._slots[environment] = slot
        return slot

    def environments(self) -> list[int]:
        """Returns the environments with an open episode.

        They are in the order of their first steps.
        """
        return [environment for environment, slot in self._slots.items() if self._lengths[slot]]

    def length(self, slot: int) -> int:
        """Returns the steps of the open episode of a slot."""
        return int(self._lengths[slot])

    def append_row(self, slot: int, row: Mapping[str, Any]) -> None:
        """Appends a step to the episode of a slot.

        Args:
            slot: the slot.
            row: name -> value, of the columns' dtypes and shapes.
        """
        at = int(self._lengths[slot])
        if at >= self._capacity:
            self._resize(len(self._lengths), 2 * self._capacity)
        for name, value in row.items():
            self._arrays[name][slot, at] = value
        self._lengths[slot] = at + 1

    def append(self, slots: Int64Array, rows: Mapping[str, npt.NDArray[Any]]) -> None:
        """Appends a step to the episode of each slot.

        Args:
            slots: int64 [n], without repeats.
            rows: name -> [n, ...], of the columns' dtypes and shapes.
        """
        at = self._lengths[slots]
        if int(at.max()) >= self._capacity:
            self._resize(len(self._lengths), 2 * self._capacity)
        for name, array in self._arrays.items():
            array[slots, at] = rows[name]
        self._lengths[slots] = at + 1

    def steps(self, slot: int) -> dict[str, Any]:
        """Returns the columns of an open episode.

        They are name -> [T, ...] without copying, or an Arrow array of text or bytes.
        """
        length = self._lengths[slot]
        return {
            column.name: pa.array(self._arrays[column.name][slot, :length].tolist(), column.arrow_type)
            if column.variable_length
            else self._arrays[column.name][slot, :length]
            for column in self._columns
        }

    def clear(self, slot: int) -> None:
        """Removes the steps of an open episode."""
        for column in self._columns:
            if column.variable_length:
                self._arrays[column.name][slot, : self._lengths[slot]] = None
        self._lengths[slot] = 0

    def _resize(self, slots: int, capacity: int) -> None:
        """Makes room. After an error, some arrays are larger than the others."""
        for name, array in self._arrays.items():
            size = max(slots, array.shape[0]), max(capacity, array.shape[1])
            if size != array.shape[:2]:
                larger = np.empty((*size, *array.shape[2:]), array.dtype)
                larger[: array.shape[0], : array.shape[1]] = array
                self._arrays[name] = larger
        self._capacity = capacity
