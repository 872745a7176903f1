"""Job 2: trains a Decision Transformer on a GEAR dataset.

Runs in one process, or under torchrun on one machine or several.

Writes to OUT: checkpoint.safetensors (to resume), loss.json, loss.png, run.json (arguments and summary) and model/ (for
DecisionTransformerModel.from_pretrained).

On a busy CPU, set OMP_WAIT_POLICY=passive: waiting threads then sleep instead of spinning.
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

import gear_data
from gear_data.common.extras import import_extra
from gear_data.common.progress import progress_bar
from gear_data.demo.checkpoint import save_model
from gear_data.demo.loss_curve import loss_ends, write_loss_curve
from gear_data.demo.model import Hyperparameters
from gear_data.demo.trainer import Trainer
from gear_data.errors import DestinationExistsError, InvalidArgumentError, UnknownNameError

EXAMPLE = """example:
  python scripts/pretrain_decision_transformer.py hopper/ --out runs/hopper --steps 1000 --learning-rate 1e-3
  torchrun --nproc-per-node 2 scripts/pretrain_decision_transformer.py hopper/ --out runs/hopper2"""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", metavar="DATASET", help="folder or URL of a GEAR dataset")
    help = "folder for the run's files; on several machines, one that all of them see"
    parser.add_argument("--out", type=Path, required=True, help=help)
    parser.add_argument("--steps", type=_positive, default=1000, help="total number of steps, default 1000")
    parser.add_argument("--batch-size", type=_positive, default=64, help="windows per batch, all ranks, default 64")
    parser.add_argument("--context", type=_positive, default=20, help="steps per window, default 20")
    parser.add_argument("--sampler", default="uniform", help="uniform (default), shuffle or fifo")
    parser.add_argument("--no-normalize", action="store_true", help="do not normalise observations")
    parser.add_argument("--device", default="auto", help="auto (default: CUDA if present), cpu, cuda or cuda:N")
    parser.add_argument(
        "--checkpoint-every", type=_positive, default=500, metavar="N", help="save every N steps, default 500"
    )
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint in OUT, if there is one")
    parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")
    group = parser.add_argument_group("model and optimizer", "see gear_data.demo.model.Hyperparameters")
    for field in dataclasses.fields(Hyperparameters):
        flag = "--" + field.name.replace("_", "-")
        if field.name == "action_tanh":
            group.add_argument(
                flag, action=argparse.BooleanOptionalAction, help="default: on if all actions are in [-1, 1]"
            )
        else:
            kind = int if field.default is None else type(field.default)
            default = "the longest episode" if field.default is None else field.default
            group.add_argument(flag, type=kind, default=field.default, help=f"default {default}")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def train(options: argparse.Namespace) -> None:
    """Trains from the start or from a checkpoint, and writes the results on rank 0."""
    import_extra("matplotlib")  # needed at the end; a missing package raises now
    checkpoint = options.out / "checkpoint.safetensors"
    if checkpoint.exists() and not options.resume:
        raise DestinationExistsError(
            "the folder has a checkpoint", file=str(options.out), hint="pass --resume, or choose another --out"
        )
    loader = gear_data.SequenceLoader(
        gear_data.open(options.dataset),
        batch_size=options.batch_size,
        context=options.context,
        preset="decision_transformer",
        sampler=options.sampler,
        seed=options.seed,
        normalize=None if options.no_normalize else True,
    )
    settings = {field.name: getattr(options, field.name) for field in dataclasses.fields(Hyperparameters)}
    trainer = Trainer(loader, Hyperparameters(**settings), device=options.device)
    if checkpoint.exists():
        trainer.load(checkpoint)

    rank_zero = not dist.is_initialized() or dist.get_rank() == 0
    resumed_at, started = trainer.step, time.perf_counter()
    with progress_bar(options.steps, "train", "step", None if rank_zero else False, resumed_at) as bar:
        for loss in trainer.run(options.steps):
            bar.update()
            bar.set_text(f"loss {loss:.4f}")
            if rank_zero and trainer.step % options.checkpoint_every == 0:
                trainer.save(checkpoint)
    seconds = time.perf_counter() - started

    if rank_zero:
        trainer.save(checkpoint)
        write_results(trainer, options, resumed_at, seconds)


def write_results(trainer: Trainer, options: argparse.Namespace, resumed_at: int, seconds: float) -> None:
    """Writes the loss curve, the model and run.json, and prints the summary."""
    start, end = loss_ends(trainer.losses)
    summary: dict[str, Any] = {
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
    write_loss_curve(trainer.losses, options.out)
    save_model(trainer.model, options.out / "model")
    (options.out / "run.json").write_text(json.dumps({**summary, **trainer.spec()}, indent=1) + "\n")
    if options.json:
        print(json.dumps(summary))
    else:
        print(
            f"{trainer.step:,} steps on {trainer.device}, {summary['steps_per_s']:.1f} steps/s: "
            f"loss {start:.4f} -> {end:.4f}; see {options.out}/loss.png"
        )


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
        parser.exit(1, f"{parser.prog}: interrupted; pass --resume to continue from the last checkpoint\n")
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
