"""The settings that this machine, this dataset and this loader can have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gear_data.common.environment import usable_cores
from gear_data.common.progress import format_bytes
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.stores.remote import RemoteDatasetFiles
from gear_data.errors import DeviceError, MissingExtraError
from gear_data.kernels.cuda.nvml import gpu_count
from gear_data.loaders.frameworks.framework import Framework
from gear_data.loaders.mixture import Mixture
from gear_data.loaders.tuning.setting import Setting
from gear_data.residency.available_memory import available_memory
from gear_data.residency.device.columns import current_device

#: (prefetch, batches_at_once) that are tried, in addition to no prefetching.
_AHEAD = ((1, 1), (2, 1), (4, 1), (4, 4), (8, 1), (8, 4), (8, 8))
_BUDGETS = (1.0, 0.5, 0.25, 0.1)
_QUEUE_PAIRS = (1, 2, 4, 8)
#: Bytes per second at which a dataset is read into memory, and the share of the time for tuning that this may take.
_LOAD_RATE, _LOAD_SHARE = 1e9, 0.25


@dataclass(frozen=True)
class Space:
    """Settings to try.

    Attributes:
        settings: all of them.
        left_out: options and values that are not tried -> the reason.
    """

    settings: tuple[Setting, ...]
    left_out: Mapping[str, str]


def make_space(
    dataset: Dataset | Mixture, framework: Framework, fixed: Mapping[str, Any], *, simulated: bool, seconds: float
) -> Space:
    """Returns the settings to try.

    Args:
        dataset: the dataset.
        framework: the framework of the batches.
        fixed: tuned arguments that the user gave. Only their values are tried.
        simulated: whether the training step uses no device.
        seconds: the time for tuning.
    """
    left_out = {name: f"{name}={value!r} is given" for name, value in fixed.items()}
    gpu = framework.device is not None and framework.device.type == "cuda"
    no_kernels = _why_no_kernels() if gpu else None
    kernels = gpu and no_kernels is None
    if not gpu:
        text = "no GPU on this machine" if not gpu_count() else "batches go to the CPU; device='cuda' tunes for the GPU"
        left_out.update(dict.fromkeys(("residency=pinned", "residency=device", "backend", "sm_budget"), text))
    elif no_kernels is not None:
        names = ("residency=pinned", "residency=device", "backend=cuda", "sm_budget")
        left_out.update(dict.fromkeys(names, no_kernels))
    elif simulated and "sm_budget" not in fixed:
        left_out["sm_budget"] = "a simulated step uses no multiprocessors; give step="
    residencies = _residencies(dataset, kernels, seconds, left_out)
    pairs = _queue_pairs(dataset, left_out)
    workers = _workers(framework, left_out) if "num_workers" not in fixed else ()
    budgets = (1.0,) if "sm_budget" in left_out else _BUDGETS

    def sources() -> Iterator[dict[str, Any]]:
        for residency, queue_pairs in itertools.product(residencies, pairs):
            place = {"residency": residency, "queue_pairs": queue_pairs}
            if not gpu:
                yield place
                continue
            # The CPU reads `pinned` and `device` as it reads `host` and `mmap`.
            if residency not in ("pinned", "device"):
                yield {**place, "backend": "cpu"}
            if kernels:
                yield from ({**place, "backend": "cuda", "sm_budget": budget} for budget in budgets)

    plans = [{"prefetch": 0}, *({"prefetch": depth, "batches_at_once": group} for depth, group in _AHEAD)]
    plans += [{"num_workers": count, "prefetch": 0} for count in workers]
    settings = {
        Setting(**{"num_workers": 0, **source, **plan, **fixed}): None
        for source, plan in itertools.product(sources(), plans)
    }
    return Space(tuple(settings), left_out)


def _why_no_kernels() -> str | None:
    """Returns why CUDA kernels cannot run here, or None if they can."""
    try:
        current_device()
    except (MissingExtraError, DeviceError) as error:
        return error.message
    return None


def _residencies(
    dataset: Dataset | Mixture, kernels: bool, seconds: float, left_out: dict[str, str]
) -> Sequence[str | None]:
    """Returns the residencies to try; None stands for the dataset as it was opened."""
    reason = None
    if isinstance(dataset, Mixture):
        reason = "each dataset of a mixture keeps its own"
    elif dataset.is_remote:
        reason = "the nodes that hold the dataset choose it"
    elif dataset.residency == "tiered":
        reason = "the dataset follows a plan"
    if reason is not None or isinstance(dataset, Mixture):
        for name in ("residency=pinned", "residency=device"):
            left_out.pop(name, None)
        left_out["residency"] = str(reason)
        return (None,)
    found = ["mmap", "host"] + (["pinned", "device"] if kernels else [])
    size = sum(shard.bytes for shard in dataset.manifest.shards)
    for name in found[1:]:
        if name == dataset.residency:
            continue
        if name != "device" and size > available_memory():
            left_out[f"residency={name}"] = f"{format_bytes(size)} do not fit the available memory"
        elif size / _LOAD_RATE > _LOAD_SHARE * seconds:
            left_out[f"residency={name}"] = f"{format_bytes(size)} take too long to load; give more seconds"
    return [name for name in found if f"residency={name}" not in left_out]


def _queue_pairs(dataset: Dataset | Mixture, left_out: dict[str, str]) -> Sequence[int | None]:
    if isinstance(dataset, Dataset) and dataset.is_remote:
        files = dataset.store.files
        if not isinstance(files, RemoteDatasetFiles):
            left_out["queue_pairs"] = "all ranks of the run must open the dataset with the same"
        elif not files.client.uses_rdma:
            left_out["queue_pairs"] = "the nodes are not read by RDMA"
        else:
            return _QUEUE_PAIRS
    else:
        left_out["queue_pairs"] = "no other node is read"
    return (None,)


def _workers(framework: Framework, left_out: dict[str, str]) -> Sequence[int]:
    """Returns numbers of DataLoader workers.

    They are the powers of two up to the number of cores, and that number.
    """
    if framework.name != "torch":
        left_out["num_workers"] = f"a DataLoader gives tensors, and the batches are of {framework.name}"
    elif framework.deliver is not None:
        left_out["num_workers"] = "a worker must not use the GPU of its parent"
    else:
        cores = usable_cores()
        return sorted({*(1 << power for power in range(cores.bit_length())), cores})
    return ()
