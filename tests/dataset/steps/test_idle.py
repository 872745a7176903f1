"""Idle steps, against a loop in plain Python and against openpi's way of finding them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.dataset.steps import idle as module
from gear_data.errors import EmptySourceError, GearError, InvalidArgumentError, UnknownNameError, UnsupportedColumnError
from tests.support.feed import data as feed_data
from tests.support.views import flags_of


def loop(episodes: list[dict[str, Any]], column: str, threshold: float, steps: int) -> list[bool]:
    """Returns for each step whether it is in no idle run of at least so many steps."""
    found = []
    for episode in episodes:
        run: list[bool] = []
        rows = [[float(each) for each in np.ravel(row)] for row in episode[column]]
        for step in range(len(rows)):
            if step and all(abs(a - b) < threshold for a, b in zip(rows[step], rows[step - 1], strict=True)):
                run.append(False)
                continue
            found += run if len(run) >= steps else [True] * len(run)
            run = []
            found.append(True)
        found += run if len(run) >= steps else [True] * len(run)
    return found


@pytest.mark.parametrize("block_bytes", [64, 1 << 20])
@pytest.mark.parametrize(("column", "threshold"), [("actions", 1e-3), ("actions", 0.5), ("counts", 1)])
@pytest.mark.parametrize("steps", [1, 2, 5, 7])
def test_idle_steps_are_a_loop_over_the_steps(
    ds: gear_data.Dataset, episodes: list[dict[str, Any]], column: str, threshold: float, steps: int, block_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
    view = ds.drop_idle(column, threshold=threshold, seconds=steps / 15, fps=15)
    expected = loop(episodes, column, threshold, steps)
    assert flags_of(view) == expected
    assert view.steps_left_out == expected.count(False)
    assert column != "actions" or steps > 5 or view.steps_left_out > 5


def test_absent_values_are_not_idle(tmp_path: Path) -> None:
    """The steps of a source that lacks the column stay."""
    episodes = feed_data.locomotion([9, 20], seed=4)
    for episode in episodes:
        episode["actions"][3:8] = episode["actions"][3]
    without = [{name: values for name, values in each.items() if name != "actions"} for each in episodes]
    ds = feed_data.convert_parts([episodes, without], tmp_path / "parts")
    expected = loop(episodes, "actions", 1e-3, 2)
    view = ds.drop_idle("actions", threshold=1e-3, seconds=2 / 15, fps=15)
    assert flags_of(view) == expected + [True] * len(expected) and expected.count(False) == 8


def openpi_kept(velocities: Any, shortest: int) -> Any:
    """Returns openpi's `keep_mask` before it leaves out short ranges.

    openpi, commit 15a9616, `examples/droid/compute_droid_nonidle_ranges.py`, written again with NumPy.
    """
    idle = np.hstack([np.array([False]), np.all(np.abs(velocities[1:] - velocities[:-1]) < 1e-3, axis=1)])
    change = np.diff(np.concatenate([[False], idle, [False]]).astype(int))
    keep = np.ones(len(velocities), bool)
    for start, end in zip(np.where(change == 1)[0], np.where(change == -1)[0], strict=True):
        if end - start >= shortest:
            keep[start:end] = False
    return keep


def test_openpi_leaves_out_the_same_steps(ds: gear_data.Dataset, episodes: list[dict[str, Any]]) -> None:
    """Seven idle steps at DROID's 15 Hz."""
    expected = np.concatenate([openpi_kept(each["actions"].astype(float), 7) for each in episodes])
    view = ds.drop_idle("actions", threshold=1e-3, seconds=7 / 15, fps=15)
    assert flags_of(view) == expected.tolist() and not expected.all()


