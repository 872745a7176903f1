"""Datasets that feed tests share. Helper modules here go by their own names, also in spawned workers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

import feed_data

import gear_data

# Compiling a kernel at the first example would break any deadline; the same examples in every run.
settings.register_profile("feed", deadline=None, derandomize=True)
settings.load_profile("feed")


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Tests fork DataLoader workers and start threads of their own; torch's pool would fight them for cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


Make = Callable[..., gear_data.Dataset]


@pytest.fixture
def make_dataset(tmp_path: Path) -> Make:
    """make_dataset(episodes, **convert options) -> a converted dataset, opened."""
    count = 0

    def make(episodes: Sequence[Mapping[str, Any]], **options: Any) -> gear_data.Dataset:
        nonlocal count
        count += 1
        return feed_data.convert_episodes(episodes, tmp_path / f"dataset-{count}", **options)

    return make


@pytest.fixture(scope="session")
def episodes() -> list[dict[str, np.ndarray]]:
    """Nine episodes of 1 to 40 steps with observations, actions and rewards, float32, every number another."""
    return feed_data.locomotion([7, 1, 23, 40, 2, 20, 19, 21, 5], seed=11)


@pytest.fixture(scope="session")
def dataset(episodes: list[dict[str, np.ndarray]], tmp_path_factory: pytest.TempPathFactory) -> gear_data.Dataset:
    """`episodes`, converted, in several shards."""
    opened = feed_data.convert_episodes(episodes, tmp_path_factory.mktemp("feed") / "dataset", shard_bytes=1024)
    assert opened.episodes["shard"].n_unique() > 2
    return opened
