"""Clones behaviour with DDP and workers, and continues from the last checkpoint.

torchrun --nproc-per-node 4 scripts/integrations/with_torchdata.py hopper/ --out runs/bc --steps 1000
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torchdata.stateful_dataloader import StatefulDataLoader

import gear_data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    if "WORLD_SIZE" in os.environ:  # started by torchrun
        dist.init_process_group("gloo")
    ds = gear_data.open(options.dataset)
    loader = gear_data.SequenceLoader(ds, batch_size=64, context=20, steps=options.steps)
    batches = StatefulDataLoader(loader, batch_size=None, num_workers=options.workers)
    states, actions = (ds.schema[name].shape[0] for name in ("observations", "actions"))
    model: torch.nn.Module = torch.nn.Sequential(
        torch.nn.Linear(states, 64), torch.nn.ReLU(), torch.nn.Linear(64, actions)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpoint, done = options.out / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        batches.load_state_dict(saved["batches"])
        done = saved["step"]
    parallel = DistributedDataParallel(model) if dist.is_initialized() else model
    # After the last step, none is left: without workers, the next pass would begin.
    for step, batch in zip(range(done + 1, options.steps + 1), batches, strict=False):
        loss = (parallel(batch["observations"]) - batch["actions"])[batch["mask"]].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % options.save_every == 0 and (not dist.is_initialized() or dist.get_rank() == 0):
            parts = {"model": model, "optimizer": optimizer, "batches": batches}
            torch.save({"step": step, **{name: part.state_dict() for name, part in parts.items()}}, f"{checkpoint}.new")
            os.replace(f"{checkpoint}.new", checkpoint)


if __name__ == "__main__":
    main()
