"""Measures joined batches of many datasets beside those of one, and packed rows beside padded batches.

    python benchmarks/mixture.py --install --json mixture.json

The loaders take turns in one process, without prefetching: a round measures some batches of each. Ratios are of the
processor's time in one round, and all figures are medians over the rounds. The ratio compares many datasets with one
that has as many steps as they have together. The parts are in `mixing`. The peers of joined batches are a plain
`ConcatDataset` of LeRobot's datasets and a pipeline of tf.data, in environments of their own, which `--install`
creates. `--data` keeps the datasets for the next run.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import (
    command_line,
    describe_machine,
    figure,
    format_table,
    machine_facts,
    parse_with_quick,
    write_json,
)
from feeding.environments import add_environment_options
from mixing import joined, packed, peer

PARTS = ("joined", "packed")


def print_joined(results: Sequence[dict[str, Any]]) -> None:
    print(
        format_table(
            ["datasets", "steps", "cameras", "batches/s", "processor us a batch", "ratio", "MiB added", "resume s"],
            [
                [
                    str(each["datasets"]), f"{each['steps']:,}", str(each["cameras"]), figure(1e6 / each["us"]),
                    figure(each["processor_us"]), figure(each["ratio"]),
                    f"{each['rss_bytes_added'] / (1 << 20):.1f}", figure(each["resume_seconds"]),
                ]
                for each in results
            ],
        )
    )  # fmt: skip
    batches = ", ".join(f"{each:,}" for each in sorted({each["rss_batches"] for each in results}, reverse=True))
    print(
        f"Targets: a ratio of at most {joined.RATIO_TARGET}, no memory added in {batches} batches, and a resume at "
        f"step {joined.RESUMED_STEP:,} in {joined.RESUME_TARGET:g} s."
    )


def print_peer(name: str, found: dict[str, Any]) -> None:
    title = peer.CONTENDERS[name].title
    if "failure" in found:
        print(f"{title}: not measured: {found['failure']}")
        return
    print(f"{title}: {', '.join(f'{name} {version}' for name, version in found['versions'].items())}")
    print(
        format_table(
            [
                "datasets", "cameras", "batches/s", "processor ms a batch", "batches", "MiB added in them",
                "resume s (extrapolated)",
            ],
            [
                [
                    str(each["datasets"]), str(each["cameras"]), figure(1e6 / each["us"]),
                    figure(each["processor_us"] / 1e3), str(each["batches"]),
                    f"{each['rss_bytes_added'] / (1 << 20):.1f}", figure(each["resume_seconds"]),
                ]
                for each in found["mixtures"]
            ],
        )
    )  # fmt: skip


def print_packed(results: Sequence[dict[str, Any]]) -> None:
    print(
        format_table(
            ["windows", "rows", "padded ns a step", "packed ns a step", "ratio", "real, padded", "real, packed"],
            [
                [
                    each["case"], str(each["rows"]),
                    *(figure(each[name]) for name in ("padded_ns", "packed_ns", "ratio", "padded_real", "packed_real")),
                ]
                for each in results
            ],
        )
    )  # fmt: skip
    print(
        f"Targets: a ratio of at most {packed.RATIO_TARGET}, and at least {packed.OCCUPANCY_TARGET} of the steps real."
    )


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small datasets and few rounds, to try the script")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS), help="these parts (default all)")
    parser.add_argument(
        "--steps",
        type=int,
        default=2_000_000,
        help="steps of the packed dataset, and of each mixture (default 2,000,000: 250 MB)",
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[4, 16, 64], help="rows of packed batches")
    parser.add_argument(
        "--datasets", type=int, nargs="+", default=[1, 5, 20, 60], help="datasets of the mixtures (default 1 5 20 60)"
    )
    parser.add_argument("--frames", type=int, default=2400, help="frames of each camera of a mixture (default 2,400)")
    parser.add_argument(
        "--rss-batches", type=int, default=10_000, help="batches after which memory is compared (default 10,000)"
    )
    parser.add_argument(
        "--peer-steps", type=int, default=100_000, help="steps of each mixture that a peer reads (default 100,000)"
    )
    parser.add_argument("--peer-seconds", type=float, default=4.0, help="seconds of a peer's measurement (default 4)")
    parser.add_argument("--data", type=Path, help="keep the datasets here, and take those of an earlier run")
    add_environment_options(parser, *peer.CONTENDERS)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of all loaders (default 15)")
    parser.add_argument("--json", type=Path, help="write the full record here")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    quick = {
        "steps": 4000, "rows": [2], "datasets": [1, 3], "frames": 12, "rss_batches": 3, "rounds": 1,
        "peer_steps": 100, "peer_seconds": 0.01,
    }  # fmt: skip
    args = parse_with_quick(make_parser(), arguments, quick)
    machine, results = machine_facts(), dict[str, Any]()
    with tempfile.TemporaryDirectory(prefix="gear-bench-") as name:
        folder = Path(name)
        kept = folder if args.data is None else args.data
        kept.mkdir(parents=True, exist_ok=True)
        if "joined" in args.only:
            plain = {count: joined.make_datasets(kept, count, args.steps) for count in args.datasets}
            for dataset in itertools.chain.from_iterable(plain.values()):
                joined.cache_in_small_pages(dataset)
            source = joined.recorded(kept, max(args.datasets), args.frames)
            recorded = {count: joined.divided(source, folder, count) for count in args.datasets}
            results["joined"] = [
                *joined.measure(plain, args.rounds, 50, args.rss_batches, cameras=False),
                *joined.measure(recorded, args.rounds, 2, max(1, args.rss_batches // 100), cameras=True),
            ]
            mixtures = {0: plain, len(joined.CAMERAS): recorded}
            results |= {name: peer.measure(name, mixtures, folder, args) for name in peer.CONTENDERS}
        if "packed" in args.only:
            results["packed"] = packed.measure(packed.make_dataset(kept, args.steps), args.rows, args.rounds)
    print(describe_machine(machine))
    if "joined" in results:
        print_joined(results["joined"])
        for name in peer.CONTENDERS:
            print_peer(name, results[name])
    if "packed" in results:
        print_packed(results["packed"])
    if args.json is not None:
        write_json(args.json, {"command": command_line(), "machine": machine, "results": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