def test_the_rate_is_the_sources_or_that_of_the_timestamps(
    ds: gear_data.Dataset, episodes: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert flags_of(ds.drop_idle("actions", threshold=1e-3, seconds=0.41)) == loop(episodes, "actions", 1e-3, 5)
    assert flags_of(ds.drop_idle("actions", threshold=1e-3, seconds=0.4)) == loop(episodes, "actions", 1e-3, 4)
    gear_data.export(ds, tmp_path / "robot", "lerobot", fps=20)
    gear_data.convert(tmp_path / "robot", tmp_path / "back", progress=False)
    robot = gear_data.open(tmp_path / "back")
    assert flags_of(robot.drop_idle("actions", threshold=1e-3, seconds=0.2)) == loop(episodes, "actions", 1e-3, 4)
    without = [{"actions": each["actions"], "rewards": each["rewards"]} for each in episodes]
    gear_data.convert(without, tmp_path / "plain", progress=False)
    plain = gear_data.open(tmp_path / "plain")
    with pytest.raises(InvalidArgumentError, match="steps per second are unknown") as raised:
        plain.drop_idle("actions", threshold=1e-3, seconds=0.4)
    assert raised.value.column == "timestamp" and "fps=15" in str(raised.value)
    view = plain.drop_idle("actions", threshold=1e-3, seconds=0.4, fps=10)
    assert flags_of(view) == loop(without, "actions", 1e-3, 4)


def test_nan_infinity_and_the_ends_of_numbers(tmp_path: Path) -> None:
    numbers = [
        np.array([math.nan, math.nan, 1, 1, math.inf, math.inf, -math.inf, 0, 0], np.float64),
        np.array([0, 0], np.float64),
    ]
    counts = [np.array([0, 255, 255, 0, 0, 1, 0, 0, 0], np.uint8), np.array([0, 0], np.uint8)]
    episodes = [{"actions": a, "counts": b, "rewards": np.zeros(len(a))} for a, b in zip(numbers, counts, strict=True)]
    gear_data.convert(episodes, tmp_path / "ds", progress=False)
    ds = gear_data.open(tmp_path / "ds")
    for column, threshold in (("actions", 0.5), ("counts", 2)):
        expected = loop(episodes, column, threshold, 1)
        assert flags_of(ds.drop_idle(column, threshold=threshold, seconds=1, fps=1)) == expected


def test_other_filters(ds: gear_data.Dataset, episodes: list[dict[str, Any]]) -> None:
    expected = loop(episodes, "actions", 1e-3, 3)
    positive = [reward > 0 for each in episodes for reward in each["rewards"]]
    view = ds.filter_steps("rewards > 0", mode="all").drop_idle("actions", threshold=1e-3, seconds=0.3, mode="all")
    assert flags_of(view) == [a and b for a, b in zip(expected, positive, strict=True)]
    assert view.step_mask_mode == "all"
    assert view.view.history[-1].startswith("drop_idle of actions, threshold 0.001, 3 steps, mode all: ")
    assert f"{positive.count(True) - flags_of(view).count(True):,} of {positive.count(True):,}" in view.view.history[-1]
    part = ds[2:5].drop_idle("actions", threshold=1e-3, seconds=0.3)
    inside = [number in (2, 3, 4) for number, each in enumerate(episodes) for _ in each["rewards"]]
    assert flags_of(part) == [a and b for a, b in zip(expected, inside, strict=True)]
    with pytest.raises(EmptySourceError, match=r"drop_idle of actions, .* and the earlier step filters"):
        ds.filter_steps("timestamp = 0.3").drop_idle("actions", threshold=1e9, seconds=0.1)


@pytest.mark.parametrize(
    ("column", "options", "error", "words"),
    [
        ("action", {}, UnknownNameError, "did you mean 'actions'"),
        ("prompt", {}, UnsupportedColumnError, "column 'prompt'"),
        ("actions", {"threshold": 0}, InvalidArgumentError, "threshold must be a number above 0, not 0"),
        ("actions", {"threshold": math.nan}, InvalidArgumentError, "threshold"),
        ("actions", {"threshold": "0.1"}, InvalidArgumentError, "threshold"),
        ("actions", {"seconds": -1}, InvalidArgumentError, "seconds must be a number above 0, not -1"),
        ("actions", {"seconds": True}, InvalidArgumentError, "seconds"),
        ("actions", {"fps": math.inf}, InvalidArgumentError, "fps"),
        ("actions", {"mode": "last"}, UnknownNameError, "known: all, first"),
    ],
)
def test_wrong_arguments(
    column: str, options: dict[str, Any], error: type[GearError], words: str, ds: gear_data.Dataset
) -> None:
    with pytest.raises(error, match=words):
        ds.drop_idle(column, **{"threshold": 1e-3, "seconds": 1, **options})


def test_a_dataset_that_grows(tmp_path: Path) -> None:
    with gear_data.Writer(tmp_path / "ds", durability="os") as writer:
        _add(writer, [0, 1, 1, 1, 2])
        writer.seal()
        view = gear_data.open(tmp_path / "ds").drop_idle("actions", threshold=0.5, seconds=2, fps=1)
        _add(writer, [3, 3, 3, 4, 4])
        writer.seal()
        assert flags_of(view.refresh()) == [
            *(True, True, False, False, True),
            *(True, False, False, True, True),
        ]


def _add(writer: gear_data.Writer, actions: list[int]) -> None:
    for action in actions:
        writer.append(observations=np.zeros(2, np.float32), actions=np.int64(action), rewards=0.0)
    writer.end_episode()
