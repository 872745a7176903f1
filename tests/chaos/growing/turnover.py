"""A dataset with a limit turns over again and again, while a reader holds a generation now and then.

The run prints the largest disk use, at the moment in which it is largest: a generation is published, and the files of
earlier ones are still there. Files that only the reader's generation has do not count. Disk use stays below the limit
and two shards, and the memory and the open files of the process do not grow.
"""

from __future__ import annotations

import gc
import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import gear_data
from gear_data.growing.folder import generations
from gear_data.storage.generations.growth import generation_file
from gear_data.storage.manifest import Manifest
from tests.chaos.result import ChaosResult, Limit

#: A shard of a dataset with a limit has at most an eighth of it.
MAX_BYTES, SHARD_BYTES = 4 << 20, (4 << 20) // 8
LENGTH, WIDTH = 100, 64
#: Generations between two looks at memory and open files.
_LOOK = 100
#: Bytes that memory may vary, by how the allocator works.
_MEMORY_SLACK = 16 << 20


def observations_of(number: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(number).normal(size=(LENGTH, WIDTH)).astype(np.float32)


def run(seed: int, limit: Limit) -> ChaosResult:
    """Publishes generations of one episode. A case is a generation."""
    rng, failures = random.Random(seed), list[str]()
    held: gear_data.Dataset | None = None
    release = used = largest = readers = published = 0
    memory, descriptors = list[int](), list[int]()
    with tempfile.TemporaryDirectory(prefix="gear-turnover-") as scratch, pytest.MonkeyPatch.context() as patched:
        folder = Path(scratch, "data")
        sweep = generations.sweep

        def measured(path: Path, newest: Manifest) -> None:
            nonlocal used, largest
            if newest.generation > published:  # not before the publication, for readers that have gone
                used = disk_use(scratch) - only_held(folder, newest, held)
                largest = max(largest, used)
            sweep(path, newest)

        patched.setattr(generations, "sweep", measured)
        writer = gear_data.Writer(folder, max_bytes=MAX_BYTES, durability="os")
        for number in limit.numbers():
            for row in observations_of(number):
                writer.append(observations=row, actions=number, rewards=1.0)
            writer.end_episode(terminated=True)
            writer.seal()
            published += 1
            if held is not None and published >= release:
                failures += [f"case {number}: {wrong}" for wrong in check(held)]
                held = None
            elif held is None and rng.random() < 0.05:
                held, readers, release = gear_data.open(folder), readers + 1, published + rng.randrange(1, 30)
            if used > MAX_BYTES + 2 * SHARD_BYTES:
                failures.append(f"case {number}: {used:,} bytes on disk")
            if held is None and published % _LOOK == 0:
                gc.collect()
                memory.append(resident_bytes())
                descriptors.append(len(os.listdir("/proc/self/fd")))
        writer.close()
        failures += check(gear_data.open(folder))
    failures += grew(memory, descriptors)
    notes = [
        f"largest disk use: limit + {(largest - MAX_BYTES) / SHARD_BYTES:.2f} shards "
        f"({largest:,} bytes; limit {MAX_BYTES:,}, shard {SHARD_BYTES:,})",
        f"memory, MiB: {[each >> 20 for each in sampled(memory)]}",
        f"open files: {sampled(descriptors)}",
    ]
    tried = {"generations": published, "held generations": readers}
    return ChaosResult("turnover", seed, published, tried, tuple(failures[:20]), notes=tuple(notes))


def disk_use(folder: str) -> int:
    """Returns the bytes of all files below a folder. A file with several names counts once."""
    files = {}
    for path in Path(folder).rglob("*"):
        if path.is_file():
            status = path.stat()
            files[status.st_ino] = status.st_size
    return sum(files.values())


def only_held(folder: Path, newest: Manifest, held: gear_data.Dataset | None) -> int:
    """Returns the bytes that stay because a reader holds them."""
    if held is None:
        return 0
    listed = {entry.file for entry in newest.files}
    files = {entry.file for entry in held.manifest.files} | {generation_file(held.manifest.generation)}
    return sum((folder / file).stat().st_size for file in files - listed)


def check(ds: gear_data.Dataset) -> list[str]:
    """Returns what is wrong with a generation."""
    ids = [episode.id for episode in ds]
    if ids != list(range(ids[0], ids[0] + len(ids))):
        return [f"generation {ds.generation}: episodes {ids}"]
    for number in (ids[0], ids[len(ids) // 2], ids[-1]):
        if not np.array_equal(ds.episode(number)["observations"], observations_of(number)):
            return [f"generation {ds.generation}: episode {number} has other steps"]
    return []


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def grew(memory: Sequence[int], descriptors: Sequence[int]) -> list[str]:
    """Returns what grew after the first fifth of the run."""
    first = len(memory) // 5
    if len(memory) < 5:
        return []
    found = []
    if max(memory[first:]) > max(memory[: first + 1]) + _MEMORY_SLACK:
        found.append(f"memory grew: {[each >> 20 for each in memory]} MiB")
    if max(descriptors[first:]) > max(descriptors[: first + 1]):
        found.append(f"open files grew: {list(descriptors)}")
    return found


def sampled(values: Sequence[int]) -> list[int]:
    """Returns at most ten of the values, and the last one."""
    return [*values[:: max(1, len(values) // 10)][:10], *values[-1:]]
