"""Helpers for tests of exports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import gear_data

#: Format -> name of a destination that it takes, and further arguments.
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "parquet": ("out", {}),
    "d4rl": ("out.hdf5", {}),
    "npz": ("out.npz", {}),
    "minari": ("out-v0", {}),
    "lerobot": ("out", {"fps": 50}),
}


def concatenated(rollouts: Sequence[Any], name: str) -> np.ndarray[Any, Any]:
    return np.concatenate([rollout.columns[name] for rollout in rollouts])


def convert_rollouts(
    tmp_path: Path, sources: Any, rollouts: Sequence[Any], *, final: bool = True, **metadata: Any
) -> Any:
    """Converts rollouts to a dataset of several shards, through Parquet."""
    if final:
        metadata["final_observations"] = pa.array([r.final.tolist() for r in rollouts], pa.list_(pa.float32()))
    source = sources.write_episodes(tmp_path / "source.parquet", rollouts, **metadata)
    gear_data.convert(source, tmp_path / "dataset", shard_bytes=2048, keep_encoded=True, progress=False)
    return gear_data.open(tmp_path / "dataset")


def wide_rollouts(sources: Any, count: int = 12, **more: Any) -> list[Any]:
    """Returns rollouts with unusual kinds of columns."""
    rng = np.random.default_rng(11)
    return [
        r.with_columns(
            **{
                "actions": rng.normal(size=(len(r), 1)),
                "infos.flag": rng.random((len(r), 2)) < 0.5,
                "infos.half": rng.normal(size=len(r)).astype(np.float16),
                "infos.count": rng.integers(-(2**62), 2**62, len(r)),
                "infos.picture": rng.integers(0, 256, (len(r), 2, 3, 1), dtype=np.uint8),
                **{name: make(rng, len(r)) for name, make in more.items()},
            }
        )
        for r in sources.make_rollouts(count, seed=3)
    ]


def export_to(ds: Any, tmp_path: Path, format: str) -> Path:
    name, arguments = FORMATS[format]
    gear_data.export(ds, tmp_path / name, format, progress=False, **arguments)
    return tmp_path / name


def convert_again(path: Path, tmp_path: Path) -> Any:
    gear_data.convert(path, tmp_path / "again", keep_encoded=True, progress=False)
    return gear_data.open(tmp_path / "again")


def minari_dataset(path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(path.parent))
    return minari.load_dataset(path.name)
