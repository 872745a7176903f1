"""gear_data.demo.run: rollouts, the whole job in little, and whose files it touches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import gear_data
from gear_data.demo.run import DEMO_REPORT, DemoReport, make_rollouts, run_demo
from gear_data.errors import DestinationExistsError, InvalidArgumentError
from gear_data.storage.atomic import checksum

EPISODES = 8


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DemoReport]:
    """A demo that was run. Not to be changed."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    return folder, run_demo(folder, train_seconds=5, episodes=EPISODES, seed=5)


def test_rollouts_are_of_the_environment() -> None:
    """Played again, one environment at a time, the actions give the same observations and rewards, step for step."""
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
    assert np.abs(np.diff(returns)).max() < 400  # and what is between


def test_the_whole_job(demo: tuple[Path, DemoReport]) -> None:
    folder, report = demo
    dataset = gear_data.open(folder / "dataset")
    rollouts = make_rollouts(EPISODES, seed=5)
    for i in range(EPISODES):
        for name, values in rollouts.items():
            np.testing.assert_array_equal(dataset.episode(i)[name], values[i])
    assert gear_data.verify(folder / "dataset").ok
    assert (report.episodes, report.steps) == (EPISODES, EPISODES * 200)
    returns = rollouts["rewards"].astype(np.float64).sum(axis=1)
    assert [report.return_min, report.return_mean, report.return_max] == pytest.approx(
        [returns.min(), returns.mean(), returns.max()]
    )
    assert 5 <= report.train_seconds < 20
    curve = json.loads((folder / "training/loss.json").read_text())["loss"]
    assert len(curve) == report.train_steps
    assert report.loss_end < report.loss_start == pytest.approx(np.mean(curve[:20]), rel=0.2)
    manifest = json.loads((folder / "batches/batches.json").read_text())
    assert manifest["fingerprint"] == dataset.fingerprint
    assert manifest["seed"] != 5  # training's windows are not the evaluation's
    assert [checksum(folder / "batches" / file["file"]) for file in manifest["files"]] == [
        file["checksum"] for file in manifest["files"]
    ]
    assert (
        sum(report.seconds[stage] for stage in ("rollouts", "convert", "feed", "train", "export"))
        <= (report.seconds["total"])
    )
    # More than any disk or memory could do would be a slip of units.
    assert 1e4 < report.convert_bytes_per_s < 1e11
    assert 1e6 < report.feed_bytes_per_s < 1e12


def test_the_report_is_of_what_is_there(demo: tuple[Path, DemoReport]) -> None:
    folder, report = demo
    assert set(report.files) == {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert {"training/loss.png", "training/model/model.safetensors", "rollouts/train.parquet"} < set(report.files)
    assert json.loads((folder / DEMO_REPORT).read_text()) == report.to_json()
    summary = report.summary()
    assert f"{EPISODES} episodes, {EPISODES * 200:,} steps" in summary
    for unit in ("MB/s", "GB/s", "windows/s"):
        assert unit in summary
    assert f"loss {report.loss_start:.4f} -> {report.loss_end:.4f}" in summary
    assert f"{len(report.files)} files" in summary


def test_a_repeated_run_replaces_its_own_files_alone(demo: tuple[Path, DemoReport], tmp_path: Path) -> None:
    folder = tmp_path / "again"
    run_demo(folder, train_seconds=0, episodes=3, seed=1)
    (folder / "notes.txt").write_text("mine")
    (folder / "training/stale.txt").write_text("of an earlier demo")
    second = run_demo(folder, train_seconds=0, episodes=EPISODES, seed=5)
    assert second.train_steps == 1
    assert (folder / "notes.txt").read_text() == "mine"
    assert not (folder / "training/stale.txt").exists()
    assert "notes.txt" not in second.files
    # An equal seed: equal files, but for those that training's time decides.
    first_folder, first = demo
    assert second.files == first.files
    assert gear_data.open(folder / "dataset").fingerprint == gear_data.open(first_folder / "dataset").fingerprint
    for name in ("rollouts/train.parquet", "batches/batch-000009.safetensors"):
        assert checksum(folder / name) == checksum(first_folder / name)
    first_losses, second_losses = (
        json.loads((f / "training/loss.json").read_text())["loss"] for f in (first_folder, folder)
    )
    assert first_losses[0] == second_losses[0]


def test_a_folder_of_others_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset/precious").write_text("data")
    (tmp_path / "file").write_text("data")
    for folder in (tmp_path, tmp_path / "file"):
        with pytest.raises(DestinationExistsError) as caught:
            run_demo(folder, train_seconds=0, episodes=2)
        assert caught.value.file == str(folder)
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*")) == [
        "dataset", "dataset/precious", "file",
    ]  # fmt: skip


def test_arguments_out_of_range(tmp_path: Path) -> None:
    for arguments in ({"episodes": 0}, {"train_seconds": -1.0}, {"train_seconds": float("nan")}):
        with pytest.raises(InvalidArgumentError, match=next(iter(arguments))):
            run_demo(tmp_path / "out", **arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
