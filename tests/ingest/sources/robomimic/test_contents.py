"""Tests of the meaning of numbers of rows, in Isaac Lab's files and in others.

The files are as Isaac Lab's `HDF5DatasetFileHandler` and recorders write them; h5py reads them for comparison.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import gear_data
from gear_data.errors import BadEpisodeError

_ASSETS = {
    "articulation/robot/joint_position": 9,
    "articulation/robot/joint_velocity": 9,
    "articulation/robot/root_pose": 7,
    "articulation/robot/root_velocity": 6,
    "rigid_object/cube_1/root_pose": 7,
}
_OF_EPISODE = [f"initial_state/{asset}" for asset in _ASSETS]


def _demo(rng: np.random.Generator, steps: int) -> dict[str, Any]:
    def floats(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    return {
        "actions": floats(steps, 7),
        "processed_actions": floats(steps, 8),
        "obs/actions": floats(steps, 7),
        "obs/joint_pos": floats(steps, 9),
        "obs/datagen_info/object_pose/cube_1": floats(steps, 4, 4),
        "obs/datagen_info/subtask_term_signals/grasp_1": rng.random(steps) > 0.5,
        **{f"initial_state/{asset}": floats(1, width) for asset, width in _ASSETS.items()},
        **{f"states/{asset}": floats(steps, width) for asset, width in _ASSETS.items()},
    }


def _write(path: Path, lengths: Sequence[int] = (5, 1, 8, 3), seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = 0
        data.attrs["env_args"] = json.dumps({"env_name": "Isaac-Stack-Cube-Franka-IK-Rel-v0", "type": 2})
        for i, steps in enumerate(lengths):
            demo = data.create_group(f"demo_{i}")
            demo.attrs["num_samples"], demo.attrs["seed"], demo.attrs["success"] = steps, 40 + i, bool(i % 2)
            for name, values in _demo(rng, steps).items():
                demo.create_dataset(name, data=values, compression="gzip")
            data.attrs["total"] += steps
    return path


def _change(path: Path, name: str, rows: int, demos: Sequence[int]) -> Path:
    """Repeats or cuts the rows of a dataset."""
    with h5py.File(path, "r+") as file:
        for i in demos:
            values = file[f"data/demo_{i}/{name}"][()]
            del file[f"data/demo_{i}/{name}"]
            file[f"data/demo_{i}/{name}"] = np.resize(values, (rows, *values.shape[1:]))
    return path


def _datasets(group: h5py.Group) -> list[str]:
    names: list[str] = []
    group.visit(names.append)
    return [name for name in names if isinstance(group[name], h5py.Dataset)]


def _findings(dataset: gear_data.Dataset, code: str) -> list[tuple[Any, Any]]:
    return [(found["column"], found["count"]) for found in dataset.manifest.findings if found["code"] == code]


def test_isaac_lab_is_what_h5py_reads(tmp_path: Path) -> None:
    path = _write(tmp_path / "dataset.hdf5")
    report = gear_data.convert(path, tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    assert {warning.split(":")[0] for warning in report.warnings} == {"no-end-flag", "one-step-episode"}
    with h5py.File(path) as file:
        assert ds.manifest.provenance["metadata"] == {"env_args": file["data"].attrs["env_args"]}
        for i in range(4):
            demo, row = file[f"data/demo_{i}"], ds.episodes.row(i, named=True)
            assert (row["success"], row["seed"], row["num_samples"]) == (bool(i % 2), 40 + i, len(demo["actions"]))
            for name in _datasets(demo):
                if name in _OF_EPISODE:
                    assert row[name.replace("/", ".")] == demo[name][0].tolist()
                    continue
                column = name.replace("obs/", "observations/").replace("/", ".")
                np.testing.assert_array_equal(ds.episode(i)[column], demo[name][()])
                assert ds.schema[column].dtype == str(demo[name].dtype)
    assert not np.array_equal(ds.episode(0)["observations.actions"], ds.episode(0)["actions"])
    assert not [name for name in ds.schema.names if name.startswith("initial_state")]
    assert ds.filter("success").episodes["seed"].to_list() == [41, 43]
    loader = gear_data.SequenceLoader(ds, batch_size=4, context=3, steps=2, preset="raw")
    assert {batch["observations.joint_pos"].shape[-1] for batch in loader} == {9}


def test_success_that_is_not_known_everywhere(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.hdf5")
    with h5py.File(path, "r+") as file:
        del file["data/demo_0"].attrs["success"], file["data/demo_2"].attrs["success"]
        file["data/demo_3"].attrs["success"] = np.array([True])
    gear_data.convert(path, tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    assert ds.episodes["success"].to_list() == [None, True, None, True]
    assert ds.filter("success").num_episodes == 2
    assert _findings(ds, "fact-left-out") == []


def test_episodes_of_one_step_first(tmp_path: Path) -> None:
    gear_data.convert(_write(tmp_path / "a.hdf5", (1, 1, 4)), tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    assert ds.lengths.tolist() == [1, 1, 4]
    assert len(ds.episodes["initial_state.rigid_object.cube_1.root_pose"][0]) == 7
    gear_data.convert(_write(tmp_path / "b.hdf5", (1, 1)), tmp_path / "e")
    names = gear_data.open(tmp_path / "e").schema.names
    assert "observations.actions" in names
    assert not [name for name in names if name.startswith("initial_state")]


def test_a_first_demonstration_without_steps(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.hdf5")
    with h5py.File(path, "r+") as file:
        for name in ("actions", "processed_actions", "obs", "states"):
            del file[f"data/demo_0/{name}"]
    with pytest.raises(BadEpisodeError, match=r"is missing; a\.hdf5 demo_2 has it") as error:
        gear_data.convert(path, tmp_path / "d")
    assert (error.value.column, error.value.row) == ("actions", 0)
    assert gear_data.convert(path, tmp_path / "e", on_bad_episode="skip").episodes == 3


def test_a_single_row_is_a_fact_and_is_reported(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.hdf5", (5, 1, 3))
    with h5py.File(path, "r+") as file:
        for i in range(3):
            file[f"data/demo_{i}/gain"] = np.array([[0.5 + i]])
            file[f"data/demo_{i}/operator"] = np.array([f"person {i}".encode()])
            file[f"data/demo_{i}/camera"] = np.full((1, 2, 3), i, np.uint8)
            file[f"data/demo_{i}/map"] = np.zeros((1, 300, 300), np.uint8)
        del file["data/demo_2/gain"]
    gear_data.convert(path, tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    assert ds.episodes["gain"].to_list() == [0.5, 1.5, None]
    assert ds.episodes["operator"].to_list() == ["person 0", "person 1", "person 2"]
    assert ds.episodes["camera"].to_list()[2] == [[2, 2, 2], [2, 2, 2]]
    assert ds.filter("gain > 1").num_episodes == 1
    assert _findings(ds, "row-per-episode") == [("camera", 1), ("gain", 1), ("operator", 1)]
    assert _findings(ds, "fact-left-out") == [("map", 1)]
    assert "map" not in {*ds.episodes.columns, *ds.schema.names}


def test_lists_of_source_demonstrations(tmp_path: Path) -> None:
    """MimicGen writes one number for each subtask."""
    path = _write(tmp_path / "a.hdf5", (5, 1, 2))
    lists = ([7, 8], [9, 7], [5])
    with h5py.File(path, "r+") as file:
        for i, numbers in enumerate(lists):
            file[f"data/demo_{i}/src_demo_inds"] = np.array(numbers)
            file[f"data/demo_{i}/src_demo_labels"] = np.zeros((len(file[f"data/demo_{i}/actions"]), 1), np.int64)
    gear_data.convert(path, tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    assert ds.episodes["src_demo_inds"].to_list() == list(lists)
    assert ds.schema["src_demo_labels"].shape == (1,)
    assert _findings(ds, "row-per-episode") == []
    with h5py.File(path, "r+") as file:
        del file["data/demo_2/src_demo_inds"]
        file["data/demo_2/src_demo_inds"] = np.zeros(70_000, np.int8)
    with pytest.raises(BadEpisodeError, match="holds 70000 values, above the limit of 65536 for a fact"):
        gear_data.convert(path, tmp_path / "e")


def test_the_row_after_the_last_step_is_final(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.hdf5", (5, 1, 3))
    rng = np.random.default_rng(9)
    expected = {name: [rng.normal(size=(n + 1, 9)) for n in (5, 1, 3)] for name in ("obs/joint_pos", "states/sim")}
    with h5py.File(path, "r+") as file:
        for name, values in expected.items():
            for i in range(3):
                file[f"data/demo_{i}"].pop(name, None)
                file[f"data/demo_{i}/{name}"] = values[i]
    gear_data.convert(path, tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    for name, column in (("obs/joint_pos", "observations.joint_pos"), ("states/sim", "states.sim")):
        for i in range(3):
            np.testing.assert_array_equal(ds.episode(i)[column], expected[name][i][:-1])
            np.testing.assert_array_equal((ds.final(i) or {})[column], expected[name][i][-1])
    assert _findings(ds, "row-after-last-step") == [("obs/joint_pos", 1), ("states/sim", 1)]


@pytest.mark.parametrize(
    ("name", "rows", "demos", "message"),
    [
        ("initial_state/rigid_object/cube_1/root_pose", 2, (2,), "has 2 rows, where 1 are expected: 'actions' has 8"),
        ("obs/joint_pos", 9, (2,), "has 9 rows, where 8 are expected"),
        ("obs/joint_pos", 7, (0, 2, 3), "has 7 rows, where 5 are expected"),
        ("processed_actions", 1, (2,), "has 1 rows, where 8 are expected"),
    ],
)
def test_other_numbers_of_rows_are_bad(
    name: str, rows: int, demos: Sequence[int], message: str, tmp_path: Path
) -> None:
    path = _change(_write(tmp_path / "a.hdf5"), name, rows, demos)
    with pytest.raises(BadEpisodeError, match=message) as error:
        gear_data.convert(path, tmp_path / "d")
    assert (error.value.column, error.value.row) == (name, demos[0])
    assert gear_data.convert(path, tmp_path / "e", on_bad_episode="skip").episodes == 4 - len(demos)


@pytest.mark.parametrize("rows", [1, 6])
def test_rewards_have_a_row_per_step(rows: int, tmp_path: Path) -> None:
    """One reward, or T + 1, could be the reset's or padding: nothing is guessed."""
    path = _write(tmp_path / "a.hdf5", (5, 5))
    with h5py.File(path, "r+") as file:
        for i in range(2):
            file[f"data/demo_{i}/rewards"] = np.zeros(rows)
    with pytest.raises(BadEpisodeError, match=f"has {rows} rows, where 5 are expected"):
        gear_data.convert(path, tmp_path / "d")


def test_a_fact_of_another_shape_is_bad(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.hdf5")
    with h5py.File(path, "r+") as file:
        del file["data/demo_2/initial_state/rigid_object/cube_1/root_pose"]
        file["data/demo_2/initial_state/rigid_object/cube_1/root_pose"] = np.zeros((1, 6), np.float32)
    with pytest.raises(BadEpisodeError, match=r"is float32 \(6,\), in a.hdf5 demo_0 float32 \(7,\)"):
        gear_data.convert(path, tmp_path / "d")


def test_facts_by_columns_and_by_new_names(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.hdf5")
    name = "initial_state/articulation/robot/root_pose"
    gear_data.convert(path, tmp_path / "d", columns=["actions", name], rename={name: "start"})
    ds = gear_data.open(tmp_path / "d")
    assert set(ds.schema.names) == {"actions", "terminated", "truncated"}
    assert "start" in ds.episodes.columns
    assert not [name for name in ds.episodes.columns if name.startswith("initial_state")]
