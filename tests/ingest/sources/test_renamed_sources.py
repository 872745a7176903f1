"""Names that the user gives count before anything is recognised: `--rename` and `--columns`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import polars as pl
import pytest

import gear_data
from gear_data.cli import main
from gear_data.errors import UnknownFormatError, UnknownNameError

LENGTHS = [4, 2, 3]


def _arrays(**more: Any) -> dict[str, Any]:
    steps = sum(LENGTHS)
    states = np.random.default_rng(0).normal(size=(steps, 2))
    return {"observations": states, "actions": np.arange(float(steps)), **more}


def _npz(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez(path / "a.npz", **arrays)
    return path / "a.npz"


def _npy(path: Path, arrays: dict[str, Any]) -> Path:
    (path / "arrays").mkdir()
    for name, values in arrays.items():
        np.save(path / "arrays" / f"{name}.npy", values)
    return path / "arrays"


def _memory(_: Path, arrays: dict[str, Any]) -> dict[str, Any]:
    return arrays


def _parquet(path: Path, arrays: dict[str, Any]) -> Path:
    pl.DataFrame({name: np.asarray(values).tolist() for name, values in arrays.items()}).write_parquet(
        path / "a.parquet"
    )
    return path / "a.parquet"


def _polars(_: Path, arrays: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame({name: np.asarray(values).tolist() for name, values in arrays.items()})


Write = Callable[[Path, dict[str, Any]], Any]
ARRAYS = pytest.mark.parametrize("write", [_npz, _npy, _memory])
ALL = pytest.mark.parametrize("write", [_npz, _npy, _memory, _parquet, _polars])


@ARRAYS
@pytest.mark.parametrize(
    ("usual", "values"),
    [("lengths", LENGTHS), ("episode_lengths", LENGTHS), ("episode_ends", [4, 6, 9]), ("indices", [4, 6])],
)
def test_arrays_that_divide_the_rows(write: Write, usual: str, values: list[int], tmp_path: Path) -> None:
    source = write(tmp_path, _arrays(traj=np.array(values)))
    gear_data.convert(source, tmp_path / "d", rename={"traj": usual})
    assert gear_data.open(tmp_path / "d").episodes["length"].to_list() == LENGTHS


@ARRAYS
def test_padded_arrays(write: Write, tmp_path: Path) -> None:
    """Without the name, the axes are unclear."""
    arrays = {"observations": np.ones((3, 5, 2)), "actions": np.ones((3, 5, 1)), "n": np.array(LENGTHS)}
    source = write(tmp_path, arrays)
    with pytest.raises(UnknownFormatError):
        gear_data.convert(source, tmp_path / "d")
    gear_data.convert(source, tmp_path / "d", rename={"n": "episode_lengths"})
    assert gear_data.open(tmp_path / "d").episodes["length"].to_list() == LENGTHS


def test_advice_about_padded_arrays_has_the_name_in_the_file(tmp_path: Path) -> None:
    source = _npz(
        tmp_path, {"observations": np.ones((3, 3, 2)), "actions": np.ones((3, 3, 1)), "n": np.array([2, 3, 1])}
    )
    with pytest.raises(UnknownFormatError) as error:
        gear_data.convert(source, tmp_path / "d", rename={"n": "episode_lengths"})
    assert "lengths: n}" in str(error.value.hint)


@ALL
def test_an_episode_column(write: Write, tmp_path: Path) -> None:
    source = write(tmp_path, _arrays(number=np.repeat([7, 8, 9], LENGTHS)))
    gear_data.convert(source, tmp_path / "d", rename={"number": "episode_id"})
    table = gear_data.open(tmp_path / "d").episodes
    assert table["length"].to_list() == LENGTHS
    boundaries = gear_data.EpisodeBoundaries(episode_column="ep")
    gear_data.convert(source, tmp_path / "e", rename={"number": "ep"}, episodes=boundaries, columns=["ep", "actions"])
    assert gear_data.open(tmp_path / "e").episodes["ep"].to_list() == [7, 8, 9]
    with pytest.raises(UnknownNameError):
        gear_data.convert(source, tmp_path / "f", episodes=boundaries)


@ALL
def test_an_end_flag_and_actions(write: Write, tmp_path: Path) -> None:
    ends = np.zeros(9, np.bool_)
    ends[np.cumsum(LENGTHS) - 1] = True
    arrays = _arrays(over=ends)
    arrays["commands"] = arrays.pop("actions")
    source = write(tmp_path, arrays)
    gear_data.convert(source, tmp_path / "d", rename={"over": "dones", "commands": "actions"})
    dataset = gear_data.open(tmp_path / "d")
    assert dataset.episodes["length"].to_list() == LENGTHS
    assert dataset.episodes["terminated"].to_list() == [True] * 3


def test_step_numbers_of_a_table(tmp_path: Path) -> None:
    frame = _polars(tmp_path, _arrays(episode=np.repeat([0, 1, 2], LENGTHS), nr=np.arange(9)[::-1].copy()))
    report = gear_data.convert(frame, tmp_path / "d", rename={"nr": "frame_index"})
    assert any(line.startswith("steps-not-monotonic: column 'nr'") for line in report.warnings)
    assert "nr" not in gear_data.open(tmp_path / "d").schema.names


def test_a_name_that_is_taken_away(tmp_path: Path) -> None:
    """A column of another meaning is no episode column."""
    frame = _polars(tmp_path, _arrays(episode=np.arange(9), dones=np.arange(9) % 3 == 2))
    gear_data.convert(frame, tmp_path / "d", rename={"episode": "infos.episode"})
    dataset = gear_data.open(tmp_path / "d")
    assert dataset.episodes["length"].to_list() == [3, 3, 3]
    np.testing.assert_array_equal(dataset[1]["infos.episode"], [3, 4, 5])


def test_d4rl(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["observations"], file["act"], file["rewards"] = np.ones((6, 2)), np.ones((6, 1)), np.ones(6)
        file["terminals"], file["timeouts"] = np.zeros(6, np.bool_), np.arange(6) % 3 == 2
    assert main(["convert", str(tmp_path / "a.hdf5"), str(tmp_path / "d"), "--rename", "act=actions"]) == 0
    assert gear_data.open(tmp_path / "d").episodes["length"].to_list() == [3, 3]


def _hdf5(path: Path, arrays: dict[str, Any]) -> Path:
    with h5py.File(path / "a.h5", "w") as file:
        for name, values in arrays.items():
            file[name] = values
    return path / "a.h5"


def test_actions_and_ids_of_hdf5(tmp_path: Path) -> None:
    arrays = _arrays(number=np.repeat([7, 8, 9], LENGTHS))
    arrays["commands"] = arrays.pop("actions")
    source = _hdf5(tmp_path, arrays)
    with pytest.raises(UnknownFormatError):
        gear_data.convert(source, tmp_path / "d")
    gear_data.convert(source, tmp_path / "d", rename={"commands": "actions", "number": "episode_id"})
    dataset = gear_data.open(tmp_path / "d")
    assert dataset.episodes["length"].to_list() == LENGTHS
    np.testing.assert_array_equal(dataset[0]["actions"], [0, 1, 2, 3])


def test_actions_of_groups(tmp_path: Path) -> None:
    arrays = {f"run_{i}/{name}": np.ones((3, 2)) for i in range(2) for name in ("state", "twist")}
    source = _hdf5(tmp_path, arrays)
    with pytest.raises(UnknownFormatError, match="no array looks like actions"):
        gear_data.convert(source, tmp_path / "d")
    gear_data.convert(source, tmp_path / "d", rename={"twist": "actions"})
    assert gear_data.open(tmp_path / "d").episodes["length"].to_list() == [3, 3]
