"""Flags of the first step divide flat arrays into episodes, in each container."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gear_data.errors import UnknownFormatError
from tests.support.makers.ideas import write_zarr
from tests.support.makers.own_formats import write_hdf5
from tests.support.makers.source_reading import read_source

Arrays = Mapping[str, Any]


def _arrays(first: Any) -> dict[str, Any]:
    steps = np.arange(7.0)
    return {"observations": steps[:, None], "actions": np.ones((7, 2)), "rewards": steps, "is_first": np.array(first)}


def _hdf5(folder: Path, arrays: Arrays) -> Any:
    return write_hdf5(folder / "run.h5", arrays)


def _zarr(folder: Path, arrays: Arrays) -> Any:
    return write_zarr(arrays, folder / "run.zarr")


def _npz(folder: Path, arrays: Arrays) -> Any:
    np.savez(folder / "run.npz", **arrays)
    return folder / "run.npz"


def _pandas(_: Path, arrays: Arrays) -> Any:
    return pd.DataFrame({name: list(values) for name, values in arrays.items()})


WRITERS = pytest.mark.parametrize("write", [_hdf5, _zarr, _npz, _pandas])
Write = Callable[[Path, Arrays], Any]


@WRITERS
def test_they_divide_the_episodes(write: Write, tmp_path: Path) -> None:
    seen = read_source(write(tmp_path, _arrays([1, 0, 0, 1, 0, 1, 0])))
    assert [each["rewards"].tolist() for each in seen.episodes] == [[0, 1, 2], [3, 4], [5, 6]]
    assert "episode-cut" not in seen.codes


@WRITERS
def test_a_first_row_without_the_flag_is_reported(write: Write, tmp_path: Path) -> None:
    seen = read_source(write(tmp_path, _arrays([0, 0, 1, 0, 0, 0, 0])))
    assert seen.lengths == [2, 5]
    assert "episode-cut" in seen.codes


@pytest.mark.parametrize("write", [_hdf5, _zarr])
def test_names_of_rlds_are_refused_in_a_tree(write: Write, tmp_path: Path) -> None:
    names = {"observations": "observation", "actions": "action", "rewards": "reward"}
    arrays = {names.get(name, name): values for name, values in _arrays([1, 0, 0, 1, 0, 1, 0]).items()}
    with pytest.raises(UnknownFormatError, match="only its final observation"):
        read_source(write(tmp_path, arrays))
