"""Checks that a SequenceLoader on a GPU gives the CPU's batches, byte for byte."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
import torch

import gear_data
from gear_data import Goals, Mixture, Seconds, SequenceLoader
from gear_data.loaders.presets.outputs import PRESETS
from gear_data.selection.samplers import Weighted
from tests.support.feed import data as feed_data
from tests.support.feed import variable as variable_data
from tests.support.feed.arguments import grouped
from tests.support.feed.data import EVERY_SAMPLER


class GpuUnderTest(Protocol):
    """A device, and the stream of a consumer there."""

    def read(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Copies a batch's tensors in the consumer's stream."""

    def finish(self) -> None:
        """Waits for all streams."""


OPTIONS: dict[str, Any] = {"batch_size": 8, "context": 9, "seed": 3}
STEPS = 20
#: Columns of every kind: rows of many sizes, integers, booleans, half precision.
LENGTHS = [7, 1, 23, 40, 2, 20, 19, 21, 5]


def episodes(seed: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    made = feed_data.locomotion(LENGTHS, seed)
    for episode in made:
        length = len(episode["rewards"])
        episode["observations.image"] = rng.integers(0, 256, (length, 5, 3), np.uint8)
        episode["infos.half"] = rng.normal(0, 1, (length, 7)).astype(np.float16)
        episode["infos.count"] = rng.integers(-9, 9, length)
        episode["infos.flag"] = rng.integers(0, 2, (length, 3)).astype(np.bool_)
    return made


def convert(seed: int, path: Path) -> Path:
    if not path.exists():
        feed_data.convert_episodes(episodes(seed), path, shard_bytes=2048)
    return path


def tiered(path: Path) -> gear_data.Dataset:
    """Returns a plan with a third of the bytes in each tier."""
    ds = gear_data.open(path)
    third = ds.num_steps * sum(column.row_bytes for column in ds.schema.fixed_columns) // 3
    plan = ds.residency_plan(third, third, sampler="uniform")
    assert all(plan.bytes(tier) > third // 2 for tier in ("device", "pinned", "disk"))
    return ds.place(plan)


RESIDENCIES: dict[str, Callable[[Path], gear_data.Dataset]] = {
    "mmap": gear_data.open,
    "pinned": lambda path: gear_data.open(path, residency="pinned"),
    "device": lambda path: gear_data.open(path, residency="device"),
    "tiered": tiered,
}


def copies(loader: SequenceLoader, steps: int = STEPS) -> list[dict[str, Any]]:
    """Returns the first batches, collected on the CPU."""
    return [
        {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in batch.items()}
        for batch in itertools.islice(loader, steps)
    ]


def from_device(gpu: GpuUnderTest, loader: SequenceLoader, steps: int = STEPS) -> list[dict[str, Any]]:
    """Returns the first batches, as a training step on the device reads them.

    The iterator's memory is free afterwards.
    """
    batches: Any = iter(loader)
    got = [gpu.read(batch) for batch in itertools.islice(batches, steps)]
    batches.close()
    gpu.finish()
    return got


def on_gpu(dataset: Any, **options: Any) -> SequenceLoader:
    return SequenceLoader(dataset, **grouped(**{**OPTIONS, "device": "cuda", "backend": "cuda", **options}))


def same(got: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(got) == len(expected) > 0
    for step, (one, other) in enumerate(zip(got, expected, strict=True)):
        assert one.keys() == other.keys()
        for key, value in other.items():
            if not isinstance(value, torch.Tensor):
                assert one[key] == value
                continue
            assert (one[key].dtype, one[key].shape) == (value.dtype, value.shape), key
            # Compared by bytes, because of NaN.
            assert _bytes(one[key]) == _bytes(value), (step, key)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def check(gpu: GpuUnderTest, path: Path, residency: str, **options: Any) -> None:
    expected = copies(SequenceLoader(gear_data.open(path), **grouped(**{**OPTIONS, **options})))
    same(from_device(gpu, on_gpu(RESIDENCIES[residency](path), **options)), expected)


CASES: dict[str, dict[str, Any]] = {
    "importance weights": {"sampler": Weighted("length + 1", beta=0.5, divide_by_max=True), "normalize": "quantiles"},
    "bfloat16": {"dtype": "bfloat16", "normalize": True},
    "float16": {"dtype": torch.float16, "columns": ["observations", "infos.half", "infos.count"]},
    "float64": {"dtype": "float64", "normalize": "infos.count"},
    "n-step": {"n_step": 5, "discount": 0.9},
    "discount": {"preset": "corl", "discount": 0.97},
    "offsets": {"preset": "lerobot", "offsets": {"observations": (-2, 3), "actions": (0, 50)}},
    "listed steps": {
        "preset": "lerobot",
        "offsets": {"observations": [-10, 0, -3], "actions": [0, 2, 5]},
        "prefetch": 5,
    },
    "times": {"offsets": {"actions": Seconds([-0.1, 0, 0.05, 0.1, 0.3], fill="hold", fps=10)}, "columns": ["actions"]},
    "listed transitions": {
        "preset": "transitions",
        "context": 1,
        "n_step": 2,
        "offsets": {"observations": [-3, 0]},
        "rank": 1,
        "world_size": 3,
    },
    "transitions": {
        "preset": "transitions",
        "context": 1,
        "n_step": 3,
        "discount": 0.9,
        "offsets": {"observations": (-2, 1)},
    },
    "transitions, marked": {
        "preset": "transitions",
        "context": 1,
        "dtype": "bfloat16",
        "normalize": True,
        "columns": ["next_infos.half"],
        "preset_options": {"transitions": {"missing_next": "mark"}},
    },
    "edges": {"preset": "jat", "columns": ["next_observations"], "anchor": "end"},
    "long context": {"context": 45, "preset_options": {"side": "left"}},
    "no short windows": {"short": False, "stride": 3, "anchor": "random"},
    "made when asked for": {"prefetch": 0},
    "deep": {"prefetch": 11},
    "large": {"batch_size": 300, "context": 40, "steps": 5},
    "window ids": {"window_ids": True, "rank": 1, "world_size": 3, "sampler": Weighted("length")},
    "window ids of all ranks": {"window_ids": True},
    "short last batch": {"sampler": "shuffle", "epochs": 1, "batch_size": 16},
    "goals": {"preset": "transitions", "context": 1, "goals": Goals(), "prefetch": 5},
    "goals of stacks": {
        "preset": "transitions",
        "context": 1,
        "goals": Goals(subgoal_steps=4),
        "offsets": {"observations": (-2, 1)},
        "dtype": "bfloat16",
        "normalize": True,
        "rank": 1,
        "world_size": 3,
    },
    "goals of windows": {"preset": "corl", "goals": Goals(goal_column="infos.half"), "anchor": "end"},
    "one rank of three": {"rank": 1, "world_size": 3, "sampler": "fifo", "epochs": 1},
}


class LoaderChecks:
    """Checks for the fixtures `gpu` and `folder`.

    `folder` is shared by all tests of a module.
    """

    @pytest.mark.parametrize("preset", [name for name in PRESETS if name != "gato" and not PRESETS[name].mapped])
    @pytest.mark.parametrize("residency", RESIDENCIES)
    def test_every_preset(self, gpu: GpuUnderTest, folder: Path, preset: str, residency: str) -> None:
        context = 1 if PRESETS[preset].transitions else OPTIONS["context"]
        check(gpu, convert(11, folder / "one"), residency, preset=preset, context=context)

    @pytest.mark.parametrize("sampler", EVERY_SAMPLER)
    @pytest.mark.parametrize("residency", ["device", "tiered"])
    def test_every_sampler(self, gpu: GpuUnderTest, folder: Path, sampler: str, residency: str) -> None:
        if sampler.startswith(("weighted", "topk")):
            pytest.importorskip("polars")
        check(gpu, convert(11, folder / "one"), residency, sampler=EVERY_SAMPLER[sampler])

    @pytest.mark.parametrize("sampler", ["shuffle", "fifo"])
    def test_many_windows_in_an_order(self, gpu: GpuUnderTest, folder: Path, sampler: str) -> None:
        """With 2^16 windows and more, a permutation is computed by position."""
        path = folder / "many"
        if not path.exists():
            feed_data.convert_episodes(feed_data.locomotion([700] * 100, seed=5, observations=1), path)
        options: dict[str, Any] = {
            "sampler": sampler,
            "batch_size": 128,
            "context": 2,
            "columns": ["actions"],
            "steps": 549,
        }
        loaders = (
            SequenceLoader(gear_data.open(path), **grouped(**{**OPTIONS, **options})),
            on_gpu(gear_data.open(path, residency="device"), **options),
        )
        for loader in loaders:
            # The epoch ends in the third of these batches.
            loader.load_state_dict({**loader.state_dict(), "step": 544})
        same(from_device(gpu, loaders[1]), copies(loaders[0]))

    def test_no_episode_twice(self, gpu: GpuUnderTest, folder: Path) -> None:
        pytest.importorskip("polars")
        check(gpu, convert(11, folder / "one"), "device", sampler=Weighted("length", replacement=False))

    @pytest.mark.parametrize("case", CASES)
    @pytest.mark.parametrize("residency", ["device", "tiered"])
    def test_every_option(self, gpu: GpuUnderTest, folder: Path, case: str, residency: str) -> None:
        check(gpu, convert(11, folder / "one"), residency, **CASES[case])

    @pytest.mark.parametrize("sampler", ["fifo", "shuffle"])
    def test_later_passes(self, gpu: GpuUnderTest, folder: Path, sampler: str) -> None:
        """The last batch of a pass is short, so later passes begin elsewhere than at whole batches."""
        path = convert(11, folder / "one")
        options = {"sampler": sampler, "epochs": 1, "batch_size": 16, "steps": None, "prefetch": 3}
        on_cpu = SequenceLoader(gear_data.open(path), **grouped(**{**OPTIONS, **options}))
        loader = on_gpu(gear_data.open(path, residency="device"), **options)
        for _ in range(3):
            same(from_device(gpu, loader, len(loader)), copies(on_cpu, len(on_cpu)))

    @pytest.mark.parametrize("parts", [(0, 0), (0, 1), (1, 0), (0.1, 0.5), (0.5, 0.1)])
    def test_every_budget(self, gpu: GpuUnderTest, folder: Path, parts: tuple[float, float]) -> None:
        path = convert(11, folder / "one")
        ds = gear_data.open(path)
        whole = ds.num_steps * sum(column.row_bytes for column in ds.schema.fixed_columns)
        device_bytes, host_bytes = (int(part * whole) for part in parts)
        options = {"columns": ["observations", "next_actions", "infos.half"], "n_step": 3, "normalize": True}
        expected = copies(SequenceLoader(ds, **grouped(**OPTIONS, **options)))
        placed = ds.place(
            ds.residency_plan(device_bytes, host_bytes, columns=["observations", "actions", "infos.half"])
        )
        same(from_device(gpu, on_gpu(placed, **options)), expected)

    @pytest.mark.parametrize("residency", RESIDENCIES)
    def test_final_observations(self, gpu: GpuUnderTest, rollouts_path: Path, residency: str) -> None:
        assert gear_data.open(rollouts_path).final(0) is not None
        columns = ["observations", "next_observations", "rewards"]
        check(gpu, rollouts_path, residency, columns=columns, batch_size=40, offsets={"observations": (-1, 4)})

    def test_views(self, gpu: GpuUnderTest, folder: Path) -> None:
        pytest.importorskip("polars")

        def view(ds: gear_data.Dataset) -> gear_data.Dataset:
            return ds.filter("length > 2").filter_steps("rewards > 0", mode="first")

        path = convert(11, folder / "one")
        expected = copies(SequenceLoader(view(gear_data.open(path)), **grouped(**OPTIONS)))
        for residency in ("device", "tiered"):
            same(from_device(gpu, on_gpu(view(RESIDENCIES[residency](path)))), expected)

    @pytest.mark.parametrize("goals", [None, Goals()])
    @pytest.mark.parametrize("join", [False, True])
    def test_mixtures(self, gpu: GpuUnderTest, folder: Path, join: bool, goals: Goals | None) -> None:
        pytest.importorskip("polars")

        def mixed(first: Any, second: Any) -> Mixture:
            return Mixture([(first, 2.0), (second, 1.0, {"sampler": Weighted("length")})], join=join)

        one, other = convert(11, folder / "one"), convert(12, folder / "other")
        on_cpu = SequenceLoader(mixed(gear_data.open(one), gear_data.open(other)), **grouped(goals=goals, **OPTIONS))
        expected = copies(on_cpu)
        loader = on_gpu(mixed(tiered(one), gear_data.open(other, residency="device")), goals=goals)
        same(from_device(gpu, loader), expected)
        for name in ("pad_fraction", "mixture", "windows", "batches"):
            assert loader.metrics()[name] == on_cpu.metrics()[name]

    def test_weights_that_change(self, gpu: GpuUnderTest, folder: Path) -> None:
        pytest.importorskip("polars")

        def run(loader: SequenceLoader, read: Callable[[Any], Any]) -> list[Any]:
            found = []
            for step, batch in enumerate(itertools.islice(loader, 50)):
                found.append(read(batch))
                if step == 5:
                    loader.update_weights([0, 1], [1000.0, 1000.0], from_step=40)
            return found

        path, sampler = convert(11, folder / "one"), Weighted("length")
        on_cpu = SequenceLoader(gear_data.open(path), **grouped(sampler=sampler, **OPTIONS))
        expected = run(on_cpu, lambda batch: {key: value.clone() for key, value in batch.items()})
        got = run(on_gpu(gear_data.open(path, residency="device"), sampler=sampler), gpu.read)
        gpu.finish()
        same(got, expected)
        assert got[-1]["weights_version"].tolist() == [1] * 8

    def test_metrics_are_those_of_the_cpu(self, gpu: GpuUnderTest, folder: Path) -> None:
        path = convert(11, folder / "one")
        loaders = SequenceLoader(gear_data.open(path), **grouped(steps=12, **OPTIONS)), on_gpu(tiered(path), steps=12)
        for loader in loaders:
            assert sum(1 for _ in loader) == 12
        expected, found = (loader.metrics() for loader in loaders)
        assert 0 < expected["pad_fraction"] < 1
        for name in ("batches", "windows", "pad_fraction"):
            assert found[name] == expected[name]

    def test_batches_that_are_kept_stay(self, gpu: GpuUnderTest, folder: Path) -> None:
        path = convert(11, folder / "one")
        expected = copies(SequenceLoader(gear_data.open(path), **grouped(**OPTIONS)))
        kept = list(itertools.islice(on_gpu(gear_data.open(path, residency="device")), STEPS))
        gpu.finish()
        same(kept, expected)

    def test_text_stays_a_list(self, gpu: GpuUnderTest, folder: Path) -> None:
        path = folder / "text"
        if not path.exists():
            variable_data.convert(variable_data.make_episodes(), path, names=(variable_data.TEXT,))
        expected = copies(SequenceLoader(gear_data.open(path), **grouped(**OPTIONS)))
        got = []
        for batch in itertools.islice(on_gpu(gear_data.open(path, residency="device")), STEPS):
            words = batch.pop(variable_data.TEXT)
            got.append({**gpu.read(batch), variable_data.TEXT: words})
        gpu.finish()
        same(got, expected)

    def test_the_cpu_still_reads_the_columns(self, gpu: GpuUnderTest, folder: Path) -> None:
        path = convert(11, folder / "one")
        plain = gear_data.open(path)
        for name in ("pinned", "device", "tiered"):
            ds = RESIDENCIES[name](path)
            assert ds.residency == name
            assert (ds.fingerprint, ds.num_steps) == (plain.fingerprint, plain.num_steps)
            np.testing.assert_array_equal(ds.steps("observations", 0, 9), plain.steps("observations", 0, 9))
            same(copies(SequenceLoader(ds, **grouped(**OPTIONS))), copies(SequenceLoader(plain, **grouped(**OPTIONS))))
