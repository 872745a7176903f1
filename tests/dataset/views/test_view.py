"""Views: shared memory, fingerprint, statistics, export and pickling."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import gear_data
from gear_data.dataset import views
from gear_data.errors import DatasetReplacedError, InvalidArgumentError
from tests.support.views import ids_of


def test_views_share_the_memory_of_the_dataset(ds: gear_data.Dataset) -> None:
    view = ds.filter("length > 5")
    assert ds.episode_ids is None and ds.step_mask is None
    assert view.store.offsets is ds.store.offsets is ds.offsets
    assert np.shares_memory(view.episode(ids_of(view)[0])["actions"], ds.episode(ids_of(view)[0])["actions"])
    everything = ds.filter("length > 0")
    assert everything.fingerprint == ds.fingerprint
    assert np.shares_memory(everything.steps("actions", 0, 2), ds.steps("actions", 0, 2))


@pytest.mark.parametrize("block_bytes", [64, 1 << 20])
def test_a_view_equals_a_conversion_of_its_episodes(
    block_bytes: int, ds: gear_data.Dataset, rollouts: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exporting and converting a view keeps fingerprint and statistics.

    They are equal bit for bit, for blocks of any size.
    """
    monkeypatch.setattr(views, "BLOCK_BYTES", block_bytes)
    view = ds.filter(pl.col("episode_id") % 3 != 1)
    report = gear_data.export(view, tmp_path / "out")
    assert (report.episodes, report.steps) == (view.num_episodes, view.num_steps)
    gear_data.convert(tmp_path / "out", tmp_path / "again")
    again = gear_data.open(tmp_path / "again")
    assert view.fingerprint == again.fingerprint != ds.fingerprint
    for name, expected in again.statistics.items():
        assert view.statistics[name].to_json() == expected.to_json()
    for new, old in enumerate(ids_of(view)):
        found, expected = again.final(new), ds.final(old)
        assert (found is None) == (expected is None)
        assert found is None or expected is None or found["observations"].tolist() == expected["observations"].tolist()
    assert again.episodes["task"].to_list() == view.episodes["task"].to_list()
    values = np.concatenate([rollouts[i].columns["actions"] for i in ids_of(view)]).astype(np.float64)
    np.testing.assert_allclose(view.statistics["actions"].mean, values.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(view.statistics["actions"].std, values.std(axis=0), rtol=1e-12)


def test_export_of_a_view_to_one_file_and_of_few_shards(ds: gear_data.Dataset, tmp_path: Path) -> None:
    view = ds.filter(pl.col("shard") == 2)
    assert gear_data.export(view, tmp_path / "out").files == ("data/train-00000-of-00001.parquet",)
    gear_data.export(view, tmp_path / "one.parquet")
    assert pl.read_parquet(tmp_path / "one.parquet")["actions"].list.len().to_list() == view.lengths.tolist()
    with pytest.raises(InvalidArgumentError, match="whole episodes"):
        gear_data.export(ds.filter_steps("rewards > 0"), tmp_path / "steps")


@pytest.mark.processes
def test_views_open_again_in_another_process(ds: gear_data.Dataset) -> None:
    view = ds.filter("length > 3").filter_steps("rewards > 0", mode="all").split({"a": 0.5, "b": 0.5})["b"]
    code = (
        "import pickle, sys\n"
        "view = pickle.load(sys.stdin.buffer)\n"
        "actions = view.episode(view.episode_ids[0])['actions'].tobytes().hex()\n"
        "print(view, view.fingerprint, view.step_mask.digest(), view.step_mask_mode, actions)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(view), capture_output=True, check=True)
    actions = view.episode(ids_of(view)[0])["actions"].tobytes().hex()
    assert view.step_mask is not None
    assert done.stdout.decode().split("\n") == [
        f"{view} {view.fingerprint} {view.step_mask.digest()} all {actions}",
        "",
    ]


def test_a_view_of_a_dataset_that_was_replaced(path: Path, sources: Any, tmp_path: Path) -> None:
    shutil.copytree(path, tmp_path / "dataset")
    pickled = pickle.dumps(gear_data.open(tmp_path / "dataset").filter("length > 3"))
    other = sources.write_episodes(tmp_path / "other.parquet", sources.make_rollouts(30, seed=5))
    gear_data.convert(other, tmp_path / "dataset", overwrite=True)
    with pytest.raises(DatasetReplacedError, match="replaced"):
        pickle.loads(pickled)
