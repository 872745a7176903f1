"""Batches read over Arrow Flight, compared with raw Arrow Flight in one run.

    python benchmarks/cluster.py --json cluster.json

Two nodes on loopback: a server process with a Hopper-shaped dataset in shared memory, and this process, which reads it.
Only bytes of valid steps count. Every figure is the median of several rounds. In each round all measurements take
turns, so that other load on the machine affects all of them. `--quick` shows that all measurements run; its figures
mean little.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import (
    command_line,
    describe_machine,
    figure,
    format_table,
    machine_facts,
    synthetic_episodes,
    write_json,
    write_parquet,
)
from raw_flight import RawFlight

import gear_data
from gear_data import SequenceLoader
from gear_data.cluster.client.reader import ClusterReader
from gear_data.cluster.client.shards import ClusterShards
from gear_data.cluster.flight import fetch as flight_fetch
from gear_data.cluster.protocol import ColumnGroup, Request
from gear_data.collection.collector import Collector
from gear_data.collection.plan import CollectSource
from gear_data.residency import open_shards
from gear_data.selection.windows import Windows
from gear_data.storage.dataset_files import FolderFiles

BATCH = 256
BULK_MESSAGES = tuple(1 << bits for bits in range(18, 24))
MESSAGES = (256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
IN_FLIGHT = (1, 2, 4, 8)
IMAGE_CONTEXT = 16
#: Bytes of a request for each window: three numbers.
WINDOW_REQUEST_BYTES = 24
WARM_BATCHES = 10


@dataclass(frozen=True)
class Effort:
    """Sizes of the data, and numbers of measurements.

    Attributes:
        steps, shard_bytes: of the dataset.
        images: episodes of the dataset with images.
        rounds: measurements of each figure.
        batches: batches of a measurement, at context 100; others have as many steps.
        bulk_bytes: bytes of a stream of raw Flight.
        turns: times that 10 batches are collected by each reader, in a round.
    """

    steps: int
    shard_bytes: int
    images: int
    rounds: int
    batches: int
    bulk_bytes: int
    turns: int


FULL = Effort(1_000_000, 8 << 20, images=40, rounds=5, batches=200, bulk_bytes=64 << 20, turns=100)
QUICK = Effort(100_000, 1 << 20, images=4, rounds=1, batches=1, bulk_bytes=8 << 20, turns=2)


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "gear_data.cli", "serve", str(folder), "--json", "--residency", "host"]
    process = subprocess.Popen([*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None:
            raise RuntimeError("the server process has no pipe")
        yield "gear://" + json.loads(process.stdout.readline())["listen"]
    finally:
        process.kill()
        process.communicate()


def loop(dataset: Any, context: int, prefetch: int, count: int) -> tuple[float, float]:
    """Returns the seconds and the bytes of valid steps of a batch."""
    batches = iter(SequenceLoader(dataset, BATCH, context=context, seed=1, prefetch=prefetch))
    for _ in itertools.islice(batches, min(WARM_BATCHES, count)):
        pass
    begun, steps = time.perf_counter(), 0
    for batch in itertools.islice(batches, count):
        steps += int(batch["valid_count"].sum())
    seconds = time.perf_counter() - begun
    batches.close()  # type: ignore[attr-defined]
    return seconds / count, steps * dataset.schema.step_bytes / count


def own_windows(dataset: Any, here: Any, context: int, count: int) -> list[Windows]:
    """Returns windows of local shards."""
    rng = np.random.default_rng(0)
    episodes = np.flatnonzero(here[dataset.shards])
    batches = []
    for _ in range(count):
        chosen = rng.choice(episodes, BATCH)
        start = (rng.random(BATCH) * dataset.lengths[chosen]).astype(np.int64)
        batches.append(Windows(chosen, start, np.minimum(context, dataset.lengths[chosen] - start)))
    return batches


def local_readers(folder: Path, url: str) -> tuple[Any, dict[str, Any], Any]:
    """Returns a dataset and two readers of it.

    One reader is local, and one belongs to a node that holds every second shard. The last result tells which
    shards.
    """
    dataset, remote = gear_data.open(folder, "host"), gear_data.open(url)
    here = np.arange(len(dataset.manifest.shards)) % 2 == 0
    shards = np.flatnonzero(here).tolist()
    files = FolderFiles(folder)
    entries = tuple(dataset.manifest.shards[shard] for shard in shards)
    client, store = remote.store._client, dataset.store
    cluster = ClusterShards(client, shards, open_shards("host", files, dataset.schema, entries))
    node = ClusterReader(client, cluster, here, *store.episode_starts, store.lengths, lambda: store.finals)
    return dataset, {"local": store.reader(), "as a node": node}, here


def overhead(folder: Path, url: str, context: int, effort: Effort) -> dict[str, float]:
    """Returns the seconds of a batch whose windows are all local."""
    dataset, readers, here = local_readers(folder, url)
    outputs = SequenceLoader(dataset, BATCH, context=context)._stages.newest.components[0].outputs
    drawn = own_windows(dataset, here, context, 10)
    times = _Rounds()
    for _ in range(effort.rounds):
        # New collectors each time: the address of a buffer matters as much as the difference that is measured.
        collectors = {
            name: Collector([CollectSource(reader, dataset.schema, outputs)], BATCH, reuse=True)
            for name, reader in readers.items()
        }
        # Short turns, so that some of them run without other load on the machine.
        for _ in range(effort.turns):
            for name, collector in collectors.items():
                begun = time.perf_counter()
                for windows in drawn:
                    collector(windows)
                times.add((name,), (time.perf_counter() - begun) / len(drawn))
    return {name: times.median(name) for name in readers}


def measure(folder: Path, effort: Effort) -> dict[str, Any]:
    raw = RawFlight()
    try:
        with serving(folder) as url:
            dataset = gear_data.open(url)
            found: dict[str, Any] = {"bulk": {}, "shapes": {}, "channels": {}}
            times, sizes = _Rounds(), dict[int, float]()
            for _ in range(effort.rounds):
                for message in BULK_MESSAGES:
                    times.add(("bulk", message), 1 / raw.bulk(message, effort.bulk_bytes))
                for context in (100, 20):
                    batches = effort.batches * 100 // context
                    for prefetch in (0, 2):
                        seconds, size = loop(dataset, context, prefetch, batches)
                        times.add(("batch", context, prefetch), seconds)
                    request = BATCH * WINDOW_REQUEST_BYTES
                    for in_flight in (1, 4):
                        seconds = raw.seconds_per_response(int(size), request, batches, in_flight)
                        times.add(("raw", context, in_flight), seconds)
                    sizes[context] = size
            found["bulk"] = {str(message): 1 / times.median("bulk", message) for message in BULK_MESSAGES}
            for context in (100, 20):
                found["shapes"][f"{BATCH}x{context}"] = {
                    "bytes": sizes[context],
                    "seconds": times.median("batch", context, 0),
                    "pipelined_seconds": times.median("batch", context, 2),
                    "raw_seconds": times.median("raw", context, 1),
                    "raw_pipelined_seconds": times.median("raw", context, 4),
                }
            found["overhead"] = {f"{BATCH}x{context}": overhead(folder, url, context, effort) for context in (100, 20)}
            found["channels"] = channels(dataset, effort.rounds, max(1, effort.batches // 8))
        found["size_classes"] = size_classes(effort)
    finally:
        raw.close()
    return found


class _Rounds:
    """Measurements by name."""

    def __init__(self) -> None:
        self._values: dict[Any, list[float]] = {}

    def add(self, name: Any, value: float) -> None:
        self._values.setdefault(name, []).append(value)

    def median(self, *name: Any) -> float:
        return statistics.median(self._values[name])


def channels(dataset: Any, rounds: int, count: int) -> dict[str, float]:
    """Returns message bytes and requests in flight -> bytes per second, at 256 x 1000."""
    rates = _Rounds()
    before = flight_fetch.REQUEST_BYTES, flight_fetch.MAX_IN_FLIGHT
    try:
        for _ in range(rounds):
            for flight_fetch.REQUEST_BYTES, flight_fetch.MAX_IN_FLIGHT in itertools.product(MESSAGES, IN_FLIGHT):
                seconds, size = loop(dataset, 1000, 0, count)
                rates.add((flight_fetch.REQUEST_BYTES, flight_fetch.MAX_IN_FLIGHT), size / seconds)
    finally:
        flight_fetch.REQUEST_BYTES, flight_fetch.MAX_IN_FLIGHT = before
    return {f"{size}/{count}": rates.median(size, count) for size, count in itertools.product(MESSAGES, IN_FLIGHT)}


def size_classes(effort: Effort) -> dict[str, float]:
    """Returns grouping of columns -> seconds for 256 windows of 16 steps.

    One column is an image.
    """
    times, rng = _Rounds(), np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="gear-data-cluster-") as scratch:
        source, folder = Path(scratch, "images.parquet"), Path(scratch, "images")
        write_images(source, effort.images)
        gear_data.convert(source, folder, shard_bytes=16 << 20, progress=False)
        with serving(folder) as url:
            dataset = gear_data.open(url)
            steps = np.array([shard.steps for shard in dataset.manifest.shards])
            wide, narrow = (
                tuple(index for index, column in enumerate(dataset.schema) if (column.row_bytes >= 4096) is is_wide)
                for is_wide in (True, False)
            )
            groupings = {
                "all columns together": ((*wide, *narrow),),
                "by size class, at once": (wide, narrow),
            }
            fetch = dataset.store._client.fetch
            with ThreadPoolExecutor(2) as pool:
                for _ in range(effort.rounds * 4):
                    for name, classes in groupings.items():
                        shard = rng.integers(0, len(steps), BATCH)
                        first = (rng.random(BATCH) * (steps[shard] - IMAGE_CONTEXT)).astype(np.int64)
                        spans = first, np.full(BATCH, IMAGE_CONTEXT)
                        requests = [Request(shard, (ColumnGroup(columns, *spans),)) for columns in classes]
                        begun = time.perf_counter()
                        deque(pool.map(fetch, requests), 0)
                        times.add((name,), time.perf_counter() - begun)
    return {name: times.median(name) for name in groupings}


def write_images(path: Path, episodes: int) -> None:
    """Writes episodes of 64 x 64 RGB images, a state, an action and a reward."""
    rng, steps = np.random.default_rng(0), 200
    rows = steps * episodes
    columns = {"image": rng.integers(0, 255, (rows, 64 * 64 * 3), np.uint8)}
    columns |= {name: rng.random((rows, size), np.float32) for name, size in (("observation", 17), ("action", 6))}
    table = {
        name: pa.FixedSizeListArray.from_arrays(values.ravel(), values.shape[1]) for name, values in columns.items()
    }
    ends = np.tile(np.arange(steps) == steps - 1, episodes)
    table |= {
        "episode_id": np.repeat(np.arange(episodes), steps), "step": np.tile(np.arange(steps), episodes),
        "reward": rng.random(rows, np.float32), "terminated": ends, "truncated": np.zeros(rows, np.bool_),
    }  # fmt: skip
    pq.write_table(pa.table(table), path, row_group_size=2000)


def targets(found: dict[str, Any]) -> list[tuple[str, float, str, bool]]:
    """Returns (measurement, value, target, whether the target is met)."""
    bulk = max(found["bulk"].values())
    long, short = found["shapes"][f"{BATCH}x100"], found["shapes"][f"{BATCH}x20"]
    part = long["bytes"] / long["pipelined_seconds"] / bulk
    times = short["pipelined_seconds"] / short["raw_pipelined_seconds"]
    local = found["overhead"][f"{BATCH}x20"]
    more = local["as a node"] / local["local"] - 1
    sizes = found["channels"]
    one = max(rate for name, rate in sizes.items() if name.endswith("/1"))
    return [
        (f"{BATCH}x100, share of raw Flight in bulk", part, "at least 0.6", part >= 0.6),
        (f"{BATCH}x20 pipelined, time relative to raw Flight", times, "at most 1.3", times <= 1.3),
        (f"{BATCH}x20, all shards local: overhead of the cluster reader", more, "below 0.05", more < 0.05),
        ("best message size and requests in flight, relative to one in flight", max(sizes.values()) / one, "", True),
    ]


def report(found: dict[str, Any]) -> str:
    rows = [[f"{int(size) >> 10} KiB", figure(rate / 1e9)] for size, rate in found["bulk"].items()]
    parts = ["Raw Flight in bulk", format_table(["message", "GB/s"], rows)]
    rows = [
        [
            name, figure(shape["bytes"] / 1e3), *(figure(shape[key] * 1e6) for key in (
                "seconds", "raw_seconds", "pipelined_seconds", "raw_pipelined_seconds"
            )), figure(shape["bytes"] / shape["pipelined_seconds"] / 1e9),
        ]
        for name, shape in found["shapes"].items()
    ]  # fmt: skip
    header = ["batch", "kB", "one at a time, us", "raw, us", "pipelined, us", "raw, us", "GB/s"]
    parts += ["Batches of another node's shards, and the same bytes by raw Flight", format_table(header, rows)]
    rows = [
        [f"{size >> 10} KiB", *(figure(found["channels"][f"{size}/{count}"] / 1e9) for count in IN_FLIGHT)]
        for size in MESSAGES
    ]
    header = ["message", *(f"{count} in flight" for count in IN_FLIGHT)]
    parts += [f"{BATCH}x1000 by message size and requests in flight, GB/s", format_table(header, rows)]
    rows = [[how, figure(seconds * 1e3)] for how, seconds in found["size_classes"].items()]
    header = [f"{BATCH}x{IMAGE_CONTEXT} with images of 12 KiB", "ms"]
    parts += ["Columns of different sizes", format_table(header, rows)]
    rows = [[what, figure(value), target, "" if not target else "yes" if met else "no"] for what, value, target, met in
            targets(found)]  # fmt: skip
    parts += ["Targets", format_table(["", "measured", "target", "met"], rows)]
    return "\n\n".join(parts)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.perf_counter()
    return call(), time.perf_counter() - begun


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the full record here")
    parser.add_argument("--quick", action="store_true", help="little data, one round: shows that all of it runs")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    options = make_parser().parse_args(arguments)
    effort = QUICK if options.quick else FULL
    facts = machine_facts()
    print(describe_machine(facts), end="\n\n")
    with tempfile.TemporaryDirectory(prefix="gear-data-cluster-") as scratch:
        source, folder = Path(scratch, "hopper.parquet"), Path(scratch, "hopper")
        write_parquet(synthetic_episodes(effort.steps), source)
        gear_data.convert(source, folder, shard_bytes=effort.shard_bytes, progress=False)
        found, seconds = timed(lambda: measure(folder, effort))
    print(report(found))
    if options.json is not None:
        facts = {"command": command_line(), "machine": facts, "seconds": seconds, **found}
        write_json(options.json, {**facts, "targets": [list(target) for target in targets(found)]})


if __name__ == "__main__":
    main()
