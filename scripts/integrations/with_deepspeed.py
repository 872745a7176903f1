"""Clones behaviour with DeepSpeed, and continues from the last checkpoint.

deepspeed scripts/integrations/with_deepspeed.py hopper/ --out runs/bc --steps 1000
"""

from __future__ import annotations

import argparse
from pathlib import Path

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

import gear_data
from gear_data.integrations.deepspeed import batch_sizes

CONFIG = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": 1,
    "zero_optimization": {"stage": 0},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--local_rank", type=int, help="given by the launcher deepspeed")
    options = parser.parse_args()

    deepspeed.init_distributed()
    ds = gear_data.open(options.dataset)
    device = get_accelerator().current_device_name()
    loader = gear_data.SequenceLoader(ds, batch_size=60, context=20, steps=options.steps, device=device)
    states, actions = (ds.schema[name].shape[0] for name in ("observations", "actions"))
    model = torch.nn.Sequential(torch.nn.Linear(states, 64), torch.nn.ReLU(), torch.nn.Linear(64, actions))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    config = {**CONFIG, **batch_sizes(loader, CONFIG)}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    if (options.out / "latest").exists():
        _, saved = engine.load_checkpoint(str(options.out))
        loader.load_state_dict(saved["loader"])
    first = loader.state_dict()["step"] + 1  # after the last step, none is left: the loader would begin the next pass
    for step, batch in zip(range(first, options.steps + 1), loader, strict=False):
        loss = (engine(batch["observations"]) - batch["actions"])[batch["mask"]].square().mean()
        engine.backward(loss)
        engine.step()
        if step % options.save_every == 0:
            engine.save_checkpoint(str(options.out), client_state={"loader": loader.state_dict()})
            if engine.global_rank == 0:
                print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
