"""The ceiling: libc's memmove on one thread, from memory that no cache holds.

`--into memory` copies 1 GiB to another 1 GiB (`--cold-bytes`): source and target are both cold. All tables call this
"memcpy". `--into batch` copies the same 1 GiB, block by block, into one buffer of a batch's size, which stays in the
cache. A loader that copies every step once and reuses its output buffer can reach this rate.
"""

from __future__ import annotations

import argparse
import ctypes

import numpy as np
import numpy.typing as npt
from harness import Feed, load_steps, main, versions_of

#: Bytes per step in addition to the columns: an int64 timestep and a float32 mask.
ADDED_BYTES = 12


def batch_bytes(args: argparse.Namespace) -> int:
    columns = load_steps(args.data).columns.values()
    return int(args.batch_size * args.context * (ADDED_BYTES + sum(column[0].nbytes for column in columns)))


def build(args: argparse.Namespace) -> Feed:
    cold = args.cold_bytes
    source = np.ones(cold, np.uint8)
    size = cold if args.into == "memory" else batch_bytes(args)
    target = np.zeros(size, np.uint8)
    target[:] = 1  # touches all pages, so that no page fault is timed
    places = [source.ctypes.data + first for first in range(0, cold - size + 1, size)]
    copied = 0

    def next_batch() -> dict[str, npt.NDArray[np.uint8]]:
        nonlocal copied
        ctypes.memmove(target.ctypes.data, places[copied % len(places)], size)
        copied += 1
        return {"copy": target}

    amount = f"{cold >> 20:,} MiB"
    to_memory = f"{amount} to {amount}, source and target cold"
    to_batch = f"cold {amount}, a batch at a time, into the place of one batch"
    return Feed(
        next_batch=next_batch,
        windows=None,
        notes=f"{to_memory if args.into == 'memory' else to_batch}; bytes copied",
        versions=versions_of("numpy"),
        held=(source,),  # the copies hold only its address
    )


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--into", choices=("memory", "batch"), default="memory", help="target of the copy")


if __name__ == "__main__":
    main(build, "Rate of a plain memory copy; --data is a folder of steps, read for the batch's size.", configure)
