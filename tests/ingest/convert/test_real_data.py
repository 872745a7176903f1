"""Tests real data from other projects, if it is available."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
from PIL import Image

import gear_data
from gear_data.errors import CorruptSourceError, EmptySourceError


@pytest.fixture(scope="module")
def converted(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns a function (source name, options) -> (dataset, report).

    Each source is converted once.
    """
    folder = tmp_path_factory.mktemp("shared")
    done: dict[str, Any] = {}

    def convert(name: str) -> tuple[Any, Any]:
        if name not in done:
            source = shared_data / name
            if not source.exists():
                pytest.skip(f"no {name} in the real data")
            target = folder / name.replace("/", "-")
            options = {"columns": _COLUMNS[name]} if name in _COLUMNS else {}
            done[name] = (gear_data.convert(source, target, shard_bytes=1 << 20, **options), target)
        report, target = done[name]
        return gear_data.open(target), report

    return convert


#: The camera of the robot is declared, but its videos are not part of the real data.
_COLUMNS = {"lerobot_v21_g1": ["observations", "actions", "timestamp", "task_index"]}
HOPPER_HF, HOPPER_D4RL = "hf_dt_hopper", "d4rl/hopper_mixture-v5.hdf5"


def test_hopper_is_the_same_from_parquet_and_d4rl(converted: Any) -> None:
    parquet, _ = converted(HOPPER_HF)
    d4rl, _ = converted(HOPPER_D4RL)
    assert (parquet.num_episodes, parquet.num_steps) == (500, 200_393)
    assert d4rl.num_steps == 200_000
    # The D4RL file ends at 200,000 rows: all episodes except the last are whole.
    whole = d4rl.num_episodes - 1
    assert d4rl.lengths[:whole].tolist() == parquet.lengths[:whole].tolist()
    for i in range(whole):
        for name in ("observations", "actions", "rewards", "returns_to_go"):
            assert parquet.episode(i)[name].tobytes() == d4rl.episode(i)[name].tobytes(), (i, name)
    cut = d4rl.lengths[whole]
    tail = d4rl.episode(whole)
    np.testing.assert_array_equal(tail["observations"], parquet.episode(whole)["observations"][:cut])
    assert tail["truncated"].tolist() == [False] * (cut - 1) + [True]


