from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import gear_data
from gear_data.cli import main


def test_record(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy is a function of a module in the current folder."""
    (tmp_path / "pole_policy.py").write_text("def act(observation):\n    return int(observation[2] > 0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    arguments = [
        "record",
        "CartPole-v1",
        "pole",
        "--episodes",
        "3",
        "--policy",
        "pole_policy:act",
        "--seed",
        "5",
        "--json",
    ]
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    ds = gear_data.open("pole")
    assert (report["episodes"], report["steps"]) == (3, ds.num_steps)
    assert ds.episodes["seed"].to_list() == [5, 6, 7]
    for number in range(3):
        episode = ds[number]
        assert episode["actions"].tolist() == (episode["observations"][:, 2] > 0).tolist()
    # The next recording appends, with the next seeds.
    assert main([each for each in arguments if each != "--json"]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("in pole, generation 2")
    assert gear_data.open("pole").episodes["seed"].to_list() == [5, 6, 7, 8, 9, 10]
    assert main(["inspect", "pole"]) == 0
    assert "in 1 shard, generation 2\nsource gear_data.Writer (journal)" in capsys.readouterr().out


class Lamp(gymnasium.Env[Any, Any]):
    """Renders its observation: the brightness of a lamp."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012 (as Gymnasium has it)
    observation_space = gymnasium.spaces.Box(0, 255, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.brightness = 20 * int(self.np_random.integers(1, 4))
        return np.array([self.brightness], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.brightness += 20 * int(action)
        return np.array([self.brightness], np.float32), 0.0, self.brightness >= 160, False, {}

    def render(self) -> Any:
        return np.full((32, 48, 3), self.brightness, np.uint8)


@pytest.mark.processes
def test_record_what_is_rendered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frame t is rendered before step t, like observation t."""
    monkeypatch.setattr("gymnasium.envs.registration.registry", {})
    gymnasium.register("Lamp-v0", Lamp)
    assert main(["record", "Lamp-v0", str(tmp_path / "lamp"), "--episodes", "2", "--camera"]) == 0
    ds = gear_data.open(tmp_path / "lamp")
    video = ds.schema["observations.images.render"].video
    assert video is not None and (video.height, video.width, video.fps) == (32, 48, 12)
    for episode in ds:
        frames = episode["observations.images.render"][:]
        assert len(frames) == len(episode["observations"])
        assert np.abs(frames[:, 16, 24, 0] - episode["observations"][:, 0]).max() < 4


@pytest.mark.parametrize(
    "policy", ["act", ":act", "json:", ".json:act", "no_such_module:act", "json:act", "json:decoder"]
)
def test_policies_that_are_no_functions(tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str) -> None:
    assert main(["record", "CartPole-v1", str(tmp_path / "pole"), "--policy", policy]) == 2
    assert "--policy" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("env_id", ["CartPole-v9", "NoSuchEnv-v1", "no_such_module:CartPole-v1", "?"])
def test_environments_that_do_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str], env_id: str) -> None:
    assert main(["record", env_id, str(tmp_path / "pole")]) == 2
    assert f"cannot make '{env_id}'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_seed_that_no_environment_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "CartPole-v1", str(tmp_path / "pole"), "--seed", "-1"]) == 2
    assert "seed must be an integer of at least 0, not -1" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
