"""The demo at a small size, and the files that it writes and replaces."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import gear_data
from gear_data.demo.report import DemoReport
from gear_data.demo.rollouts import make_rollouts
from gear_data.demo.run import DEMO_REPORT, run_demo
from gear_data.errors import DestinationExistsError, InvalidArgumentError
from gear_data.evaluation.episodes import SequencePolicy
from gear_data.storage.atomic import checksum

EPISODES = 8


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DemoReport]:
    """Folder and report of a finished demo. Tests must not change the folder."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    return folder, run_demo(folder, train_seconds=5, episodes=EPISODES, seed=5)


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
    assert 5 <= report.train_seconds <= report.seconds["train"]
    curve = json.loads((folder / "training/loss.json").read_text())["loss"]
    assert len(curve) == report.train_steps
    # On a busy machine there are few steps, after which the loss need not have fallen.
    span = max(1, min(20, len(curve) // 4))
    ends = sum(curve[:span]) / span, sum(curve[-span:]) / span
    assert (report.loss_start, report.loss_end) == pytest.approx(ends)
    manifest = json.loads((folder / "batches/batches.json").read_text())
    assert manifest["fingerprint"] == dataset.fingerprint
    assert manifest["seed"] != 5  # evaluation uses other windows than training
    assert [checksum(folder / "batches" / file["file"]) for file in manifest["files"]] == [
        file["checksum"] for file in manifest["files"]
    ]
    assert (
        sum(report.seconds[stage] for stage in ("rollouts", "convert", "feed", "train", "export"))
        <= (report.seconds["total"])
    )
    # Rates outside these bounds would mean wrong units.
    assert 1e4 < report.convert_bytes_per_s < 1e11
    assert 1e6 < report.feed_bytes_per_s < 1e12


def test_the_report_lists_all_files(demo: tuple[Path, DemoReport]) -> None:
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


def test_the_model_acts_with_what_lies_beside_it(demo: tuple[Path, DemoReport]) -> None:
    from transformers import DecisionTransformerModel

    model_folder = demo[0] / "training/model"
    model = DecisionTransformerModel.from_pretrained(model_folder).eval()
    spec = json.loads((model_folder / "loader.json").read_text())
    statistics = gear_data.open(demo[0] / "dataset").statistics["observations"]
    normalizer = gear_data.Normalizer.load(model_folder / "normalizer.json")
    np.testing.assert_allclose(normalizer.normalize("observations", statistics.mean), 0, atol=1e-6)

    @torch.no_grad()
    def predict(inputs: dict[str, np.ndarray]) -> torch.Tensor:
        return model(**{key: torch.from_numpy(values) for key, values in inputs.items()}).action_preds

    policy = SequencePolicy(predict, gear_data.Rollout.from_spec(spec, target=-200))
    result = gear_data.evaluate(policy, "Pendulum-v1", episodes=1, progress=False)
    assert result.lengths.tolist() == [200]
    assert -3000 < result.returns[0] < 0


def test_a_second_run_replaces_only_its_own_files(demo: tuple[Path, DemoReport], tmp_path: Path) -> None:
    folder = tmp_path / "again"
    run_demo(folder, train_seconds=0, episodes=3, seed=1)
    (folder / "notes.txt").write_text("mine")
    (folder / "training/stale.txt").write_text("of an earlier demo")
    second = run_demo(folder, train_seconds=0, episodes=EPISODES, seed=5)
    assert second.train_steps == 1
    assert (folder / "notes.txt").read_text() == "mine"
    assert not (folder / "training/stale.txt").exists()
    assert "notes.txt" not in second.files
    # Equal seeds give equal files, except files that depend on the training time.
    first_folder, first = demo
    assert second.files == first.files
    assert gear_data.open(folder / "dataset").fingerprint == gear_data.open(first_folder / "dataset").fingerprint
    for name in ("rollouts/train.parquet", "batches/batch-000009.safetensors"):
        assert checksum(folder / name) == checksum(first_folder / name)
    first_losses, second_losses = (
        json.loads((f / "training/loss.json").read_text())["loss"] for f in (first_folder, folder)
    )
    assert first_losses[0] == second_losses[0]


def test_a_folder_with_other_files_is_refused_and_kept(tmp_path: Path) -> None:
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
