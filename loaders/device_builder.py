"""Batches collected by a GPU into its own memory, as torch's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from gear_data.cluster.client.reader import ClusterReader
from gear_data.collection.plan import BatchPlan, CollectSource
from gear_data.collection.reader import ColumnReader
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.internals import store_of
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.batch_builder import (
    Batch,
    BuiltBatch,
    Facts,
    Gathered,
    are_alike,
    drawn_facts,
    on_device,
    source_of,
    windows_of,
)
from gear_data.loaders.component import LoaderComponent
from gear_data.loaders.window_source import Draw
from gear_data.residency import DeviceColumns, ShardReader
from gear_data.residency.device.collector import DeviceCollector, OnDevice
from gear_data.residency.device.staging import StagingReader
from gear_data.residency.device.window_sampler import DeviceWindowSampler
from gear_data.selection.window_sampler import SamplingPlan

#: Of what comes with windows, by the kind of NumPy's dtype.
_NUMBERS = {"i": torch.int64, "f": torch.float64}


class DeviceCollection:
    """Collects on a device. Tensors lie in the memory that the kernel fills. It is used again when the last of them is
    gone, and the stream that is the current one where the next batch is asked for has come so far.

    Args:
        parts: the loader's datasets.
        joined: whether one batch has windows of several datasets.
        rows: most windows of a batch.
        batches: most batches collected at once.
        device: the number of a CUDA device.
        sm_budget: the share of its multiprocessors that collecting takes.
        keep: buffers kept for reuse.
        pin: whether what the CPU makes goes to the device through pinned memory.
        slots: windows of a global batch.

    Raises:
        as `DeviceCollector`.
    """

    def __init__(
        self, parts: Sequence[LoaderComponent], *, joined: bool, rows: int, batches: int, device: torch.device,
        sm_budget: float, keep: int, pin: bool, slots: int,
    ) -> None:  # fmt: skip
        self._device, self._pin = device, pin
        shares = [part.share() for part in parts]
        sources = [_source(share, part.dataset) for share, part in zip(shares, parts, strict=True)]
        groups = [list(range(len(parts)))] if joined else [[number] for number in range(len(parts))]
        self._plans = [BatchPlan([shares[number] for number in group], rows, batches) for group in groups]
        self._collectors = [
            DeviceCollector(
                [sources[number] for number in group], plan, rows * batches, device=device_number(device),
                sm_budget=sm_budget, keep=keep, slots=slots,
                sampling_plan=_sampling_plan([parts[number] for number in group], slots),
            )
            for group, plan in zip(groups, self._plans, strict=True)
        ]  # fmt: skip
        # One a dataset, or one of all that are joined.
        self._layouts = [
            _layout(plan, {o.key for o in parts[group[0]].outputs if o.half == "bfloat16"})
            for group, plan in zip(groups, self._plans, strict=True)
        ]

    def collect(self, draws: Sequence[Draw], facts: Sequence[Facts]) -> list[Gathered]:
        if len(draws) > 1 and not are_alike(draws):
            return [self.collect([draw], [own])[0] for draw, own in zip(draws, facts, strict=True)]
        number, source = source_of(draws), draws[0].source
        sampler = self._sampler(draws[0])
        if sampler is not None:
            return [self._draw(number, sampler, *each) for each in zip(draws, facts, strict=True)]
        told = [{**drawn_facts(draw), **own} for draw, own in zip(draws, facts, strict=True)]
        together = {name: np.concatenate([each[name] for each in told]) for name in told[0]}
        filled = self._collectors[number].collect(
            windows_of(draws), None if isinstance(source, int) else source, together, len(draws)
        )
        kinds = {name: values.dtype.kind for name, values in together.items()}
        return self._tensors(number, filled, len(draws[0]), kinds)

    def _sampler(self, draw: Draw) -> DeviceWindowSampler | None:
        """What draws it on the device; None: the CPU has to."""
        sampler = self._collectors[source_of([draw])].sampler
        if sampler is None or draw.slots is None:
            return None
        # There is another one, or none, after weights changed.
        plan = draw.slots.selector.sampling_plan(draw.slots.count)
        return sampler if plan is not None and plan.sampler is sampler.plan.sampler else None

    def _draw(self, number: int, sampler: DeviceWindowSampler, draw: Draw, facts: Facts) -> Gathered:
        slots: Any = draw.slots
        filled = self._collectors[number].draw_and_collect(
            sampler, (slots.step, slots.position, slots.first, slots.last), facts
        )
        kinds = {name: "f" if name == "probability" else "i" for name in filled.facts}
        return self._tensors(number, filled, len(draw), kinds)[0]

    def _tensors(self, number: int, filled: OnDevice, rows: int, kinds: Mapping[str, str]) -> list[Gathered]:
        # -1: no stream waits for another; the consumer's does so in `hand_over`.
        whole = torch.utils.dlpack.from_dlpack(filled.array.__dlpack__(stream=-1))
        batches = []
        for place, valid_bytes in enumerate(filled.valid_bytes):
            batch: Batch = {
                key: _part(whole, begin + place * rows * size, rows * size, dtype).view(rows, *shape)
                for key, begin, size, dtype, shape in self._layouts[number]
            }
            for name, kind in kinds.items():
                batch[name] = _part(whole, filled.facts[name] + 8 * place * rows, 8 * rows, _NUMBERS[kind])
            collected = self._collectors[number], filled.collected, frozenset(batch)
            batches.append(Gathered(batch, rows * self._plans[number].row_bytes, valid_bytes, collected))
        return batches

    def hand_over(self, made: BuiltBatch) -> Batch:
        collector, collected, there = made.collected
        collector.hand_over(collected, torch.cuda.current_stream(self._device).cuda_stream)
        # What the device did not collect, such as what decoders give.
        others = {key: value for key, value in made.batch.items() if key not in there}
        return {**made.batch, **on_device(others, self._device, pin=self._pin)}


def _sampling_plan(parts: Sequence[LoaderComponent], slots: int) -> SamplingPlan | None:
    """How a device can draw batches of these; None: the CPU needs to know their windows, or draws them alone."""
    part = parts[0]
    return None if len(parts) > 1 or part.variable else part.selector.sampling_plan(slots)


def _part(whole: torch.Tensor, first: int, nbytes: int, dtype: torch.dtype) -> torch.Tensor:
    return whole[first : first + nbytes].view(dtype)


def staging_reader(reader: ColumnReader) -> StagingReader | None:
    """What brings to a GPU what its kernels cannot read in place; None: the CPU collects that."""
    if isinstance(reader, ClusterReader):
        return reader.staging()
    return reader if isinstance(reader, ShardReader) else None


def _source(share: CollectSource, dataset: Dataset) -> tuple[StagingReader, DeviceColumns]:
    reader = staging_reader(share.reader)
    if reader is None:
        raise InvalidArgumentError("steps that other machines send are collected on the CPU")
    return reader, store_of(dataset).device_columns()


def device_number(device: torch.device) -> int:
    """That of a CUDA device, which may be named without one."""
    return torch.cuda.current_device() if device.index is None else device.index


def _layout(plan: BatchPlan, bfloat16: set[str]) -> list[tuple[str, int, int, torch.dtype, tuple[int, ...]]]:
    """Key, first byte, bytes of a row, dtype and shape of a row of each array."""
    return [
        (
            array.key,
            array.offset,
            array.row_bytes,
            torch.bfloat16 if array.key in bfloat16 else torch.from_numpy(np.empty(0, array.dtype)).dtype,
            array.shape,
        )
        for array in plan.arrays
    ]
