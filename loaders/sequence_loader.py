"""SequenceLoader: padded sequence batches of a dataset, as a torch IterableDataset."""

from __future__ import annotations

import contextlib
import copy
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import IterableDataset, get_worker_info

from gear_data.collection.buffers import IDLE_BUFFERS
from gear_data.common.distributed import is_distributed, rank_and_world_size
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.store import check_discount
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.arguments import (
    check_dataset,
    check_device,
    check_dtype,
    check_numbers,
    check_offsets,
    check_pin_memory,
    check_placement,
    check_range,
)
from gear_data.loaders.backend import Target, resolve_backend
from gear_data.loaders.batch_builder import Batch, BatchBuilder, Collection, PostprocessConfig, Transform
from gear_data.loaders.batch_iterator import BatchIterator, batches_at_once
from gear_data.loaders.component import ComponentArguments, Normalize, component_spec, make_components
from gear_data.loaders.decoding.images import Decoder
from gear_data.loaders.decoding.variable import check_decoders, check_joined
from gear_data.loaders.metrics import Meter, weight_metrics
from gear_data.loaders.mixture import Mixture, MixtureComponent
from gear_data.loaders.node_local import check_selection, most_rows
from gear_data.loaders.presets.outputs import BatchFormat
from gear_data.loaders.shared_state import SharedResumeState
from gear_data.loaders.state import check_state, make_state, workers_know
from gear_data.loaders.weight_updates import check_updatable, spread_update
from gear_data.loaders.window_source import make_window_source
from gear_data.selection.samplers import Sampler
from gear_data.selection.samplers.weighted import WeightedSelector
from gear_data.selection.windows import WindowRule

#: After an update of weights, `windows` knows so many steps behind the next one.
_STEPS_KEPT = 1024


