"""Facts of a source that cannot be stored are reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import gear_data
from tests.support.makers.ideas import write_zarr

LATIN = np.bytes_(b"caf\xe9")


def _d4rl(file: h5py.File) -> None:
    file["observations"], file["actions"] = np.zeros((4, 3)), np.zeros((4, 2))
    file["rewards"], file["terminals"], file["timeouts"] = np.zeros(4), np.arange(4) == 3, np.zeros(4, np.bool_)
    file["metadata/algorithm"], file["metadata/weights"], file["metadata/name"] = LATIN, np.zeros((3, 3)), "sac"


def _stable_baselines3(file: h5py.File) -> None:
    file["observations"], file["next_observations"] = np.zeros((4, 1, 3)), np.zeros((4, 1, 3))
    file["actions"], file["rewards"], file["dones"] = np.zeros((4, 1, 2)), np.zeros((4, 1)), np.zeros((4, 1))
    file["pos"], file["full"], file["algorithm"], file["name"] = 3, False, LATIN, "sac"


def _tree(file: h5py.File) -> None:
    for i in range(2):
        file[f"run_{i}/observations"], file[f"run_{i}/actions"] = np.zeros((4, 3)), np.zeros((4, 2))
        file[f"run_{i}/rewards"], file[f"run_{i}/algorithm"] = np.zeros(4), LATIN
    file.attrs["joints"], file.attrs["name"] = ["hip", "knee"], "sac"


def _minari(file: h5py.File) -> None:
    """Minari 0.4 has the metadata in the attributes of the file."""
    for i in range(2):
        group = file.create_group(f"episode_{i}")
        group["observations"], group["actions"] = np.zeros((5, 3)), np.zeros((4, 2))
        group["rewards"], group["terminations"], group["truncations"] = np.zeros(4), np.zeros(4, "?"), np.arange(4) == 3
    file.attrs["joints"], file.attrs["name"], file.attrs["minari_version"] = ["hip", "knee"], "sac", "0.4.3"


@pytest.mark.parametrize(
    ("write", "columns"),
    [
        (_d4rl, {"metadata/algorithm", "metadata/weights"}),
        (_stable_baselines3, {"algorithm"}),
        (_tree, {"algorithm", "joints"}),
        (_minari, {"joints"}),
    ],
)
def test_a_fact_that_cannot_be_stored_is_reported(
    write: Callable[[h5py.File], None], columns: set[str], tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        write(file)
    gear_data.convert(tmp_path / "a.hdf5", tmp_path / "dataset", progress=False)
    manifest = gear_data.open(tmp_path / "dataset").manifest
    assert {each["column"] for each in manifest.findings if "left-out" in each["code"]} == columns
    assert manifest.provenance["metadata"]["name"] == "sac"


def test_long_attributes_of_a_zarr_store_are_reported(tmp_path: Path) -> None:
    arrays = {"data/action": np.zeros((4, 2)), "data/state": np.zeros((4, 3)), "meta/episode_ends": np.array([4])}
    store = write_zarr(arrays, tmp_path / "a.zarr")
    (store / ".zattrs").write_text(json.dumps({"notes": "x" * 20_000}))
    report = gear_data.lint(store, progress=False)
    assert [each.file for each in report.findings if each.code == "fact-left-out"] == [str(store)]


def test_long_values_of_minaris_metadata_are_reported(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    with h5py.File(tmp_path / "s" / "main_data.hdf5", "w") as file:
        _minari(file)
    facts = {"description": "x" * 20_000, "env_spec": None, "author": "me"}
    (tmp_path / "s" / "metadata.json").write_text(json.dumps(facts))
    gear_data.convert(tmp_path / "s", tmp_path / "dataset", progress=False)
    manifest = gear_data.open(tmp_path / "dataset").manifest
    assert [each["column"] for each in manifest.findings if each["code"] == "fact-left-out"] == ["description"]
    assert manifest.provenance["metadata"] == {"env_spec": None, "author": "me"}
