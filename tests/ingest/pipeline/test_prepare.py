"""Tests of the checks that all blocks of all sources go through."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import gear_data
from gear_data.errors import CorruptSourceError
from tests.support.rollouts import make_rollouts, write_d4rl


@pytest.mark.parametrize("suffix", [".npz", ".hdf5"])
def test_a_boolean_of_another_byte_is_damage(suffix: str, tmp_path: Path) -> None:
    path = write_d4rl(tmp_path / "a.hdf5", make_rollouts(3, seed=1, max_length=9))
    if suffix == ".npz":
        with h5py.File(path) as file:
            arrays = {name: file[name][()] for name in file}
        arrays["terminals"].view(np.uint8)[2] = 64
        np.savez(tmp_path / "a.npz", **arrays)
    else:
        with h5py.File(path) as file:
            offset = file["terminals"].id.get_offset()
        data = bytearray(path.read_bytes())
        data[offset + 2] = 64
        path.write_bytes(data)
    with pytest.raises(CorruptSourceError, match=r"'terminals', .*a boolean that is stored as 64"):
        gear_data.convert(tmp_path / f"a{suffix}", tmp_path / "d")
