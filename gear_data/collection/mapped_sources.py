"""MappedSources: reads the windows of several datasets by one call of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gear_data.collection.plan import BatchPlan
from gear_data.collection.reader import ColumnReader, MappedColumns
from gear_data.kernels import cpu
from gear_data.selection.windows import Int64Array, Windows


class _Mapped(NamedTuple):
    """What is mapped at one time.

    Attributes:
        mapped: bool [datasets].
        checks: check the files of the mapped datasets.
        others: the numbers of the other datasets.
    """

    mapped: npt.NDArray[np.bool_]
    checks: tuple[Callable[[], None], ...]
    others: list[int]


class MappedSources:
    """The datasets of joined batches, of which a kernel reads those that are mapped. Safe to call from several threads.

    Args:
        readers: of the datasets.
        plan: of the batches.
    """

    def __init__(self, readers: Sequence[ColumnReader], plan: BatchPlan) -> None:
        self._readers = readers
        # Loads the kernel here, not in a prefetch thread.
        self._collect_each = cpu.collect.collect_each
        self._sources = np.zeros(len(readers), cpu.collect.COLLECT_SOURCE)
        of_datasets = zip(self._sources, plan.plans, plan.offsets, plan.joins, plan.lists, strict=True)
        for record, outputs, offsets, parts, lists in of_datasets:
            record["plan"], record["outputs"] = outputs.ctypes.data, len(outputs)
            record["offsets"] = offsets.ctypes.data
            record["parts"], record["num_parts"] = parts.ctypes.data, len(parts)
            record["takes"], record["num_takes"] = lists.takes.ctypes.data, len(lists.takes)
            record["places"], record["num_places"] = lists.places.ctypes.data, len(lists.places)
        # The arrays to which the records point.
        self._plan = plan
        self._columns: list[MappedColumns | None] = [None] * len(readers)
        self._known = self._mapped_now()

    def _mapped_now(self) -> _Mapped:
        mapped = np.array([columns is not None for columns in self._columns])
        checks = tuple(columns.check for columns in self._columns if columns is not None)
        return _Mapped(mapped, checks, np.flatnonzero(~mapped).tolist())

    def read(self, windows: Windows, dataset: Int64Array, memory: npt.NDArray[np.uint8]) -> tuple[int, list[int]]:
        """Fills the rows of the datasets that are mapped.

        Args:
            windows: B windows.
            dataset: int64 [B], the number of each window's dataset.
            memory: the buffer of the batch.

        Returns:
            The bytes of valid steps, and the numbers of the other datasets.

        Raises:
            CorruptShardError: a mapped file was truncated or changed in place.
        """
        known = self._known
        if known.others and sum(self._note(number) for number in known.others):
            known = self._known = self._mapped_now()
        for check in known.checks:
            check()
        valid_bytes = self._collect_each(
            self._sources, known.mapped, memory.ctypes.data, dataset, windows.episode_id, windows.start, windows.length
        )
        return int(valid_bytes), known.others

    def _note(self, number: int) -> bool:
        """Fills the record of a dataset if it is mapped now; returns whether it is.

        Several threads may do so at the same time: they write the same numbers.
        """
        # Relative and interpolated arrays are written before the next dataset is read, and not by the kernel.
        written = self._plan.relatives[number] or self._plan.lists[number].interpolated
        columns = None if written else self._readers[number].mapped()
        if columns is None:
            return False
        record = self._sources[number]
        for field, array in (
            ("shards", columns.shard), ("bases", columns.start), ("lengths", columns.length),
            ("finals", columns.final_rows), ("addresses", columns.addresses),
        ):  # fmt: skip
            record[field] = array.ctypes.data
        record["episodes"], record["final_rows"] = len(columns.shard), len(columns.final_rows)
        record["num_shards"], record["columns"] = columns.addresses.shape
        self._columns[number] = columns
        return True
