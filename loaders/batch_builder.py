"""Making batches: draw, collect, wrap in tensors, finish."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from gear_data.collection.collector import CollectedBatch, Collector
from gear_data.loaders.component import LoaderComponent
from gear_data.loaders.decoding.images import Decoder
from gear_data.loaders.decoding.variable import VariableColumns
from gear_data.loaders.window_source import Draw, WindowSource
from gear_data.residency.device.collector import Later
from gear_data.selection.samplers.weighted import WeightedSelector
from gear_data.selection.windows import Int64Array, Windows

#: Lists of B tensors are what presets give whose samples are not padded, lists of B lists what text is.
Batch = dict[str, Any]
Transform = Callable[[Batch, np.random.Generator], Batch]


@dataclass(slots=True)  # made for every batch: see Windows
class BuiltBatch:
    """A batch, and what its metrics need.

    Attributes:
        batch: as the collection left it.
        windows: of this rank.
        padded_bytes, valid_bytes: with and without padding; what a device counts comes later.
        sources: windows of each dataset of a mixture; None without a mixture.
        collected: what the collection needs to hand it over.
    """

    batch: Batch
    windows: int
    padded_bytes: int
    valid_bytes: int | Later
    sources: Int64Array | None
    collected: Any = None


@dataclass(slots=True)  # made for every batch: see Windows
class Gathered:
    """A batch's tensors, and what its metrics need; see `BuiltBatch`."""

    batch: Batch
    padded_bytes: int
    valid_bytes: int | Later
    collected: Any = None


#: What comes with every window beside what its draw says: name -> int64 or float64 [B].
Facts = dict[str, npt.NDArray[Any]]


class Collection(Protocol):
    """Collects batches, into this machine's memory or a device's. Safe to call from several threads."""

    def collect(self, draws: Sequence[Draw], facts: Sequence[Facts]) -> list[Gathered]:
        """The batches of these draws, each with its facts and what the draw says. Those of one dataset may share
        memory."""

    def hand_over(self, made: BuiltBatch) -> Batch:
        """A batch as its consumer, in whose thread this is called, gets it."""


@dataclass(frozen=True)
class PostprocessConfig:
    """What is done with tensors after collecting.

    Attributes:
        half: float columns become it; None leaves them.
        decoders: column -> what makes of its texts or bytes.
        transform: called as transform(batch, rng) with a generator keyed by (seed, step).
        seed: of the loader.
        context: steps of a sequence.
    """

    half: torch.dtype | None
    decoders: dict[str, Decoder]
    transform: Transform | None
    seed: int
    context: int


class BatchBuilder:
    """Makes this rank's rows of any step's batch. Safe to call from several threads.

    Args:
        parts: the loader's datasets.
        drawer: draws the global batches.
        batch_size: windows of a global batch.
        size: size(step) is how many of them the batch of that step has.
        collection: collects them.
        rank, world_size: rank r of w gets rows [r * B // w, (r + 1) * B // w); with `decentralized` selection, of those
            of its node.
    """

    def __init__(
        self,
        parts: Sequence[LoaderComponent],
        drawer: WindowSource,
        batch_size: int,
        size: Callable[[int], int],
        finish: PostprocessConfig,
        collection: Collection,
        rank: int,
        world_size: int,
    ) -> None:
        self._parts = parts
        self._drawer = drawer
        self._batch_size, self._size = batch_size, size
        self._finish = finish
        self._collection = collection
        self._rank, self._world_size = rank, world_size
        self._variable = VariableColumns(parts, finish.context, finish.decoders)
        self._weighted = {
            number: part.selector for number, part in enumerate(parts) if isinstance(part.selector, WeightedSelector)
        }

    def make(self, steps: Sequence[int]) -> list[BuiltBatch]:
        """The batches of these steps."""
        draws = [self._mine(step) for step in steps]
        facts = [self._facts(draw) for draw in draws]
        gathered = self._collection.collect(draws, facts)
        return [self._wrap(*each) for each in zip(steps, draws, facts, gathered, strict=True)]

    def _mine(self, step: int) -> Draw:
        draw = self._drawer.draw(step, self._batch_size)
        # With `decentralized` selection a node draws its own rows alone.
        total = min(self._size(step), len(draw))
        if self._world_size == 1 and total == self._batch_size:
            return draw
        first, last = self._rank * total // self._world_size, (self._rank + 1) * total // self._world_size
        return draw.rows(first, last)

    def _facts(self, draw: Draw) -> Facts:
        facts: Facts = {}
        if self._weighted and (not isinstance(draw.source, int) or draw.source in self._weighted):
            facts["weights_version"] = self._versions(draw)
        if len(self._parts) > 1:
            facts["source"] = np.broadcast_to(np.asarray(draw.source, np.int64), len(draw)).copy()
        return facts

    def _wrap(self, step: int, draw: Draw, facts: Facts, gathered: Gathered) -> BuiltBatch:
        part = self._parts[draw.source if isinstance(draw.source, int) else 0]
        batch = gathered.batch
        sources = None if "source" not in facts else np.bincount(facts["source"], minlength=len(self._parts))
        if part.variable:
            self._variable.add(batch, draw)
        if part.finish is not None:
            batch = part.finish(batch)
            if self._finish.half is not None:
                # What is finished is collected in float32; all else the collector has rounded.
                cast = functools.partial(torch.Tensor.to, dtype=self._finish.half)
                floats = part.float_keys()
                batch = {key: each_tensor(value, cast) if key in floats else value for key, value in batch.items()}
        if self._finish.transform is not None:
            rng = np.random.Generator(np.random.Philox(key=np.array([self._finish.seed, step], np.uint64)))
            batch = self._finish.transform(batch, rng)
        return BuiltBatch(batch, len(draw), gathered.padded_bytes, gathered.valid_bytes, sources, gathered.collected)

    def _versions(self, draw: Draw) -> Int64Array:
        """int64 [B]: how many updates of its dataset's weights held for each window; 0 where a dataset has none."""
        versions = np.zeros(len(draw), np.int64)
        for number, selector in self._weighted.items():
            rows = draw.source == number
            if np.any(rows):
                versions[rows] = selector.version(draw.step)
        return versions