def test_hopper_episodes_equal_the_rollouts(converted: Any, shared_data: Path) -> None:
    ds, report = converted(HOPPER_D4RL)
    listed = json.loads((shared_data / "d4rl/hopper_mixture.episodes.json").read_text())
    table = ds.episodes
    for i, (_, length, total, terminated, truncated) in enumerate(listed[: ds.num_episodes - 1]):
        row = table.row(i, named=True)
        assert (row["length"], row["terminated"], row["truncated"]) == (length, terminated, truncated)
        assert row["return"] == pytest.approx(total, rel=1e-5)
    assert [warning.split(":")[0] for warning in report.warnings] == ["unfinished-episode"]
    with h5py.File(shared_data / HOPPER_D4RL) as file:
        following = file["next_observations"]
        last = ds.offsets[1:] - 1
        for i in (0, 17, ds.num_episodes - 1):
            np.testing.assert_array_equal(ds.final(i)["observations"], following[last[i]])
        qpos = file["infos/qpos"][:]
    assert ds.schema["infos.qpos"].dtype == "float64"
    np.testing.assert_allclose(ds.statistics["infos.qpos"].mean, qpos.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(ds.statistics["infos.qpos"].std, qpos.std(axis=0), rtol=1e-10)
    assert ds.manifest.provenance["metadata"]["policy/nonlinearity"]


def test_hopper_without_timeouts_finds_the_same_episodes(converted: Any, shared_data: Path, tmp_path: Path) -> None:
    ds, _ = converted(HOPPER_D4RL)
    shutil.copyfile(shared_data / HOPPER_D4RL, tmp_path / "hopper.hdf5")
    with h5py.File(tmp_path / "hopper.hdf5", "r+") as file:
        del file["timeouts"]
    gear_data.convert(tmp_path / "hopper.hdf5", tmp_path / "d")
    found = gear_data.open(tmp_path / "d")
    assert found.lengths.tolist() == ds.lengths.tolist()
    assert found.fingerprint == ds.fingerprint


@pytest.mark.parametrize(
    ("task", "episodes", "steps", "actions"),
    [
        ("cartpole", 70, 20_147, ("int64", ())),
        ("pendulum", 50, 10_000, ("float32", (1,))),
        ("mujoco-ant", None, None, ("float32", (8,))),
    ],
)
def test_jat(
    task: str, episodes: int | None, steps: int | None, actions: Any, converted: Any, shared_data: Path
) -> None:
    ds, report = converted(f"gato_jat/{task}")
    assert report.format == "episode-rows"
    if episodes is not None:
        assert (ds.num_episodes, ds.num_steps) == (episodes, steps)
    assert (ds.schema["actions"].dtype, ds.schema["actions"].shape) == actions
    first = 0
    for file in sorted((shared_data / "gato_jat" / task).glob("*.parquet")):
        for row in pq.read_table(file).to_pylist():
            episode = ds.episode(first)
            np.testing.assert_array_equal(episode["observations"], np.float32(row["continuous_observations"]))
            source = "discrete_actions" if task == "cartpole" else "continuous_actions"
            np.testing.assert_array_equal(episode["actions"], np.array(row[source], actions[0]))
            np.testing.assert_array_equal(episode["rewards"], np.float32(row["rewards"]))
            assert ds.episodes["source"][first] == file.name
            first += 1
    assert first == ds.num_episodes


def _pixels(encoded: bytes) -> npt.NDArray[np.uint8]:
    """Returns a grey image as [H, W, 1]."""
    with Image.open(io.BytesIO(encoded)) as image:
        return np.asarray(image)[:, :, None]


def test_jat_text_and_images(converted: Any, shared_data: Path) -> None:
    for task, column, name, dtype in (
        ("atari-pong", "image_observations", "observations.image", "uint8"),
        ("babyai", "text_observations", "observations.text", "string"),
    ):
        ds, report = converted(f"gato_jat/{task}")
        assert (ds.schema[name].dtype, ds.schema[name].source) == (dtype, column)
        assert report.shards == len(ds.manifest.shards) > 1
        rows = [
            row
            for file in sorted((shared_data / "gato_jat" / task).glob("*.parquet"))
            for row in pq.read_table(file, columns=[column, "discrete_actions"]).to_pylist()
        ]
        assert ds.num_episodes == len(rows)
        for i, row in enumerate(rows):
            expected = row[column] if dtype == "string" else [_pixels(image["bytes"]) for image in row[column]]
            assert np.array_equal(ds.episode(i)[name], expected)
            assert ds.episode(i)["actions"].tolist() == row["discrete_actions"]
    assert ds.schema["observations.discrete"].shape == (148,)


def test_lerobot_g1(converted: Any, shared_data: Path) -> None:
    ds, report = converted("lerobot_v21_g1")
    assert (ds.num_episodes, ds.num_steps) == (100, 35_965)
    assert ds.schema["observations"].shape == ds.schema["actions"].shape == (26,)
    assert "rewards" not in ds.schema
    assert "returns_to_go" not in ds.schema
    assert ds.episodes["return"].is_null().all()
    lines = (shared_data / "lerobot_v21_g1/meta/episodes.jsonl").read_text().splitlines()
    listed = [json.loads(line) for line in lines]
    assert ds.lengths.tolist() == [line["length"] for line in listed]
    assert ds.episodes["task"].to_list() == [line["tasks"][0] for line in listed]
    assert not any("cam_high" in warning for warning in report.warnings)
    rows = pq.read_table(shared_data / "lerobot_v21_g1/data/chunk-000/episode_000042.parquet")
    expected = np.array(rows.column("action").to_pylist(), np.float32)
    np.testing.assert_array_equal(ds.episode(42)["actions"], expected)


def test_robot_soccer(converted: Any, shared_data: Path) -> None:
    ds, _ = converted("robot_soccer_d4rl/trajectories.hdf5")
    assert (ds.num_episodes, ds.num_steps) == (10, 20_000)
    with h5py.File(shared_data / "robot_soccer_d4rl/trajectories.hdf5") as file:
        ends = np.flatnonzero(file["terminals"][:])
        assert (ds.offsets[1:] - 1).tolist() == ends.tolist()
        np.testing.assert_array_equal(ds.episode(3)["observations"], file["observations"][ends[2] + 1 : ends[3] + 1])
        np.testing.assert_array_equal(ds.final(3)["observations"], file["next_observations"][ends[3]])
    assert ds.episodes["terminated"].all()


@pytest.mark.parametrize("name", ["traj", "scoring", "scoring2"])
def test_robot_soccer_files_without_steps(name: str, shared_data: Path, tmp_path: Path) -> None:
    with pytest.raises(EmptySourceError) as error:
        gear_data.convert(shared_data / f"robot_soccer_d4rl/physical_data/{name}.hdf5", tmp_path / "d")
    assert (error.value.file, error.value.column) == (f"{name}.hdf5", "observations")
    assert not (tmp_path / "d").exists()


def test_npz_of_different_environments_are_refused_by_name(shared_data: Path, tmp_path: Path) -> None:
    """Each is a separate dataset. Nothing in them is unpickled."""
    with pytest.raises(CorruptSourceError, match="obs") as error:
        gear_data.convert(shared_data / "imitation_npz", tmp_path / "d")
    assert (error.value.file, error.value.column) == ("pendulum_0/rollouts/final.npz", "obs")


@pytest.mark.parametrize(
    "name",
    [
        HOPPER_HF,
        HOPPER_D4RL,
        "gato_jat/cartpole",
        "gato_jat/atari-pong",
        "gato_jat/babyai",
        "lerobot_v21_g1",
        "robot_soccer_d4rl/trajectories.hdf5",
    ],
)
def test_all_datasets_verify(name: str, converted: Any) -> None:
    ds, _ = converted(name)
    assert gear_data.verify(ds.path).ok
