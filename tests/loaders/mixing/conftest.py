"""Three datasets of unlike shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data

#: Name -> lengths of episodes, observations, actions.
SIZES = {"hopper": ((20, 30, 12), 11, 3), "pendulum": ((9, 40), 3, 1), "arm": ((15, 16, 17, 18), 11, 3)}


def make_episodes(name: str) -> list[dict[str, Any]]:
    lengths, observations, actions = SIZES[name]
    rng = np.random.default_rng(len(name))
    episodes = []
    for number, length in enumerate(lengths):
        episode: dict[str, Any] = {
            "state" if name == "arm" else "observations": rng.normal(size=(length, observations)).astype(np.float32),
            "actions": rng.normal(size=(length, actions)).astype(np.float32),
            "rewards": rng.normal(size=length),
            "level": number,
        }
        if name == "pendulum":
            episode |= {"prompt": ["go"] * length, "infos.qpos": rng.normal(size=(length, 2)).astype(np.float32)}
        episodes.append(episode)
    return episodes


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixing")
    for name in SIZES:
        gear_data.convert(make_episodes(name), folder / name, progress=False)
    return folder


@pytest.fixture
def folder(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the datasets. It is the current folder's parent: paths in a file are relative to the file."""
    (made / "elsewhere").mkdir(exist_ok=True)
    monkeypatch.chdir(made / "elsewhere")
    return made
