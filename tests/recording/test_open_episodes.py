"""OpenEpisodes, when memory ends in the middle of a change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gear_data.recording import open_episodes
from gear_data.recording.open_episodes import OpenEpisodes
from gear_data.schema import ColumnSpec

COLUMNS = (ColumnSpec("observations", "float64", (2,)), ColumnSpec("actions", "int64"))


class Memory:
    """Numpy, whose `empty` can fail."""

    def __init__(self) -> None:
        self.left: Iterator[bool] = iter(())

    def empty(self, *arguments: Any) -> Any:
        if not next(self.left, True):
            raise MemoryError
        return np.empty(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    memory = Memory()
    monkeypatch.setattr(open_episodes, "np", memory)
    return memory


@pytest.mark.parametrize("steps", [1, 600])
@pytest.mark.parametrize("arrays", [0, 1])
def test_memory_that_ends_at_a_new_environment(arrays: int, steps: int, memory: Memory) -> None:
    """The next step of the environment, and steps of the others, are recorded."""
    opened = OpenEpisodes(COLUMNS)

    def append(environment: int, value: int) -> None:
        opened.append_row(opened.slot(environment), {"observations": [value, value], "actions": value})

    for environment in range(2):
        append(environment, environment)
    memory.left = iter([True] * arrays + [False])
    with pytest.raises(MemoryError):
        append(2, 2)
    assert opened.environments() == [0, 1]
    memory.left = iter(())
    for value in range(1, steps):  # more than 256: the arrays grow in their steps before they grow in their slots
        append(0, value)
    append(2, 5)
    assert opened.environments() == [0, 1, 2]
    assert opened.steps(0)["observations"].tolist() == [[value, value] for value in range(steps)]
    assert opened.steps(1)["actions"].tolist() == [1]
    assert opened.steps(2)["observations"].tolist() == [[5, 5]]


@pytest.mark.parametrize("arrays", [0, 1])
def test_memory_that_ends_while_an_episode_grows(arrays: int, memory: Memory) -> None:
    opened = OpenEpisodes(COLUMNS)
    slots = opened.slots([0, 1])
    for value in range(256):
        opened.append(slots, {"observations": np.full((2, 2), value), "actions": np.full(2, value)})
    memory.left = iter([True] * arrays + [False])
    rows = {"observations": np.full((2, 2), 256), "actions": np.full(2, 256)}
    with pytest.raises(MemoryError):
        opened.append(slots, rows)
    assert [opened.length(slot) for slot in range(2)] == [256, 256]
    assert opened.slot(2) == 2
    opened.append(slots, rows)
    assert opened.steps(1)["actions"].tolist() == list(range(257))
