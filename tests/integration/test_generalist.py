"""The example that trains one model on many datasets."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gear_data

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "generalist.py"
NAMES = ["pendulum", "cartpole", "mountain-car", "acrobot", "reach"]
FEW = ("--seeds", 1, "--steps", 30, "--batch-size", 8, "--episodes", 1)
Run = Callable[..., Any]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the script in this process, and returns the object that it prints."""

    def call(*arguments: object) -> Any:
        monkeypatch.setattr(sys, "argv", [SCRIPT.name, *map(str, arguments), "--json"])
        capsys.readouterr()
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return json.loads(capsys.readouterr().out)

    return call


def check_means(found: dict[str, Any], names: list[str], key: str) -> None:
    """Checks a mean over seeds and datasets, and the ratio of the two kinds of models."""
    means = {
        kind: np.mean([seed[kind][name][key] for seed in found["seeds"] for name in names])
        for kind in ("generalist", "single")
    }
    assert found[key] == pytest.approx({**means, "ratio": means["generalist"] / means["single"]}, rel=1e-9)


def test_one_model_and_five_learn(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = run("--out", out, *FEW, "--recorded-episodes", 10)
    assert json.loads((out / "results.json").read_text()) == found
    assert list(found["datasets"]) == NAMES
    assert found["datasets"]["cartpole"]["expert"] == 500
    assert found["datasets"]["mountain-car"]["random"] < 0 < 85 < found["datasets"]["mountain-car"]["expert"]
    (seed,) = found["seeds"]
    assert len({seed["generalist"][name]["loss_start"] for name in NAMES}) == 1
    for kind in ("generalist", "single"):
        starts, ends = ([seed[kind][name][key] for name in NAMES] for key in ("loss_start", "loss_end"))
        assert sum(ends) < sum(starts)
    for name in NAMES:
        facts = found["datasets"][name]
        for kind in ("generalist", "single"):
            own = seed[kind][name]
            assert own["score"] == pytest.approx(
                (own["return"] - facts["random"]) / (facts["expert"] - facts["random"])
            )
            assert own["skill"] == pytest.approx(1 - own["error"] / own["constant_error"])
            assert facts[kind]["return"] == own["return"]
        dataset = gear_data.open(out / "data" / name)
        assert (len(dataset), dataset.num_steps) == (10, facts["steps"])
        tasks = set(dataset.episodes["task"].to_list())
        assert len(tasks) > 1 if name == "reach" else len(tasks) == 1
    assert gear_data.open(out / "data" / "reach")[0]["observations.image"].shape == (12, 24, 24, 3)
    check_means(found, NAMES, "score")
    check_means(found, NAMES, "skill")


def test_datasets_of_other_kinds(run: Run, tmp_path: Path) -> None:
    """Integers, text of a step, frames of two sizes, and discrete actions; one dataset has an environment."""
    rng = np.random.default_rng(0)

    def episodes(**columns: Callable[[], Any]) -> list[dict[str, Any]]:
        return [{name: make() for name, make in columns.items()} for _ in range(4)]

    def frames(*shape: int) -> Callable[[], Any]:
        return lambda: rng.integers(0, 256, (20, *shape), dtype=np.uint8)

    texts = ["go to the ball", "open a door"]
    sources = {
        "room": {
            "observations.image": frames(7, 7, 3),
            "observations.direction": lambda: rng.integers(0, 4, 20),
            "observations.mission": lambda: [texts[number] for number in rng.integers(0, 2, 20)],
            "actions": lambda: rng.integers(0, 7, 20),
        },
        "game": {"observations": frames(10, 8, 1), "actions": lambda: rng.integers(0, 3, 20)},
        "arm": {
            "observations.joints": lambda: rng.normal(size=(20, 3)),
            "observations.gripper": lambda: rng.normal(size=20),
            "actions": lambda: rng.normal(size=(20, 2)),
        },
        "pole": {
            "observations": lambda: rng.normal(size=(20, 4)).astype(np.float32),
            "actions": lambda: rng.integers(0, 2, 20),
        },
    }
    for name, columns in sources.items():
        rewards = {"rewards": lambda: np.ones(20, np.float32)}
        gear_data.convert(episodes(**columns, **rewards), tmp_path / name, progress=False)
    folders = [str(tmp_path / name) for name in sources]
    found = run(*folders[:3], f"{folders[3]}=CartPole-v1", "--out", tmp_path / "out", *FEW)
    assert list(found["datasets"]) == list(sources)
    assert [name for name, each in found["datasets"].items() if "expert" in each] == ["pole"]
    assert found["datasets"]["pole"]["expert"] == 20  # the mean return of its episodes
    check_means(found, ["pole"], "score")
    check_means(found, list(sources), "skill")


def steps(count: int, reward: float, **actions: Any) -> list[dict[str, Any]]:
    """Returns four episodes for MountainCar-v0."""
    states = np.random.default_rng(0).normal(size=(4, count, 2)).astype(np.float32)
    return [{"observations": each, "rewards": np.full(count, reward, np.float32), **actions} for each in states]


def test_quotients_that_are_not_defined_are_null(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A constant action has no error, and no model reaches the top of the hill."""
    gear_data.convert(steps(20, 0, actions=np.zeros(20, np.int64)), tmp_path / "same", progress=False)
    gear_data.convert(steps(20, 0, actions=np.arange(20) % 3), tmp_path / "hill", progress=False)
    found = run(tmp_path / "same", f"{tmp_path / 'hill'}=MountainCar-v0", "--out", tmp_path / "out", *FEW)
    assert found["datasets"]["same"]["generalist"]["skill"] is None
    assert found["datasets"]["hill"]["generalist"]["skill"] is not None
    assert found["score"] == {"generalist": 0, "single": 0, "ratio": None}

    table = [SCRIPT.name, *[tmp_path / "same"] * 3, "--out", tmp_path / "table", *FEW]
    monkeypatch.setattr(sys, "argv", [*map(str, table)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert "none" in capsys.readouterr().out
    (seed,) = json.loads((tmp_path / "table" / "results.json").read_text())["seeds"]
    assert list(seed["single"]) == ["same", str(tmp_path / "same"), f"{tmp_path / 'same'} (2)"]


@pytest.mark.parametrize(
    ("episodes", "env", "message"),
    [
        (
            steps(200, -1, actions=np.arange(200) % 3),
            "MountainCar-v0",
            "data has no score: its episodes have the mean return -200,",
        ),
        (
            steps(20, 0, **{"actions.move": np.zeros((20, 2), np.float32), "actions.grip": np.arange(20) % 2}),
            "MountainCar-v0",
            "one column of actions, and data has 2: actions.",
        ),
        (steps(20, 0, actions=np.arange(20) % 2), "CartPole-v1", "the shape (4,), and the training data had (2,)"),
    ],
)
def test_datasets_are_refused_before_training(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    episodes: list[dict[str, Any]], env: str, message: str,
) -> None:  # fmt: skip
    monkeypatch.delattr(torch.optim, "AdamW")  # no step of training
    gear_data.convert(episodes, tmp_path / "data", progress=False)
    with pytest.raises(SystemExit) as end:
        run(f"{tmp_path / 'data'}={env}", "--out", tmp_path / "out", *FEW)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--out", "TMP"), 1, "the folder exists"),
        (("TMP/missing", "--out", "TMP/out"), 1, "missing"),
        (("ROLLOUTS=Nothing-v0", "--out", "TMP/out"), 2, "Nothing"),
        (("--out", "TMP/out", "--seeds", "0"), 2, "at least 1"),
    ],
)
def test_bad_arguments(
    run: Run, tmp_path: Path, rollouts_path: Path, capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...], status: int, message: str,
) -> None:  # fmt: skip
    places = [each.replace("TMP", str(tmp_path)).replace("ROLLOUTS", str(rollouts_path)) for each in arguments]
    with pytest.raises(SystemExit) as end:
        run(*places)
    assert end.value.code == status
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
@pytest.mark.timeout(3 * 3600)
def test_the_generalist_has_four_fifths_of_the_scores(run: Run, tmp_path: Path) -> None:
    found = run("--out", tmp_path / "out")
    assert len(found["seeds"]) == 3
    assert found["score"]["ratio"] >= 0.8
    # Else the ratio would say nothing.
    assert found["score"]["single"] >= 0.8
