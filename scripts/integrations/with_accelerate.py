"""Clones behaviour with Accelerate, and continues from the last checkpoint.

accelerate launch --num_processes 4 scripts/integrations/with_accelerate.py hopper/ --out runs/bc --steps 1000
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator, DataLoaderConfiguration

import gear_data
from gear_data.integrations.accelerate import prepare_loader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=100)
    options = parser.parse_args()

    # The loader's batch_size is the batch of all processes.
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(), dataloader_config=DataLoaderConfiguration(split_batches=True)
    )
    ds = gear_data.open(options.dataset)
    loader = gear_data.SequenceLoader(ds, batch_size=64, context=20, steps=options.steps, device=accelerator.device)
    batches = prepare_loader(accelerator, loader)
    states, actions = (ds.schema[name].shape[0] for name in ("observations", "actions"))
    model = torch.nn.Sequential(torch.nn.Linear(states, 64), torch.nn.ReLU(), torch.nn.Linear(64, actions))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)

    latest = options.out / "latest"  # names the last whole checkpoint
    if latest.exists():
        accelerator.load_state(latest.read_text())
    first = loader.state_dict()["step"] + 1  # after the last step, none is left: the loader would begin the next pass
    for step, batch in zip(range(first, options.steps + 1), batches, strict=False):
        loss = (model(batch["observations"]) - batch["actions"])[batch["mask"]].square().mean()
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % options.save_every == 0 or step == options.steps:
            accelerator.save_state(str(options.out / f"step-{step}"))
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                latest.write_text(str(options.out / f"step-{step}"))
            accelerator.print(f"step {step}: loss {loss.item():.3f}, learning rate {scheduler.get_last_lr()[0]:.2g}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
