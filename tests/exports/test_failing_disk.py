"""Exports whose files cannot grow beyond a size."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import gear_data
from gear_data.errors import UnwritableError
from tests.support.exports import FORMATS, export_to


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


@pytest.mark.parametrize("format", ["safetensors", "npz", "parquet"])
def test_export_of_batches(format: str, rollouts_path: Path, tmp_path: Path) -> None:
    loader = gear_data.SequenceLoader(gear_data.open(rollouts_path), batch_size=8, context=3, prefetch=0)
    with files_up_to(100), pytest.raises(UnwritableError, match="File too large"):
        gear_data.export_batches(loader, tmp_path / "batches", batches=1, format=format)
    assert not (tmp_path / "batches").exists()
    gear_data.export_batches(loader, tmp_path / "batches", batches=1, format=format)
