"""evaluate with real Gymnasium environments."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import gear_data
from gear_data.errors import InvalidArgumentError, UnknownNameError
from gear_data.evaluation.episodes import SequencePolicy
from tests.support.feed.data import convert_episodes


def push(observation):
    return int(observation[2] > 0)


def test_the_returns_are_those_of_a_plain_loop():
    result = gear_data.evaluate(push, "CartPole-v1", episodes=3, seed=7, progress=False)
    env = gymnasium.make("CartPole-v1")
    for number in range(3):
        observation, _ = env.reset(seed=7 + number)
        total, ended = 0.0, False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(push(observation))
            total, ended = total + reward, terminated or truncated
        assert (result.returns[number], result.lengths[number]) == (total, total)
        assert result.terminated[number] == terminated
    assert result.scores is None
    assert result.to_json()["return_mean"] == result.returns.mean()
    again = gear_data.evaluate(push, "CartPole-v1", episodes=3, seed=np.int64(7), progress=False)
    assert again.returns.tolist() == result.returns.tolist()


def test_a_sequence_policy_sees_what_the_environment_gave(tmp_path):
    """Records an episode, then plays it again: the inputs of each step are the recorded steps."""
    env = gymnasium.make("Pendulum-v1", max_episode_steps=25)
    observation, _ = env.reset(seed=5)
    steps = {"observations": [], "actions": [], "rewards": []}
    rng = np.random.default_rng(0)
    for _ in range(25):
        action = rng.uniform(-2, 2, 1).astype(np.float32)
        steps["observations"].append(observation)
        observation, reward, _, _, _ = env.step(action)
        steps["actions"].append(action)
        steps["rewards"].append(np.float32(reward))
    episode = {name: np.array(values) for name, values in steps.items()}
    dataset = convert_episodes([episode], tmp_path / "dataset")
    loader = gear_data.SequenceLoader(dataset, 4, context=5, preset="decision_transformer", normalize=True)
    seen = []

    def predict(inputs):
        step = len(seen)
        seen.append(inputs["states"][0, -1])
        return np.repeat(episode["actions"][step][None, None], 5, axis=1)

    rollout = gear_data.Rollout.from_spec(loader.spec(), target=-100)
    result = gear_data.evaluate(SequencePolicy(predict, rollout), env, episodes=1, seed=5, progress=False)
    assert result.returns[0] == pytest.approx(episode["rewards"].sum(), rel=1e-5)
    expected = loader.normalizer.normalize("observations", episode["observations"])
    np.testing.assert_allclose(seen, expected, rtol=1e-5, atol=1e-6)


def test_errors():
    for options in ({"episodes": 0}, {"episodes": "3"}, {"episodes": 1.5}, {"seed": "3"}, {"seed": -1}):
        with pytest.raises(InvalidArgumentError, match="must be an integer of at least"):
            gear_data.evaluate(push, "CartPole-v1", **options)
    with pytest.raises(InvalidArgumentError, match="policy must be a function"):
        gear_data.evaluate(3, "CartPole-v1")
    with pytest.raises(InvalidArgumentError, match="cannot make 'CartPole-v9'"):
        gear_data.evaluate(push, "CartPole-v9")


def test_an_unknown_reference_is_found_before_the_episodes():
    def never(observation):
        raise AssertionError("an episode has begun")

    with pytest.raises(UnknownNameError, match=r"(?s)'hoper-medium-v2'.*hopper"):
        gear_data.evaluate(never, "CartPole-v1", reference="hoper-medium-v2", progress=False)
