"""Source layouts of benchmarks/convert.py: a writer and a floor for each.

The floor of Parquet is pyarrow: read_table, and an Arrow IPC write of the same bytes with fsync. Saved datasets, text
and tar have floors of `datasets`, which write Arrow too. The floor of HDF5 is h5py, of Zarr zarr, and of frames NumPy:
they read every array whole and write nothing. They are compared with a whole conversion, and with gear-data's reading
only. d4rl is compressed with gzip, as the published files are. d4rl-plain is not compressed: its floor is a copy in
memory, which no program that writes to disk can reach. isaac-lab is compressed with gzip in chunks that h5py chooses,
as Isaac Lab writes it.

The floor and gear-data run in alternating rounds, in one process on one core. One core and two cores are compared in
alternating rounds too, each conversion in a fresh process, with a source two or six times as large, because starting
workers takes about a second.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
from common import Episodes, figure, format_table, parquet_files, synthetic_episodes, write_parquet
from convert_archives import floor_archives, write_d3rlpy, write_ogbench, write_stable_baselines3
from convert_frames import floor_gzip, floor_npz, write_calvin, write_dqn_replay, write_vd4rl
from convert_hdf5 import (
    floor_hdf5,
    write_act,
    write_d4rl,
    write_isaac_lab,
    write_minari,
    write_plain_d4rl,
    write_tree,
)
from convert_tables import (
    bounds,
    floor_csv,
    floor_json,
    floor_saved,
    floor_tar,
    steps_of,
    write_csv,
    write_fixed_step_rows,
    write_json_lines,
    write_saved,
    write_step_rows,
    write_tar,
)

#: Steps of a source timed on one core.
STEPS = 4_000_000
#: Episodes per STEPS steps: files of the LeRobot layout, and episodes with images of the JAT layout.
LEROBOT_EPISODES, JAT_EPISODES = 1500, 60


def scaled(count: int, episodes: Episodes) -> int:
    return max(1, count * episodes.steps // STEPS)


def write_episode_rows(episodes: Episodes, folder: Path) -> None:
    write_parquet(episodes, folder / "episodes.parquet")


def write_lerobot(episodes: Episodes, folder: Path, files: int | None = None) -> None:
    """Writes LeRobot v2.1: one file per episode. By default as many as `LEROBOT_EPISODES` says."""
    data, meta = folder / "data/chunk-000", folder / "meta"
    data.mkdir(parents=True)
    meta.mkdir()
    places = bounds(episodes)[: (files or scaled(LEROBOT_EPISODES, episodes)) + 1].tolist()
    for i, (first, last) in enumerate(pairwise(places)):
        count = last - first
        table = pa.table(
            {
                "observation.state": steps_of(episodes.observations[first:last]),
                "action": steps_of(episodes.actions[first:last]),
                "next.reward": episodes.rewards[first:last],
                "next.done": episodes.terminals[first:last],
                "timestamp": (np.arange(count) / 30).astype(np.float32),
                "frame_index": np.arange(count),
                "episode_index": np.full(count, i),
                "index": np.arange(first, last),
                "task_index": np.zeros(count, np.int64),
            }
        )
        pq.write_table(table, data / f"episode_{i:06d}.parquet")
    count = len(places) - 1
    info = {"codebase_version": "v2.1", "fps": 30, "total_episodes": count, "total_frames": places[-1], "features": {}}
    (meta / "info.json").write_text(json.dumps(info))
    (meta / "tasks.jsonl").write_text(json.dumps({"task_index": 0, "task": "hop"}) + "\n")
    lines = [{"episode_index": i, "tasks": ["hop"], "length": places[i + 1] - places[i]} for i in range(count)]
    (meta / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_zarr(episodes: Episodes, folder: Path) -> None:
    """Writes a Zarr store of version 2 with Blosc, as Diffusion Policy does."""
    import zarr

    group = zarr.open_group(folder / "replay.zarr", mode="w", zarr_format=2)
    arrays = {"state": episodes.observations, "action": episodes.actions, "reward": episodes.rewards}
    for name, values in arrays.items():
        chunks = (min(len(values), 16_384), *values.shape[1:])
        group.create_array(f"data/{name}", shape=values.shape, chunks=chunks, dtype=values.dtype)[...] = values
    ends = bounds(episodes)[1:]
    group.create_array("meta/episode_ends", shape=ends.shape, dtype=ends.dtype)[...] = ends


def write_jat(episodes: Episodes, folder: Path) -> None:
    """Writes one row per episode, with encoded images and text.

    Every step has an 84 x 84 JPEG, kept encoded, and a line of text.
    """
    from PIL import Image

    random = np.random.default_rng(0)
    frames = []
    for _ in range(64):
        sink = io.BytesIO()
        Image.fromarray(random.integers(0, 255, (84, 84, 3), np.uint8)).save(sink, "JPEG")
        frames.append(sink.getvalue())

    def frame(step: int) -> dict[str, Any]:
        # Bytes after the image's end differ: otherwise Parquet's dictionary stores each of the 64 once.
        return {"bytes": frames[step % len(frames)] + step.to_bytes(8, "big"), "path": None}

    places = bounds(episodes)[: scaled(JAT_EPISODES, episodes) + 1]
    file = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    rows = list(zip(places[:-1].tolist(), places[1:].tolist(), strict=True))
    table = pa.table(
        {
            "image_observations": pa.array(
                [[frame(t) for t in range(first, last)] for first, last in rows], pa.list_(file)
            ),
            "text_observations": [[f"step {t} of the mission" for t in range(first, last)] for first, last in rows],
            "discrete_actions": [np.arange(first, last) % 6 for first, last in rows],
            "rewards": [episodes.rewards[first:last] for first, last in rows],
        }
    )
    pq.write_table(table, folder / "train-00000-of-00001.parquet", row_group_size=16)


def floor_parquet(source: Path, destination: Path) -> int:
    """Reads and writes the source with pyarrow; returns the bytes in memory."""
    destination.mkdir()
    table = pa.concat_tables([pq.read_table(file) for file in parquet_files(source)])
    with pa.OSFile(str(destination / "data.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with open(destination / "data.arrow", "rb") as written:
        os.fsync(written.fileno())
    return int(table.nbytes)


def floor_zarr(source: Path, destination: Path) -> int:
    import zarr

    destination.mkdir()
    data = zarr.open_group(source / "replay.zarr", mode="r")["data"]
    return sum(int(data[name][...].nbytes) for name in data)


@dataclass(frozen=True)
class Layout:
    """A layout's writer, and its floor: (source, destination) -> bytes.

    The steps give at least 280 MB in memory. For two cores, the source is `times` as large.
    """

    write: Callable[[Episodes, Path], None]
    floor: Callable[[Path, Path], int]
    steps: int = STEPS
    times: int = 6


LAYOUTS = {
    "episode-rows": Layout(write_episode_rows, floor_parquet),
    "step-rows": Layout(write_step_rows, floor_parquet),
    "step-rows-fixed": Layout(write_fixed_step_rows, floor_parquet),
    "saved": Layout(write_saved, floor_saved),
    "jsonl": Layout(write_json_lines, floor_json, steps=2_000_000, times=2),
    "csv": Layout(write_csv, floor_csv, steps=2_100_000, times=2),
    "tar": Layout(write_tar, floor_tar, steps=40_000, times=2),
    "lerobot": Layout(write_lerobot, floor_parquet),
    "jat": Layout(write_jat, floor_parquet),
    "d4rl": Layout(write_d4rl, floor_hdf5, steps=4_600_000),
    "d4rl-plain": Layout(write_plain_d4rl, floor_hdf5, steps=4_600_000),
    "minari": Layout(write_minari, floor_hdf5, steps=4_600_000, times=2),
    "act": Layout(write_act, floor_hdf5, steps=20_000, times=2),
    "isaac-lab": Layout(write_isaac_lab, floor_hdf5, steps=2_000_000, times=2),
    "tree": Layout(write_tree, floor_hdf5, steps=4_700_000, times=2),
    "zarr": Layout(write_zarr, floor_zarr, steps=4_700_000),
    "ogbench": Layout(write_ogbench, floor_archives, steps=5_000_000, times=2),
    "stable-baselines3": Layout(write_stable_baselines3, floor_archives, steps=2_600_000),
    "d3rlpy": Layout(write_d3rlpy, floor_hdf5, steps=4_700_000, times=2),
    "dqn-replay": Layout(write_dqn_replay, floor_gzip, steps=60_000, times=2),
    "calvin": Layout(write_calvin, floor_npz, steps=1000, times=2),
    "vd4rl": Layout(write_vd4rl, floor_hdf5, steps=15_030, times=2),
}

#: Target ratios: a conversion to the floor's throughput on one core, reading only to it, and two cores to one core.
TARGET, TARGET_READING, TARGET_TWO_CORES = 0.5, 0.6, 1.6
#: A conversion task is half a shard: this size gives the sources several tasks.
_SHARD_BYTES = 64 << 20


def timed(call: Callable[[], object], destination: Path) -> float:
    started = time.perf_counter()
    call()
    elapsed = time.perf_counter() - started
    shutil.rmtree(destination)
    return elapsed


def convert(source: Path, destination: Path, jobs: int) -> None:
    import gear_data

    gear_data.convert(source, destination, jobs=jobs, keep_encoded=True, shard_bytes=_SHARD_BYTES, progress=False)


def read(source: Path, destination: Path) -> None:
    """Reads the same data as a conversion, and writes nothing."""
    from gear_data.ingest.location import locate
    from gear_data.ingest.source import SourceOptions
    from gear_data.ingest.sources.registry import open_source
    from gear_data.storage.episode_block import BEGIN, END

    destination.mkdir()
    opened, _, _ = open_source(locate(source, None), "auto", SourceOptions())
    for _ in opened.blocks(BEGIN, END):
        pass


def measure(name: str, source: Path, destination: Path, repetitions: int) -> dict[str, Any]:
    """Measures a layout on one core, in this process."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    floor = LAYOUTS[name].floor
    ways: dict[str, Callable[[], object]] = {
        "floor": lambda: floor(source, destination),
        "gear": lambda: convert(source, destination, 1),
    }
    if floor is not floor_parquet:
        ways["read"] = lambda: read(source, destination)
    size = floor(source, destination)
    shutil.rmtree(destination)
    timed(ways["gear"], destination)
    rounds = [{way: timed(call, destination) for way, call in ways.items()} for _ in range(repetitions)]
    record: dict[str, Any] = {"bytes": size}
    for way in ways:
        record[f"{way}_seconds"] = statistics.median(one[way] for one in rounds)
        record[f"{way}_to_floor"] = statistics.median(one["floor"] / one[way] for one in rounds)
    return record


