"""Tests of facts about files: LIBERO's tasks, and attributes of several files.

The files are as LIBERO's `create_dataset.py` writes them; h5py reads them for comparison.
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
from gear_data.errors import BadEpisodeError, UnknownFormatError
from gear_data.ingest.location import locate
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.registry import open_source

_TASKS = {"KITCHEN_SCENE1_open_the_drawer_demo.hdf5": "open the drawer", "LIVING_ROOM_SCENE2_lift_demo.hdf5": "lift"}


def _write(path: Path, task: str, lengths: Sequence[int] = (3, 5), state: int = 11, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        problem = {"problem_name": "libero", "domain_name": "robosuite", "language_instruction": task}
        data.attrs["env_name"], data.attrs["problem_info"] = "Libero_Kitchen_Tabletop_Manipulation", json.dumps(problem)
        data.attrs["macros_image_convention"] = "opengl"
        data.attrs["bddl_file_name"] = f"bddl_files/{task}.bddl"
        data.attrs["bddl_file_content"] = f"(define (problem P)\n  (:domain robosuite)\n  (:language {task})\n)"
        data.attrs["env_args"] = json.dumps({"type": 1, "bddl_file": task})
        data.attrs["num_demos"], data.attrs["total"] = len(lengths), sum(lengths)
        for i, steps in enumerate(lengths):
            demo = data.create_group(f"demo_{i}")
            demo.attrs["num_samples"], demo.attrs["model_file"] = steps, "<mujoco>" + "x" * 20_000
            demo.attrs["init_state"] = np.zeros(state)
            for name, width in (("ee_states", 6), ("gripper_states", 2), ("joint_states", 7)):
                demo[f"obs/{name}"] = rng.normal(size=(steps, width))
            for name in ("agentview_rgb", "eye_in_hand_rgb"):
                demo[f"obs/{name}"] = rng.integers(0, 256, (steps, 4, 4, 3), np.uint8)
            demo["actions"], demo["robot_states"] = rng.normal(size=(steps, 7)), rng.normal(size=(steps, 9))
            demo["states"] = rng.normal(size=(steps, state))
            demo["rewards"] = demo["dones"] = (np.arange(steps) == steps - 1).astype(np.uint8)
    return path


def _suite(folder: Path, states: Sequence[int] = (11, 14)) -> Path:
    for i, (name, task) in enumerate(_TASKS.items()):
        _write(folder / name, task, state=states[i], seed=i)
    return folder


def _set(path: Path, **attributes: Any) -> Path:
    """Sets attributes of `data`; None deletes."""
    with h5py.File(path, "r+") as file:
        for name, value in attributes.items():
            del file["data"].attrs[name]
            if value is not None:
                file["data"].attrs[name] = value
    return path


def test_a_folder_of_libero_is_several_tasks(tmp_path: Path) -> None:
    folder = _suite(tmp_path / "libero_90")
    report = gear_data.convert(folder, tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    assert (report.format, ds.num_episodes) == ("robomimic", 4)
    names = ("actions", "rewards", "robot_states", "obs/ee_states", "obs/agentview_rgb", "obs/eye_in_hand_rgb")
    for i in range(4):
        row = ds.episodes.row(i, named=True)
        with h5py.File(folder / row["source"]) as file:
            demo = file[f"data/demo_{i % 2}"]
            assert row["task"] == json.loads(file["data"].attrs["problem_info"])["language_instruction"]
            assert row["bddl_file_content"] == file["data"].attrs["bddl_file_content"]
            for name in names:
                column = name.replace("obs/", "observations.")
                np.testing.assert_array_equal(ds.episode(i)[column], demo[name][()])
            assert ds.episode(i)["terminated"].tolist() == demo["dones"][()].astype(bool).tolist()
    assert ds.filter("task = 'lift'").num_episodes == 2
    # Facts that the files share are facts of the dataset.
    assert ds.manifest.provenance["metadata"] == {
        "env_name": "Libero_Kitchen_Tabletop_Manipulation",
        "macros_image_convention": "opengl",
    }
    # A column has one shape, and the states of two scenes have two.
    assert "states" not in ds.schema.names
    (left_out,) = (f for f in ds.manifest.findings if f["code"] == "column-left-out")
    assert "(11,)" in left_out["message"] and "(14,)" in left_out["message"]
    loader = gear_data.SequenceLoader(ds, batch_size=4, context=3, steps=2, preset="raw")
    assert {batch["observations.agentview_rgb"].shape[-3:] for batch in loader} == {(4, 4, 3)}


def test_one_file_of_libero_keeps_its_states(tmp_path: Path) -> None:
    path = _write(tmp_path / "open_demo.hdf5", '"open the drawer"')
    gear_data.convert(path, tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    assert ds.episodes["task"].to_list() == ["open the drawer"] * 2  # some files have it in quotes
    assert ds.schema["states"].shape == (11,)
    assert "bddl_file_content" in ds.manifest.provenance["metadata"]


def test_states_of_one_width_or_by_name(tmp_path: Path) -> None:
    gear_data.convert(_suite(tmp_path / "same", (9, 9)), tmp_path / "d")
    assert gear_data.open(tmp_path / "d").schema["states"].shape == (9,)
    with pytest.raises(BadEpisodeError, match=r"column 'states'(.|\n)*is float64 \(14,\)"):
        gear_data.convert(_suite(tmp_path / "two"), tmp_path / "e", columns=["actions", "states"])


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"problem_info": json.dumps({"language_instruction": ["put", "it", "down"]})}, "put it down"),
        ({"problem_info": "{"}, "open it"),
        ({"problem_info": "[" * 5000}, "open it"),
        ({"problem_info": None}, "open it"),
        ({"problem_info": "7", "bddl_file_content": "(define)"}, None),
        ({"problem_info": None, "bddl_file_content": None}, None),
    ],
)
def test_where_the_task_is(attributes: dict[str, Any], expected: str | None, tmp_path: Path) -> None:
    path = _set(_write(tmp_path / "a_demo.hdf5", "open it"), **attributes)
    gear_data.convert(path, tmp_path / "d")
    assert gear_data.open(tmp_path / "d").episodes["task"].to_list() == [expected] * 2


def test_counts_and_long_attributes_are_checked(tmp_path: Path) -> None:
    path = _set(_write(tmp_path / "a_demo.hdf5", "open it"), num_demos=50, bddl_file_content="x" * 20_000)
    report = gear_data.convert(path, tmp_path / "d")
    assert any("'num_demos' is 50, but there are 2 demonstrations" in warning for warning in report.warnings)
    assert any(warning.startswith("fact-left-out: column 'bddl_file_content'") for warning in report.warnings)


def test_files_of_another_layout_are_listed(tmp_path: Path) -> None:
    folder = _suite(tmp_path / "s")
    for name in ("z_other.hdf5", "z_third.h5"):
        with h5py.File(folder / name, "w") as file:
            file["observations"] = np.zeros((3, 2))
    with pytest.raises(UnknownFormatError, match=r"2 of 4 HDF5 files have no group 'data': z_other.hdf5, z_third.h5"):
        open_source(locate(folder, None), "auto", SourceOptions())
