"""Creation of HDF5 files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import gear_data
from gear_data.errors import (
    StorageFullError,
)
from tests.support.exports import FORMATS, export_to


@pytest.mark.parametrize("format", ["d4rl", "minari"])
def test_hdf5_needs_free_disk_space(
    format: str, rollouts_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate covers the file size, and is less than ten times as large."""
    ds = gear_data.open(rollouts_path)
    size = sum(path.stat().st_size for path in export_to(ds, tmp_path / "first", format).rglob("*.hdf5"))
    size = size or (tmp_path / "first" / FORMATS[format][0]).stat().st_size
    usage = shutil.disk_usage(tmp_path)
    for free, fits in ((size, format == "d4rl"), (10 * size, True), (size // 2, False)):
        monkeypatch.setattr("shutil.disk_usage", lambda path, free=free: usage._replace(free=free))
        folder = tmp_path / str(free)
        folder.mkdir()
        if fits:
            export_to(ds, folder, format)
        else:
            with pytest.raises(StorageFullError, match="are needed"):
                export_to(ds, folder, format)
            assert list(folder.iterdir()) == []
