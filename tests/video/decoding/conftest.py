"""A file of each encoding, and its frames."""

from __future__ import annotations

from pathlib import Path

import pytest

from gear_data.video.decoding import process_state
from tests.support.cameras.encoded import ENCODINGS, Frames, decoded, encode


@pytest.fixture(autouse=True)
def no_cached_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_state, "_state", process_state.ProcessState())


@pytest.fixture(scope="session")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("encoded")
    files = {name: folder / f"{number}.mp4" for number, name in enumerate(ENCODINGS)}
    for number, (name, path) in enumerate(files.items()):
        encode(path, ENCODINGS[name], seed=number)
    return files


@pytest.fixture(scope="session")
def expected(paths: dict[str, Path]) -> dict[str, Frames]:
    return {name: decoded(path) for name, path in paths.items()}
