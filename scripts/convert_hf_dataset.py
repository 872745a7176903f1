"""Job 1: converts a HuggingFace trajectory dataset into GEAR shards."""

from __future__ import annotations

import argparse

import gear_data
from gear_data.cli.arguments import once, renaming

parser = argparse.ArgumentParser(
    description=__doc__,
    epilog="example:\n  python scripts/convert_hf_dataset.py path/to/parquet/ hopper/ --rename reward=rewards",
    formatter_class=argparse.RawDescriptionHelpFormatter,
)
parser.add_argument("source", help="folder or file, hf:// path, or hub id such as user/name")
parser.add_argument("destination", help="folder to create for the dataset")
parser.add_argument("--split", help="split of the source, if it has several")
parser.add_argument(
    "--rename", action="append", type=renaming, default=[], metavar="OLD=NEW", help="rename source column OLD to NEW"
)
parser.add_argument("--resume", action="store_true", help="continue an unfinished conversion")


def main() -> None:
    options = parser.parse_args()
    rename = once(options.rename, "--rename")
    report = gear_data.convert(
        options.source, options.destination, split=options.split, rename=rename, resume=options.resume
    )
    for warning in report.warnings:
        print(f"warning: {warning}")

    dataset = gear_data.open(options.destination)
    print(f"{len(dataset):,} episodes, {dataset.num_steps:,} steps, {report.bytes / 1e6:,.1f} MB")
    for column in dataset.schema:
        print(f"  {column.name}: {column.dtype} {list(column.shape)}")
    print(dataset.episodes.select("length", "return").describe())


if __name__ == "__main__":
    try:
        main()
    except (gear_data.errors.InvalidArgumentError, gear_data.errors.UnknownNameError) as error:
        parser.error(str(error))
    except gear_data.GearError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
