"""Batches of loaders by sampler, beside the uniform sampler; see selection.py."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import figure, format_table
from sparse_dataset import SPARSE, write_sparse_dataset

BATCH, CONTEXT = 256, 20
#: Steps of an average episode: few, so that drawing the windows counts beside copying their steps.
AVERAGE_STEPS = 5
#: The most that a sampler may take, relative to the uniform one; and microseconds that an update may add to the batch.
RATIO_TARGET, UPDATE_TARGET = 1.15, 20
#: Batches of a stretch, and weights that one update changes.
BATCHES = 20
CHANGES = (1, 256)


def measure_loaders(episodes: int, rounds: int, scratch: Path | None) -> dict[str, Any]:
    """Returns the microseconds of batches, prefetch=0, and of updates of weights.

    The loaders take turns in one process. A round measures a stretch of batches of each. Ratios are of one round, and
    all figures are medians over the rounds.
    """
    import polars as pl

    import gear_data
    from gear_data.selection.samplers import TopK, Weighted

    with tempfile.TemporaryDirectory(prefix="gear-bench-", dir=scratch) as name:
        write_sparse_dataset(Path(name), episodes, AVERAGE_STEPS)
        ds = gear_data.open(Path(name) / SPARSE)
        _touch(ds)
        value = pl.col("return") + 1
        mixture = gear_data.Mixture([(ds, 0.7), (ds, 0.3)])
        cases: dict[str, tuple[Any, Any]] = {
            "uniform": (ds, "uniform"),
            "weighted": (ds, Weighted(value)),
            "weighted by step": (ds, Weighted(value, by="step")),
            "topk, a tenth": (ds, TopK(value, max(1, episodes // 10))),
            "shuffle": (ds, "shuffle"),
            "weighted mixture": (mixture, Weighted(value)),
            "weighted, updated": (ds, Weighted(value)),
        }
        loaders = {
            # Other seeds: equal windows would be in the cache.
            name: gear_data.SequenceLoader(data, BATCH, context=CONTEXT, sampler=sampler, prefetch=0, seed=seed)
            for seed, (name, (data, sampler)) in enumerate(cases.items())
        }
        updated = loaders["weighted, updated"]
        updated.update_weights([0], [2.0])
        iterators = {name: iter(loader) for name, loader in loaders.items()}
        found: dict[str, list[float]] = {name: [] for name in cases}
        for number in range(-2, rounds):  # kernels and memory are warm after two rounds
            for name, iterator in iterators.items():
                seconds = _stretch(iterator)
                if number >= 0:
                    found[name].append(1e6 * seconds / BATCHES)
        samplers = [
            {
                "sampler": name,
                "us": statistics.median(own),
                "ratio": statistics.median(a / b for a, b in zip(own, found["uniform"], strict=True)),
            }
            for name, own in found.items()
        ]
        updates = [_measure_updates(updated, iterators, episodes, changes, rounds) for changes in CHANGES]
    return {"episodes": episodes, "samplers": samplers, "updates": updates}


def _touch(ds: Any) -> None:
    """Reads a byte of every page of the columns that batches read."""
    shards = np.flatnonzero(np.diff(ds.shards, prepend=-1)).tolist()
    for first, last in zip(shards, [*shards[1:], len(ds)], strict=True):
        for column in ds.schema.fixed_columns:
            ds.steps(column.name, first, last).view(np.uint8).reshape(-1)[::4096].max()


def _stretch(iterator: Iterator[Any]) -> float:
    """Returns the seconds of `BATCHES` batches, after one that loads the caches."""
    next(iterator)
    begun = time.perf_counter()
    for _ in range(BATCHES):
        next(iterator)
    return time.perf_counter() - begun


def _measure_updates(
    loader: Any, iterators: dict[str, Iterator[Any]], episodes: int, changes: int, rounds: int
) -> dict[str, int | float]:
    """Returns the microseconds of a batch without updates, of an update, and of the batch after it."""
    rng = np.random.default_rng(changes)
    times = []
    for _ in range(10 * rounds):
        rows, values = rng.integers(0, episodes, changes), rng.random(changes)
        next(iterators["weighted, updated"])
        marks = [time.perf_counter()]
        next(iterators["weighted"])
        marks.append(time.perf_counter())
        loader.update_weights(rows, values)
        marks.append(time.perf_counter())
        next(iterators["weighted, updated"])
        marks.append(time.perf_counter())
        times.append(np.diff(marks))
    plain, update, after = (1e6 * np.median(times, axis=0)).tolist()
    return {"changes": changes, "batch_us": plain, "update_us": update, "batch_after_us": after}


def ratios_text(found: dict[str, Any]) -> str:
    """Returns two tables: of samplers, and of updates."""
    samplers = [
        [each["sampler"], figure(each["us"]), f"{each['ratio']:.2f}", f"{RATIO_TARGET:.2f}"]
        for each in found["samplers"]
    ]
    updates = [
        [
            f"{each['changes']}", figure(each["batch_us"]), figure(each["update_us"]), figure(each["batch_after_us"]),
            f"{each['update_us'] + each['batch_after_us'] - each['batch_us']:+.0f}", f"+{UPDATE_TARGET}",
        ]
        for each in found["updates"]
    ]  # fmt: skip
    return "\n\n".join(
        [
            f"batches of {BATCH} x {CONTEXT}, prefetch=0, {found['episodes']:,} episodes",
            format_table(["sampler", "us", "ratio to uniform", "target"], samplers),
            format_table(
                ["changed weights", "batch, us", "update, us", "batch after it, us", "added", "target"], updates
            ),
        ]
    )
