"""Job 2: trains transformers.DecisionTransformerModel from a GEAR dataset.

In OUT: checkpoint.safetensors (to resume), loss.json, loss.png, run.json (arguments and summary) and model/, which
DecisionTransformerModel.from_pretrained reads. On one machine or several, also under torchrun.
On a CPU that others use too, set OMP_WAIT_POLICY=passive: threads then sleep, not spin, while they wait.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tqdm import tqdm

import gear_data
from gear_data.common.extras import import_extra
from gear_data.demo.checkpoint import save_model
from gear_data.demo.loss_curve import loss_ends, write_loss_curve
from gear_data.demo.training import Hyperparameters, Trainer
from gear_data.errors import DestinationExistsError, InvalidArgumentError, UnknownNameError

EXAMPLE = """example:
  python scripts/pretrain_decision_transformer.py hopper/ --out runs/hopper --steps 1000 --learning-rate 1e-3
  torchrun --nproc-per-node 2 scripts/pretrain_decision_transformer.py hopper/ --out runs/hopper2"""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", metavar="DATASET", help="a GEAR dataset, as gear_data.convert makes it")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--steps", type=_positive, default=1000, help="train until so many are done, default 1000")
    parser.add_argument("--batch-size", type=_positive, default=64, help="windows of a batch on all ranks, default 64")
    parser.add_argument("--context", type=_positive, default=20, help="steps of a window, default 20")
    parser.add_argument("--sampler", default="uniform", help="uniform (default), shuffle or fifo")
    parser.add_argument("--no-normalize", action="store_true", help="observations as they are")
    parser.add_argument("--device", default="auto", help="auto (default: CUDA where there is one), cpu, cuda, cuda:N")
    parser.add_argument("--checkpoint-every", type=_positive, default=500, metavar="N", help="steps, default 500")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in OUT, if there is one")
    parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")
    group = parser.add_argument_group("model and optimizer", "see gear_data.demo.training.Hyperparameters")
    for field in dataclasses.fields(Hyperparameters):
        flag = "--" + field.name.replace("_", "-")
        if field.name == "action_tanh":
            group.add_argument(flag, action=argparse.BooleanOptionalAction, help="default: if all actions fit [-1, 1]")
        else:
            kind = int if field.default is None else type(field.default)
            shown = "the longest episode" if field.default is None else field.default
            group.add_argument(flag, type=kind, default=field.default, help=f"default {shown}")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Trains and writes; returns the summary."""
    import_extra("matplotlib")  # needed at the end: say at the start if it is missing
    first_rank = not dist.is_initialized() or dist.get_rank() == 0
    checkpoint = options.out / "checkpoint.safetensors"
    if checkpoint.exists() and not options.resume:
        raise DestinationExistsError(
            "there is a run already", file=str(options.out), hint="--resume goes on with it; or choose another --out"
        )
    dataset = gear_data.open(options.dataset)
    chosen = {field.name: getattr(options, field.name) for field in dataclasses.fields(Hyperparameters)}
    loader = gear_data.SequenceLoader(
        dataset,
        batch_size=options.batch_size,
        context=options.context,
        preset="decision_transformer",
        sampler=options.sampler,
        seed=options.seed,
        normalize=None if options.no_normalize else True,
    )
    trainer = Trainer(loader, Hyperparameters(**chosen), device=options.device)
    if checkpoint.exists():
        trainer.load(checkpoint)
    resumed_at, started = trainer.step, time.perf_counter()
    with tqdm(total=options.steps, initial=resumed_at, unit="step", disable=None if first_rank else True) as bar:
        for loss in trainer.run(options.steps):
            bar.update()
            bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
            if first_rank and trainer.step % options.checkpoint_every == 0:
                trainer.save(checkpoint)
    seconds = time.perf_counter() - started

    start, end = loss_ends(trainer.losses)
    summary = {
        "steps": trainer.step,
        "resumed_at": resumed_at,
        "seconds": seconds,
        "steps_per_s": (trainer.step - resumed_at) / seconds,
        "loss_start": start,
        "loss_end": end,
        "parameters": trainer.num_parameters,
        "device": str(trainer.device),
        "out": str(options.out),
    }
    if first_rank:
        trainer.save(checkpoint)
        write_loss_curve(trainer.losses, options.out)
        save_model(trainer.model, options.out / "model")
        (options.out / "run.json").write_text(json.dumps({**summary, **trainer.spec()}, indent=1) + "\n")
        if options.json:
            print(json.dumps(summary))
        else:
            print(
                f"{trainer.step:,} steps on {trainer.device}, {summary['steps_per_s']:.1f} a second: "
                f"loss {start:.4f} -> {end:.4f}; {options.out}/loss.png shows it"
            )
    return summary


def main() -> None:
    parser = make_parser()
    options = parser.parse_args()
    if "WORLD_SIZE" in os.environ:  # started by torchrun
        cuda = torch.cuda.is_available() and options.device != "cpu"
        if cuda:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if cuda else "gloo")
    try:
        train(options)
    except (InvalidArgumentError, UnknownNameError) as error:
        parser.error(str(error))
    except gear_data.GearError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        parser.exit(1, f"{parser.prog}: interrupted; --resume goes on from the last checkpoint\n")
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
