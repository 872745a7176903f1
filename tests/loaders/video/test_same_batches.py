"""The same frames from any number of ranks and workers, any prefetch, and after resuming."""

from __future__ import annotations

import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import gear_data
from gear_data import Mixture, SequenceLoader
from tests.support.cameras.filmed import FRONT, WRIST
from tests.support.feed.arguments import grouped

OPTIONS: dict[str, Any] = {
    "batch_size": 6, "context": 3, "seed": 9, "preset": "lerobot", "sampler": "shuffle", "steps": 5,
    "offsets": {FRONT: [-3, 0]}, "columns": ["actions", FRONT, WRIST],
}  # fmt: skip


def copies(batches: Any) -> list[dict[str, torch.Tensor]]:
    return [{key: value.clone() for key, value in batch.items()} for batch in batches]


def same(got: list[dict[str, torch.Tensor]], expected: list[dict[str, torch.Tensor]]) -> None:
    assert len(got) == len(expected) > 0
    for one, other in zip(got, expected, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in other)


@pytest.fixture(scope="module")
def expected(filmed: Any) -> list[dict[str, torch.Tensor]]:
    return copies(
        SequenceLoader(gear_data.open(filmed.path), **grouped(prefetch=0, cache_bytes=0, threads=1, **OPTIONS))
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prefetch": 5},
        {"prefetch": 4, "batches_at_once": 3},
        {"prefetch": 1, "threads": 3, "cache_bytes": 50000},
    ],
    ids=str,
)
def test_any_prefetch_and_threads(dataset: Any, expected: Any, options: dict[str, Any]) -> None:
    loader = SequenceLoader(dataset, **grouped(**OPTIONS, **options))
    held = list(loader)  # frames of a batch that is held stay as they are
    same(held, expected)
    same(copies(SequenceLoader(dataset, **grouped(**OPTIONS, **options))), expected)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks(dataset: Any, expected: Any, world_size: int) -> None:
    ranks = [
        copies(SequenceLoader(dataset, **grouped(rank=rank, world_size=world_size, **OPTIONS)))
        for rank in range(world_size)
    ]
    joined = [{key: torch.cat([part[key] for part in parts]) for key in parts[0]} for parts in zip(*ranks, strict=True)]
    same(joined, expected)


@pytest.mark.processes
@pytest.mark.parametrize(("workers", "method"), [(1, "fork"), (3, "fork"), (1, "spawn")])
@pytest.mark.usefixtures("quick_spawn")
def test_workers(dataset: Any, expected: Any, workers: int, method: str) -> None:
    loader = SequenceLoader(dataset, **grouped(**OPTIONS))
    if method == "fork":
        loader.batch(0)  # the parent has decoded, and has threads
    same(copies(loader.dataloader(workers, multiprocessing_context=method)), expected)


def test_any_step_from_threads(dataset: Any, expected: Any) -> None:
    loader = SequenceLoader(dataset, **grouped(**OPTIONS))
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(loader.batch, [3, 0, 4, 1, 2] * 2))
    same([found[i] for i in (1, 3, 4, 0, 2)], expected)
    same([found[i] for i in (6, 8, 9, 5, 7)], expected)


def test_resuming(dataset: Any, expected: Any) -> None:
    loader = SequenceLoader(dataset, **grouped(**OPTIONS))
    same(copies(itertools.islice(loader, 2)), expected[:2])
    state = loader.state_dict()
    # Another size of frames, and another number of threads, change no window.
    other = SequenceLoader(dataset, **grouped(resize=(8, 8), threads=1, **OPTIONS))
    other.load_state_dict(state)
    assert torch.equal(next(iter(other))["action"], expected[2]["action"])
    again = pickle.loads(pickle.dumps(SequenceLoader(dataset, **grouped(rank=0, world_size=1, **OPTIONS))))
    again.load_state_dict(state)
    same(copies(again), expected[2:])


def test_passes(dataset: Any) -> None:
    def loader(**options: Any) -> SequenceLoader:
        return SequenceLoader(dataset, **grouped(**{**OPTIONS, "steps": None, **options}))

    short = loader(epochs=1)
    first, second = copies(short), copies(short)
    rows = [len(batch["action"]) for batch in first]
    assert rows[-1] < 6
    assert sum(rows) == dataset.num_steps
    assert not torch.equal(first[0][FRONT], second[0][FRONT])
    parts = [copies(loader(epochs=1, rank=rank, world_size=3)) for rank in range(3)]
    for batch, *own in zip(first, *parts, strict=True):
        assert torch.equal(torch.cat([part[FRONT] for part in own]), batch[FRONT])


@pytest.mark.parametrize("join", [True, False])
def test_mixtures_of_sizes(dataset: Any, join: bool) -> None:
    def both(**options: Any) -> SequenceLoader:
        parts = Mixture([(dataset, 1), (dataset.filter("length > 3"), 1)], join=join)
        return SequenceLoader(parts, 6, **grouped(preset="lerobot", steps=3, resize=(16, 24), **options))

    whole = copies(both(prefetch=3))
    ranks = [copies(both(rank=rank, world_size=2)) for rank in range(2)]
    for batch, *own in zip(whole, *ranks, strict=True):
        assert batch[FRONT].shape == (6, 3, 16, 24)
        assert torch.equal(torch.cat([part[FRONT] for part in own]), batch[FRONT])


def test_other_frameworks(dataset: Any, expected: Any) -> None:
    for framework in ("numpy", "jax"):
        arrays = SequenceLoader(dataset, **grouped(framework=framework, window_ids=True, **OPTIONS))
        for batch, wanted in zip(arrays, expected, strict=True):
            assert np.array_equal(batch[FRONT], wanted[FRONT].numpy())
            assert (np.asarray(batch["episode_id"]) < len(dataset)).all()
    source = SequenceLoader(dataset, **grouped(framework="numpy", **OPTIONS)).as_grain_source()
    assert np.array_equal(source[3][WRIST], expected[3][WRIST].numpy())


def test_exported_batches(dataset: Any, expected: Any, tmp_path: Any) -> None:
    gear_data.export_batches(SequenceLoader(dataset, **grouped(**OPTIONS)), tmp_path / "out", batches=2, format="npz")
    with np.load(next(iter(sorted((tmp_path / "out").glob("*.npz"))))) as saved:
        assert np.array_equal(saved[FRONT], expected[0][FRONT].numpy())
