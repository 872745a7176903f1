"""Compiling of all kernels into Numba's cache, for `gear-data doctor --warm`.

A kernel is compiled for the types of its arguments. So each step uses a loader on a small dataset, as training does.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import gear_data
from gear_data.common.private_folder import scratch_folder
from gear_data.common.progress import progress_bar
from gear_data.kernels import cpu
from gear_data.kernels.output_plan import KIND_CONVERT, KIND_DISCOUNTED, OUT_TYPES, OUTPUT_PLAN, SOURCE_TYPES

_EPISODES, _STEPS = 6, 12


def warm_kernels(progress: bool | None = None) -> float:
    """Compiles the kernels that are not in the cache yet, and returns the seconds.

    Args:
        progress: show a progress bar; None shows one on a terminal.
    """
    start = time.perf_counter()
    with scratch_folder() as folder:
        gear_data.convert(list(_episodes()), folder / "dataset", progress=False)
        dataset = gear_data.open(folder / "dataset")
        with progress_bar(len(_WORK), "compile", "step", progress) as bar:
            for name, work in _WORK.items():
                bar.set_text(name)
                bar.update(0)
                work(dataset)
                bar.update(1)
    return time.perf_counter() - start


def _episodes() -> Iterator[dict[str, Any]]:
    generator = np.random.default_rng(0)
    for _ in range(_EPISODES):
        yield {
            "observations": generator.normal(size=(_STEPS + 1, 3)).astype(np.float32),
            "actions": generator.normal(size=(_STEPS, 2)).astype(np.float32),
            "rewards": np.ones(_STEPS, np.float32),
            "terminated": True,
            "text": ["a"] * _STEPS,
        }


def _feed(dataset: Any, **options: Any) -> gear_data.SequenceLoader:
    """Returns a loader after one batch."""
    columns = {} if "preset" in options else {"preset": "raw"}
    loader = gear_data.SequenceLoader(dataset, 4, prefetch=0, seed=1, **{"context": 4, **columns, **options})
    next(iter(loader))
    return loader


def _conversions(dataset: gear_data.Dataset) -> None:
    """Compiles conversions of columns to the dtypes of batches. Half precision and discounts are of floats."""
    plan = np.zeros(1, OUTPUT_PLAN)
    for source, out in itertools.product(SOURCE_TYPES, OUT_TYPES):
        floats = source in ("float32", "float64")
        if floats or out in ("float32", "float64"):
            plan["source_type"], plan["out_type"] = SOURCE_TYPES.index(source), OUT_TYPES.index(out)
            for kind in (KIND_CONVERT, KIND_DISCOUNTED) if floats else (KIND_CONVERT,):
                plan["kind"] = kind
                cpu.collect.link(plan)


def _weights(dataset: gear_data.Dataset) -> None:
    _feed(dataset, sampler=gear_data.Weighted("return", replacement=False))
    loader = _feed(dataset, sampler=gear_data.Weighted("return"))
    loader.update_weights(np.arange(2), np.ones(2))
    next(iter(loader))


#: Name of the work, for the progress bar -> work that compiles kernels.
_WORK: dict[str, Callable[[gear_data.Dataset], object]] = {
    "windows and batches": lambda ds: _feed(ds, preset="decision_transformer", normalize=True),
    "conversions": _conversions,
    "transitions": lambda ds: _feed(ds, preset="transitions", context=1),
    "text": lambda ds: _feed(ds),
    "returns": lambda ds: _feed(ds.with_discount(0.9), preset="decision_transformer"),
    "half precision": lambda ds: _feed(
        ds, preset="decision_transformer", batch=gear_data.BatchOptions(dtype="bfloat16")
    ),
    "weights": _weights,
    "top k": lambda ds: _feed(ds, sampler=gear_data.TopK("return", 2)),
    "fifo": lambda ds: _feed(ds, sampler="fifo"),
    "shuffle": lambda ds: _feed(ds, sampler="shuffle"),
    "step filters": lambda ds: [_feed(ds.filter_steps("rewards > 0", mode=mode)) for mode in ("first", "all")],
    "stacks": lambda ds: _feed(ds, batch=gear_data.BatchOptions(stack={"infos.all": ["observations"]})),
    "strides": lambda ds: _feed(ds, windows=gear_data.WindowOptions(stride=2, anchor="end")),
    "splits": lambda ds: ds.split({"a": 0.5, "b": 0.5}),
    "goals": lambda ds: _feed(ds, goals=gear_data.Goals()),
    "mixtures": lambda ds: _feed(gear_data.Mixture([(ds, 0.5), (ds, 0.5)])),
}
