"""Progress: where the next iteration of a loader starts, in its process and in DataLoader workers."""

from __future__ import annotations

import copy
from typing import Any

from gear_data.loaders.batch_iterator import NextStep
from gear_data.loaders.frameworks.workers import get_worker_info
from gear_data.loaders.passes.shared_state import SharedResumeState


class Progress:
    """Where the next iteration of a loader starts.

    Attributes:
        position: the next step, which the loader's iterators move.
    """

    def __init__(self) -> None:
        self.position = NextStep()
        # Whether a state was loaded and this process did not iterate since.
        self._loaded = False
        # In a DataLoader's worker, the loaded state: (step, whether the state was saved in a worker).
        self._worker_state: tuple[int, bool] | None = None
        self._shared = SharedResumeState()

    def __getstate__(self) -> dict[str, Any]:
        own = {"position": NextStep(self.position.next_step), "_shared": copy.copy(self.shared())}
        return {**self.__dict__, **own}

    def shared(self) -> SharedResumeState:
        """Returns the resume state that this process shares with the DataLoader's workers.

        A forked process that is not a DataLoader's worker gets a separate state.
        """
        if not self._shared.reaches(get_worker_info()):
            self._shared = SharedResumeState(self.position.next_step if self._loaded else None)
        return self._shared

    def begin(self) -> tuple[int, int]:
        """Returns the first step of an iteration that starts now, and the distance of its steps."""
        worker = get_worker_info()
        first, own = self.shared().take(worker), False
        if self._worker_state is not None:
            first, own = self._worker_state
        self._loaded, self._worker_state = False, None
        stride = 1
        if worker is not None:
            # The DataLoader always takes the first batch from worker 0. So worker k of n builds the steps first + k,
            # first + k + n, ... A state that was saved in a worker has the worker's own next step.
            stride = worker.num_workers
            first += 0 if own else worker.id
        self.position.next_step = first
        return first, stride

    def load(self, step: int, *, own: bool) -> None:
        """Makes the next iteration start at a step.

        Args:
            step: the next step.
            own: whether the step is the next one of this DataLoader worker.
        """
        self.position.next_step = step
        if get_worker_info() is not None:
            self._worker_state = step, own
            return
        self._loaded = True
        self.shared().load(step)