def measure_cores(source: Path, destination: Path, cores: int) -> dict[str, Any]:
    """Times one conversion in this process, with one job per core."""
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:cores]))
    pa.set_cpu_count(cores)
    return {"seconds": timed(lambda: convert(source, destination, cores), destination)}


def measure_layout(
    name: str,
    scratch: Path,
    repetitions: int,
    divisor: int,
    two_cores: bool,
    script: Path,
    environment: dict[str, str],
) -> dict[str, Any]:
    """Measures one layout; each part runs in a fresh process that executes `script`.

    Args:
        divisor: the steps are divided by it.
        two_cores: measure two cores too, if there are two.
    """
    source = scratch / name
    steps = max(30, LAYOUTS[name].steps // divisor)  # of --quick

    def make(steps: int) -> None:
        source.mkdir()
        LAYOUTS[name].write(synthetic_episodes(steps), source)

    def run(*options: str) -> Any:
        command = [sys.executable, str(script), "--worker-layout", name, "--source", str(source), *options]
        command += ["--destination", str(scratch / "out"), "--repetitions", str(repetitions)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise SystemExit(f"measuring {name} failed:\n{done.stderr}")
        return json.loads(done.stdout.splitlines()[-1])

    make(steps)
    record: dict[str, Any] = {"layout": name} | run()
    shutil.rmtree(source)
    if two_cores and len(os.sched_getaffinity(0)) > 1:
        make(steps * LAYOUTS[name].times)
        rounds = [[run("--worker-cores", cores)["seconds"] for cores in "12"] for _ in range(repetitions)]
        record["one_core_seconds"], record["two_cores_seconds"] = map(statistics.median, zip(*rounds, strict=True))
        record["two_cores"] = statistics.median(one / two for one, two in rounds)
        shutil.rmtree(source)
    return record


def print_layouts(records: list[dict[str, Any]]) -> None:
    header = [
        "layout",
        "MB",
        "floor s",
        "gear s",
        "gear / floor",
        "reading / floor",
        "larger: 1 core s",
        "2 cores s",
        "2 / 1",
    ]
    keys = ("floor_seconds", "gear_seconds", "gear_to_floor", "read_to_floor")
    keys += ("one_core_seconds", "two_cores_seconds", "two_cores")
    rows = [
        [
            record["layout"],
            figure(record["bytes"] / 1e6),
            *(figure(record[key]) if key in record else "" for key in keys),
        ]
        for record in records
    ]
    print(format_table(header, rows))
    print(
        f"Ratios to the floor (targets: conversion {TARGET}, reading {TARGET_READING}) and to one core "
        f"(target {TARGET_TWO_CORES})."
    )
