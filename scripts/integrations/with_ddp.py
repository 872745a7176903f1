"""Clones behaviour with DistributedDataParallel, several processes a device.

    torchrun --nproc-per-node 4 scripts/integrations/with_ddp.py hopper/ --per-device 2 --steps 1000

Without GPUs the processes only pretend to share devices.
"""

from __future__ import annotations

import argparse
import os
import socket

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gear_data
from gear_data.integrations.ddp import device_groups, hierarchical_allreduce


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--per-device", type=int, default=2, help="processes on each device")
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()

    dist.init_process_group("gloo")  # NCCL refuses two processes on one GPU
    number = int(os.environ["LOCAL_RANK"]) // options.per_device
    device = torch.device("cuda", number) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)  # before the dataset is opened
    # The processes of a device share one copy of the columns.
    ds = gear_data.open(options.dataset, residency="device" if device.type == "cuda" else "host")
    loader = gear_data.SequenceLoader(
        ds,
        batch_size=60,
        context=20,
        steps=options.steps,
        device=device.type,
        execution=gear_data.ExecutionOptions(sm_budget=0.1 / options.per_device),
    )

    states, actions = (ds.schema[name].shape[0] for name in ("observations", "actions"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(states, 64), torch.nn.ReLU(), torch.nn.Linear(64, actions))
    parallel = DistributedDataParallel(model.to(device))
    groups = device_groups(f"{socket.gethostname()} {number}")
    parallel.register_comm_hook(groups, hierarchical_allreduce)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in loader:
        loss = (parallel(batch["observations"]) - batch["actions"])[batch["mask"]].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{groups.reduction}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
