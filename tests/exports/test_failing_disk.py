"""Exports whose files cannot grow beyond a size."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import UnwritableError
from tests.support.exports import FORMATS, convert_rollouts, export_to


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Lets every write beyond a size fail, also in C code."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("size", [0, 50, 1000])
@pytest.mark.parametrize("format", FORMATS)
def test_export(format: str, size: int, rollouts_path: Path, tmp_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    folder = tmp_path / "exports"
    folder.mkdir()
    with files_up_to(size), pytest.raises(UnwritableError, match="File too large"):
        export_to(ds, folder, format)
    assert list(folder.iterdir()) == []
    export_to(ds, folder, format)


@pytest.mark.parametrize("codec", ["av1", "h264"])
def test_export_of_videos(codec: str, sources: Any, tmp_path: Path) -> None:
    noise = np.random.default_rng(0)
    rollouts = [
        r.with_columns(**{"observations.image": noise.integers(0, 256, (len(r), 64, 64, 3), np.uint8)})
        for r in sources.make_rollouts(3, seed=2, max_length=40)
    ]
    ds = convert_rollouts(tmp_path, sources, rollouts, final=False)
    folder = tmp_path / "exports"
    folder.mkdir()
    arguments = {"fps": 10, "videos": True, "video_codec": codec}
    with files_up_to(20_000), pytest.raises(UnwritableError, match="File too large"):
        gear_data.export(ds, folder / "out", "lerobot", **arguments)
    assert list(folder.iterdir()) == []
    gear_data.export(ds, folder / "out", "lerobot", **arguments)


@pytest.mark.parametrize("format", ["safetensors", "npz", "parquet"])
def test_export_of_batches(format: str, rollouts_path: Path, tmp_path: Path) -> None:
    loader = gear_data.SequenceLoader(gear_data.open(rollouts_path), batch_size=8, context=3, prefetch=0)
    with files_up_to(100), pytest.raises(UnwritableError, match="File too large"):
        gear_data.export_batches(loader, tmp_path / "batches", batches=1, format=format)
    assert not (tmp_path / "batches").exists()
    gear_data.export_batches(loader, tmp_path / "batches", batches=1, format=format)
