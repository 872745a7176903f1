"""Contender gear-data: opens a dataset and iterates a SequenceLoader."""

from __future__ import annotations

import argparse
from typing import Any

from gear_source import open_loader, update_priorities
from harness import Feed, main, versions_of

import gear_data


def build(args: argparse.Namespace) -> Feed:
    loader = open_loader(args, args.prefetch)
    batches = iter(loader)
    paddings = {"decision_transformer": "left-padded", "raw": "right-padded", "stacked": "right-padded"}

    def next_updated() -> dict[str, Any]:
        batch = next(batches)
        update_priorities(loader, batch)
        return batch

    return Feed(
        next_batch=next_updated if args.contract == "priorities" else lambda: next(batches),
        windows=args.batch_size,
        notes=f"contract {args.contract}, {paddings.get(args.contract, 'one step')}, not normalised (the default); "
        f"torch tensors; prefetch={args.prefetch}",
        versions={"gear-data": gear_data.__version__, **versions_of("numba", "numpy", "torch")},
    )


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prefetch", type=int, default=2, help="batches built ahead; 0 builds each when it is taken (default 2)"
    )
    parser.add_argument("--converted", action="store_true", help="of stacked, read the column that is stored as one")


if __name__ == "__main__":
    main(build, "Feed rate of gear_data.SequenceLoader; --data is a gear-data dataset.", configure)
