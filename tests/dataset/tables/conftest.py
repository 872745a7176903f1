"""A dataset in several shards with a column of each kind, and two cameras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from tests.support.cameras.filmed import Filmed, film


def mixed_episodes(count: int = 24) -> list[dict[str, Any]]:
    """Returns episodes with vectors, images, flags, text and bytes; every third has no final observation."""
    rng = np.random.default_rng(5)
    episodes = []
    for number in range(count):
        length = int(rng.integers(1, 9))
        episodes.append(
            {
                "observations": rng.normal(size=(length, 3)).astype(np.float32),
                "observations.image": rng.integers(0, 256, (length, 2, 4, 3), np.uint8),
                "actions": rng.integers(-5, 5, length),
                "rewards": rng.normal(size=length),
                "flags": rng.integers(0, 2, (length, 2)).astype(np.bool_),
                "halves": [list(row) for row in rng.normal(size=(length, 2)).astype(np.float16)],
                "said": [f"é{number}/{step}" * (step % 3) for step in range(length)],
                "raw": [bytes([number, step]) * step for step in range(length)],
                "final_observations": rng.normal(size=3).astype(np.float32) if number % 3 else None,
                "task": (None, "pick", "place")[number % 3],
                "terminated": np.arange(length) == length - 1,
                "truncated": np.zeros(length, np.bool_),
            }
        )
    return episodes


def _list(depth: int, value: pa.DataType) -> pa.DataType:
    return value if depth == 0 else pa.list_(_list(depth - 1, value))


#: Columns of a Parquet file with an episode a row.
_TYPES = {
    "observations": _list(2, pa.float32()),
    "observations.image": _list(4, pa.uint8()),
    "actions": _list(1, pa.int64()),
    "rewards": _list(1, pa.float64()),
    "flags": _list(2, pa.bool_()),
    "halves": _list(2, pa.float16()),
    "said": _list(1, pa.string()),
    "raw": _list(1, pa.binary()),
    "final_observations": _list(1, pa.float32()),
    "task": pa.string(),
    "terminated": _list(1, pa.bool_()),
    "truncated": _list(1, pa.bool_()),
}


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> gear_data.Dataset:
    folder = tmp_path_factory.mktemp("mixed") / "dataset"
    source = folder.with_suffix(".parquet")
    episodes = mixed_episodes()
    pq.write_table(
        pa.table({name: pa.array([_plain(e[name]) for e in episodes], type_) for name, type_ in _TYPES.items()}), source
    )
    assert gear_data.convert(source, folder, shard_bytes=2048, keep_encoded=True, progress=False).shards > 3
    return gear_data.open(folder)


@pytest.fixture(scope="module")
def filmed(sources: Any, tmp_path_factory: pytest.TempPathFactory) -> Filmed:
    folder: Path = tmp_path_factory.mktemp("filmed")
    rollouts = sources.make_rollouts(5, seed=2)
    gear_data.convert(sources.write_d4rl(folder / "source.hdf5", rollouts), folder / "dataset", shard_bytes=1024)
    return Filmed(folder / "dataset", film(folder / "dataset", [len(rollout) for rollout in rollouts]))
