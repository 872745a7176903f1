"""Cameras of a dataset at a URL."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

import gear_data
from tests.support.cameras.filmed import FRONT, WRIST, Filmed
from tests.support.remote import upload


def test_frames_of_a_dataset_at_a_url(filmed: Filmed, tmp_path: Path) -> None:
    upload(filmed.path, "memory://filmed")
    ds = gear_data.open("memory://filmed", cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(ds[2][FRONT][[0, -1]], filmed.frames[FRONT][2][[0, -1]])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(ds))[3][WRIST], filmed.frames[WRIST][3])
