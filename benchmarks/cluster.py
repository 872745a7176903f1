"""Batches read from another node over Arrow Flight, beside what raw Arrow Flight moves on this machine in the same run.

    python benchmarks/cluster.py --json cluster.json

Two nodes on loopback: a server process that holds a Hopper-shaped dataset in shared memory, and this process, which
reads. Bytes are those of valid steps. Every figure is the best of several rounds, in which all take turns, so that
other people's work on the machine is in all of them or in none. `--quick` takes a tenth of the time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
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
from gear_data.cluster import flight_lane
from gear_data.cluster.reader import ClusterReader
from gear_data.cluster.remote_shards import PlacedShards
from gear_data.collection import Collector, Share
from gear_data.residency import open_shards
from gear_data.selection.windows import Windows
from gear_data.storage.dataset_files import FolderFiles

BATCH = 256
STEPS = 1_000_000
SHARD_BYTES = 8 << 20
BULK_MESSAGES = tuple(1 << bits for bits in range(18, 24))
MESSAGES = (256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
CHANNELS = (1, 2, 4, 8)
#: Of a request: three numbers a window, and little more.
WINDOW_REQUEST_BYTES = 24


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "gear_data.cli", "serve", str(folder), "--json", "--residency", "host"]
    process = subprocess.Popen([*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None:
            raise RuntimeError("no pipe was made")
        yield "gear://" + json.loads(process.stdout.readline())["listen"]
    finally:
        process.kill()
        process.communicate()


def loop(dataset: Any, context: int, prefetch: int, count: int) -> tuple[float, float]:
    """(seconds, bytes of valid steps) of a batch."""
    batches = iter(SequenceLoader(dataset, BATCH, context, seed=1, prefetch=prefetch))
    for _ in itertools.islice(batches, 10):
        pass
    begun, steps = time.perf_counter(), 0
    for batch in itertools.islice(batches, count):
        steps += int(batch["valid_count"].sum())
    seconds = time.perf_counter() - begun
    batches.close()  # type: ignore[attr-defined]
    return seconds / count, steps * dataset.schema.step_bytes / count


def own_windows(dataset: Any, here: Any, context: int, count: int) -> list[Windows]:
    """Windows of shards that are here."""
    rng = np.random.default_rng(0)
    episodes = np.flatnonzero(here[dataset.shards])
    found = []
    for _ in range(count):
        chosen = rng.choice(episodes, BATCH)
        start = (rng.random(BATCH) * dataset.lengths[chosen]).astype(np.int64)
        found.append(Windows(chosen, start, np.minimum(context, dataset.lengths[chosen] - start)))
    return found


def local_readers(folder: Path, place: str) -> tuple[Any, dict[str, Any], Any]:
    """The dataset; readers of it by itself, and as a node's that holds every second shard; bool [shards]: which."""
    dataset, remote = gear_data.open(folder, "host"), gear_data.open(place)
    here = np.arange(len(dataset.manifest.shards)) % 2 == 0
    shards = np.flatnonzero(here).tolist()
    files = FolderFiles(folder)
    entries = tuple(dataset.manifest.shards[shard] for shard in shards)
    placed = PlacedShards(remote._root._nodes, shards, open_shards("host", files, dataset.schema, entries))
    root = dataset._root
    node = ClusterReader(remote._root._nodes, placed, here, *root.placement, root.lengths, lambda: root.finals)
    return dataset, {"alone": dataset.reader(), "as a node": node}, here


def overhead(folder: Path, place: str, context: int, rounds: int) -> dict[str, float]:
    """Seconds that a batch takes whose windows are all here."""
    dataset, readers, here = local_readers(folder, place)
    outputs = SequenceLoader(dataset, BATCH, context)._parts[0].outputs
    collectors = {
        name: Collector([Share(reader, dataset.schema, outputs)], BATCH, reuse=True) for name, reader in readers.items()
    }
    drawn = own_windows(dataset, here, context, 10)
    best = dict.fromkeys(collectors, float("inf"))
    # In turns that are so short that the machine is left alone in some of them.
    for _ in range(rounds * 100):
        for name, collector in collectors.items():
            begun = time.perf_counter()
            for windows in drawn:
                collector.collect(windows)
            best[name] = min(best[name], (time.perf_counter() - begun) / len(drawn))
    return best


