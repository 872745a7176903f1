"""Resident memory of a process that draws gear-data's batches: after 10^3, 10^4, ... of them.

Anonymous memory is what the process allocated; resident memory has the mapped files' pages too, which come as they are
first read and are the system's to take back. Linux only.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gear_source import open_loader
from harness import claim_stdout, parse_arguments, say, touch

FIRST_MARK = 1000


def memory_bytes() -> tuple[int, int]:
    """(resident, anonymous)."""
    lines = (line.partition(":") for line in Path("/proc/self/status").read_text().splitlines())
    fields = {name: text.split() for name, _, text in lines}
    return int(fields["VmRSS"][0]) << 10, int(fields["RssAnon"][0]) << 10


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prefetch", type=int, required=True, help="batches made ahead")
    parser.add_argument("--batches", type=int, default=100_000, help="how many to draw (default 100,000)")


def main() -> None:
    args = parse_arguments("Growth of memory over many batches; --data is a gear-data dataset.", configure)
    out = claim_stdout()
    batches = iter(open_loader(args, args.prefetch))
    marks = {FIRST_MARK * 10**power for power in range(20)} | {args.batches}
    resident, anonymous = {}, {}
    for count in range(1, args.batches + 1):
        batch = next(batches)
        touch(batch)
        if count in marks and count >= FIRST_MARK:
            resident[count], anonymous[count] = memory_bytes()
    say(out, {"prefetch": args.prefetch, "resident_bytes": resident, "anonymous_bytes": anonymous})


if __name__ == "__main__":
    main()
