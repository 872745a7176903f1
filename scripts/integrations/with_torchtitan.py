"""Clones behaviour with TorchTitan's checkpoints, and continues from the last one.

TorchTitan's Trainer does the same with a TrainSpec. It needs GPUs, and this script does not.

    torchrun --nproc-per-node 2 scripts/integrations/with_torchtitan.py hopper/ --out runs/bc --steps 1000
"""

from __future__ import annotations

import argparse
import functools

import torch
import torch.distributed as dist
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.lr_scheduler import LRSchedulersContainer
from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.config import JobConfig

import gear_data
from gear_data.integrations.torchtitan import dataloader_builder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=100)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    job = JobConfig()
    job.training.local_batch_size = 60 // dist.get_world_size()
    job.checkpoint.enable, job.checkpoint.interval = True, options.save_every

    ds = gear_data.open(options.dataset)
    build = dataloader_builder(
        functools.partial(gear_data.SequenceLoader, ds, context=20, steps=options.steps),
        lambda batch: ({"input": batch["observations"], "mask": batch["mask"]}, batch["actions"]),
    )
    batches = build(dp_world_size=dist.get_world_size(), dp_rank=dist.get_rank(), job_config=job)
    model = torch.nn.Linear(ds.schema["observations"].shape[0], ds.schema["actions"].shape[0])
    optimizers = OptimizersContainer([model], torch.optim.AdamW, {"lr": 1e-3})
    schedulers = LRSchedulersContainer(optimizers, lambda step: 1.0)
    checkpoints = CheckpointManager(
        batches, [model], optimizers, schedulers, {}, job.checkpoint, sd_adapter=None, base_folder=options.out
    )
    checkpoints.load()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    first = batches.loader.state_dict()["step"] + 1  # after the last step, none is left: a next pass would begin
    for step, (inputs, labels) in zip(range(first, options.steps + 1), batches, strict=False):
        loss = (parallel(inputs["input"]) - labels)[inputs["mask"]].square().mean()
        optimizers.zero_grad()
        loss.backward()
        optimizers.step()
        checkpoints.save(step)
        if step == options.steps:
            print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
