"""Packed rows beside padded batches of the same windows.

The dataset has episodes of 1 to 1,024 steps, all lengths as often, of Hopper's shape. Batches are of whole episodes,
and of windows of 20 steps. Rows have 4,096 steps. Padded batches have as many real steps, on average.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from common import progress, synthetic_episodes, write_parquet

import gear_data
from gear_data import SequenceLoader, WindowOptions
from mixing.joined import made_once

PACK = 4096
#: The most that a packed batch may cost, relative to a padded one, per real step; and the least share of real steps.
RATIO_TARGET, OCCUPANCY_TARGET = 1.2, 0.98
SAMPLERS = ("uniform", "shuffle")
BATCHES = 10


def make_dataset(folder: Path, steps: int) -> gear_data.Dataset:
    """Makes a dataset of episodes of 1 to PACK / 4 steps, all lengths as often, or opens that of an earlier run."""
    lengths = np.random.default_rng(1).permutation(np.tile(np.arange(1, PACK // 4 + 1), -(-steps // (1 << 19))))
    path = folder / f"packed-{steps}"

    def convert(path: Path) -> None:
        episodes = replace(synthetic_episodes(int(lengths.sum())), lengths=lengths)
        write_parquet(episodes, folder / "source.parquet")
        gear_data.convert(folder / "source.parquet", path, progress=False)

    made_once(path, convert)
    return gear_data.open(path, residency="host")


def pairs(ds: gear_data.Dataset, rows: int) -> dict[str, tuple[SequenceLoader, SequenceLoader]]:
    """Returns case -> loaders of padded and of packed batches, with as many real steps on average."""
    found = {}
    common: dict[str, Any] = {"prefetch": 0, "framework": "numpy"}
    longest = PACK // 4
    for sampler in SAMPLERS:
        mean = ds.num_steps / len(ds)
        padded = SequenceLoader(
            ds, round(rows * PACK / mean), context=longest, windows=WindowOptions(stride=longest), sampler=sampler,
            seed=1, **common,
        )  # fmt: skip
        packed = SequenceLoader(ds, rows, pack=PACK, sampler=sampler, seed=2, **common)
        found[f"episodes, {sampler}"] = padded, packed
    padded = SequenceLoader(ds, rows * PACK // 20, context=20, seed=1, **common)
    found["20 steps, uniform"] = padded, SequenceLoader(ds, rows, context=20, pack=PACK, seed=2, **common)
    return found


def stretch(iterator: Iterator[Any]) -> tuple[float, float]:
    """Returns the processor's nanoseconds per real step of some batches, and the share of real steps."""
    steps = next(iterator)["mask"].size * BATCHES
    # Seconds of the processor: other processes disturb them less.
    real, begun = 0, time.process_time()
    for _ in range(BATCHES):
        # Nothing keeps a batch: its memory is used again.
        real += int(next(iterator)["valid_count"].sum())
    return 1e9 * (time.process_time() - begun) / real, real / steps


def measure(ds: gear_data.Dataset, rows: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    results = []
    for count in rows:
        loaders = pairs(ds, count)
        iterators = {name: [iter(loader) for loader in pair] for name, pair in loaders.items()}
        found: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in loaders}
        for number in range(-2, rounds):  # kernels and memory are warm after two rounds
            progress(f"{count} rows: round {number + 1} of {rounds}")
            for name, pair in iterators.items():
                measured = [stretch(each) for each in pair]
                if number >= 0:
                    found[name].append(measured)
        progress("")
        for name, each in found.items():
            padded, packed = ([pair[side] for pair in each] for side in (0, 1))
            results.append(
                {
                    "case": name,
                    "rows": count,
                    "padded_ns": statistics.median(ns for ns, _ in padded),
                    "packed_ns": statistics.median(ns for ns, _ in packed),
                    "ratio": statistics.median(own[1][0] / own[0][0] for own in each),
                    "padded_real": statistics.mean(real for _, real in padded),
                    "packed_real": statistics.mean(real for _, real in packed),
                }
            )
    return results
