"""Small datasets for tests, converted from Parquet with one row per episode."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import gear_data
from gear_data.selection.samplers import Fifo, Shuffle, TopK, Uniform, Weighted
from tests.support.running.warm_python import python


def nested(values: np.ndarray, offsets: np.ndarray) -> pa.Array:
    """Cuts values [steps, *shape] into episodes: list<list<...>>.

    The lists have variable length, as writers make them.
    """
    array = pa.array(np.ascontiguousarray(values).reshape(-1))
    count = values.size
    for width in reversed(values.shape[1:]):
        count //= width
        array = pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * width), array)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), array)


def write_episodes(episodes: Sequence[Mapping[str, np.ndarray]], path: Path) -> None:
    """episodes: each column name -> [T, *shape]."""
    lengths = [len(next(iter(episode.values()))) for episode in episodes]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    names = list(episodes[0])
    columns = {name: nested(np.concatenate([episode[name] for episode in episodes]), offsets) for name in names}
    pq.write_table(pa.table(columns), path)


def convert_episodes(episodes: Sequence[Mapping[str, np.ndarray]], folder: Path, **options: Any) -> gear_data.Dataset:
    folder.parent.mkdir(parents=True, exist_ok=True)
    source = folder.with_suffix(".parquet")
    write_episodes(episodes, source)
    gear_data.convert(source, folder, progress=False, **{"format": "episode-rows", **options})
    return gear_data.open(folder)


def convert_parts(parts: Sequence[Sequence[Mapping[str, np.ndarray]]], folder: Path) -> gear_data.Dataset:
    """Converts a file of each part into one dataset. A part may lack columns, which its episodes then do not have."""
    folder.mkdir(parents=True)
    sources = [folder / f"{number}.parquet" for number in range(len(parts))]
    for episodes, source in zip(parts, sources, strict=True):
        write_episodes(episodes, source)
    gear_data.convert(sources, folder / "dataset", format="episode-rows", progress=False)
    return gear_data.open(folder / "dataset")


def locomotion(lengths: Sequence[int], seed: int, observations: int = 4, actions: int = 3) -> list[dict[str, Any]]:
    """Episodes of random float32 observations, actions and rewards."""
    rng = np.random.default_rng(seed)
    return [
        {
            "observations": rng.normal(3.0, 2.0, (length, observations)).astype(np.float32),
            "actions": rng.uniform(-1, 1, (length, actions)).astype(np.float32),
            "rewards": rng.normal(1.0, 5.0, length).astype(np.float32),
        }
        for length in lengths
    ]


#: Steps of the episodes of `shared_out`.
SHARED_OUT_LENGTHS = [7, 1, 23, 40, 2, 20, 19, 21, 5, 9]


def shared_out(folder: Path) -> Path:
    """A dataset in several shards, for several nodes to hold."""
    convert_episodes(locomotion(SHARED_OUT_LENGTHS, seed=21), folder, shard_bytes=1024)
    return folder


#: Every kind of sampler.
EVERY_SAMPLER = {
    "uniform": Uniform(),
    "uniform-episode": Uniform(by="episode"),
    "weighted": Weighted("length + 1"),
    "weighted-step": Weighted("length", by="step"),
    "topk": TopK("length", 1),
    "fifo": Fifo(),
    "shuffle": Shuffle(),
}


def run_two_ranks(script: Path, dataset: Path, folder: Path) -> None:
    """Runs both ranks of `script DATASET OUT STORE RANK WORLD_SIZE`.

    They write to `out-RANK...` in the folder.
    """
    arguments = [python(), script, dataset, folder / "out", folder / "store"]
    processes = [subprocess.Popen([*map(str, arguments), str(rank), "2"]) for rank in range(2)]
    try:
        assert [process.wait(timeout=500) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()


def add_noise(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A transform that spawned workers can import."""
    import torch

    batch["noise"] = torch.from_numpy(rng.normal(size=2))
    return batch


_calls = 0


def fail_at_step_3(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """In one worker without prefetching, the fourth call is step 3's."""
    global _calls
    _calls += 1
    if _calls == 4:
        raise OSError("transform broke")
    return batch


def lengths_of_passes(loader, pipe):
    """Runs in a separate training process, as launchers fork or spawn them."""
    pipe.send([sum(1 for _ in loader) for _ in range(2)])
