"""Fixtures for tests of sources that are opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gear_data.ingest import convert as conversions
from tests.support.rollouts import Rollout, write_d4rl


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the cache, which is new."""
    monkeypatch.setenv("GEAR_DATA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path: Path, rollouts: list[Rollout]) -> Path:
    """A file of D4RL with `rollouts`."""
    return write_d4rl(tmp_path / "hops.hdf5", rollouts)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Destinations of the conversions that this process runs."""
    found: list[str] = []
    run = conversions.run_conversion

    def counted(spec: Any, destination: str, *arguments: Any, **options: Any) -> Any:
        found.append(destination)
        return run(spec, destination, *arguments, **options)

    monkeypatch.setattr(conversions, "run_conversion", counted)
    return found
