"""Recordings with callbacks against Minari's DataCollector, with the same seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import numpy.typing as npt
import pytest

import gear_data
from gear_data.errors import InvalidArgumentError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Walker(gymnasium.Env[Any, Any]):
    """Walks at random. Every array is a new one: Minari does not copy observations."""

    observation_space = gymnasium.spaces.Dict(
        {
            "position": gymnasium.spaces.Box(-100, 100, (3,), np.float32),
            "pair": gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(50), gymnasium.spaces.Box(0, 1, (2,))]),
        }
    )
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def _observation(self) -> dict[str, Any]:
        return {
            "position": self.position.copy(),
            "pair": (np.int64(self.step_number), self.np_random.random(2, np.float32)),
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position, self.step_number = self.np_random.random(3, np.float32), 0
        self.length = int(self.np_random.integers(3, 12))
        return self._observation(), self._info()

    def _info(self) -> dict[str, Any]:
        return {"speed": np.float64(self.step_number), "deep": {"sum": self.position.sum()}}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.step_number += 1
        self.position = self.position + self.np_random.random(3, np.float32) * action[0]
        ended = self.step_number == self.length
        return self._observation(), float(action[1]), ended and self.length % 2 == 0, ended, self._info()


class Doubled(minari.StepDataCallback):
    """Changes what is recorded, and not what the loop sees."""

    def __call__(self, env: Any, **transition: Any) -> Any:
        data = super().__call__(env, **transition)
        data["observation"] = {**data["observation"], "position": data["observation"]["position"] * 2}
        if data["reward"] is not None:
            data["reward"] = data["reward"] - 1.0
            data["terminated"] = bool(data["terminated"] or env.unwrapped.step_number == 8)
        return data


class Summary(minari.EpisodeMetadataCallback):
    """Facts of all arrays of an episode."""

    def __call__(self, episode: Any) -> Any:
        assert len(episode["observations"]["pair"][1]) == len(episode["actions"]) + 1
        facts = super().__call__(episode)
        facts["highest"] = float(episode["observations"]["position"].max())
        facts["last"] = int(episode["observations"]["pair"][0][-1])
        facts["energy"] = float((episode["actions"] ** 2).sum())
        facts["ended"] = bool(episode["terminations"][-1])
        facts["cut"] = bool(episode["truncations"][-1])
        return facts


def roll(env: Any) -> None:
    """Runs episodes. Some of them are reset before their end."""
    for seed in range(12):
        env.reset(seed=seed)
        env.action_space.seed(seed)
        for t in range(20):
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated or (seed % 4 == 3 and t == 1):
                break
            if env.unwrapped.step_number == 8:  # the callback ended the episode
                break


def collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> gear_data.Dataset:
    """Returns what Minari's own collector records, converted."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    env = minari.DataCollector(Walker(), **arguments)
    roll(env)
    env.create_dataset("walk-v0")
    env.close()
    gear_data.convert(tmp_path / "minari/walk-v0", tmp_path / "converted")
    return gear_data.open(tmp_path / "converted")


def recorded(tmp_path: Path, **arguments: Any) -> gear_data.Dataset:
    env = gear_data.record(Walker(), tmp_path / "recorded", **arguments)
    roll(env)
    env.close()
    return gear_data.open(tmp_path / "recorded")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"record_infos": True},
        {"step_data_callback": Doubled, "episode_metadata_callback": Summary, "record_infos": True},
    ],
)
def test_episodes_are_those_of_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any) -> None:
    ds, expected = recorded(tmp_path, **arguments), collected(tmp_path, monkeypatch, **arguments)
    assert sorted(ds.schema.names) == sorted(expected.schema.names)
    assert len(ds) == len(expected) == 12
    for number in range(12):
        for name in expected.schema.names:
            found, wanted = ds[number][name], expected[number][name]
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), name
            np.testing.assert_array_equal(found, wanted, err_msg=name)
        final, wanted_final = ds.final(number), expected.final(number)
        assert final is not None and wanted_final is not None and final.keys() == wanted_final.keys()
        for name, value in wanted_final.items():
            np.testing.assert_array_equal(final[name], value)
    facts = {"seed", "return", "length", "terminated", "truncated"}
    if "episode_metadata_callback" in arguments:
        facts |= {"highest", "last", "energy", "ended", "cut"}
    assert ds.episodes.select(sorted(facts)).rows() == expected.episodes.select(sorted(facts)).rows()
    assert len(set(ds.episodes["length"])) > 3 and ds.episodes["terminated"].any()


def test_functions_and_further_entries(tmp_path: Path) -> None:
    """Entries that the standard callback does not have become columns. Arrays of NumPy are facts of one number."""

    def step(*, env: Any, obs: Any, info: Any, action: Any = None, rew: Any = None, **ends: Any) -> dict[str, Any]:
        values = {"observation": obs["position"], "action": action, "reward": rew, "info": info}
        return {**values, "terminated": None, "truncated": None, **ends, "states": {"t": env.unwrapped.step_number}}

    def facts(episode: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
        return {"mean": np.float32(episode["actions"].mean()), "number": episode["id"]}

    ds = recorded(tmp_path, step_data_callback=step, episode_metadata_callback=facts)
    assert ds.episodes["number"].to_list() == list(range(12))
    for number, mean in enumerate(ds.episodes["mean"]):
        assert mean == np.float32(ds[number]["actions"].mean())
        assert ds[number]["states.t"].tolist() == list(range(1, len(ds[number]["rewards"]) + 1))
        assert ds[number]["observations"].shape[1:] == (3,)


def test_a_callback_that_returns_too_little(tmp_path: Path) -> None:
    env = gear_data.record(Walker(), tmp_path / "recorded", step_data_callback=lambda **_: {"observation": 1})
    with pytest.raises(InvalidArgumentError, match="without action, reward, terminated, truncated, info"):
        env.reset()


def test_vector_environments_have_no_callbacks(tmp_path: Path) -> None:
    envs = gymnasium.make_vec("CartPole-v1", num_envs=2)
    with pytest.raises(InvalidArgumentError, match="a vector environment has no callbacks"):
        gear_data.record(envs, tmp_path / "recorded", step_data_callback=Doubled)
    assert list(tmp_path.iterdir()) == []
