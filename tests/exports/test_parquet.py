"""Parquet exports: `datasets` reads them, and they convert to an equal dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.errors import UnsupportedColumnError
from tests.support.source_makers import MAKERS


def test_parquet_is_read_by_datasets(rollouts: list[Any], rollouts_path: Path, tmp_path: Path) -> None:
    report = gear_data.export(gear_data.open(rollouts_path), tmp_path / "out")
    assert report.files == tuple(sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.p*")))
    files = [str(tmp_path / "out" / name) for name in report.files]
    loaded = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    assert len(loaded) == len(rollouts)
    assert "returns_to_go" not in loaded.column_names
    for row, rollout in zip(loaded, rollouts, strict=True):
        for name, values in rollout.columns.items():
            assert row[name] == values.tolist()
        assert row["final_observations"] == rollout.final.tolist()
    assert gear_data.convert(loaded, tmp_path / "again").fingerprint == gear_data.open(rollouts_path).fingerprint


def test_parquet_converts_to_an_equal_dataset(sources: Any, tmp_path: Path) -> None:
    """Unusual columns, episode metadata and some final observations survive both ways."""
    rng = np.random.default_rng(5)
    rollouts = [
        r.with_columns(
            **{
                "observations.image": rng.integers(0, 256, (len(r), 2, 3, 1), dtype=np.uint8),
                "infos.flag": rng.random((len(r), 2)) < 0.5,
                "infos.half": rng.normal(size=len(r)).astype(np.float16),
                "infos.count": rng.integers(-(2**62), 2**62, len(r)),
            }
        )
        for r in sources.make_rollouts(20, seed=3)
    ]
    finals = [r.final.tolist() if i % 3 else None for i, r in enumerate(rollouts)]
    metadata = {
        "final_observations": pa.array(finals, pa.list_(pa.float32())),
        "task": ["a", None] * 10,
        "level": list(range(20)),
    }
    source = sources.write_episodes(tmp_path / "source.parquet", rollouts, **metadata)
    first = gear_data.convert(source, tmp_path / "first", shard_bytes=4096)
    assert first.shards > 1
    ds = gear_data.open(tmp_path / "first")
    for destination in (tmp_path / "folder", tmp_path / "one.parquet"):
        gear_data.export(ds, destination)
        again = tmp_path / f"again-{destination.name}"
        assert gear_data.convert(destination, again).fingerprint == first.fingerprint
        back = gear_data.open(again)
        assert back.episodes["level"].to_list() == list(range(20))
        assert back.episodes["task"].to_list() == ["a", None] * 10
        for i, final in enumerate(finals):
            found = back.final(i)
            assert (found is None) == (final is None)
            assert final is None or (found is not None and found["observations"].tolist() == final)


@pytest.mark.parametrize("name", ["one.parquet", "lerobot"])
def test_facts_that_are_lists_stay_facts(name: str, sources: Any, tmp_path: Path) -> None:
    """A list in Parquet is a column of steps, unless its field says that it is a fact."""
    rollouts = sources.make_rollouts(4, seed=2)
    MAKERS["robomimic-isaac-lab"](tmp_path / "source", rollouts)
    gear_data.convert(tmp_path / "source", tmp_path / "first")
    ds = gear_data.open(tmp_path / "first")
    options: dict[str, Any] = {"format": "lerobot", "fps": 10} if name == "lerobot" else {}
    gear_data.export(ds, tmp_path / name, **options)
    again = gear_data.convert(tmp_path / name, tmp_path / "again")
    assert again.fingerprint == ds.fingerprint
    fact = "initial_state.articulation.robot.root_pose"
    expected = [rollout.columns["observations"][0].tolist() for rollout in rollouts]
    assert gear_data.open(tmp_path / "again").episodes[fact].to_list() == expected


@pytest.mark.parametrize("of_datasets", [False, True])
def test_facts_that_are_lists_stay_facts_in_memory(of_datasets: bool, sources: Any, tmp_path: Path) -> None:
    MAKERS["robomimic-isaac-lab"](tmp_path / "source", sources.make_rollouts(4, seed=2))
    gear_data.convert(tmp_path / "source", tmp_path / "first", progress=False)
    ds = gear_data.open(tmp_path / "first")
    gear_data.export(ds, tmp_path / "one.parquet", progress=False)
    table = pq.read_table(tmp_path / "one.parquet")
    again = gear_data.convert(datasets.Dataset(table) if of_datasets else table, tmp_path / "again", progress=False)
    assert again.fingerprint == ds.fingerprint
    fact = "initial_state.articulation.robot.root_pose"
    assert gear_data.open(tmp_path / "again").episodes[fact].to_list() == ds.episodes[fact].to_list()


@pytest.mark.parametrize("name", ["one.parquet", "folder"])
def test_facts_with_the_name_of_a_column_are_left_out(name: str, rollouts_path: Path, tmp_path: Path) -> None:
    """A table has no two columns of one name. Bytes stay facts, as lists do."""
    ds = gear_data.open(rollouts_path)
    blobs = [bytes([i]) for i in range(len(ds))]
    edited = ds.with_column("success", "rewards > 0").with_facts({"success": [True] * len(ds), "blob": blobs})
    assert gear_data.export(edited, tmp_path / name, progress=False).left_out == ("success",)
    gear_data.convert(tmp_path / name, tmp_path / "again", progress=False)
    back = gear_data.open(tmp_path / "again")
    assert back.fingerprint == edited.fingerprint
    assert "success" not in back.episodes.columns
    assert back.episodes["blob"].to_list() == blobs


def test_a_column_with_the_name_of_final_observations_is_refused(rollouts_path: Path, tmp_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    edited = ds.with_column("final_observations", np.zeros(ds.num_steps))
    with pytest.raises(UnsupportedColumnError, match="rename") as error:
        gear_data.export(edited, tmp_path / "out", progress=False)
    assert error.value.column == "final_observations"
    assert not (tmp_path / "out").exists()
