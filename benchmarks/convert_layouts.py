"""Source layouts of benchmarks/convert.py: a writer and a floor for each.

The floor of Parquet is pyarrow: read_table, and an Arrow IPC write of the same bytes with fsync. Saved datasets, text
and tar have floors of `datasets`, which write Arrow too. The floor of HDF5 is h5py, of Zarr zarr, and of frames NumPy:
they read every array whole and write nothing. They are compared with a whole conversion, and with gear-data's reading
only. d4rl is compressed with gzip, as the published files are. d4rl-plain is not compressed: its floor is a copy in
memory, which no program that writes to disk can reach. isaac-lab is compressed with gzip in chunks that h5py chooses,
as Isaac Lab writes it.

The floor and gear-data run in alternating rounds, in one process on one core. One core and two cores are compared in
alternating rounds too, each conversion in a fresh process, with a source six times as large.
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

#: Steps of a source timed on one core, and the factor for two cores: starting workers takes about a second.
STEPS, TIMES_FOR_TWO_CORES = 4_000_000, 6
#: Episodes per STEPS steps: files of the LeRobot and ALOHA layouts, and episodes with images of the JAT layout.
LEROBOT_EPISODES, JAT_EPISODES, ACT_EPISODES = 1500, 60, 20


def scaled(count: int, episodes: Episodes) -> int:
    return max(1, count * episodes.steps // STEPS)


def write_episode_rows(episodes: Episodes, folder: Path) -> None:
    write_parquet(episodes, folder / "episodes.parquet")


def write_lerobot(episodes: Episodes, folder: Path) -> None:
    """Writes LeRobot v2.1: one file per episode."""
    data, meta = folder / "data/chunk-000", folder / "meta"
    data.mkdir(parents=True)
    meta.mkdir()
    places = bounds(episodes)[: scaled(LEROBOT_EPISODES, episodes) + 1].tolist()
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


def write_d4rl(episodes: Episodes, folder: Path, compression: str | None = "gzip") -> None:
    import h5py

    with h5py.File(folder / "data.hdf5", "w") as file:
        for name in ("observations", "actions", "rewards", "terminals"):
            file.create_dataset(name, data=getattr(episodes, name), compression=compression)
        file.create_dataset("timeouts", data=np.zeros(episodes.steps, np.bool_), compression=compression)


def write_plain_d4rl(episodes: Episodes, folder: Path) -> None:
    write_d4rl(episodes, folder, None)


def write_isaac_lab(episodes: Episodes, folder: Path) -> None:
    """Writes Isaac Lab's HDF5: demonstrations with the states of the scene."""
    import h5py

    assets = {"articulation/robot/joint_position": 9, "rigid_object/cube/root_pose": 7}
    with h5py.File(folder / "dataset.hdf5", "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"], data.attrs["total"] = json.dumps({"env_name": "Isaac-Lift", "type": 2}), episodes.steps
        for i, (first, last) in enumerate(pairwise(bounds(episodes).tolist())):
            demo = data.create_group(f"demo_{i}")
            demo.attrs["num_samples"], demo.attrs["seed"], demo.attrs["success"] = last - first, i, True
            observations, actions = episodes.observations[first:last], episodes.actions[first:last]
            arrays = {
                "actions": actions,
                "processed_actions": actions,
                "obs/actions": actions,
                "obs/policy": observations,
            }
            for asset, width in assets.items():
                arrays[f"states/{asset}"] = observations[:, :width]
                arrays[f"initial_state/{asset}"] = observations[:1, :width]
            for name, values in arrays.items():
                demo.create_dataset(name, data=values, compression="gzip")


def write_minari(episodes: Episodes, folder: Path) -> None:
    import h5py

    data = folder / "data"
    data.mkdir()
    places = bounds(episodes).tolist()
    with h5py.File(data / "main_data.hdf5", "w") as file:
        for i, (first, last) in enumerate(pairwise(places)):
            group = file.create_group(f"episode_{i}")
            group.attrs["id"], group.attrs["total_steps"] = i, last - first
            group["observations"] = np.concatenate([episodes.observations[first:last], episodes.observations[:1]])
            group["actions"] = episodes.actions[first:last]
            group["rewards"] = episodes.rewards[first:last]
            group["terminations"] = episodes.terminals[first:last]
            group["truncations"] = np.zeros(last - first, np.bool_)
    facts = {"total_episodes": len(episodes), "total_steps": episodes.steps, "data_format": "hdf5"}
    (data / "metadata.json").write_text(json.dumps(facts))


