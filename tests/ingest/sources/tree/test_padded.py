"""Mappings of padded episodes, [episodes, steps, ...] and [steps, episodes, ...]."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import gear_data
from gear_data.errors import BadEpisodeError, GearError

LENGTHS, STEPS = (3, 5, 1, 4), 5
COLUMNS: dict[str, Any] = {
    "actions": "act",
    "observations": {"path": "obs", "role": "with-final"},
    "observations.other": {"path": "other", "next": "after"},
    "rewards": {"path": "rew", "dtype": "float32"},
    "success": {"path": "success", "role": "episode"},
}


def arrays() -> dict[str, Any]:
    """Returns arrays [episodes, steps, ...] whose padding is NaN."""
    rng = np.random.default_rng(0)
    count = len(LENGTHS)
    found = {
        "act": rng.normal(size=(count, STEPS, 2)),
        "obs": rng.normal(size=(count, STEPS + 1, 3)),
        "other": rng.normal(size=(count, STEPS, 2)),
        "after": rng.normal(size=(count, STEPS, 2)),
        "rew": rng.normal(size=(count, STEPS)),
    }
    for i, length in enumerate(LENGTHS):
        for name, values in found.items():
            values[i, length + (name == "obs") :] = np.nan
    return found


def write(path: Path, found: Mapping[str, Any]) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **found)
    else:
        with h5py.File(path, "w") as file:
            for name, values in found.items():
                file[f"rollouts/{name}"] = values
    return path


def source(path: Path, axes: str, kind: str, **changes: Any) -> tuple[Path, dict[str, Any]]:
    """Writes padded arrays, and returns the file and its mapping."""
    found = arrays()
    mask = np.arange(STEPS) < np.array(LENGTHS)[:, None]
    if axes == "TE":
        found, mask = {name: np.swapaxes(values, 0, 1).copy() for name, values in found.items()}, mask.T.copy()
    found |= {"success": np.array([0, 1, 0, 1]), "marks": mask if kind == "mask" else np.array(LENGTHS), **changes}
    prefix = "" if path.suffix == ".npz" else "rollouts/"
    columns = {
        name: prefix + column
        if isinstance(column, str)
        else {key: prefix + value if key in ("path", "next") else value for key, value in column.items()}
        for name, column in COLUMNS.items()
    }
    episodes = {"padded": [*axes, "..."], kind: f"{prefix}marks"}
    return write(path, found), {"episodes": episodes, "columns": columns}


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
@pytest.mark.parametrize("axes", ["ET", "TE"])
@pytest.mark.parametrize("marks", ["lengths", "mask"])
def test_padding_is_left_out(marks: str, axes: str, suffix: str, tmp_path: Path) -> None:
    path, mapping = source(tmp_path / f"a{suffix}", axes, marks)
    report = gear_data.convert(path, tmp_path / "d", mapping=mapping, progress=False)
    assert not [warning for warning in report.warnings if warning.startswith("non-finite")]
    dataset, expected = gear_data.open(tmp_path / "d"), arrays()
    assert dataset.lengths.tolist() == list(LENGTHS)
    assert dataset.episodes["success"].to_list() == [0, 1, 0, 1]
    for i, length in enumerate(LENGTHS):
        episode, final = dataset.episode(i), dataset.final(i) or {}
        np.testing.assert_array_equal(episode["actions"], expected["act"][i, :length])
        np.testing.assert_array_equal(episode["rewards"], expected["rew"][i, :length].astype(np.float32))
        np.testing.assert_array_equal(episode["observations"], expected["obs"][i, :length])
        np.testing.assert_array_equal(final["observations"], expected["obs"][i, length])
        np.testing.assert_array_equal(final["observations.other"], expected["after"][i, length - 1])


@pytest.mark.parametrize(
    ("marks", "change", "expected"),
    [
        ("lengths", {"marks": [3, 5, 1]}, "has 4 episodes"),
        ("lengths", {"marks": [3, 6, 1, 4]}, "has 5 steps an episode, where episode 1 has 6"),
        ("lengths", {"marks": [3, 5, 0, 4]}, "row 2: the episode has no steps"),
        ("lengths", {"marks": np.ones((4, 5))}, "an integer an episode"),
        ("mask", {"marks": [3, 5, 1, 4]}, "flags of two axes"),
        ("mask", {"marks": np.arange(20).reshape(4, 5) % 3 > 0}, "row 0: the mask is not true at the first steps"),
        ("lengths", {"rew": np.zeros(4)}, "without an axis of episodes or steps"),
        ("lengths", {"rew": np.zeros((3, 5))}, "has 3 episodes"),
    ],
)
def test_what_does_not_fit_is_named(marks: str, change: dict[str, Any], expected: str, tmp_path: Path) -> None:
    changes = {name: np.asarray(values) for name, values in change.items()}
    path, mapping = source(tmp_path / "a.npz", "ET", marks, **changes)
    with pytest.raises(GearError, match=expected):
        gear_data.convert(path, tmp_path / "d", mapping=mapping, progress=False)


def test_an_episode_without_a_step_is_skipped(tmp_path: Path) -> None:
    path, mapping = source(tmp_path / "a.npz", "ET", "lengths", marks=np.array([3, 5, 0, 4]))
    options: dict[str, Any] = {"mapping": mapping, "on_bad_episode": "skip", "progress": False}
    gear_data.convert(path, tmp_path / "d", **options)
    dataset = gear_data.open(tmp_path / "d")
    assert dataset.lengths.tolist() == [3, 5, 4]
    assert dataset.episodes["success"].to_list() == [0, 1, 1]


def test_a_missing_array_is_named_by_its_path(tmp_path: Path) -> None:
    path, mapping = source(tmp_path / "a.npz", "ET", "lengths")
    mapping["columns"]["speed"] = "velocity"
    with pytest.raises(BadEpisodeError, match=r"has no array 'velocity', which columns\.speed names"):
        gear_data.convert(path, tmp_path / "d", mapping=mapping, progress=False)


def test_units_are_the_whole(tmp_path: Path, sources: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from gear_data.ingest.location import locate
    from gear_data.ingest.mapping import load_mapping
    from gear_data.ingest.source import SourceOptions
    from gear_data.ingest.sources.tree import reader
    from gear_data.ingest.sources.tree import source as module

    path, mapping = source(tmp_path / "a.h5", "TE", "mask")
    monkeypatch.setattr(module, "UNIT_BYTES", 1)
    monkeypatch.setattr(module, "_BLOCK_BYTES", 100)
    location, options = locate(path, None), SourceOptions(mapping=load_mapping(mapping))
    assert sources.check_units(lambda: reader.open_(location, options)) == len(LENGTHS)
