"""Python's share of the cost of RDMA READs, without a device.

    python benchmarks/rdma.py --json rdma.json

A batch's READs are merged and laid out as work requests, as a client does before it posts them. The driver and the
device add their own cost. Every figure is the 5th percentile of many rounds, so that other load on the machine counts
little.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from common import ROOT, command_line, describe_machine, figure, format_table, machine_facts, write_json

#: READs of a batch: windows of a batch times its columns.
READS = (64, 256, 1024, 4096)
READ_BYTES = 880
LARGEST_BYTES = 1 << 30


def seconds_a_read(count: int, rounds: int) -> float:
    """Returns the seconds for one of `count` READs that are laid out together."""
    from gear_data.cluster.rdma.work_requests import Reads, WorkRequestList

    rng = np.random.default_rng(0)
    # Windows lie anywhere in the remote memory, and one after another in the batch.
    remote = rng.permutation(count) * 64 * READ_BYTES
    local = np.arange(count) * READ_BYTES
    reads = Reads(remote, np.full(count, 7), local, np.full(count, 9), np.full(count, READ_BYTES))
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        WorkRequestList(reads.merged(LARGEST_BYTES)).section(0, count)
        times.append(time.perf_counter() - begun)
    return float(np.percentile(times, 5)) / count


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5000, help="rounds of each figure (default 5,000)")
    parser.add_argument("--json", type=Path, help="write the full record here")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    args = make_parser().parse_args(arguments)
    # The checkout's own gear_data, installed or not.
    sys.path.insert(0, str(ROOT))
    facts = machine_facts()
    print(describe_machine(facts), end="\n\n")
    found = {count: seconds_a_read(count, args.rounds) for count in READS}
    rows = [[f"{count:,}", figure(seconds * 1e9), figure(seconds * count * 1e6)] for count, seconds in found.items()]
    print(format_table(["READs of a batch", "ns per READ", "us per batch"], rows))
    if args.json is not None:
        record = {str(count): seconds for count, seconds in found.items()}
        write_json(args.json, {"command": command_line(), "machine": facts, "seconds_a_read": record})


if __name__ == "__main__":
    main()
