"""Jerk, idle share and jumps, against plain loops; bounds of outliers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gear_data.reports import measures
from gear_data.reports.measures import episode_measures, find_bounds
from gear_data.reports.step_sample import draw_sample
from tests.reports.conftest import Make, random_episodes


def test_measures_agree_with_loops(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = random_episodes([1, 2, 3, 4, 30, 17])
    episodes[4]["observations"][10:20] = episodes[4]["observations"][10]
    found = episode_measures(draw_sample(make(episodes)))
    scale = {
        name: np.concatenate([each[name] for each in episodes]).astype(np.float64).std(axis=0)
        for name in ("observations", "actions")
    }
    for place, episode in enumerate(episodes):
        states = episode["observations"] / scale["observations"]
        actions = episode["actions"] / scale["actions"]
        moves = [np.sqrt(((b - a) ** 2).mean()) for a, b in itertools.pairwise(states)]
        still = [np.abs(b - a).max() <= 1e-3 for a, b in itertools.pairwise(states)]
        thirds = [
            np.sqrt(((actions[t] - 3 * actions[t - 1] + 3 * actions[t - 2] - actions[t - 3]) ** 2).mean())
            for t in range(3, len(actions))
        ]
        for name, expected in (
            ("jump", max(moves, default=np.nan)),
            ("idle", np.mean(still) if still else np.nan),
            ("jerk", np.mean(thirds) if thirds else np.nan),
        ):
            assert found[name][place] == pytest.approx(expected, rel=1e-4, nan_ok=True), (name, place)
    assert found["idle"][4] == pytest.approx(9 / 29)


def test_measures_do_not_depend_on_blocks(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make(random_episodes([5, 9, 1, 30, 2, 8]))
    whole = episode_measures(draw_sample(dataset))
    monkeypatch.setattr("gear_data.reports.step_sample.BLOCK_BYTES", 100)
    for name, values in episode_measures(draw_sample(dataset)).items():
        assert values == pytest.approx(whole[name], nan_ok=True)


def test_nan_is_no_jump(make: Make) -> None:
    episodes = random_episodes([20, 20])
    before = episode_measures(draw_sample(make(episodes)))
    episodes[1]["observations"][5, 0] = np.nan
    after = episode_measures(draw_sample(make(episodes)))
    assert after["jump"][1] < 1.2 * before["jump"].max()


def test_discrete_actions_have_no_jerk(make: Make) -> None:
    episodes = random_episodes([6, 6])
    for episode in episodes:
        episode["actions"] = np.arange(6)
    assert set(episode_measures(draw_sample(make(episodes)))) == {"idle", "jump"}


def test_bounds_are_of_the_modified_z_score() -> None:
    values = np.array([1.0, 2, 3, 4, 100, np.nan])
    bounds = find_bounds(values, low=True, high=True)
    # The median is 3; the median of the distances 2, 1, 0, 1, 97 is 1.
    assert (bounds.low, bounds.high) == pytest.approx((3 - 3.5 * 1.4826, 3 + 3.5 * 1.4826), rel=1e-4)
    assert bounds.exceeded(values).tolist() == [False, False, False, False, True, False]
    assert not find_bounds(values, low=True, high=False).exceeded(values).any()


def test_bounds_of_mostly_equal_values() -> None:
    values = np.array([5.0] * 20 + [6.0])
    bounds = find_bounds(values, low=True, high=True)
    assert bounds.high == pytest.approx(5 + 3.5 * 1.2533 / 21, rel=1e-4)
    assert bounds.exceeded(values).tolist() == [False] * 20 + [True]
    assert not find_bounds(np.full(4, 2.0), low=True, high=True).exceeded(np.full(4, 2.0)).any()
    assert not find_bounds(np.full(4, np.nan), low=True, high=True).exceeded(np.full(4, np.nan)).any()


def test_every_measure_has_sides() -> None:
    assert measures.SIDES.keys() == {"length", "return", "jerk", "idle", "jump"}
