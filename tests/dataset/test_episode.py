"""Episode: its length, final observation, task and facts, against the rollouts and a view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import EpisodeIndexError, InvalidArgumentError


def test_final_observations_by_position(rollouts: list[Any], rollouts_path: Path) -> None:
    """In a filtered view, positions and ids differ."""
    ds = gear_data.open(rollouts_path)
    chosen = [number for number, rollout in enumerate(rollouts) if len(rollout) > 5]
    view = ds.filter("length > 5")
    assert chosen != list(range(len(chosen)))
    for position, number in enumerate(chosen):
        episode = view[position]
        assert (episode.id, episode.length) == (number, len(rollouts[number]))
        for final in (view.final(position), view.final(position - len(view)), episode.final, ds[number].final):
            assert final is not None and list(final) == ["observations"]
            assert final["observations"].tolist() == rollouts[number].final.tolist()
    for position in (len(chosen), -len(chosen) - 1):
        with pytest.raises(EpisodeIndexError, match=f"positions are 0 to {len(chosen) - 1}"):
            view.final(position)
    for wrong in (True, slice(0, 2), "0", [1], 1.0, None):
        with pytest.raises(InvalidArgumentError, match="position is an integer"):
            ds.final(wrong)  # type: ignore[arg-type]


def test_task_and_facts(tmp_path: Path) -> None:
    episodes = [
        {
            "observations": np.zeros((3, 2), np.float32),
            "actions": np.zeros((3, 1), np.float32),
            "rewards": np.array([1.0, 2.0, number]),
            "terminated": number == 1,
            "level": number,
            "length": 0.5,
            "task": "open" if number else None,
        }
        for number in range(2)
    ]
    gear_data.convert(episodes, tmp_path / "ds")
    without, with_task = gear_data.open(tmp_path / "ds")
    assert (without.task, with_task.task) == (None, "open")
    assert with_task.facts == {"level": 1, "metadata.length": 0.5}
    assert (without.final, without.length) == (None, 3)
    columns = ", ".join(without)
    assert repr(without) == f"Episode(id 0, 3 steps, truncated, return 3; {columns})"
    assert repr(with_task) == f"Episode(id 1, 3 steps, terminated, return 4, task 'open'; {columns})"


def test_the_repr_is_short(tmp_path: Path) -> None:
    """Columns that do not fit are left out, and rewards may be missing."""
    columns = {f"observations.sensor_{number:02}": np.zeros(4) for number in range(40)}
    gear_data.convert([{**columns, "actions": np.zeros((4, 1))}], tmp_path / "ds")
    text = repr(gear_data.open(tmp_path / "ds")[0])
    assert len(text) < 200 and "return" not in text and text.endswith(" ...)")
