"""Backends: which processor builds a loader's batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gear_data.collection.buffers import plain_memory
from gear_data.errors import DeviceError, InvalidArgumentError, MissingExtraError
from gear_data.loaders.builders.batch import BatchBuilder, RankRows
from gear_data.loaders.builders.cpu import CpuBatchBuilder
from gear_data.loaders.builders.postprocess import PostprocessConfig, Postprocessor
from gear_data.loaders.builders.task_goals import goal_component
from gear_data.loaders.component import LoaderComponent
from gear_data.loaders.frameworks.framework import Framework
from gear_data.loaders.window_source import WindowSource
from gear_data.residency.device.columns import current_device

if TYPE_CHECKING:
    import torch

    from gear_data.loaders.video.camera_collector import CameraCollector, LookAhead
    from gear_data.loaders.video.frame_converter import FrameConverter
    from gear_data.loaders.video.readers import CameraReaders
    from gear_data.residency.device.link import LinkRates

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rates:
    """The cost of collecting, for `choose_backend`.

    The rates of the link are measured on each machine. The others are estimates, from measurements of CPUs and of an
    H100.

    Attributes:
        link: between this machine's memory and the device.
        cpu: bytes per second that one thread collects.
        device: bytes per second within the device's memory.
        cpu_call, copy_call, launch: seconds to start collecting on the CPU, to copy an array to the device, and to
            start collecting on the device.
    """

    link: LinkRates
    cpu: float = 8e9
    device: float = 1e12
    cpu_call: float = 5e-6
    copy_call: float = 1e-5
    launch: float = 3e-5


def choose_backend(outputs: Sequence[tuple[int, int]], rows: int, residency: str, rates: Rates) -> str:
    """Returns the backend that is expected to be faster: `cpu` or `cuda`.

    A pure function.

    The estimate includes the copy to the device's memory. Choosing by a metric of the workload is an idea of Quiver
    (Tan et al., 2023, arXiv 2305.10863).

    Args:
        outputs: for each array of the batch, the steps of a window and the bytes of a step.
        rows: windows of a batch.
        residency: of the columns, see `gear_data.open`. The CPU gathers columns that a GPU cannot read in place.
    """
    if residency not in ("pinned", "device", "tiered"):
        return "cpu"
    total = rows * sum(width * step_bytes for width, step_bytes in outputs)
    on_cpu = rates.cpu_call + total / rates.cpu + len(outputs) * rates.copy_call + total / rates.link.copy
    on_device = rates.launch + total / rates.device
    if residency != "device":
        # Each window of each array is one request.
        read = total / rates.link.reads + rows * len(outputs) * rates.link.request
        on_device = rates.launch + max(read, total / rates.device)
    return "cuda" if on_device <= on_cpu else "cpu"


def resolve_backend(
    backend: str,
    components: Sequence[LoaderComponent],
    postprocess: PostprocessConfig,
    rows: int,
) -> str:
    """Returns the backend of a loader: `cpu` or `cuda`.

    Batches that only the CPU can make are made there. A warning in the log says why, if the device was requested, or
    if a GPU reads the memory of the columns.

    Args:
        backend: a word of `gear_data.words.Processor`.
        rows: windows of a batch.

    Raises:
        InvalidArgumentError: `cuda` for batches that do not go to a GPU, or for columns in the memory of another GPU.
        MissingExtraError, DeviceError: `cuda` without CuPy or without a GPU.
    """
    device = postprocess.framework.device
    if device is None or device.type != "cuda":
        if backend == "cuda":
            raise InvalidArgumentError("backend='cuda' collects in a GPU's memory", hint="give device='cuda' too")
        return "cpu"
    placed = [component.dataset.residency in ("pinned", "device", "tiered") for component in components]
    if backend == "cpu" or not (backend == "cuda" or any(placed)):
        return "cpu"
    reason = _why_only_cpu(components, postprocess)
    if reason is not None:
        _log.warning("batches are collected on the CPU: %s", reason)
        return "cpu"
    # The module imports torch, which a loader of other frameworks does without.
    from gear_data.loaders.builders.device import device_number
    from gear_data.residency.device.link import link_rates

    current_device()
    for component in components:
        column_device = component.dataset.store.device_columns().device
        if column_device not in (None, device_number(device)):
            raise InvalidArgumentError(
                f"the columns are in the memory of CUDA device {column_device}, and batches go to {device}",
                hint="call torch.cuda.set_device before you open or place the dataset",
            )
    if backend == "cuda":
        return "cuda"
    rates = Rates(link_rates(device_number(device)))
    chosen = {
        choose_backend([(o.width, o.step_bytes) for o in component.outputs], rows, component.dataset.residency, rates)
        for component in components
    }
    return "cuda" if chosen == {"cuda"} else "cpu"


def _why_only_cpu(components: Sequence[LoaderComponent], postprocess: PostprocessConfig) -> str | None:
    """Returns why a GPU cannot make these batches, or None if it can."""
    from gear_data.loaders.builders.device import staging_reader

    for component in components:
        if component.rows is not None:
            return "pack= fills rows there"
        if component.goals is not None and component.goals.sampler.goals.future:
            return "final observations as goals are collected there"
        if component.goals is not None and component.goals.output.steps is not None:
            return "goals with listed steps are collected there"
        if any(output.weights is not None for output in component.all_outputs):
            return "steps are interpolated there"
        if _lists(component) != _lists(components[0]):
            return "datasets with other steps per second are joined there"
        if component.parts:
            return "stack= joins columns there"
        if component.alone is not None:
            return "pad_to= joins columns there"
        if any(output.real is not None or output.absent for output in component.outputs):
            return f"preset '{component.batch_format.name}' adds zeros and black frames there"
        if component.clipped:
            return f"preset '{component.batch_format.name}' clips there"
        if component.request.relative:
            return "relative= subtracts there"
        if any(choice.arrays for choice in component.choices):
            return "choose= draws among arrays there"
        variable = component.variable or component.cameras
        if variable and component.batch_format.transitions and component.request.n_step:
            return "next observations of text, bytes and cameras are read there"
        if component.postprocess is not None:
            made = "chunks" if component.batch_format.tokens is None else "tokens"
            return f"preset '{component.batch_format.name}' makes {made} there"
        if staging_reader(component.dataset.store.reader()) is None:
            return "other machines send the steps, and not by RDMA"
    if postprocess.augment is not None:
        return "images are augmented there"
    return None if postprocess.transform is None else "transform= is called with tensors of the CPU"


def _lists(component: LoaderComponent) -> dict[str, tuple[int, ...] | None]:
    """Returns key of an array -> its listed steps; None: a range."""
    return {output.key: output.steps for output in component.all_outputs}


@dataclass(frozen=True)
class BuilderFactory:
    """Makes the batch builder of an iteration.

    Attributes:
        backend: `cpu` or `cuda`.
        framework: the framework of the batches.
        sm_budget: see `gear_data.kernels.cuda.launcher.CudaLauncher`.
        joined: whether one batch has windows of several datasets.
    """

    backend: str
    framework: Framework
    sm_budget: float
    joined: bool

    def make(
        self, components: Sequence[LoaderComponent], source: WindowSource, rows: RankRows, postprocess: Postprocessor,
        *, max_rows: int, max_batches: int, most: int, in_worker: bool, readers: CameraReaders,
        ahead: LookAhead | None,
    ) -> BatchBuilder:  # fmt: skip
        """Makes a builder.

        A DataLoader's worker builds on the CPU, in memory that it passes on.

        Args:
            components, source, rows, postprocess, max_rows, max_batches: see `CpuBatchBuilder`.
            most: see `DeviceBatchBuilder`.
            in_worker: whether this process is a DataLoader's worker.
            readers: of the datasets' cameras.
            ahead: the batches that the builder builds next; None: unknown.
        """
        if in_worker and self.framework.place is not None:
            raise InvalidArgumentError(
                f"a DataLoader's worker cannot make arrays of {self.framework.name}",
                hint="iterate the loader itself: a thread prefetches",
            )
        device = self.framework.device
        deliver, allocate, converter = self.framework.deliver, plain_memory, None
        if device is not None and device.type == "cuda" and self.framework.pin and not in_worker:
            from gear_data.loaders.frameworks.pinned_batches import PinnedDelivery, pinned_memory

            if postprocess.leaves_cameras and any(component.cameras for component in components):
                converter = self._frame_converter(device)
            deliver, allocate = PinnedDelivery(device, converter), pinned_memory
        of_cameras = allocate
        every = dict(enumerate(components))
        shared = self.joined and components[0].batch_format.tokens is None
        if in_worker and self.framework.convert_in_worker is not None:
            from gear_data.loaders.frameworks.torch_tensors import shared_memory

            of_cameras = shared_memory
        groups = [every] if shared else [{number: each} for number, each in every.items()]

        def collectors(
            every: Sequence[dict[int, LoaderComponent]], ahead: LookAhead | None, *, planar: bool
        ) -> list[CameraCollector | None]:
            found: list[CameraCollector | None] = [None] * len(every)
            for number, group in enumerate(every):
                if any(each.cameras for each in group.values()):
                    # Its decoders are much code, which other loaders do not need.
                    from gear_data.loaders.video.camera_collector import CameraCollector

                    found[number] = CameraCollector(
                        group, readers, max_rows, postprocess.seed, ahead=ahead, planar=planar,
                        reuse=not in_worker, allocate=of_cameras,
                    )  # fmt: skip
            return found

        cameras = collectors(groups, ahead, planar=converter is not None)
        if self.backend == "cuda" and device is not None and deliver is not None and not in_worker:
            from gear_data.loaders.builders.device import DeviceBatchBuilder

            return DeviceBatchBuilder(
                components, source, rows, postprocess, joined=self.joined, max_rows=max_rows, max_batches=max_batches,
                device=device, sm_budget=self.sm_budget, most=most, upload=deliver, cameras=cameras,
            )  # fmt: skip
        return CpuBatchBuilder(
            components, source, rows, postprocess, joined=self.joined, max_rows=max_rows, max_batches=max_batches,
            reuse=not in_worker, deliver=deliver, allocate=allocate, cameras=cameras,
            goal_cameras=collectors(
                [{number: goal_component(each) for number, each in group.items()} for group in groups], None,
                planar=False,
            ),
        )  # fmt: skip

    def _frame_converter(self, device: torch.device) -> FrameConverter | None:
        """Returns what makes cameras from YUV on the device.

        Returns None if no kernel runs there. Then frames are copied as RGB.
        """
        from gear_data.loaders.builders.device import device_number
        from gear_data.loaders.video.frame_converter import FrameConverter

        try:
            return FrameConverter(device, device_number(device), self.sm_budget)
        except (MissingExtraError, DeviceError) as error:
            _log.info("frames of cameras are copied to the device as RGB: %s", error.message)
            return None
