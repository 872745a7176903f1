"""Contender gear-data: opens a dataset and iterates a SequenceLoader."""

from __future__ import annotations

import argparse

from gear_source import open_loader
from harness import Feed, main, versions_of

import gear_data


def build(args: argparse.Namespace) -> Feed:
    batches = iter(open_loader(args, args.prefetch))
    paddings = {
        "decision_transformer": "left-padded", "raw": "right-padded", "goals": "one step", "transitions": "one step",
    }  # fmt: skip
    return Feed(
        next_batch=lambda: next(batches),
        windows=args.batch_size,
        notes=f"contract {args.contract}, {paddings[args.contract]}, not normalised (the default); torch tensors; "
        f"prefetch={args.prefetch}",
        versions={"gear-data": gear_data.__version__, **versions_of("numba", "numpy", "torch")},
    )


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prefetch", type=int, default=2, help="batches built ahead; 0 builds each when it is taken (default 2)"
    )


if __name__ == "__main__":
    main(build, "Feed rate of gear_data.SequenceLoader; --data is a gear-data dataset.", configure)
