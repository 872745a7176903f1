"""SequenceLoader: padded sequence batches of a dataset, as a torch IterableDataset."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import IterableDataset, get_worker_info

from gear_data.collection import Collector, check_batch_bytes
from gear_data.dataset import Dataset
from gear_data.errors import InvalidArgumentError, StateMismatchError
from gear_data.loaders.arguments import (
    check_device,
    check_dtype,
    check_offsets,
    check_range,
    normalization_statistics,
)
from gear_data.loaders.metrics import Meter
from gear_data.loaders.prefetch import Prefetcher
from gear_data.loaders.presets import BatchRequest, batch_outputs
from gear_data.loaders.worker_mark import WorkerMark
from gear_data.selection.samplers import make_sampler
from gear_data.selection.windows import StepTable, Windows

Batch = dict[str, torch.Tensor]
Transform = Callable[[Batch, np.random.Generator], Batch]
#: A batch, its windows, and its bytes with and without padding.
_Made = tuple[Batch, int, int, int]

_STATE_VERSION = 1


class SequenceLoader(IterableDataset[Batch]):
    """Padded sequence batches, the same for any rank, worker count and prefetch depth.

    Iterating starts at step 0, or, once, at the step of a state that was loaded. So a second `for batch in loader`
    gives the same batches in the same order, also with `sampler="shuffle"` and `epochs=1`: for n epochs, each in an
    order of its own, give `epochs=n`, or no end.

    Inside a `DataLoader(loader, batch_size=None, num_workers=n)` worker k makes every n-th step, from the k-th on, and
    the DataLoader puts them in order.

    Args:
        dataset: what to draw from.
        batch_size: windows of a global batch. Rank r of w gets rows [r * B // w, (r + 1) * B // w) of it.
        context: steps of a sequence.
        preset: `raw` or `decision_transformer`: names, padding and dtypes of the batch; see `PRESETS`.
        sampler: `uniform` (a window starts at a step drawn from all steps) or `shuffle` (every step once an epoch).
        seed: 0 to 2^64 - 1.
        columns: `raw`: the columns wanted; other presets: columns to add. None: all, or none added.
        offsets: column -> (first, last): its own range of steps around the window's first step, `last` not
            included, each at its own place, with a mask `COLUMN_mask`. Others have `context` steps.
        normalize: True (float observations), a column or several, by the dataset's statistics; or column -> (mean,
            std). None: not at all.
        dtype: what float columns become: float32, float64, float16 or bfloat16 (name or torch dtype). None: as the
            preset says. Masks stay as they are.
        transform: called as transform(batch, rng) with a NumPy generator keyed by (seed, step); returns the batch.
        rank, world_size: None reads torch.distributed where it is initialised, else 0 of 1.
        device: where tensors go.
        prefetch: batches kept ready, made ahead in a thread; 0 makes each when it is asked for.
        steps: number of batches; None for no end.
        epochs: end after so many passes over all steps; with `shuffle` the last batch may be short.

    Raises:
        UnknownNameError: no such preset, sampler or column; lists the known ones.
        InvalidArgumentError: an argument out of its range.
        MissingColumnError: the preset needs a column the dataset lacks.
        DeviceError: no such device here.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int = 256,
        context: int = 20,
        preset: str = "raw",
        sampler: str = "uniform",
        seed: int = 0,
        columns: Sequence[str] | None = None,
        offsets: Mapping[str, tuple[int, int]] | None = None,
        normalize: bool | str | Sequence[str] | Mapping[str, tuple[Any, Any]] | None = None,
        dtype: str | torch.dtype | None = None,
        transform: Transform | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        device: str | torch.device = "cpu",
        prefetch: int = 2,
        steps: int | None = None,
        epochs: int | None = None,
    ) -> None:
        super().__init__()
        check_range("batch_size", batch_size, 1)
        check_range("context", context, 1)
        check_range("prefetch", prefetch, 0)
        check_range("seed", seed, 0, (1 << 64) - 1)
        for name, value in (("steps", steps), ("epochs", epochs)):
            if value is not None:
                check_range(name, value, 0)
        if steps is not None and epochs is not None:
            raise InvalidArgumentError("give steps or epochs, not both")
        if (rank is None) != (world_size is None):
            raise InvalidArgumentError("give both rank and world_size, or neither")
        if rank is not None and world_size is not None:
            check_range("world_size", world_size, 1)
            check_range("rank", rank, 0, world_size - 1)
        if isinstance(columns, str):
            raise InvalidArgumentError("columns is a list of names, not a string")
        self.dataset = dataset
        # NumPy integers become plain ones: the state is JSON.
        self.batch_size = batch_size = int(batch_size)
        self.context = context = int(context)
        self.preset = preset
        self.seed = seed = int(seed)
        self._rank, self._world_size = rank, world_size
        self._device = check_device(device)
        self._transform = transform
        self._prefetch = prefetch
        self._half, float_dtype = check_dtype(dtype)
        self._dtype_name = None if dtype is None else str(dtype).removeprefix("torch.")
        self._request = BatchRequest(
            schema=dataset.schema,
            context=context,
            columns=None if columns is None else tuple(columns),
            offsets=check_offsets(offsets),
            normalize=normalization_statistics(dataset, normalize),
            float_dtype=float_dtype,
        )
        self._outputs = batch_outputs(preset, self._request)
        check_batch_bytes(self._outputs, batch_size)
        self._floats = frozenset(o.key for o in self._outputs if o.column and np.dtype(o.dtype).kind == "f")
        self._sampler_name = sampler
        self._sampler = make_sampler(sampler, StepTable(dataset.offsets, context), seed)
        self._steps, self._last_rows = self._end(steps, epochs)
        self._next_step = 0
        # Whether a state was loaded and this process did not iterate since; and what a worker loaded: (step, its own).
        self._loaded = False
        self._worker_state: tuple[int, bool] | None = None
        self._mark = WorkerMark()
        self._meter = Meter()

    def _end(self, steps: int | None, epochs: int | None) -> tuple[int | None, int]:
        """(number of batches or None, windows of the last one)."""
        if epochs is None:
            return steps, self.batch_size
        slots = self._sampler.epoch_slots(epochs)
        whole = epochs * self.dataset.num_steps
        count = -(-whole // self.batch_size)
        return count, self.batch_size if slots is None or not count else slots - (count - 1) * self.batch_size

    def __len__(self) -> int:
        """Batches from the first to the end. Raises TypeError where there is no end."""
        if self._steps is None:
            raise TypeError("this loader has no end; give steps= or epochs=")
        return self._steps

    def __bool__(self) -> bool:
        # Else Python asks for the length, which an endless loader has not.
        return True

    def __getstate__(self) -> dict[str, Any]:
        # A DataLoader's spawned worker has no process group: the rank travels with the loader.
        rank, world_size = self._placement()
        own = {"_rank": rank, "_world_size": world_size, "_meter": Meter(), "_mark": copy.copy(self._shared_mark())}
        return {**self.__dict__, **own}

    def _shared_mark(self) -> WorkerMark:
        """The mark; one of its own for a process that was forked off, and is not a worker."""
        if not self._mark.reaches(get_worker_info()):
            self._mark = WorkerMark(self._next_step if self._loaded else None)
        return self._mark

    def _placement(self) -> tuple[int, int]:
        if self._rank is not None and self._world_size is not None:
            return self._rank, self._world_size
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return 0, 1

    def _select(self, step: int) -> Windows:
        windows = self._sampler.select(step, self.batch_size)
        return windows[: self._last_rows] if self._steps is not None and step == self._steps - 1 else windows

    def windows(self, step: int) -> dict[str, npt.NDArray[np.int64]]:
        """The global selection of a step, int64 [B] each: `dataset` (0), `episode_id`, `start` (first step in the
        episode) and `length` (valid steps).

        Raises:
            InvalidArgumentError: a negative step, or one past the end.
        """
        check_range("step", step, 0, None if self._steps is None else self._steps - 1)
        windows = self._select(step)
        return {
            "dataset": np.zeros(len(windows), np.int64),
            "episode_id": windows.episode_id,
            "start": windows.start,
            "length": windows.length,
        }

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        first, own = self._shared_mark().take(worker), False
        if self._worker_state is not None:
            first, own = self._worker_state
        self._loaded, self._worker_state = False, None
        stride, owned = 1, worker is not None
        if worker is not None:
            # The DataLoader asks worker 0 first, wherever the state stands: worker k makes the steps first + k,
            # first + k + n, ... A state that was saved in a worker has that worker's own next step.
            stride = worker.num_workers
            first += 0 if own else worker.id
        self._next_step = first
        rank, world_size = self._placement()
        rows = -(-self.batch_size // world_size)
        collector = Collector(self.dataset.reader(), self.dataset.schema, self._outputs, rows, reuse=not owned)

        def make(item: int) -> _Made:
            return self._make(collector, first + item * stride, rank, world_size)

        count = None if self._steps is None else max(0, -(-(self._steps - first) // stride))
        return self._iterate(make, first, stride, count)

    def _iterate(self, make: Callable[[int], _Made], first: int, stride: int, count: int | None) -> Iterator[Batch]:
        # One thread, and the consumer where it would wait: a second thread contends with both for the interpreter.
        prefetcher = Prefetcher(make, count, self._prefetch, threads=1) if self._prefetch else None
        get = make if prefetcher is None else prefetcher.get
        self._meter.start()
        try:
            item = 0
            while count is None or item < count:
                asked = time.perf_counter()
                batch, rows, padded, valid = get(item)
                if self._device.type != "cpu":
                    batch = {key: tensor.to(self._device, non_blocking=True) for key, tensor in batch.items()}
                item += 1
                self._meter.add(rows, padded, valid, time.perf_counter() - asked)
                self._next_step = first + item * stride
                yield batch
        finally:
            if prefetcher is not None:
                prefetcher.close()

    def _make(self, collector: Collector, step: int, rank: int, world_size: int) -> _Made:
        windows = self._select(step)
        total = len(windows)
        mine = windows[rank * total // world_size : (rank + 1) * total // world_size]
        collected = collector.collect(mine)
        batch = {key: torch.from_numpy(array) for key, array in collected.arrays.items()}
        if self._half is not None:
            batch = {key: t.to(self._half) if key in self._floats else t for key, t in batch.items()}
        batch["valid_count"] = torch.from_numpy(np.ascontiguousarray(mine.length))
        if self._transform is not None:
            rng = np.random.Generator(np.random.Philox(key=np.array([self.seed, step], np.uint64)))
            batch = self._transform(batch, rng)
        return batch, len(mine), collected.padded_bytes, collected.valid_bytes

    def state_dict(self) -> dict[str, Any]:
        """Where iteration stands: the next step, and what its meaning depends on. Small, JSON-able, and valid for any
        number of ranks and workers. A state saved inside a DataLoader's worker, as torchdata's StatefulDataLoader does,
        has the worker's own next step and says so; only that worker takes it.

        Raises:
            StateMismatchError: a DataLoader's workers iterated last; how far they came the DataLoader alone knows.
        """
        if get_worker_info() is None and self._shared_mark().used:
            raise StateMismatchError(
                "this loader was iterated by a DataLoader's workers, and does not know how far they came",
                hint="save the state of torchdata's StatefulDataLoader; or take this state before iterating, count "
                'batches, and save {**state, "step": n}',
            )
        return {"version": _STATE_VERSION, "step": self._next_step, **_worker_place(), **self._identity()}

    def _identity(self) -> dict[str, Any]:
        return {
            "fingerprint": self.dataset.fingerprint,
            "sampler": self._sampler_name,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "context": self.context,
        }

    def spec(self) -> dict[str, Any]:
        """Every argument that says what the batches hold, JSON-able: enough to make them again."""
        request = self._request
        rank, world_size = self._placement()
        return {
            **self._identity(),
            "preset": self.preset,
            "columns": None if request.columns is None else list(request.columns),
            "offsets": {name: list(span) for name, span in request.offsets.items()},
            "normalize": {name: [mean.tolist(), std.tolist()] for name, (mean, std) in request.normalize.items()},
            "dtype": self._dtype_name,
            "transform": getattr(self._transform, "__qualname__", None if self._transform is None else "unnamed"),
            "rank": rank,
            "world_size": world_size,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on at the state's step.

        Raises:
            StateMismatchError: a state of another dataset, sampler, seed, batch size or context, or of another worker.
        """
        if state.get("version") != _STATE_VERSION:
            raise StateMismatchError(f"the loader state has version {state.get('version')!r}, not {_STATE_VERSION}")
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise StateMismatchError(
                    f"the loader state has another {name}: {state.get(name)!r}, this loader {value!r}",
                    hint="resume with the dataset and arguments the state was saved with",
                )
        step = state.get("step")
        if type(step) is not int or step < 0:
            raise StateMismatchError(f"the loader state has step {step!r}")
        place = state.get("worker")
        if place is not None and place != _worker_place().get("worker"):
            raise StateMismatchError(
                f"the loader state is of one DataLoader worker (number and count: {place!r})",
                hint="load the StatefulDataLoader's whole state, with as many workers as when it was saved",
            )
        self._next_step = step
        if get_worker_info() is not None:
            self._worker_state = step, place is not None
            return
        self._loaded = True
        self._shared_mark().load(step)

    def metrics(self) -> dict[str, float | int]:
        """Counts and rates since the loader was made; see `gear_data.loaders.metrics.Meter.result`."""
        return self._meter.result()


def _worker_place() -> dict[str, list[int]]:
    """{"worker": [number, count]} in a DataLoader's worker, else nothing."""
    worker = get_worker_info()
    return {} if worker is None else {"worker": [worker.id, worker.num_workers]}
