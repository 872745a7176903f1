"""gear-data: convert the Parquet source, open it, iterate a SequenceLoader. The public interface and nothing else."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from harness import Feed, main, versions_of

import gear_data


def build(args: argparse.Namespace) -> Feed:
    folder = tempfile.TemporaryDirectory(prefix="gear-feed-")
    dataset_path = Path(folder.name) / "dataset"
    gear_data.convert(args.data, dataset_path)
    loader = gear_data.SequenceLoader(
        gear_data.open(dataset_path),
        batch_size=args.batch_size,
        context=args.context,
        preset="decision_transformer",
        sampler="uniform",
        seed=args.seed,
        prefetch=args.prefetch,
    )
    batches = iter(loader)

    return Feed(
        next_batch=lambda: next(batches),
        windows=args.batch_size,
        notes=f"decision_transformer preset, left-padded, not normalised (as by default); torch tensors; "
        f"prefetch={args.prefetch}",
        versions={"gear-data": gear_data.__version__, **versions_of("numba", "numpy", "torch")},
        uncounted=frozenset({"valid_count"}),
        held=(folder,),
    )


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prefetch", type=int, default=2, help="batches made ahead; 0: each when asked for (default 2)"
    )


if __name__ == "__main__":
    main(build, "Feed rate of gear_data.SequenceLoader; --data is a Parquet file or folder.", configure)