def write_act(episodes: Episodes, folder: Path) -> None:
    """Writes a file per episode, with a camera of 120 x 160 pixels."""
    import h5py

    places = bounds(episodes)[: scaled(ACT_EPISODES, episodes) + 1].tolist()
    frames = np.random.default_rng(0).integers(0, 255, (max(np.diff(places)), 120, 160, 3), np.uint8)
    for i, (first, last) in enumerate(pairwise(places)):
        with h5py.File(folder / f"episode_{i}.hdf5", "w") as file:
            file.attrs["sim"] = True
            file["action"] = episodes.actions[first:last]
            file["observations/qpos"] = episodes.observations[first:last]
            images = frames[: last - first]
            file.create_dataset("observations/images/top", data=images, chunks=(1, *images.shape[1:]))


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


def write_tree(episodes: Episodes, folder: Path) -> None:
    """Writes a group per episode, whose names no format knows."""
    import h5py

    with h5py.File(folder / "data.hdf5", "w") as file:
        for i, (first, last) in enumerate(pairwise(bounds(episodes).tolist())):
            for name, values in (("action", episodes.actions), ("state", episodes.observations)):
                file[f"runs/run_{i}/{name}"] = values[first:last]
            file[f"runs/run_{i}/reward"] = episodes.rewards[first:last]


def floor_parquet(source: Path, destination: Path) -> int:
    """Reads and writes the source with pyarrow; returns the bytes in memory."""
    destination.mkdir()
    table = pa.concat_tables([pq.read_table(file) for file in parquet_files(source)])
    with pa.OSFile(str(destination / "data.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with open(destination / "data.arrow", "rb") as written:
        os.fsync(written.fileno())
    return int(table.nbytes)


def floor_hdf5(source: Path, destination: Path) -> int:
    import h5py

    destination.mkdir()
    sizes = []
    for path in sorted(source.rglob("*.hdf5")):
        with h5py.File(path) as file:

            def read(_: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset):
                    sizes.append(np.asarray(item[()]).nbytes)

            file.visititems(read)
    return sum(sizes)


def floor_zarr(source: Path, destination: Path) -> int:
    import zarr

    destination.mkdir()
    data = zarr.open_group(source / "replay.zarr", mode="r")["data"]
    return sum(int(data[name][...].nbytes) for name in data)


@dataclass(frozen=True)
class Layout:
    """A layout's writer, and its floor: (source, destination) -> bytes."""

    write: Callable[[Episodes, Path], None]
    floor: Callable[[Path, Path], int]
    steps: int = STEPS


LAYOUTS = {
    "episode-rows": Layout(write_episode_rows, floor_parquet),
    "step-rows": Layout(write_step_rows, floor_parquet),
    "step-rows-fixed": Layout(write_fixed_step_rows, floor_parquet),
    "saved": Layout(write_saved, floor_saved),
    "jsonl": Layout(write_json_lines, floor_json, steps=1_000_000),
    "csv": Layout(write_csv, floor_csv, steps=1_000_000),
    "tar": Layout(write_tar, floor_tar, steps=100_000),
    "lerobot": Layout(write_lerobot, floor_parquet),
    "jat": Layout(write_jat, floor_parquet),
    "d4rl": Layout(write_d4rl, floor_hdf5),
    "d4rl-plain": Layout(write_plain_d4rl, floor_hdf5),
    "minari": Layout(write_minari, floor_hdf5, steps=1_000_000),
    "act": Layout(write_act, floor_hdf5),
    "isaac-lab": Layout(write_isaac_lab, floor_hdf5, steps=1_000_000),
    "tree": Layout(write_tree, floor_hdf5, steps=1_000_000),
    "zarr": Layout(write_zarr, floor_zarr),
    "ogbench": Layout(write_ogbench, floor_archives),
    "stable-baselines3": Layout(write_stable_baselines3, floor_archives, steps=2_000_000),
    "d3rlpy": Layout(write_d3rlpy, floor_hdf5, steps=1_000_000),
    "dqn-replay": Layout(write_dqn_replay, floor_gzip, steps=60_000),
    "calvin": Layout(write_calvin, floor_npz, steps=1000),
    "vd4rl": Layout(write_vd4rl, floor_hdf5, steps=15_030),
}

#: Target ratios: to the floor's throughput on one core, and of two cores to one core.
TARGET, TARGET_TWO_CORES = 0.5, 1.6
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
        make(steps * TIMES_FOR_TWO_CORES)
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
        "6x: 1 core s",
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
    print(f"Ratios to the floor (target {TARGET}) and to one core (target {TARGET_TWO_CORES}).")
