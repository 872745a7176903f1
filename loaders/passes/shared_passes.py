"""SharedPasses: integers by which a loader and its workers count passes."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any

from gear_data.loaders.frameworks.workers import get_worker_info

if TYPE_CHECKING:
    from torch.utils.data._utils.worker import WorkerInfo

#: Indices of the first integers. After them comes, for each worker, the mark of the pass that the worker took last.
_ORDER, _STEP, _NUMBER, _LAST, _USED, _WORKERS = range(6)
#: Workers with higher numbers are told apart only by their DataLoader's seed.
_MAX_WORKERS = 1024


class SharedPasses:
    """A few integers shared by a loader and its copies in DataLoader workers.

    A DataLoader iterates copies, forked or spawned. The loader itself would not know that there was a pass. All workers
    of a pass have one seed; each worker takes a pass once. An order says at which step the next pass starts.

    Each pass has a mark: one integer with the order, the seed and the number of the pass. So a worker reads and writes
    a pass with one access, and no lock is needed: the workers of one pass write the same mark.

    Args:
        first: the first integers; None: of a loader without passes, whose first pass starts at step 0.
        unshared: whether there are no copies.
    """

    def __init__(self, first: list[int] | None = None, *, unshared: bool = False) -> None:
        self._process = os.getpid()
        size = _WORKERS + _MAX_WORKERS
        self._cells: Any = [0] * size if unshared else multiprocessing.RawArray(ctypes.c_int64, size)
        for index, value in enumerate(first or [1, 0, 0, 0, 0]):
            self._cells[index] = value

    def __getstate__(self) -> dict[str, Any]:
        # Only a process that is being spawned shares the memory; other copies get separate memory.
        if get_spawning_popen() is not None:
            return self.__dict__
        return {"first": self.first()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_cells" in state:
            self.__dict__.update(state)
        else:
            self.__init__(state["first"])  # type: ignore[misc]

    def reaches(self, worker: WorkerInfo | None) -> bool:
        """Returns whether this process shares the memory.

        It does if it made the memory, or if it is a DataLoader worker of the process that did.
        """
        if worker is None:
            return os.getpid() == self._process
        parent = multiprocessing.parent_process()
        return parent is not None and parent.pid == self._process

    def first(self) -> list[int]:
        """Returns the first integers."""
        return list(self._cells[:_WORKERS])

    def order(self, step: int, number: int) -> None:
        """Makes the next pass start at a step. number: of the pass."""
        cells = self._cells
        cells[_STEP], cells[_NUMBER], cells[_USED] = step, number, 0
        cells[_ORDER] += 1

    def cancel_order(self) -> None:
        """Makes the next pass follow the last one: forgets the last order."""
        self._cells[_ORDER] = self._cells[_LAST] >> 48

    @property
    def ordered(self) -> bool:
        """Whether no pass was taken since the last order."""
        return bool(self._cells[_LAST] >> 48 != self._cells[_ORDER] & 0x7FFF)

    @property
    def order_step(self) -> int:
        """The step of the last order."""
        return int(self._cells[_STEP])

    @property
    def order_number(self) -> int:
        """The number of the pass of the last order."""
        return int(self._cells[_NUMBER])

    @property
    def last(self) -> int:
        """The mark of the last pass."""
        return int(self._cells[_LAST])

    @property
    def used(self) -> bool:
        """Whether workers were the last to take a pass, and no order was given since."""
        return bool(self._cells[_USED])

    def take(self, worker: WorkerInfo | None, number: int | None = None) -> tuple[int, int | None]:
        """Takes a pass, here or in a worker.

        Args:
            worker: the worker of this process.
            number: of the pass, if the worker knows it from a state; else None.

        Returns:
            The number of the pass; and the step of the order, if this is the first pass since then.
        """
        cells = self._cells
        seed = 0 if worker is None else (worker.seed - worker.id) % 0xFFFF + 1
        last, slot = cells[_LAST], None
        if worker is not None and worker.id < _MAX_WORKERS:
            slot = _WORKERS + worker.id
        if number is None:
            # The mark is read once: another worker may take the pass at any time.
            if last >> 48 != cells[_ORDER] & 0x7FFF:
                number = cells[_NUMBER]
            else:
                # Two passes have one seed if the user seeded torch equally before both.
                joins = worker is not None and last >> 32 & 0xFFFF == seed and (slot is None or cells[slot] != last)
                number = (last & 0xFFFFFFFF) + (not joins)
        mark = (cells[_ORDER] & 0x7FFF) << 48 | seed << 32 | number
        cells[_LAST], cells[_USED] = mark, worker is not None
        if slot is not None:
            cells[slot] = mark
        return number, cells[_STEP] if number == cells[_NUMBER] else None


def worker_place() -> dict[str, list[int]]:
    """Returns {"worker": [number, count]} in a DataLoader's worker, else {}."""
    worker = get_worker_info()
    return {} if worker is None else {"worker": [worker.id, worker.num_workers]}
