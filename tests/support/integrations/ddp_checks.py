"""Checks of `hierarchical_allreduce` on four ranks, for several layouts.

Each rank runs this program. It prints one line of JSON: for each layout the reduction, the ranks of this device, and
the sums of one step, each as [ranks, values]; and the errors of a sum that fails.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gear_data.integrations.ddp import device_groups, hierarchical_allreduce

#: The device of each rank.
LAYOUTS = ["aabb", "abab", "aaaa", "abcd", "aaab"]
STEPS = 3
sums: list[tuple[list[int], int]] = []
_all_reduce = dist.all_reduce


def recorded(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
    sums.append((dist.get_process_group_ranks(options.get("group")), tensor.numel()))
    return _all_reduce(tensor, *arguments, **options)


def model() -> torch.nn.Module:
    """Returns a model with 90 parameters."""
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(9, 7), torch.nn.Tanh(), torch.nn.Linear(7, 2), torch.nn.Tanh(), torch.nn.Linear(2, 1),
        torch.nn.Tanh(), torch.nn.Linear(1, 1, bias=False),
    )  # fmt: skip


def gradients(module: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    module.zero_grad()
    module(inputs).square().sum().backward()
    return torch.cat([parameter.grad.reshape(-1) for parameter in module.parameters()])


def gathered(values: torch.Tensor) -> torch.Tensor:
    found = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(found, values)
    return torch.stack(found)


def check(layout: str) -> list[Any]:
    inputs = torch.randn(16, 9, generator=torch.Generator().manual_seed(dist.get_rank()))
    expected = gathered(gradients(model(), inputs)).double().mean(0)
    parallel = DistributedDataParallel(model(), bucket_cap_mb=4 / 2**20)
    groups = device_groups(layout[dist.get_rank()])
    parallel.register_comm_hook(groups, hierarchical_allreduce)
    for _ in range(STEPS):
        sums.clear()
        found = gradients(parallel, inputs)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
        every = gathered(found)
        assert torch.equal(every, every[:1].expand_as(every)), "the ranks have different bits"
    return [groups.reduction, groups.inside, list(sums)]


def failure() -> str:
    """Returns the error of a backward pass in which a sum fails."""
    parallel = DistributedDataParallel(model())
    groups = device_groups("a")

    def fail(values: torch.Tensor) -> None:
        raise ValueError("a peer is gone")

    groups._sum = fail  # type: ignore[method-assign]
    parallel.register_comm_hook(groups, hierarchical_allreduce)
    try:
        gradients(parallel, torch.ones(2, 9))
    except RuntimeError as error:
        return str(error)
    return "no error"


def main() -> None:
    # A bucket for each parameter.
    dist._DEFAULT_FIRST_BUCKET_BYTES = 4
    dist.init_process_group("gloo")
    dist.all_reduce = recorded
    result: dict[str, Any] = {layout: check(layout) for layout in LAYOUTS}
    result |= {"unnamed": device_groups().inside, "failure": failure()}
    print(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