class SequenceLoader(IterableDataset[Batch]):
    """Padded sequence batches, the same for any rank, worker count and prefetch depth.

    Iterating starts at step 0, or, once, at the step of a state that was loaded. So a second `for batch in loader`
    gives the same batches in the same order, also with `sampler="shuffle"` and `epochs=1`: for n epochs, each in an
    order of its own, give `epochs=n`, or no end.

    Inside a `DataLoader(loader, batch_size=None, num_workers=n)` worker k makes every n-th step, from the k-th on, and
    the DataLoader puts them in order.

    Args:
        dataset: what to draw from, or a `Mixture` of datasets.
        batch_size: windows of a global batch. Rank r of w gets rows [r * B // w, (r + 1) * B // w) of it.
        context: most steps of a sequence.
        preset: names, padding and dtypes of the batch: a name of `PRESETS`, or a `BatchFormat`.
        sampler: `uniform` (a window starts at a step drawn from all steps), `shuffle` (every step once an epoch),
            `fifo`, or an instance: `Uniform`, `Weighted`, `TopK`, `Fifo`, `Shuffle`.
        seed: 0 to 2^64 - 1.
        columns: `raw`: the columns wanted; other presets: columns to add. None: all, or none added. `next_X` is column
            X of the following step, and after the last the final observation.
        offsets: column -> (first, last): its own range of steps around the window's first step, `last` not
            included, each at its own place, with a mask `COLUMN_mask`. Others have `context` steps.
        normalize: True (float observations), a column or several, by the dataset's statistics; or column -> (mean,
            std). None: not at all.
        dtype: what float columns become: float32, float64, float16 or bfloat16 (name or torch dtype). None: as the
            preset says. Masks stay as they are.
        transform: called as transform(batch, rng) with a NumPy generator keyed by (seed, step); returns the batch.
        rank, world_size: None reads torch.distributed where it is initialised, else 0 of 1.
        device: where tensors go.
        backend: what collects them there: `cpu`, from where they are copied to the device; `cuda`, kernels of the
            device, which read the columns where they are; or `auto`, the faster one as far as can be foreseen. Kernels
            need a dataset with residency `pinned` or `device`, or one that was placed: of others the CPU gathers what
            they read. Tokens (`gato`), `transform` and what comes from other machines by Arrow Flight are made on the
            CPU.
        sm_budget: the share of a GPU's multiprocessors that kernels of this loader take, above 0 and at most 1.
        prefetch: batches kept ready, made ahead in a thread; 0 makes each when it is asked for. Small batches are made
            several at a time, and a few more are kept.
        steps: number of batches; None for no end.
        epochs: end after so many batches as passes over all windows have; with `shuffle` and `fifo` the last may be
            short.
        preset_options: fields of the preset to change, such as {"side": "right"}; see `BatchFormat`.
        stride: windows hang on every stride-th step of an episode.
        anchor: `start`: a window starts at its step; `end`: it ends there; `random`: its step is somewhere in it.
        short_windows: whether a window may have fewer steps than `context`, where an episode ends (or begins).
        n_step: adds `n_step_returns`, the discounted sum of so many rewards, as far as the episode goes.
        discount: of `n_step_returns` and of `returns_to_go`, 0 to 1.
        decoders: column of text or bytes -> what makes tensors of it; see `gear_data.loaders.decoding.images`.
        pin_memory: whether batches are copied to pinned memory, from which copies to a GPU run beside other work. None:
            where `device` is a GPU.
        selection: of a dataset opened with `cluster`. `centralized`: every rank draws the same global batch, of which
            it has its rows. `decentralized`: each node draws from its own shards alone, so that nothing goes over the
            network; of every batch it has as many rows as is its shards' part of all weights (to within one row over
            any number of batches), which its ranks divide. What is drawn then depends on the placement, which is
            part of the state: a state is taken by as many nodes with the same placement alone.

    Raises:
        UnknownNameError: no such preset, sampler or column; lists the known ones.
        InvalidArgumentError: an argument out of its range.
        MissingColumnError: the preset needs a column the dataset lacks.
        DeviceError: no such device here.
    """

    def __init__(
        self,
        dataset: Dataset | Mixture,
        batch_size: int = 256,
        context: int = 20,
        preset: str | BatchFormat = "raw",
        sampler: str | Sampler = "uniform",
        seed: int = 0,
        columns: Sequence[str] | None = None,
        offsets: Mapping[str, tuple[int, int]] | None = None,
        normalize: Normalize = None,
        dtype: str | torch.dtype | None = None,
        transform: Transform | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        device: str | torch.device = "cpu",
        backend: str = "auto",
        sm_budget: float = 1.0,
        prefetch: int = 2,
        steps: int | None = None,
        epochs: int | None = None,
        preset_options: Mapping[str, Any] | None = None,
        stride: int = 1,
        anchor: str = "start",
        short_windows: bool = True,
        n_step: int | None = None,
        discount: float = 1.0,
        decoders: Mapping[str, Decoder] | None = None,
        pin_memory: bool | None = None,
        selection: str = "centralized",
    ) -> None:
        super().__init__()
        check_numbers(batch_size, context, prefetch, seed, stride, steps, epochs, n_step)
        if not isinstance(short_windows, bool):
            raise InvalidArgumentError(f"short_windows is True or False, not {short_windows!r}")
        if transform is not None and not callable(transform):
            raise InvalidArgumentError(f"transform is called with a batch, and {transform!r} cannot be")
        check_placement(rank, world_size)
        self.dataset = dataset
        # NumPy integers become plain ones: the state is JSON.
        self.batch_size = batch_size = int(batch_size)
        self.context = context = int(context)
        self.seed = seed = int(seed)
        self._rank, self._world_size = rank, world_size
        self._member = check_selection(selection, dataset, rank, world_size)
        place = check_device(device)
        pin = check_pin_memory(pin_memory, place)
        self._prefetch = prefetch
        self._discount = check_discount(discount)
        half, float_dtype = check_dtype(dtype)
        self._dtype_name = None if dtype is None else str(dtype).removeprefix("torch.")
        self._rule = WindowRule(context, int(stride), anchor, short_windows)
        mixture = dataset if isinstance(dataset, Mixture) else None
        self._joined = mixture is not None and mixture.join
        self._parts = make_components(
            mixture.components if mixture is not None else (MixtureComponent(check_dataset(dataset), 1.0, {}),),
            ComponentArguments(
                columns, normalize, preset_options, sampler, batch_size, preset, self._rule, check_offsets(offsets),
                float_dtype, half, None if n_step is None else int(n_step), self._discount,
                self._member,
            ),
            seed,
            join=self._joined,
            ask_first_rank=rank is None and get_worker_info() is None and is_distributed(),
        )  # fmt: skip
        self.preset = self._parts[0].batch_format.name
        check_decoders(self._parts, {} if decoders is None else decoders)
        if self._joined:
            check_joined(self._parts)
        self._finish = PostprocessConfig(half, dict(decoders or {}), transform, seed, context)
        chosen = resolve_backend(backend, self._parts, self._finish, batch_size, place, sm_budget)
        self._target = Target(chosen, place, sm_budget, pin)
        selectors = tuple(part.selector for part in self._parts)
        self._drawer = make_window_source(
            selectors, None if mixture is None else mixture.proportions, join=self._joined
        )
        self._steps, self._last_rows = self._end(steps, epochs)
        self._next_step = 0
        # Whether a state was loaded and this process did not iterate since; and what a worker loaded: (step, its own).
        self._loaded = False
        self._worker_state: tuple[int, bool] | None = None
        self._mark = SharedResumeState()
        self._meter = Meter(len(self._parts))
        # Passes under way whose batches are made ahead.
        self._ahead: weakref.WeakSet[BatchIterator] = weakref.WeakSet()

    def _end(self, steps: int | None, epochs: int | None) -> tuple[int | None, int]:
        """(number of batches or None, windows of the last one)."""
        if epochs is None:
            return steps, self.batch_size
        if isinstance(self.dataset, Mixture):
            raise InvalidArgumentError("a mixture has no epochs", hint="give steps=, or no end")
        slots = self._drawer.epoch_slots(epochs)
        count = -(-(epochs * self._parts[0].num_windows if slots is None else slots) // self.batch_size)
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
        own = {
            "_rank": rank, "_world_size": world_size, "_meter": Meter(len(self._parts)),
            "_mark": copy.copy(self._shared_mark()), "_ahead": None,
        }  # fmt: skip
        return {**self.__dict__, **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _ahead=weakref.WeakSet())

    def _shared_mark(self) -> SharedResumeState:
        """The mark; one of its own for a process that was forked off, and is not a worker."""
        if not self._mark.reaches(get_worker_info()):
            self._mark = SharedResumeState(self._next_step if self._loaded else None)
        return self._mark

    def _placement(self) -> tuple[int, int]:
        if self._member is not None:
            return self._member.local_rank, self._member.local_size
        if self._rank is not None and self._world_size is not None:
            return self._rank, self._world_size
        return rank_and_world_size()

    def _size(self, step: int) -> int:
        """Windows of the global batch."""
        return self._last_rows if self._steps is not None and step == self._steps - 1 else self.batch_size

    def windows(self, step: int) -> dict[str, npt.NDArray[np.int64]]:
        """The global selection of a step, int64 [B] each: `dataset` (0, or its number in a mixture), `episode_id`,
        `start` (first step in the episode) and `length` (valid steps). With `decentralized` selection, this node's.

        Raises:
            InvalidArgumentError: a negative step, one past the end, or one so far back that its weights are gone.
        """
        check_range("step", step, 0, None if self._steps is None else self._steps - 1)
        # As many slots as every batch has: without replacement, a shorter batch is the beginning of a whole one.
        draw = self._drawer.draw(int(step), self.batch_size).rows(0, self._size(step))
        windows = draw.windows
        return {
            "dataset": np.broadcast_to(np.asarray(draw.source, np.int64), len(windows)).copy(),
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
        stride = 1
        if worker is not None:
            # The DataLoader asks worker 0 first, wherever the state stands: worker k makes the steps first + k,
            # first + k + n, ... A state that was saved in a worker has that worker's own next step.
            stride = worker.num_workers
            first += 0 if own else worker.id
        self._next_step = first
        rank, world_size = self._placement()
        rows = -(-most_rows(self._parts[0].selector, self.batch_size) // world_size)
        batch_bytes = max(sum(o.width * o.step_bytes for o in part.outputs) for part in self._parts) * rows
        remote = self._member is None and any(part.dataset.is_remote for part in self._parts)
        at_once = batches_at_once(batch_bytes, remote=remote) if self._prefetch else 1
        # As many as are ready, in the making and with the consumer, or batches would be allocated anew.
        keep = IDLE_BUFFERS + self._prefetch + 4 * at_once
        collection = self._target.collection(
            self._parts, joined=self._joined, rows=rows, batches=at_once,
            worker=worker is not None, keep=keep, slots=self.batch_size,
        )  # fmt: skip
        maker = BatchBuilder(
            self._parts, self._drawer, self.batch_size, self._size, self._finish, collection, rank, world_size
        )
        count = None if self._steps is None else max(0, -(-(self._steps - first) // stride))
        return self._iterate(maker, collection, (first, stride, count, at_once))

    def _iterate(
        self, maker: BatchBuilder, collection: Collection, span: tuple[int, int, int | None, int]
    ) -> Iterator[Batch]:
        batches = BatchIterator(maker.make, *span, self._prefetch)
        if self._prefetch:
            self._ahead.add(batches)
        self._meter.start()
        try:
            while not batches.ended:
                asked = time.perf_counter()
                # No name here holds the batch while its consumer has it, so its memory is free when they let go of it.
                yield self._hand_over(batches, collection, asked)
        finally:
            batches.close()

    def _hand_over(self, batches: BatchIterator, collection: Collection, asked: float) -> Batch:
        made = batches.take()
        batch = collection.hand_over(made)
        self._meter.add(made, time.perf_counter() - asked)
        self._next_step = batches.next_step
        return batch

    def update_weights(
        self,
        episode_ids: Sequence[int] | npt.NDArray[np.int64],
        values: Sequence[float] | npt.NDArray[np.float64],
        *,
        from_step: int | None = None,
        dataset: int = 0,
    ) -> int:
        """New weights for some episodes, with `sampler=Weighted(...)`. They hold from a step on that is beyond every
        batch made ahead, so no batch that exists is another than it would have been.

        Steps before keep the weights they had: a second pass from step 0 goes through the same versions again. Where
        weights change, make one endless pass (or go on with `load_state_dict(state_dict())`): the weights of steps
        1,024 and more behind are forgotten, and a pass that would need them is refused.

        Where torch.distributed is initialised every rank calls this, with updates of its own; they are applied in the
        order of the ranks, on all of them, and hold from one step on.

        Args:
            episode_ids: int [n]. An episode that comes twice has the last of its values.
            values: float [n], finite and not negative.
            from_step: hold from this step on. None: as soon as possible.
            dataset: number of the dataset, in a mixture.

        Returns:
            The step from which they hold. `batch["weights_version"]`, int64 [B], says how many updates held when it was
            drawn.

        Raises:
            InvalidArgumentError: another sampler, an episode that is not in the dataset, a value that no weight can be,
                a `from_step` too early, or a call where DataLoader workers make the batches. Nothing is applied.
        """
        selector = check_updatable(self._parts, dataset, self._shared_mark())
        with contextlib.ExitStack() as held:
            # No batch is begun until the update is there for it.
            soonest = max(
                self._next_step,
                self._drawer.step_of(dataset, selector.soonest),
                *(held.enter_context(batches.held()) for batches in list(self._ahead)),
            )
            (ids, weights), first_step = spread_update(
                episode_ids, values, from_step, soonest, spread=self._rank is None
            )
            selector.update(self._drawer.own_step(dataset, first_step), ids, weights)
            selector.compact(self._drawer.own_step(dataset, max(0, self._next_step - _STEPS_KEPT)))
        return first_step

    def state_dict(self) -> dict[str, Any]:
        """Where iteration stands: the next step, what its meaning depends on, and changed weights. JSON-able, and valid
        for any number of ranks and workers. A state saved inside a DataLoader's worker, as torchdata's
        StatefulDataLoader does, has the worker's own next step and says so; only that worker takes it.

        Raises:
            StateMismatchError: a DataLoader's workers iterated last; how far they came the DataLoader alone knows.
        """
        if get_worker_info() is None and self._shared_mark().used:
            raise workers_know()
        weights = [
            part.selector.state() if isinstance(part.selector, WeightedSelector) else None for part in self._parts
        ]
        return make_state(self._next_step, self._identity(), weights)

    def _identity(self) -> dict[str, Any]:
        names = [part.sampler for part in self._parts]
        return {
            "fingerprint": self.dataset.fingerprint,
            "sampler": names[0] if len(names) == 1 else names,
            "seed": self.seed,
            "batch_size": self.batch_size,
            **self._rule.identity(),
            "discount": self._discount,
            **self._drawer.identity(),
        }

    def spec(self) -> dict[str, Any]:
        """Every argument that says what the batches hold, JSON-able: enough to make them again, but for what is code
        (transform, decoders) and for weights, of which there is a hash."""
        rank, world_size = self._placement()
        transform = self._finish.transform
        parts = [component_spec(part) for part in self._parts]
        return {
            **self._identity(),
            "preset": self.preset,
            **(parts[0] if len(parts) == 1 else {"datasets": parts}),
            "dtype": self._dtype_name,
            "transform": getattr(transform, "__qualname__", None if transform is None else "unnamed"),
            "decoders": {name: getattr(d, "__qualname__", repr(d)) for name, d in self._finish.decoders.items()},
            "rank": rank,
            "world_size": world_size,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on at the state's step.

        Raises:
            StateMismatchError: a state of another dataset, sampler, seed, batch size or context, or of another worker.
        """
        step, own = check_state(state, self._identity())
        weights = state.get("weights") or [None] * len(self._parts)
        for part, saved in zip(self._parts, weights, strict=True):
            if isinstance(part.selector, WeightedSelector):
                part.selector.load(saved)
        self._next_step = step
        if get_worker_info() is not None:
            self._worker_state = step, own
            return
        self._loaded = True
        self._shared_mark().load(step)

    def metrics(self) -> dict[str, Any]:
        """Counts and rates since the loader was made, see `gear_data.loaders.metrics.Meter.result`; with a `Weighted`
        sampler also `effective_sample_size` and `raised_weights`, lists of them for a mixture."""
        return {**self._meter.result(), **weight_metrics([part.selector for part in self._parts])}
