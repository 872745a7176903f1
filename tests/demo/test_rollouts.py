"""Rollouts of the demo: they match the environment, and their returns vary."""

from __future__ import annotations

import numpy as np

from gear_data.demo.rollouts import make_rollouts


def test_rollouts_match_the_environment() -> None:
    """Replays the actions: observations and rewards are equal at each step."""
    import gymnasium

    rollouts = make_rollouts(3, seed=11)
    for i in range(3):
        env = gymnasium.make("Pendulum-v1")
        observation, _ = env.reset(seed=11 + i)
        for t in range(200):
            np.testing.assert_array_equal(rollouts["observations"][i, t], observation)
            observation, reward, terminated, truncated, _ = env.step(rollouts["actions"][i, t])
            assert rollouts["rewards"][i, t] == np.float32(reward)
            assert (rollouts["terminated"][i, t], rollouts["truncated"][i, t]) == (terminated, truncated)
        assert truncated
    assert np.abs(rollouts["actions"]).max() <= 2


def test_policies_range_from_random_to_good() -> None:
    returns = np.sort(make_rollouts(40, seed=0)["rewards"].sum(axis=1))
    assert returns[:4].mean() < -1000
    assert returns[-4:].mean() > -200
    assert np.abs(np.diff(returns)).max() < 400  # no gap between the two
