"""A stand-in for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cuda.gpu_stand_in import StandInGpu, stand_in
from tests.support.cuda.loader_checks import convert


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("device")


@pytest.fixture
def path(folder: Path) -> Path:
    return convert(11, folder / "one")


@pytest.fixture(params=["all late"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, libraries: Path) -> Iterator[StandInGpu]:
    with stand_in(monkeypatch, libraries, order=request.param) as found:
        yield found
