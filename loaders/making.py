"""Making batches: draw, collect, wrap in tensors, finish."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gear_data.collection import Collected, Collector
from gear_data.loaders.decoders import Decoder
from gear_data.loaders.draws import Draw, Drawer
from gear_data.loaders.parts import Part
from gear_data.loaders.variable import VariableColumns
from gear_data.selection.weights import WeightedSelector
from gear_data.selection.windows import Int64Array, Windows

#: Lists of B tensors are what presets give whose samples are not padded, lists of B lists what text is.
Batch = dict[str, Any]
Transform = Callable[[Batch, np.random.Generator], Batch]


@dataclass(slots=True)  # made for every batch: see Windows
class Made:
    """A batch, and what its metrics need.

    Attributes:
        batch: as the consumer gets it, on the CPU.
        windows: of this rank.
        padded_bytes, valid_bytes: with and without padding.
        sources: windows of each dataset of a mixture; None without a mixture.
    """

    batch: Batch
    windows: int
    padded_bytes: int
    valid_bytes: int
    sources: Int64Array | None


@dataclass(frozen=True)
class Finish:
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


class BatchMaker:
    """Makes this rank's rows of any step's batch. Safe to call from several threads.

    Args:
        parts: the loader's datasets.
        drawer: draws the global batches.
        batch_size: windows of a global batch.
        size: size(step) is how many of them the batch of that step has.
        joined: whether one batch has windows of several datasets.
        rank, world_size: rank r of w gets rows [r * B // w, (r + 1) * B // w).
        rows: most windows that this rank gets.
        batches: most batches that `make` is asked for at once.
        reuse: whether the memory of batches that are gone is used again (`gear_data.buffers.BufferPool`).
    """

    def __init__(
        self,
        parts: Sequence[Part],
        drawer: Drawer,
        batch_size: int,
        size: Callable[[int], int],
        finish: Finish,
        *,
        joined: bool,
        rank: int,
        world_size: int,
        rows: int,
        batches: int,
        reuse: bool,
    ) -> None:
        self._parts = parts
        self._drawer = drawer
        self._batch_size, self._size = batch_size, size
        self._finish = finish
        self._rank, self._world_size = rank, world_size
        shares = [part.share() for part in parts]
        groups = [shares] if joined else [[share] for share in shares]
        self._collectors = [Collector(group, rows, batches=batches, reuse=reuse) for group in groups]
        self._variable = VariableColumns(parts, finish.context, finish.decoders)
        self._weighted = {
            number: part.selector for number, part in enumerate(parts) if isinstance(part.selector, WeightedSelector)
        }
        # NumPy has no bfloat16: the collector gives its bits.
        self._bfloat16 = [[o.key for o in part.outputs if o.half == "bfloat16"] for part in parts]

    def make(self, steps: Sequence[int]) -> list[Made]:
        """The batches of these steps. Several of one dataset are collected in one call, without the interpreter."""
        draws = [self._mine(step) for step in steps]
        return [
            self._wrap(step, draw, collected)
            for step, draw, collected in zip(steps, draws, self._collect(draws), strict=True)
        ]

    def _mine(self, step: int) -> Draw:
        draw, total = self._drawer.draw(step, self._batch_size), self._size(step)
        if self._world_size == 1 and total == self._batch_size:
            return draw
        first, last = self._rank * total // self._world_size, (self._rank + 1) * total // self._world_size
        return draw.rows(first, last)

    def _collect(self, draws: Sequence[Draw]) -> list[Collected]:
        first, rows = draws[0].source, len(draws[0])
        # A short last batch is collected by itself: this rank may have more rows of it than of the others, or fewer.
        if len(draws) > 1 and isinstance(first, int) and all(_is_of(draw, first, rows) for draw in draws):
            return self._collectors[first].collect(_concatenated([draw.windows for draw in draws]), len(draws))
        return [self._collect_one(draw) for draw in draws]

    def _collect_one(self, draw: Draw) -> Collected:
        if isinstance(draw.source, int):
            return self._collectors[draw.source].collect(draw.windows)[0]
        return self._collectors[0].collect_joined(draw.windows, draw.source)

    def _wrap(self, step: int, draw: Draw, collected: Collected) -> Made:
        number = draw.source if isinstance(draw.source, int) else 0
        part, windows = self._parts[number], draw.windows
        batch: Batch = {key: torch.from_numpy(array) for key, array in collected.arrays.items()}
        for key in self._bfloat16[number]:
            batch[key] = batch[key].view(torch.bfloat16)
        batch["valid_count"] = torch.from_numpy(windows.length)
        if windows.probability is not None:
            batch["probability"] = torch.from_numpy(windows.probability)
        if self._weighted and (not isinstance(draw.source, int) or number in self._weighted):
            batch["weights_version"] = torch.from_numpy(self._versions(draw))
        if part.variable:
            self._variable.add(batch, draw)
        sources = None
        if len(self._parts) > 1:
            source = np.broadcast_to(np.asarray(draw.source, np.int64), len(draw)).copy()
            sources = np.bincount(source, minlength=len(self._parts))
            batch["source"] = torch.from_numpy(source)
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
        return Made(batch, len(draw), collected.padded_bytes, collected.valid_bytes, sources)

    def _versions(self, draw: Draw) -> Int64Array:
        """int64 [B]: how many updates of its dataset's weights held for each window; 0 where a dataset has none."""
        versions = np.zeros(len(draw), np.int64)
        for number, selector in self._weighted.items():
            rows = draw.source == number
            if np.any(rows):
                versions[rows] = selector.version(draw.step)
        return versions


def _is_of(draw: Draw, source: int, rows: int) -> bool:
    return isinstance(draw.source, int) and draw.source == source and len(draw) == rows


def _concatenated(windows: Sequence[Windows]) -> Windows:
    return Windows(*(np.concatenate([getattr(w, name) for w in windows]) for name in ("episode_id", "start", "length")))


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