def measure(folder: Path, rounds: int, count: int) -> dict[str, Any]:
    raw = RawFlight()
    try:
        with serving(folder) as place:
            dataset = gear_data.open(place)
            found: dict[str, Any] = {"bulk": {}, "shapes": {}, "channels": {}}
            best = _Best()
            for _ in range(rounds):
                for message in BULK_MESSAGES:
                    best.note(("bulk", message), 1 / raw.bulk(message, 64 << 20))
                for context in (100, 20):
                    batches = max(20, count * 20 // context)
                    for prefetch in (0, 2):
                        seconds, size = loop(dataset, context, prefetch, batches)
                        best.note(("batch", context, prefetch), seconds)
                    request = BATCH * WINDOW_REQUEST_BYTES
                    for under_way in (1, 4):
                        best.note(("raw", context, under_way), raw.answers(int(size), request, batches, under_way))
                    best.sizes[context] = size
            found["bulk"] = {str(message): 1 / best.of["bulk", message] for message in BULK_MESSAGES}
            for context in (100, 20):
                found["shapes"][f"{BATCH}x{context}"] = {
                    "bytes": best.sizes[context],
                    "seconds": best.of["batch", context, 0],
                    "pipelined_seconds": best.of["batch", context, 2],
                    "raw_seconds": best.of["raw", context, 1],
                    "raw_pipelined_seconds": best.of["raw", context, 4],
                }
            found["overhead"] = {
                f"{BATCH}x{context}": overhead(folder, place, context, rounds) for context in (100, 20)
            }
            found["channels"] = channels(dataset, rounds, max(10, count // 4))
    finally:
        raw.close()
    return found


class _Best:
    """The least of what was measured of each thing."""

    def __init__(self) -> None:
        self.of: dict[tuple[Any, ...], float] = {}
        self.sizes: dict[int, float] = {}

    def note(self, name: tuple[Any, ...], seconds: float) -> None:
        self.of[name] = min(self.of.get(name, seconds), seconds)


def channels(dataset: Any, rounds: int, count: int) -> dict[str, float]:
    """Message bytes and requests under way -> bytes a second, at 256 x 1000."""
    best: dict[str, float] = {}
    before = flight_lane.REQUEST_BYTES, flight_lane.CHANNELS
    try:
        for _ in range(rounds):
            for flight_lane.REQUEST_BYTES, flight_lane.CHANNELS in itertools.product(MESSAGES, CHANNELS):
                seconds, size = loop(dataset, 1000, 0, count)
                name = f"{flight_lane.REQUEST_BYTES}/{flight_lane.CHANNELS}"
                best[name] = max(best.get(name, 0.0), size / seconds)
    finally:
        flight_lane.REQUEST_BYTES, flight_lane.CHANNELS = before
    return best


def targets(found: dict[str, Any]) -> list[tuple[str, float, str, bool]]:
    """(what, measured, target, whether it is met)."""
    bulk = max(found["bulk"].values())
    long, short = found["shapes"][f"{BATCH}x100"], found["shapes"][f"{BATCH}x20"]
    part = long["bytes"] / long["pipelined_seconds"] / bulk
    times = short["pipelined_seconds"] / short["raw_pipelined_seconds"]
    local = found["overhead"][f"{BATCH}x20"]
    more = local["as a node"] / local["alone"] - 1
    sizes = found["channels"]
    one = max(rate for name, rate in sizes.items() if name.endswith("/1"))
    return [
        (f"{BATCH}x100, part of raw Flight in bulk", part, "at least 0.6", part >= 0.6),
        (f"{BATCH}x20 pipelined, times the same bytes by raw Flight", times, "at most 1.3", times <= 1.3),
        (f"{BATCH}x20, all shards here: more time than without nodes", more, "below 0.05", more < 0.05),
        ("best message size and channels, against the best of one channel", max(sizes.values()) / one, "", True),
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
        [f"{size >> 10} KiB", *(figure(found["channels"][f"{size}/{count}"] / 1e9) for count in CHANNELS)]
        for size in MESSAGES
    ]
    header = ["message", *(f"{count} under way" for count in CHANNELS)]
    parts += [f"{BATCH}x1000 by message size and requests under way, GB/s", format_table(header, rows)]
    rows = [[what, figure(value), target, "" if not target else "yes" if met else "no"] for what, value, target, met in
            targets(found)]  # fmt: skip
    parts += ["Targets", format_table(["", "measured", "target", "met"], rows)]
    return "\n\n".join(parts)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.perf_counter()
    return call(), time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    facts = machine_facts()
    print(describe_machine(facts), end="\n\n")
    with tempfile.TemporaryDirectory(prefix="gear-data-cluster-") as scratch:
        source, folder = Path(scratch, "hopper.parquet"), Path(scratch, "hopper")
        write_parquet(synthetic_episodes(STEPS // 10 if options.quick else STEPS), source)
        gear_data.convert(source, folder, shard_bytes=SHARD_BYTES // (10 if options.quick else 1), progress=False)
        found, seconds = timed(lambda: measure(folder, 2 if options.quick else 5, 20 if options.quick else 100))
    print(report(found))
    if options.json is not None:
        facts = {"command": command_line(), "machine": facts, "seconds": seconds, **found}
        write_json(options.json, {**facts, "targets": [list(target) for target in targets(found)]})


if __name__ == "__main__":
    main()
