"""LeRobotDataset against LeRobot's own class, where LeRobot is installed, and training by both."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gear_data.integrations.lerobot import LeRobotDataset
from tests.integrations.lerobot.conftest import Recorded
from tests.support.cameras.depth import KEY, write_depth
from tests.support.cameras.filmed import FPS

pytest.importorskip(
    "lerobot.datasets.lerobot_dataset",
    reason="LeRobot is not installed: make test-lerobot installs it in an environment of its own",
    exc_type=ImportError,
)
FRONT, WRIST = "observation.images.front", "observation.images.wrist"
_NEW = int(importlib.metadata.version("lerobot").split(".")[1]) >= 6
_LOSS = re.compile(r"loss:([\d.]+) grdn:([\d.]+)")


def transform(image: torch.Tensor) -> torch.Tensor:
    return image * torch.rand(1)


def arguments(fps: int) -> list[dict[str, Any]]:
    deltas = {
        FRONT: [-3 / fps, 0.0],
        WRIST: [0.0],
        "action": [step / fps for step in range(16)],
        "frame_index": [0.0, 1 / fps],
        "next.reward": [-1 / fps],
    }
    found: list[dict[str, Any]] = [
        {},
        {"delta_timestamps": deltas},
        {"episodes": [4, 1], "delta_timestamps": deltas, "image_transforms": transform},
    ]
    return [*found, {"return_uint8": True, "delta_timestamps": deltas}] if _NEW else found


def check_equal(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    for item, theirs in zip(found, expected, strict=True):
        assert list(item) == list(theirs)
        for key, value in theirs.items():
            if isinstance(value, torch.Tensor):
                assert item[key].dtype == value.dtype, key
                assert torch.equal(item[key], value), key
            else:
                assert item[key] == value


def check_items(root: Path, **options: Any) -> None:
    """Compares all items, their order, and what the training script reads of a dataset."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset as Theirs

    # Its other decoder, torchcodec, needs the system's FFmpeg.
    ours, theirs = (kind("a/b", root=root, video_backend="pyav", **options) for kind in (LeRobotDataset, Theirs))
    for name in ("num_frames", "num_episodes", "episodes", "fps", "features"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.hf_dataset.data.column("task_index").to_pylist() == theirs.hf_dataset["task_index"][:]
    if _NEW:
        assert ours.absolute_to_relative_idx == theirs.absolute_to_relative_idx
    torch.manual_seed(0)
    expected = [theirs[i] for i in range(len(theirs))]
    torch.manual_seed(0)
    check_equal(ours.__getitems__(range(len(ours))), expected)


@pytest.mark.parametrize("options", arguments(FPS), ids=lambda each: "+".join(each) or "plain")
def test_items_equal_lerobots(recorded: Recorded, options: dict[str, Any]) -> None:
    check_items(recorded.root, **options)


@pytest.mark.parametrize("options", arguments(30), ids=lambda each: "+".join(each) or "plain")
def test_items_of_lerobots_own_files(shared_data: Path, options: dict[str, Any]) -> None:
    check_items(shared_data / "lerobot_v30_video", **options)


@pytest.mark.skipif(not _NEW, reason="LeRobot reads quantised depth from 0.6 on")
@pytest.mark.parametrize("unit", ["mm", "m"])
def test_depth_equals_lerobots(unit: str, tmp_path: Path) -> None:
    check_items(write_depth(tmp_path / "reach")[0], depth_output_unit=unit)
    check_items(tmp_path / "reach", depth_output_unit=unit, delta_timestamps={KEY: [-1 / 30, 0.0]})


def test_training_has_equal_losses(recorded: Recorded, tmp_path: Path) -> None:
    small = {
        "dataset.repo_id": "a/b", "dataset.root": recorded.root, "dataset.video_backend": "pyav", "policy.type": "act",
        "policy.device": "cpu", "policy.push_to_hub": "false", "policy.pretrained_backbone_weights": "null",
        "policy.chunk_size": 4, "policy.n_action_steps": 4, "policy.dim_model": 16, "policy.n_heads": 2,
        "policy.dim_feedforward": 16, "policy.n_encoder_layers": 1, "policy.n_vae_encoder_layers": 1, "batch_size": 2,
        "steps": 6, "log_freq": 1, "num_workers": 0, "save_checkpoint": "false", "seed": 7,
        "wandb.enable": "false",
    }  # fmt: skip
    losses = []
    for module in (["lerobot.scripts.lerobot_train"], ["gear_data.integrations.lerobot", "train"]):
        options = [f"--{name}={value}" for name, value in small.items()]
        command = [sys.executable, "-m", *module, *options, f"--output_dir={tmp_path / module[0]}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        losses.append(_LOSS.findall(done.stdout + done.stderr))
    assert len(losses[0]) == 6
    assert losses[0] == losses[1]
