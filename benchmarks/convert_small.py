"""Many small things for benchmarks/convert.py --small: files, episodes, and chunks of Zarr behind the guard.

The floor of files is their own library, which reads every array or table whole and writes nothing. The floor of short
episodes is the same steps in long ones. The floor of the guard is zarr without it. A figure is the processor time of
all threads, user and system, in a warm process. The floor and gear-data run in alternating rounds.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from common import Episodes, figure, format_table, parquet_files
from convert_layouts import convert, write_lerobot
from convert_tables import bounds

FILES, STEPS_OF_A_FILE = 2000, 200
STEPS, FEW, MANY = 1_000_000, 1000, 100_000
#: Rows of an array behind the guard: 250 MB of float32.
ROWS, WIDTH = 1 << 20, 64
_BLOCK_ROWS = 1 << 16


@dataclass(frozen=True)
class Case:
    """Two ways to the same data.

    Attributes:
        name: for the table.
        floor_name: what the floor is.
        floor, gear: each reads the data, or converts it.
        target: the most that gear-data may take, as a multiple of the floor; None without a target.
        bytes: what is read, for rates; None for conversions.
    """

    name: str
    floor_name: str
    floor: Callable[[], object]
    gear: Callable[[], object]
    target: float | None
    bytes: int | None = None


def equal_episodes(count: int, length: int) -> Episodes:
    random = np.random.default_rng(0)
    steps = count * length
    terminals = np.zeros(steps, np.bool_)
    terminals[length - 1 :: length] = True
    return Episodes(
        observations=random.standard_normal((steps, 11), dtype=np.float32),
        actions=random.uniform(-1, 1, (steps, 3)).astype(np.float32),
        rewards=random.uniform(0, 4, steps).astype(np.float32),
        terminals=terminals,
        lengths=np.full(count, length),
    )


def write_archives(episodes: Episodes, folder: Path) -> None:
    """Writes an `.npz` archive for each episode."""
    folder.mkdir()
    for i, (first, last) in enumerate(pairwise(bounds(episodes).tolist())):
        rows = slice(first, last)
        np.savez(
            folder / f"episode_{i:06d}.npz",
            observations=episodes.observations[rows],
            actions=episodes.actions[rows],
            rewards=episodes.rewards[rows],
            terminals=episodes.terminals[rows],
        )


def read_archives(folder: Path) -> None:
    for file in sorted(folder.iterdir()):
        with np.load(file) as archive:
            for name in archive.files:
                archive[name]


def write_flat(episodes: Episodes, folder: Path) -> None:
    folder.mkdir()
    arrays = {name: getattr(episodes, name) for name in ("observations", "actions", "rewards")}
    np.savez(folder / "steps.npz", **arrays, dones=episodes.terminals)


def cases(scratch: Path, divisor: int) -> Iterator[Case]:
    """Writes the sources, and yields the cases. Sizes are divided by `divisor`."""

    def conversion(source: Path) -> Callable[[], object]:
        def run() -> None:
            convert(source, scratch / "out", 1)
            shutil.rmtree(scratch / "out")

        return run

    files = max(2, FILES // divisor)
    episodes = equal_episodes(files, STEPS_OF_A_FILE)
    archives, lerobot = scratch / "npz", scratch / "lerobot"
    write_archives(episodes, archives)
    yield Case(f"{files:,} npz", "numpy.load", lambda: read_archives(archives), conversion(archives), 1.3)
    write_lerobot(episodes, lerobot, files=files)
    tables = parquet_files(lerobot / "data")
    yield Case(
        f"{files:,} LeRobot Parquet",
        "pyarrow.parquet.read_table",
        lambda: [pq.read_table(file) for file in tables],
        conversion(lerobot),
        1.3,
    )
    few, many, steps = max(2, FEW // divisor), max(4, MANY // divisor), STEPS // divisor
    write_flat(equal_episodes(few, steps // few), scratch / "few")
    write_flat(equal_episodes(many, steps // many), scratch / "many")
    yield Case(
        f"{steps:,} steps, {many:,} episodes",
        f"{few:,} episodes",
        conversion(scratch / "few"),
        conversion(scratch / "many"),
        1.5,
    )
    yield from guarded_arrays(scratch, max(64, ROWS // divisor))


def guarded_arrays(scratch: Path, rows: int) -> Iterator[Case]:
    import zarr
    from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

    from gear_data.ingest.location import locate
    from gear_data.ingest.sources.zarr.array import ZarrReader, open_arrays
    from gear_data.ingest.sources.zarr.store import find_stores

    values = np.random.default_rng(0).standard_normal((rows, WIDTH)).astype(np.float32).round(2)
    folder = scratch / "guarded.zarr"
    group = zarr.open_group(folder, mode="w", zarr_format=3)
    chunks = (max(1, rows // 256), WIDTH)
    for name, options in {
        "plain": {"compressors": None},
        "blosc": {"compressors": BloscCodec()},
        "zstd": {"compressors": ZstdCodec()},
        "gzip": {"compressors": GzipCodec(level=1)},
        "blosc in shards": {"compressors": BloscCodec(), "shards": (chunks[0] * 16, WIDTH)},
    }.items():
        options = {"shape": values.shape, "chunks": chunks, "dtype": values.dtype, **options}
        group.create_array(name, **options)[...] = values
    (store,) = find_stores(locate(folder, None))
    arrays = open_arrays(store)
    blocks = [(first, min(first + _BLOCK_ROWS, rows)) for first in range(0, rows, _BLOCK_ROWS)]

    def plain(name: str) -> None:
        array = zarr.open_array(folder / name, mode="r")
        for first, last in blocks:
            array[first:last]

    def guarded(name: str) -> None:
        with ZarrReader() as reader:
            for first, last in blocks:
                reader.read(arrays[name], first, last)

    for name in arrays:
        yield Case(
            f"guarded Zarr, {name}", "zarr", lambda n=name: plain(n), lambda n=name: guarded(n), None, values.nbytes
        )


def measure_small(scratch: Path, repetitions: int, divisor: int) -> list[dict[str, Any]]:
    records = []
    for case in cases(scratch, divisor):
        case.gear()
        rounds = [(processor_seconds(case.floor), processor_seconds(case.gear)) for _ in range(repetitions)]
        floor, gear = map(statistics.median, zip(*rounds, strict=True))
        record = {"case": case.name, "floor": case.floor_name, "floor_seconds": floor, "gear_seconds": gear}
        record |= {"times_the_floor": statistics.median(b / a for a, b in rounds), "target": case.target}
        records.append(record | {"bytes": case.bytes})
    return records


def processor_seconds(call: Callable[[], object]) -> float:
    """Returns the processor time of a call in seconds, of all threads."""
    begun = time.process_time()
    call()
    return time.process_time() - begun


def print_small(records: list[dict[str, Any]]) -> None:
    rows = []
    for one in records:
        rates = [one["bytes"] and one["bytes"] / one[f"{way}_seconds"] / 1e6 for way in ("floor", "gear")]
        seconds = [one["floor_seconds"], one["gear_seconds"], one["times_the_floor"], one["target"]]
        rows.append([one["case"], one["floor"], *map(figure, [*seconds, *rates])])
    header = ["case", "floor", "floor s", "gear s", "gear / floor", "target", "floor MB/s", "gear MB/s"]
    print(format_table(header, rows))
    print("Seconds of processor time, user and system.")
