"""Fixtures that write Minari HDF5 files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import minari
import pytest
from minari.data_collector import EpisodeBuffer

from tests.support.makers.minari_files import MAIN, Write, plain


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a dataset with the library, and returns its folder."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))

    def create(buffers: list[EpisodeBuffer], observation: Any, action: Any, **options: Any) -> Path:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about a missing author and code are expected
            minari.create_dataset_from_buffers(
                "test/rollouts-v0",
                buffer=buffers,
                observation_space=observation,
                action_space=action,
                data_format="hdf5",
                **options,
            )
        return tmp_path / "minari" / "test" / "rollouts-v0"

    return create


@pytest.fixture
def edit(write: Write) -> Iterator[Callable[[], tuple[Path, h5py.File]]]:
    """A dataset of three episodes, and its file, open for editing."""
    files = []

    def opened() -> tuple[Path, h5py.File]:
        source = plain(write)
        files.append(h5py.File(source / MAIN, "r+"))
        return source, files[-1]

    yield opened
    for file in files:
        file.close()
