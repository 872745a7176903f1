"""Job 3: exports fixed batches for evaluation.

The manifest batches.json records the seed, the steps and the checksums, so that the batches can be made again.
"""

from __future__ import annotations

import argparse

import gear_data

parser = argparse.ArgumentParser(
    description=__doc__,
    epilog="example:\n  python scripts/export_eval_batches.py hopper/ eval/ --batches 100 --seed 1",
    formatter_class=argparse.RawDescriptionHelpFormatter,
)
parser.add_argument("dataset", help="folder or URL of a GEAR dataset")
parser.add_argument("destination", help="folder to create for the batches")
parser.add_argument("--batches", type=int, default=100, help="number of batches, default 100")
parser.add_argument("--batch-size", type=int, default=256, help="windows per batch, default 256")
parser.add_argument("--context", type=int, default=20, help="steps per window, default 20")
parser.add_argument("--preset", default="decision_transformer", help="default decision_transformer")
parser.add_argument("--normalize", action="store_true", help="normalise observations; use it if training did")
parser.add_argument("--seed", type=int, default=1, help="use another seed than training, default 1")
parser.add_argument("--format", default="safetensors", help="safetensors (default), npz or parquet")


def main() -> None:
    options = parser.parse_args()
    loader = gear_data.SequenceLoader(
        gear_data.open(options.dataset),
        batch_size=options.batch_size,
        context=options.context,
        preset=options.preset,
        # Draws without replacement: no window is counted twice within an epoch.
        sampler="shuffle",
        seed=options.seed,
        normalize=options.normalize or None,
    )
    report = gear_data.export_batches(loader, options.destination, batches=options.batches, format=options.format)
    print(f"{report.batches} batches of {options.batch_size} windows, {report.bytes / 1e6:,.1f} MB")
    print(f"{len(report.files)} files in {options.destination}: {report.files[0]} ... {report.files[-1]}")


if __name__ == "__main__":
    try:
        main()
    except (gear_data.errors.InvalidArgumentError, gear_data.errors.UnknownNameError) as error:
        parser.error(str(error))
    except gear_data.GearError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
