"""Clones behaviour with Ray Train, and continues from the last checkpoint.

python scripts/integrations/with_ray_train.py hopper/ --out runs/bc --workers 4 --steps 1000
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import ray.train.torch
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig

import gear_data
from gear_data.integrations.ray_train import load_checkpoint, report_checkpoint


def train_loop(config: dict[str, Any]) -> None:
    """Trains in one worker. The loader reads its rows of each batch."""
    ds = gear_data.open(config["dataset"])
    device = ray.train.torch.get_device()
    loader = gear_data.SequenceLoader(ds, batch_size=64, context=20, steps=config["steps"], device=device)
    states, actions = (ds.schema[name].shape[0] for name in ("observations", "actions"))
    model = torch.nn.Sequential(torch.nn.Linear(states, 64), torch.nn.ReLU(), torch.nn.Linear(64, actions))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if saved := load_checkpoint(loader):
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    parallel = ray.train.torch.prepare_model(model)
    first = loader.state_dict()["step"] + 1  # after the last step, none is left: the loader would begin the next pass
    for step, batch in zip(range(first, config["steps"] + 1), loader, strict=False):
        loss = (parallel(batch["observations"]) - batch["actions"])[batch["mask"]].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % config["save_every"] == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            report_checkpoint({"step": step, "loss": loss.item()}, loader, state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--restarts", type=int, default=3, help="of the workers, after one of them died")
    options = parser.parse_args()
    config = {"dataset": str(options.dataset.resolve()), "steps": options.steps, "save_every": options.save_every}
    out, failures = options.out.resolve(), FailureConfig(max_failures=options.restarts)
    workers = ScalingConfig(num_workers=options.workers, use_gpu=torch.cuda.is_available())
    run = RunConfig(out.name, storage_path=str(out.parent), failure_config=failures)
    trainer = ray.train.torch.TorchTrainer(train_loop, train_loop_config=config, scaling_config=workers, run_config=run)
    print(trainer.fit().metrics)


if __name__ == "__main__":
    main()
