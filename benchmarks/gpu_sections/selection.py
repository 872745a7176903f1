"""Section (d): windows drawn on the GPU, from 10^4 to 10^8 episodes.

The integers must equal the CPU's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import DeviceMemoryError
from gear_data.kernels.cuda import launch_arguments as launches
from gear_data.kernels.window_plan import WITHIN_DRAWN, WITHIN_OFFSET, WITHIN_QUOTIENT
from gear_data.selection.anchors import Anchors
from gear_data.selection.integer_weights import int_weight_prefix, int_weight_scale
from gear_data.selection.prefix_table import PrefixTable
from gear_data.selection.samplers.fifo_shuffle import Permuted
from gear_data.selection.window_sampler import WindowSampler
from gear_data.selection.windows import WindowRule
from gpu_sections.collection import rows_of
from gpu_sections.device import Gpu
from gpu_sections.report import Row, Section

EPISODES = (10**4, 10**6, 10**8)
DRAWS = (4096, 10**6)
KINDS = ("uniform by step", "weighted by episode", "weighted by step")
#: The target: weighted draws, episodes, and seconds.
TARGET = (10**6, 10**8, 1e-3)
SEED, CONTEXT, STEPS = 3, 20, 4


def selection(gpu: Gpu, empty: float, quick: bool, left: Callable[[], float]) -> Section:
    """Measures draws."""
    section = Section([])
    for episodes in EPISODES[:2] if quick else EPISODES:
        # The CPU sets up the largest table slowly.
        if left() < 10 + episodes / 2e6:
            section.left_out.append(f"{episodes:,} episodes")
            continue
        try:
            section.rows += _measure(gpu, episodes, empty)
        except (MemoryError, DeviceMemoryError) as error:
            section.left_out.append(f"{episodes:,} episodes ({str(error).splitlines()[0]})")
    return section


def _measure(gpu: Gpu, episodes: int, empty: float) -> list[Row]:
    rng = np.random.default_rng(0)
    anchors = Anchors(rng.integers(1, 1001, episodes), None, None, None, WindowRule(CONTEXT))
    weights = rng.random(episodes)
    rows = []
    for kind in KINDS:
        with gpu.scope():
            rows += _kind(gpu, kind, anchors, weights, empty)
    with gpu.scope():
        rows.append(_permuted(gpu, anchors, empty))
    return rows


def make_sampler(kind: str, anchors: Anchors, weights: npt.NDArray[np.float64]) -> WindowSampler:
    if kind == "uniform by step":
        return WindowSampler(anchors, PrefixTable(anchors.prefix), SEED, 1, WITHIN_OFFSET)
    by_step = kind == "weighted by step"
    scale = int_weight_scale(weights, anchors.prefix, by_step)
    table = PrefixTable(int_weight_prefix(weights, anchors.prefix, by_step, scale))
    within = WITHIN_QUOTIENT if by_step else WITHIN_DRAWN
    return WindowSampler(anchors, table, SEED, 1, within, probability=True)


def put_plan(gpu: Gpu, sampler: WindowSampler) -> int:
    """Copies a window sampler's plan and its arrays to the GPU, each array once.

    Returns the plan's address.
    """
    places: dict[tuple[int, int], int] = {}
    addresses = {}
    for field, array in sampler.arrays.items():
        key = array.ctypes.data, array.nbytes
        if key not in places:
            places[key] = gpu.put(array)
        addresses[field] = places[key]
    return gpu.put(sampler.plan_at(addresses))


def _kind(gpu: Gpu, kind: str, anchors: Anchors, weights: Any, empty: float) -> list[Row]:
    sampler = make_sampler(kind, anchors, weights)
    plan, rows = put_plan(gpu, sampler), sampler.rows
    sampler.draw(0, DRAWS[0])  # the first call compiles
    found = []
    for count in DRAWS:
        out = gpu.device(8 * rows * count)
        begun = time.perf_counter()
        expected = sampler.draw(0, count)
        on_cpu = time.perf_counter() - begun
        launches.draw_windows(gpu, plan, launches.Slots.of_batch(0, count), out, rows)
        wanted = rows_of(expected)
        if expected.probability is not None:
            wanted = np.concatenate([wanted, expected.probability.view(np.int64)[None]])
        _check(gpu, out, wanted, f"{kind}, {len(anchors):,} episodes")
        calls = [
            lambda slots=slots, out=out: launches.draw_windows(gpu, plan, slots, out, rows)
            for slots in [launches.Slots.of_batch(step, count) for step in range(STEPS)]
        ]
        seconds = gpu.seconds(calls)
        limit = TARGET[2] if (count, len(anchors)) == TARGET[:2] and rows == 4 else None
        found.append(_row(f"{kind}, {count:,} of {len(anchors):,}", seconds, empty, on_cpu, limit))
    return found


def _permuted(gpu: Gpu, anchors: Anchors, empty: float) -> Row:
    """Measures a batch of an epoch without replacement."""
    count, total = DRAWS[-1], anchors.total
    out = gpu.device(8 * count)
    first, order = total - count, Permuted(SEED, total)
    order(0, first, 1)  # the first call compiles
    begun = time.perf_counter()
    expected = order(0, first, count)
    on_cpu = time.perf_counter() - begun

    def call() -> None:
        launches.permuted(gpu, SEED, 0, first, total, out, count)

    call()
    _check(gpu, out, expected, f"shuffle of {total:,}")
    name = f"shuffle, {count:,} of {total:,} steps"
    return _row(name, gpu.seconds([call]), empty, on_cpu, None)


def _check(gpu: Gpu, out: int, expected: npt.NDArray[np.int64], what: str) -> None:
    if not np.array_equal(gpu.get(out, expected.shape, np.int64), expected):
        raise RuntimeError(f"{what}: the GPU's integers are not the CPU's")


def _row(name: str, seconds: float, empty: float, on_cpu: float, limit: float | None) -> Row:
    values: dict[str, float | str | None] = {
        "us": seconds * 1e6,
        "empty launches": seconds / empty,
        "CPU us": on_cpu * 1e6,
        "us at most": None if limit is None else limit * 1e6,
    }
    return Row(name, values, None if limit is None else seconds / limit, None if limit is None else 1.0, at_most=True)
