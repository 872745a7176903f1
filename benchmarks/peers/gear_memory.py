"""Resident memory of a process after 10^3, 10^4, ... batches of gear-data.

Anonymous memory is memory that the process allocated. Resident memory also has the mapped files' pages: they come when
they are first read, and the system may take them back. Linux only.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gear_source import open_loader
from harness import claim_stdout, parse_arguments, say, touch

FIRST_MARK = 1000


def memory_bytes() -> tuple[int, int]:
    """Returns the resident and the anonymous bytes of this process."""
    lines = (line.partition(":") for line in Path("/proc/self/status").read_text().splitlines())
    fields = {name: text.split() for name, _, text in lines}
    return int(fields["VmRSS"][0]) << 10, int(fields["RssAnon"][0]) << 10


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prefetch", type=int, required=True, help="batches built ahead")
    parser.add_argument("--batches", type=int, default=100_000, help="number of batches (default 100,000)")


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
