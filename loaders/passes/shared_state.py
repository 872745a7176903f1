"""SharedResumeState: integers that a loader shares with its workers' copies."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any

from gear_data.loaders.frameworks.workers import get_worker_info

if TYPE_CHECKING:
    from torch.utils.data._utils.worker import WorkerInfo

#: Indices of the first integers. After them comes, for each worker, the load that the worker took last.
_STEP, _LOADS, _TAKER, _USED, _WORKERS = range(5)
#: Workers with higher numbers are told apart only by their DataLoader's seed.
_MAX_WORKERS = 1024
#: Values of `_TAKER`: the next pass takes the loaded step, or no pass does. Other values are the seed of the pass that
#: took it.
_NEXT_PASS, _NO_PASS = -1, -2


class SharedResumeState:
    """A few integers shared by a loader and its copies in DataLoader workers.

    A DataLoader iterates copies, forked or spawned. The loader itself would not know that a pass over the data used its
    loaded state, or that there was a pass. All workers of a pass have one seed; each worker takes the step once.

    Args:
        step: the first step of the next pass; None: no state was loaded.
    """

    def __init__(self, step: int | None = None) -> None:
        self._process = os.getpid()
        self._cells = multiprocessing.RawArray(ctypes.c_int64, _WORKERS + _MAX_WORKERS)
        self._cells[_TAKER] = _NO_PASS
        if step is not None:
            self.load(step)

    def __getstate__(self) -> dict[str, Any]:
        # Only a process that is being spawned shares the memory; other copies get separate memory.
        if get_spawning_popen() is not None:
            return self.__dict__
        return {"step": self._cells[_STEP] if self._cells[_TAKER] == _NEXT_PASS else None, "used": self.used}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_cells" in state:
            self.__dict__.update(state)
        else:
            self.__init__(state["step"])  # type: ignore[misc]
            self._cells[_USED] = state["used"]

    def reaches(self, worker: WorkerInfo | None) -> bool:
        """Returns whether this process shares the memory.

        It does if it made the memory, or if it is a DataLoader worker of the process that did.
        """
        if worker is None:
            return os.getpid() == self._process
        parent = multiprocessing.parent_process()
        return parent is not None and parent.pid == self._process

    def load(self, step: int) -> None:
        """Makes the next pass start at this step."""
        self._cells[_STEP] = step
        self._cells[_LOADS] += 1
        self._cells[_TAKER] = _NEXT_PASS
        self._cells[_USED] = 0

    def take(self, worker: WorkerInfo | None) -> int:
        """Returns the first step of a pass, here or in a worker.

        It is the loaded step for one pass, else 0.
        """
        cells = self._cells
        cells[_USED] = worker is not None
        if worker is None:
            waiting = cells[_TAKER] == _NEXT_PASS
            cells[_TAKER] = _NO_PASS
            return cells[_STEP] if waiting else 0
        seed = worker.seed - worker.id
        if cells[_TAKER] not in (_NEXT_PASS, seed):
            return 0
        # Two passes have one seed if the user seeded torch equally before both.
        if worker.id < _MAX_WORKERS:
            if cells[_WORKERS + worker.id] == cells[_LOADS]:
                return 0
            cells[_WORKERS + worker.id] = cells[_LOADS]
        cells[_TAKER] = seed
        return cells[_STEP]

    @property
    def used(self) -> bool:
        """Whether workers were the last to iterate, and no state was loaded since."""
        return bool(self._cells[_USED])


def worker_place() -> dict[str, list[int]]:
    """Returns {"worker": [number, count]} in a DataLoader's worker, else {}."""
    worker = get_worker_info()
    return {} if worker is None else {"worker": [worker.id, worker.num_workers]}
