"""Fixtures of the tests of integrations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.integrations.training_runs import RankServer, make_data, rank_server


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    """Runs training scripts on several ranks."""
    with rank_server(tmp_path_factory.mktemp("ranks")) as server:
        yield server


@pytest.fixture(scope="session")
def trained_on(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset on which the scripts train."""
    return make_data(tmp_path_factory.mktemp("trained-on") / "dataset")
