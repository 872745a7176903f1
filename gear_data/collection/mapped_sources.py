"""MappedSources: reads the windows of several datasets by one call of a kernel."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gear_data.collection.plan import BatchPlan
from gear_data.collection.reader import ColumnReader, MappedColumns
from gear_data.kernels import cpu
from gear_data.kernels.output_plan import OutputPlanArray
from gear_data.selection.windows import Int64Array, Windows
from gear_data.storage import mapped_files


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
        common = _common_outputs(plan)
        self._common, self._offsets = plan.plans[0][common[0]], plan.offsets[0][common[0]]
        self._common["column"] = np.arange(len(self._common))
        _renumber_spans(self._common)
        #: The arrays to which the records point, beside those of the plan.
        self._kept: list[Any] = []
        of_datasets = zip(self._sources, plan.plans, plan.offsets, common, plan.joins, plan.lists, strict=True)
        for record, outputs, offsets, numbers, parts, lists in of_datasets:
            own = np.delete(outputs, numbers)
            _renumber_spans(own)
            arrays = {"plan": own, "offsets": np.delete(offsets, numbers), "common": outputs["column"][numbers]}
            for name, array in arrays.items():
                record[name] = array.ctypes.data
            record["outputs"] = len(own)
            self._kept.append(arrays)
            record["parts"], record["num_parts"] = parts.ctypes.data, len(parts)
            record["takes"], record["num_takes"] = lists.takes.ctypes.data, len(lists.takes)
            record["places"], record["num_places"] = lists.places.ctypes.data, len(lists.places)
        self._plan = plan
        self._columns: list[MappedColumns | None] = [None] * len(readers)
        self._known, self._next_check = self._mapped_now(), 0.0

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
        # The checks look at the clock themselves, but sixty calls are 5% of a batch of sixty datasets.
        if time.monotonic() >= self._next_check:
            for check in known.checks:
                check()
            self._next_check = time.monotonic() + mapped_files.CHECK_SECONDS
        valid_bytes = self._collect_each(
            self._sources, known.mapped, self._common, self._offsets, memory.ctypes.data, dataset, windows.episode_id,
            windows.start, windows.length,
        )  # fmt: skip
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


def _common_outputs(plan: BatchPlan) -> list[list[int]]:
    """Returns the numbers of each dataset's outputs that are the same for all datasets, except for their columns.

    Outputs that are joined later are not among them: datasets share the memory of their parts.
    """
    arrays = {array.offset for array in plan.arrays}
    found = []
    for outputs, offsets in zip(plan.plans, plan.offsets, strict=True):
        outputs = outputs.copy()
        outputs["column"] = outputs["same_spans_as"] = 0
        found.append(
            {
                (offset, output.tobytes()): number
                for number, (offset, output) in enumerate(zip(offsets.tolist(), outputs, strict=True))
                if offset in arrays and not output["hops"] and not output["finals"]
            }
        )
    alike = [key for key in found[0] if all(key in each for each in found)]
    return [[each[key] for key in alike] for each in found]


def _renumber_spans(outputs: OutputPlanArray) -> None:
    """Changes `same_spans_as` of some outputs of a plan to numbers among them."""
    first: dict[int, int] = {}
    for number, output in enumerate(outputs):
        output["same_spans_as"] = first.setdefault(int(output["same_spans_as"]), number)
