"""ManiSkill's files: an HDF5 file of episodes, and a JSON file of facts about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import gear_data
from gear_data.errors import UnknownFormatError

LENGTHS = (6, 5, 7)


def write(folder: Path, name: str = "trajectory", *, robots: int = 1, seed: int = 0) -> Path:
    """Writes `trajectory.h5` and `trajectory.json`, whose episodes are in another order."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    with h5py.File(folder / f"{name}.h5", "w") as file:
        for i, length in enumerate(LENGTHS):
            group = file.create_group(f"traj_{i}")
            for robot in range(robots):
                path = "actions" if robots == 1 else f"actions/panda-{robot}"
                group[path] = rng.normal(size=(length, 2))
            group["obs/qpos"] = rng.normal(size=(length + 1, 3))
    episodes = [
        {
            "episode_id": i,
            "episode_seed": 100 * seed + i,
            "control_mode": "pd_joint_pos",
            "elapsed_steps": length,
            "reset_kwargs": {"seed": i, "options": {}},
            "cameras": ["base", "hand"],
            "success": i != 1,
        }
        for i, length in enumerate(LENGTHS)
    ]
    contents = {"env_info": {"env_id": "PickCube-v1", "max_episode_steps": 50}, "episodes": episodes[::-1]}
    (folder / f"{name}.json").write_text(json.dumps(contents))
    return folder


def facts_of(ds: gear_data.Dataset) -> list[tuple[Any, ...]]:
    names = ["episode_seed", "control_mode", "elapsed_steps", "reset_kwargs.seed", "cameras", "success"]
    return ds.episodes.select(names).rows()


def expected(seed: int = 0) -> list[tuple[Any, ...]]:
    return [(100 * seed + i, "pd_joint_pos", n, i, '["base", "hand"]', i != 1) for i, n in enumerate(LENGTHS)]


@pytest.mark.parametrize("source", ["", "trajectory.h5"])
def test_listed_facts_are_in_the_episode_table(source: str, tmp_path: Path) -> None:
    """The folder and the file alone give the same dataset."""
    report = gear_data.convert(write(tmp_path / "s") / source, tmp_path / "d", progress=False)
    ds = gear_data.open(tmp_path / "d")
    assert facts_of(ds) == expected()
    assert ds.manifest.provenance["metadata"]["env_info"] == {"env_id": "PickCube-v1", "max_episode_steps": 50}
    assert [each.split(":")[0] for each in report.warnings] == ["no-end-flag"]


def test_each_file_has_its_own_list(tmp_path: Path) -> None:
    write(write(tmp_path / "s", "a", seed=1), "b", seed=2)
    gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    assert facts_of(gear_data.open(tmp_path / "d")) == expected(1) + expected(2)


def test_a_list_that_disagrees(tmp_path: Path) -> None:
    file = write(tmp_path / "s") / "trajectory.json"
    contents = json.loads(file.read_text())
    del contents["episodes"][0]
    contents["episodes"][0]["elapsed_steps"] = 9
    file.write_text(json.dumps(contents))
    report = gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    text = "\n".join(report.warnings)
    assert "the JSON file says 9, and the episode has 5 steps (1x, first: trajectory.h5, row 1)" in text
    assert "does not list the episode; kept (1x, first: trajectory.h5, row 2)" in text
    assert gear_data.open(tmp_path / "d").episodes["episode_seed"].to_list() == [0, 1, None]


@pytest.mark.parametrize(
    ("values", "stored"),
    [
        ((1, "a", True), ["1", '"a"', "true"]),
        ((1, 2.5, None), [1.0, 2.5, None]),
        ((10**30, 1, None), [str(10**30), "1", None]),
        (([1], {"a": 1}, 3), ["[1]", None, "3"]),
    ],
)
def test_values_of_several_types_are_json(values: Any, stored: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "s") / "trajectory.json"
    entries = [{"episode_id": i, "value": value, "": 1} for i, value in enumerate(values)]
    file.write_text(json.dumps({"episodes": entries}))
    gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    assert gear_data.open(tmp_path / "d").episodes["value"].to_list() == stored


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"episodes": 3}', '{"episodes": []}', '{"episodes": [{"seed": 1}]}',
     '{"episodes": [{"episode_id": 1}, {"episode_id": 1}]}', '{"episodes": [{"episode_id": true}]}',
     '{"episodes": [{"episode_id": 0, "a": ' + '{"a": ' * 5000 + "1" + "}" * 5000 + "}]}"],
)  # fmt: skip
def test_another_json_file_is_named(text: str, tmp_path: Path) -> None:
    (write(tmp_path / "s") / "trajectory.json").write_text(text)
    report = gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    (found,) = (each for each in report.warnings if each.startswith("files-left-out"))
    assert "no column or fact is read from trajectory.json; left out (1x" in found
    assert "episode_seed" not in gear_data.open(tmp_path / "d").episodes.columns


def test_actions_of_two_robots(tmp_path: Path) -> None:
    """The advice of the refusal works."""
    source = write(tmp_path / "s", robots=2)
    with pytest.raises(UnknownFormatError) as error:
        gear_data.convert(source, tmp_path / "d", progress=False)
    stack = "actions.panda-0,actions.panda-1"
    assert f"--stack actions={stack} makes one column of the 2 actions" in str(error.value.hint)
    mapping = {
        "episodes": {"groups": "traj_[0-9]*"},
        "columns": {
            "actions.panda-0": "actions/panda-0",
            "actions.panda-1": "actions/panda-1",
            "observations.qpos": {"path": "obs/qpos", "role": "with-final"},
        },
    }
    gear_data.convert(source, tmp_path / "d", mapping=mapping, stack={"actions": stack.split(",")}, progress=False)
    ds = gear_data.open(tmp_path / "d")
    assert ds.schema["actions"].shape == (4,)
    assert facts_of(ds) == expected()
