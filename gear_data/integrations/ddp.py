"""DistributedDataParallel: gradients of several processes on one device.

model = DistributedDataParallel(policy)
model.register_comm_hook(device_groups(), hierarchical_allreduce)
"""

# Without `from __future__ import annotations`: torch compares the annotations of a hook with its own types.
import socket
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from gear_data.common.distributed import all_gather
from gear_data.errors import ClusterError


def choose_reduction(processes: Sequence[int]) -> str:
    """Returns the name of the reduction for a layout of processes on devices.

    A pure function. The names are GMI-DRL's (Wang et al., USENIX ATC 2025), except `flat`:

    - `flat`: one process on each device. One all-reduce of all processes.
    - `multi_process`: one device. One all-reduce of its processes.
    - `multi_ring`: k processes on each of n devices, k at most n. After the sum within each device, each of its k
      processes sums one k-th of the gradients with its peer on every other device.
    - `hierarchical`: any other layout. After the sum within each device, the first process of each device sums all
      gradients with the first processes of the other devices.

    Args:
        processes: the number of processes on each device.
    """
    if max(processes) == 1:
        return "flat"
    if len(processes) == 1:
        return "multi_process"
    if min(processes) == max(processes) <= len(processes):
        return "multi_ring"
    return "hierarchical"


class DeviceGroups:
    """The processes of this device, and their peers on the other devices.

    `device_groups` makes it. The sums of one process run one after another, in one thread, so that they overlap with
    the backward pass. All processes have to start them in the same order, as DistributedDataParallel does.

    Args:
        devices: the name of each process's device, in rank order.
        across_backend: the backend of sums across devices.

    Attributes:
        reduction: see `choose_reduction`.
        world_size: the number of processes.
        inside: the ranks of the processes on this device.
    """

    def __init__(self, devices: Sequence[str], across_backend: str) -> None:
        ranks: dict[str, list[int]] = {}
        for rank, device in enumerate(devices):
            ranks.setdefault(device, []).append(rank)
        self.reduction = choose_reduction([*Counter(devices).values()])
        self.world_size = len(devices)
        own = dist.get_rank()
        self.inside = ranks[devices[own]]
        self._place = self.inside.index(own)
        # Every process has to make every group, in the same order. NCCL refuses two processes on one device.
        self._inside_group = _own_group([each for each in ranks.values() if len(each) > 1], "gloo")
        rings = min(map(len, ranks.values())) if self.reduction in ("flat", "multi_ring") else 1
        across = [[each[place] for each in ranks.values()] for place in range(rings)]
        self._across_group = _own_group([each for each in across if len(each) > 1], across_backend)
        self._worker = ThreadPoolExecutor(1, "gear-data-allreduce")
        self._stream: Any = None

    def sum(self, values: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Starts to sum contiguous values [n] of all processes, in place.

        The sum has the same bits in every process.
        """
        on_gpu = values.device.type == "cuda"
        done: Any = torch.futures.Future(devices=[values.device] if on_gpu else [])
        ready = torch.cuda.current_stream(values.device).record_event() if on_gpu else None
        self._worker.submit(self._finish, done, values, ready)
        future: torch.futures.Future[torch.Tensor] = done.then(_checked)
        return future

    def _finish(self, done: Any, values: torch.Tensor, ready: Any) -> None:
        stream: AbstractContextManager[Any] = nullcontext()
        try:
            if ready is not None:
                if self._stream is None:
                    self._stream = torch.cuda.Stream(values.device)  # type: ignore[no-untyped-call]
                self._stream.wait_event(ready)
                stream = torch.cuda.stream(self._stream)
            # The future takes an event of the current stream, for which its consumer's stream waits.
            with stream:
                self._sum(values)
                done.set_result(values)
        except Exception as error:
            done.set_result(f"{type(error).__name__}: {error}")

    def _sum(self, values: torch.Tensor) -> None:
        if len(self.inside) > 1:
            dist.all_reduce(values, group=self._inside_group)
        if self.reduction == "multi_process":
            return
        # Only all_reduce and broadcast: torch documents no other collective of gloo for CUDA tensors.
        parts = values.tensor_split(len(self.inside)) if self.reduction == "multi_ring" else (values,)
        if self._place < len(parts) and len(parts[self._place]):
            dist.all_reduce(parts[self._place], group=self._across_group)
        if len(self.inside) > 1:
            for part, rank in zip(parts, self.inside, strict=False):
                if len(part):
                    dist.broadcast(part, src=rank, group=self._inside_group)


def _own_group(groups: Sequence[Sequence[int]], backend: str) -> Any:
    """Makes all groups. Returns the group of this process, or None."""
    own = None
    for ranks in groups:
        group = dist.new_group(list(ranks), backend=backend)
        if dist.get_rank() in ranks:
            own = group
    return own


def _checked(done: Any) -> Any:
    """Returns the result of a sum. An error becomes an error of the backward pass.

    `Future.set_exception` does not: DistributedDataParallel takes the exception for a tensor.
    """
    result = done.value()
    if isinstance(result, str):
        raise ClusterError(f"the sum of gradients failed: {result}", hint="see the logs of the other ranks")
    return result


def device_groups(device: str | None = None) -> DeviceGroups:
    """Returns the groups of this process, to which every process has to contribute.

    All processes call it at the same time, after they initialised the default process group. Sums across devices use
    NCCL if every process has a CUDA device and torch has NCCL, else gloo.

    Args:
        device: a name of this process's device. Processes that give the same name share the device. None: the host's
            name, and the UUID of the current CUDA device if there is one.

    Raises:
        ClusterError: torch.distributed is not initialised.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise ClusterError(
            "torch.distributed is not initialised, so this process has no peers",
            hint="call torch.distributed.init_process_group('gloo') first; NCCL refuses two processes on one GPU",
        )
    on_gpu = torch.cuda.is_available()
    if device is None:
        uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid if on_gpu else "cpu"
        device = f"{socket.gethostname()} {uuid}"
    found = all_gather((device, on_gpu and dist.is_nccl_available()))
    return DeviceGroups([name for name, _ in found], "nccl" if all(nccl for _, nccl in found) else "gloo")


def hierarchical_allreduce(
    state: DeviceGroups,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket of gradients: first within each device, then across devices.

    A communication hook of DistributedDataParallel. The result equals the hook `allreduce_hook` of torch within
    rounding, and has the same bits in every process.

    Args:
        state: the result of `device_groups`.
        bucket: the gradients.
    """
    # Divided first, as torch's own hook does, so that sums in half precision do not overflow.
    return state.sum(bucket.buffer().div_(state.world_size))
