"""Progress: where a loader's pass is, and where the next pass starts."""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gear_data.common.keywords import check_range
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.frameworks.workers import get_worker_info
from gear_data.loaders.passes.layout import PassLayout
from gear_data.loaders.passes.shared_passes import SharedPasses
from gear_data.loaders.passes.state import SavedStep, position_unknown

if TYPE_CHECKING:
    from torch.utils.data._utils.worker import WorkerInfo

    from gear_data.loaders.batch_iterator import BatchIterator


@dataclass(frozen=True)
class Pass:
    """A pass that an iterator began.

    Attributes:
        number: of the pass.
        steps: the steps that this process builds.
        serial: number of the iteration in this process.
        mark: see `SharedPasses`.
        shared: in a DataLoader's worker, the integers that it shares with the others.
    """

    number: int
    steps: range
    serial: int
    mark: int
    shared: SharedPasses | None


class Progress:
    """Where a loader's pass is, and where the next pass starts.

    The loader keeps the memory that it shares with its copies; iterators keep this object only. Python code runs when
    shared memory dies, and an interrupt in that code would be lost.

    Args:
        layout: the steps of each pass.
        shared: the integers that this process shares with the DataLoader's workers.

    Attributes:
        next_step: the step after the last batch that was taken.
        number: the number of the pass that this process began last.
        serial: number of iterations that this process began.
        current: the iterator that began a pass last.
        epoch_ordered: whether `set_epoch` was called, and no pass began since.
    """

    def __init__(self, layout: PassLayout, shared: SharedPasses) -> None:
        self.layout = layout
        self.next_step = self.number = self.serial = 0
        self.current: weakref.ref[BatchIterator] | None = None
        self.epoch_ordered = False
        # Whether the last order is a loaded state.
        self._loaded = False
        # Pass number minus the number that `set_epoch` gets for it.
        self._offset = 0
        # In a DataLoader's worker, the loaded state.
        self._worker_state: SavedStep | None = None
        self._memory = weakref.ref(shared)
        # Replaces the loader's memory: after the loader's death, and in a forked process that is not a worker.
        self._kept: SharedPasses | None = None
        # The integers as this process left them: the parent of a forked process goes on to change the memory.
        self._own = shared.first()

    def copy(self, shared: SharedPasses) -> Progress:
        """Returns the progress of a copy of the loader. shared: the copy's memory."""
        twin = copy.copy(self)
        twin.current, twin._kept, twin._memory, twin._own = None, None, weakref.ref(shared), shared.first()
        return twin

    def __getstate__(self) -> dict[str, Any]:
        # The loader's copy calls `copy`.
        return {**self.__dict__, "current": None, "_kept": None, "_memory": None}

    def shared(self) -> SharedPasses:
        """Returns the integers that this process shares with the DataLoader's workers."""
        return self.shared_in(get_worker_info())

    def shared_in(self, worker: WorkerInfo | None) -> SharedPasses:
        """Returns the same. worker: this process, if it is a DataLoader's worker."""
        shared = self._kept or self._memory()
        if shared is None:
            shared = self._kept = SharedPasses(self._own, unshared=True)
        elif not shared.reaches(worker):
            shared = self._kept = SharedPasses(self._own)
        return shared

    @property
    def resumes(self) -> bool:
        """Whether the next pass starts at a loaded step that is not the first step."""
        shared = self.shared()
        return self._worker_state is not None or (self._loaded and shared.ordered and shared.order_step > 0)

    def begin(self) -> Pass:
        """Begins the next pass.

        Raises:
            InvalidArgumentError: passes have no end, DataLoader workers had the last pass, and so nobody knows where
                the next pass starts.
        """
        worker, layout, saved = get_worker_info(), self.layout, self._worker_state
        shared = self.shared_in(worker)
        endless = layout.batches is None and not layout.repeat
        if endless and worker is None and shared.used and not shared.ordered:
            raise _unknown_start()
        number, first = shared.take(worker, None if saved is None else saved.number)
        if saved is not None:
            first = saved.step
        elif first is None:
            if endless and worker is not None:
                raise _unknown_start()
            first = self.next_step if endless else layout.start(number)
        stride = 1
        if worker is not None:
            # The DataLoader always takes the first batch from worker 0. So worker k of n builds the steps first + k,
            # first + k + n, ... A state that was saved in a worker has the worker's own next step.
            stride = worker.num_workers
            first += 0 if saved is not None and saved.own else worker.id
        self._worker_state, self._loaded, self.epoch_ordered = None, False, False
        self.next_step, self.number = first, number
        self.serial += 1
        if worker is None:
            self._own = shared.first()
        steps = range(first, layout.end(number), stride)
        return Pass(number, steps, self.serial, shared.last, None if worker is None else shared)

    def check_current(self, own: Pass) -> None:
        """Raises InvalidArgumentError if another iteration began after a pass."""
        if own.serial != self.serial or (own.shared is not None and own.shared.last != own.mark):
            raise InvalidArgumentError(
                f"another iteration of this loader began after this one, which is at pass {own.number}: a loader has "
                "one position",
                hint="make one SequenceLoader for each iteration; or take batches by step, with loader.batch(step)",
            )

    def load(self, saved: SavedStep) -> None:
        """Makes the next pass start at a saved step."""
        step = self.layout.start(0) if saved.step == self.layout.batches and self.layout.repeat else saved.step
        self.next_step, self.number, self.epoch_ordered = step, saved.number, False
        if get_worker_info() is not None:
            self._worker_state = saved
            return
        self._loaded = True
        self._order(step, saved.number)

    def _order(self, step: int, number: int) -> None:
        shared = self.shared()
        shared.order(step, number)
        self._own = shared.first()

    def set_epoch(self, epoch: int) -> None:
        """Makes the next pass be pass `epoch`; see `SequenceLoader.set_epoch`."""
        check_range("epoch", epoch, 0)
        shared, layout = self.shared(), self.layout
        if layout.repeat or not layout.batches:
            return
        if self._loaded and shared.ordered:
            # Accelerate counts epochs from 0 after a resume.
            self._offset = shared.order_number - int(epoch)
            return
        number = max(0, int(epoch) + self._offset)
        self._loaded, self.epoch_ordered = False, True
        self._order(layout.start(number), number)

    def keep_pass(self, number: int) -> None:
        """Takes note that a batch of pass `number` was taken after `set_epoch`.

        If `set_epoch` named this pass, the call came late, and does not concern the next pass.
        """
        shared = self.shared()
        if number == shared.order_number:
            self.epoch_ordered = False
            shared.cancel_order()
            self._own = shared.first()

    def saved_step(self) -> SavedStep:
        """Returns the position for a state.

        Raises:
            StateMismatchError: a DataLoader's workers iterated last; only the DataLoader knows their position.
        """
        if get_worker_info() is not None:
            return SavedStep(self.next_step, self.number, own=True)
        shared, layout = self.shared(), self.layout
        if not shared.ordered:
            if shared.used:
                raise position_unknown()
            return SavedStep(self.next_step, self.number, own=False)
        # A framework may call `set_epoch` for the pass that it is in.
        late = self.epoch_ordered and layout.number(self.next_step) == shared.order_number
        return SavedStep(self.next_step if late else shared.order_step, shared.order_number, own=False)

    def started_step(self) -> int:
        """Returns the step after the last prefetched batch; 0 without prefetching."""
        current = None if self.current is None else self.current()
        return 0 if current is None else current.unstarted_step


def _unknown_start() -> InvalidArgumentError:
    return InvalidArgumentError(
        "DataLoader workers would make a second pass over a loader without an end, and they do not know how many "
        "batches of the first pass were taken",
        hint="give the SequenceLoader steps=, the batches of a pass; or load_state_dict before each pass",
    )