class HostCollection:
    """Collects in this machine's memory, on the CPU.

    Args:
        parts: the loader's datasets.
        joined: whether one batch has windows of several datasets.
        rows: most windows of a batch.
        batches: most batches collected at once.
        reuse: whether the memory of batches that are gone is used again (`gear_data.collection.buffers.BufferPool`).
        device: where the consumer gets them.
        pin: whether they go there through pinned memory.
    """

    def __init__(
        self, parts: Sequence[LoaderComponent], *, joined: bool, rows: int, batches: int, reuse: bool,
        device: torch.device, pin: bool,
    ) -> None:  # fmt: skip
        shares = [part.share() for part in parts]
        groups = [shares] if joined else [[share] for share in shares]
        self._collectors = [Collector(group, rows, batches=batches, reuse=reuse) for group in groups]
        # NumPy has no bfloat16: the collector gives its bits.
        self._bfloat16 = [[o.key for o in part.outputs if o.half == "bfloat16"] for part in parts]
        self._device, self._pin = device, pin

    def collect(self, draws: Sequence[Draw], facts: Sequence[Facts]) -> list[Gathered]:
        collected = self._together(draws) if are_alike(draws) else [self._one(draw) for draw in draws]
        return [self._tensors(*each) for each in zip(draws, collected, facts, strict=True)]

    def _together(self, draws: Sequence[Draw]) -> list[CollectedBatch]:
        """Of one dataset, in one call without the interpreter."""
        return self._collectors[source_of(draws)].collect(windows_of(draws), len(draws))

    def _one(self, draw: Draw) -> CollectedBatch:
        if isinstance(draw.source, int):
            return self._collectors[draw.source].collect(draw.windows)[0]
        return self._collectors[0].collect_joined(draw.windows, draw.source)

    def _tensors(self, draw: Draw, collected: CollectedBatch, facts: Facts) -> Gathered:
        batch: Batch = {key: torch.from_numpy(array) for key, array in collected.arrays.items()}
        for key in self._bfloat16[source_of([draw])]:
            batch[key] = batch[key].view(torch.bfloat16)
        batch.update({name: torch.from_numpy(values) for name, values in {**drawn_facts(draw), **facts}.items()})
        return Gathered(batch, collected.padded_bytes, collected.valid_bytes)

    def hand_over(self, made: BuiltBatch) -> Batch:
        return on_device(made.batch, self._device, pin=self._pin)


def drawn_facts(draw: Draw) -> Facts:
    """What a draw says of its windows."""
    windows = draw.windows
    counts = {"valid_count": windows.length}
    return counts if windows.probability is None else {**counts, "probability": windows.probability}


def are_alike(draws: Sequence[Draw]) -> bool:
    """Whether draws can be collected in one call: of one dataset, and equally many windows each. A short last batch is
    collected by itself: this rank may have more rows of it than of the others, or fewer."""
    first, rows = draws[0].source, len(draws[0])
    return isinstance(first, int) and all(
        isinstance(draw.source, int) and draw.source == first and len(draw) == rows for draw in draws
    )


def source_of(draws: Sequence[Draw]) -> int:
    """The number of the dataset of draws that are alike; of a joined one 0, whose outputs are the others'."""
    source = draws[0].source
    return source if isinstance(source, int) else 0


def windows_of(draws: Sequence[Draw]) -> Windows:
    """The windows of draws, one after the other."""
    if len(draws) == 1:
        return draws[0].windows
    names = ("episode_id", "start", "length")
    return Windows(*(np.concatenate([getattr(draw.windows, name) for draw in draws]) for name in names))


def on_device(batch: Batch, device: torch.device, *, pin: bool) -> Batch:
    """A batch of the CPU on that device, copied while the CPU goes on where its memory is pinned."""
    if pin:
        batch = {key: each_tensor(value, torch.Tensor.pin_memory) for key, value in batch.items()}
    if device.type != "cpu":
        move = functools.partial(torch.Tensor.to, device=device, non_blocking=True)
        batch = {key: each_tensor(value, move) for key, value in batch.items()}
    return batch


def each_tensor(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A batch's value with every tensor in it changed; lists of text stay as they are."""
    if isinstance(value, torch.Tensor):
        return change(value)
    return [each_tensor(each, change) for each in value] if isinstance(value, list) else value
