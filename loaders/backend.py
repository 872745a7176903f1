"""Which processor collects a loader's batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gear_data.dataset.internals import store_of
from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.loaders.batch_builder import Collection, HostCollection, PostprocessConfig
from gear_data.loaders.component import LoaderComponent
from gear_data.loaders.device_builder import DeviceCollection, device_number, staging_reader
from gear_data.residency.device.columns import current_device

_log = logging.getLogger(__name__)

BACKENDS = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class Rates:
    """What collecting costs, for `choose_backend`. Estimates, from data sheets and the CPU's measured rates: not yet
    measured on a GPU.

    Attributes:
        cpu: bytes a second that one thread collects.
        copy: bytes a second from this machine's memory to the device's, over PCIe.
        device: bytes a second from the device's memory to itself.
        cpu_call, copy_call, launch: seconds to begin to collect on the CPU, to copy an array to the device, and to
            collect on the device.
        line: bytes that are read at once at least.
    """

    cpu: float = 8e9
    copy: float = 2.2e10
    device: float = 1e12
    cpu_call: float = 5e-6
    copy_call: float = 1e-5
    launch: float = 4e-5
    line: int = 128


RATES = Rates()


def choose_backend(outputs: Sequence[tuple[int, int]], rows: int, residency: str, rates: Rates = RATES) -> str:
    """`cpu` or `cuda`: which is expected to have a batch in the device's memory first. A pure function.

    Dispatch by a metric of the workload is Quiver's idea (Tan et al., 2023, arXiv 2305.10863).

    Args:
        outputs: of each array of the batch: steps of a window, and bytes of a step.
        rows: windows of a batch.
        residency: of the columns, see `gear_data.open`. Where no GPU reads them in place, the CPU gathers anyway.
    """
    if residency not in ("pinned", "device", "tiered"):
        return "cpu"
    total = rows * sum(width * step_bytes for width, step_bytes in outputs)
    # A run of bytes begins and ends within a line.
    touched = rows * sum(width * step_bytes + rates.line for width, step_bytes in outputs)
    on_cpu = rates.cpu_call + total / rates.cpu + len(outputs) * rates.copy_call + total / rates.copy
    read = rates.device if residency == "device" else rates.copy
    on_device = rates.launch + max(touched / read, total / rates.device)
    return "cuda" if on_device <= on_cpu else "cpu"


def resolve_backend(
    backend: str,
    parts: Sequence[LoaderComponent],
    finish: PostprocessConfig,
    rows: int,
    device: torch.device,
    sm_budget: float,
) -> str:
    """The backend of a loader, `cpu` or `cuda`. What only the CPU can make it makes, with a line in the log where the
    device was asked for, or where the columns are in memory that a GPU reads.

    Args:
        backend: one of `BACKENDS`.
        rows: windows of a batch.

    Raises:
        UnknownNameError: no such backend.
        InvalidArgumentError: `cuda` and batches that do not go to a GPU; or columns in the memory of another one.
        MissingExtraError, DeviceError: `cuda`, and CuPy or a GPU is missing.
    """
    if backend not in BACKENDS:
        raise unknown_name("backend", backend, BACKENDS)
    if not isinstance(sm_budget, int | float) or not 0 < sm_budget <= 1:
        raise InvalidArgumentError(f"sm_budget is {sm_budget!r}, not above 0 and at most 1")
    if device.type != "cuda":
        if backend == "cuda":
            raise InvalidArgumentError("backend='cuda' collects in a GPU's memory", hint="give device='cuda' too")
        return "cpu"
    placed = [part.dataset.residency in ("pinned", "device", "tiered") for part in parts]
    if backend == "cpu" or not (backend == "cuda" or any(placed)):
        return "cpu"
    reason = _cpu_alone(parts, finish)
    if reason is not None:
        _log.warning("batches are collected on the CPU: %s", reason)
        return "cpu"
    current_device()
    for part in parts:
        held_by = store_of(part.dataset).device_columns().device
        if held_by not in (None, device_number(device)):
            raise InvalidArgumentError(
                f"the columns are in the memory of CUDA device {held_by}, and batches go to {device}",
                hint="open or place the dataset while that device is the current one: torch.cuda.set_device",
            )
    if backend == "cuda":
        return "cuda"
    chosen = {
        choose_backend([(o.width, o.step_bytes) for o in part.outputs], rows, part.dataset.residency) for part in parts
    }
    return "cuda" if chosen == {"cuda"} else "cpu"


@dataclass(frozen=True)
class Target:
    """Where a loader's batches go, and what collects them there.

    Attributes:
        backend: `cpu` or `cuda`.
        device: of the tensors.
        sm_budget: see `gear_data.kernels.cuda.launcher.CudaLauncher`.
        pin: whether batches of the CPU go to the device through pinned memory.
    """

    backend: str
    device: torch.device
    sm_budget: float
    pin: bool

    def collection(
        self,
        parts: Sequence[LoaderComponent],
        *,
        joined: bool,
        rows: int,
        batches: int,
        worker: bool,
        keep: int,
        slots: int,
    ) -> Collection:
        """What collects one pass. DataLoader workers collect on the CPU, into memory that they hand on.

        Args:
            rows, batches: see `HostCollection`.
            worker: whether this is a DataLoader's worker.
            keep, slots: see `DeviceCollection`.
        """
        if self.backend == "cuda" and not worker:
            return DeviceCollection(
                parts, joined=joined, rows=rows, batches=batches, device=self.device, sm_budget=self.sm_budget,
                keep=keep, pin=self.pin, slots=slots,
            )  # fmt: skip
        return HostCollection(
            parts, joined=joined, rows=rows, batches=batches, reuse=not worker, device=self.device, pin=self.pin
        )


def _cpu_alone(parts: Sequence[LoaderComponent], finish: PostprocessConfig) -> str | None:
    """Why a GPU cannot make these batches; None: it can."""
    for part in parts:
        if part.finish is not None:
            return f"preset '{part.batch_format.name}' makes tokens there"
        if staging_reader(store_of(part.dataset).reader()) is None:
            return "steps come from other machines, and not by RDMA"
    return None if finish.transform is None else "transform= is called with tensors of the CPU"
