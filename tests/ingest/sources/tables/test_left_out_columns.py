"""The index that pandas writes beside the data, and the columns that say where episodes are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import gear_data
from gear_data.errors import InvalidArgumentError, UnknownNameError
from tests.support.checks import warning_codes


def steps() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "episode_index": np.repeat([0, 1], 3),
            "observations": np.arange(6.0),
            "actions": np.arange(6, dtype="float32"),
            "rewards": np.ones(6),
        }
    )


@pytest.mark.parametrize("kind", ["parquet", "csv", "csv twice"])
def test_the_index_of_pandas_is_no_column(kind: str, tmp_path: Path) -> None:
    frame, path = steps(), tmp_path / ("s.parquet" if kind == "parquet" else "s.csv")
    if kind == "parquet":
        frame.iloc[::-1].iloc[::-1].set_axis([9, 8, 7, 6, 5, 4]).to_parquet(path)
        names = ["__index_level_0__"]
    else:
        frame.to_csv(path)
        names = ["Unnamed: 0"]
        if kind == "csv twice":
            pd.read_csv(path).to_csv(path)
            names = ["Unnamed: 0.1", "Unnamed: 0"]
    gear_data.convert(path, tmp_path / "d")
    manifest = gear_data.open(tmp_path / "d").manifest
    assert manifest.schema.names[:3] == ("observations", "actions", "rewards")
    assert [f["column"] for f in manifest.findings if f["code"] == "index-left-out"] == names


def test_an_index_that_an_option_names_is_kept(tmp_path: Path) -> None:
    steps().set_axis([5, 2, 3, 1, 0, 9]).to_parquet(tmp_path / "s.parquet")
    report = gear_data.convert(tmp_path / "s.parquet", tmp_path / "d", rename={"__index_level_0__": "index"})
    assert gear_data.open(tmp_path / "d").episode(0)["index"].tolist() == [5, 2, 3]
    assert "index-left-out" not in warning_codes(report)


@pytest.mark.parametrize("given", [None, "run"])
def test_columns_may_name_the_episode_column(given: str | None, tmp_path: Path) -> None:
    name = given or "episode_index"
    steps().rename(columns={"episode_index": name}).to_parquet(tmp_path / "s.parquet")
    options: dict[str, Any] = {
        "columns": ["observations", "actions", name],
        "episodes": gear_data.EpisodeBoundaries(episode_column=given),
    }
    gear_data.convert(tmp_path / "s.parquet", tmp_path / "d", **options)
    dataset = gear_data.open(tmp_path / "d")
    assert dataset.schema.names == ("observations", "actions", "terminated", "truncated")
    assert dataset.episodes[name].to_list() == [0, 1]
    with pytest.raises(InvalidArgumentError, match="only " + name):
        gear_data.convert(tmp_path / "s.parquet", tmp_path / "e", **{**options, "columns": [name]})
    with pytest.raises(UnknownNameError, match=name):
        gear_data.convert(tmp_path / "s.parquet", tmp_path / "e", **{**options, "columns": [name + "s"]})


def test_columns_of_an_archive_may_name_the_episode_ids(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", **{name: values.to_numpy() for name, values in steps().items()})
    gear_data.convert(tmp_path / "s.npz", tmp_path / "d", columns=["actions", "episode_index"])
    assert gear_data.open(tmp_path / "d").num_episodes == 2


@pytest.mark.parametrize(
    ("name", "near"), [("act", True), ("action_", True), ("Action", True), ("torque", False), ("actions", None)]
)
def test_a_table_without_actions_is_told(name: str, near: bool | None, tmp_path: Path) -> None:
    steps().rename(columns={"actions": name}).to_parquet(tmp_path / "s.parquet")
    found = [f for f in gear_data.lint(tmp_path / "s.parquet").findings if f.code == "no-actions-column"]
    assert len(found) == (near is not None)
    assert all((f"--rename {name}=actions" in finding.message) == near for finding in found)
    chosen = gear_data.lint(tmp_path / "s.parquet", columns=["rewards"])
    assert "no-actions-column" not in {finding.code for finding in chosen.findings}
