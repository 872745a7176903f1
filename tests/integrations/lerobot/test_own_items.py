"""LeRobotDataset against LeRobot's own class, where LeRobot is installed, and training by both."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import gear_data
from gear_data.integrations.lerobot import LeRobotDataset
from tests.integrations.lerobot.conftest import Recorded
from tests.support.cameras.depth import KEY, write_depth
from tests.support.cameras.filmed import FPS
from tests.support.cameras.version_21 import write_version_21
from tests.support.checks import folder_contents
from tests.support.running.hub_server import running_hub

pytest.importorskip(
    "lerobot.datasets.lerobot_dataset",
    reason="LeRobot is not installed: make test-lerobot installs it in an environment of its own",
    exc_type=ImportError,
)
FRONT, WRIST = "observation.images.front", "observation.images.wrist"
_NEW = int(importlib.metadata.version("lerobot").split(".")[1]) >= 6
_CONVERTER = "lerobot.scripts.convert_dataset_v21_to_v30" if _NEW else "lerobot.datasets.v30.convert_dataset_v21_to_v30"
_LOSS = re.compile(r"loss:([\d.]+) grdn:([\d.]+)")


OURS = ["gear_data.integrations.lerobot", "train"]
#: Steps of training, and small policies.
STEPS = 50
POLICIES: dict[str, dict[str, Any]] = {
    "act": {
        "policy.chunk_size": 4, "policy.n_action_steps": 4, "policy.dim_model": 16, "policy.n_heads": 2,
        "policy.dim_feedforward": 16, "policy.n_encoder_layers": 1, "policy.n_vae_encoder_layers": 1,
    },
    "diffusion": {
        "policy.horizon": 8, "policy.n_action_steps": 4, "policy.down_dims": "[16,32]", "policy.n_groups": 4,
        "policy.diffusion_step_embed_dim": 16, "policy.spatial_softmax_num_keypoints": 4,
        "policy.crop_shape": "[40,40]",
    },
}  # fmt: skip


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


def check_items(root: Path, dataset: gear_data.Dataset | None = None, **options: Any) -> None:
    """Compares all items, their order, and what the training script reads of a dataset.

    Args:
        root: the folder.
        dataset: the dataset that gear-data reads; None: the folder.
        options: of both classes.
    """
    from lerobot.datasets.lerobot_dataset import LeRobotDataset as Theirs

    # Its other decoder, torchcodec, needs the system's FFmpeg.
    theirs = Theirs("a/b", root=root, video_backend="pyav", **options)
    ours = LeRobotDataset("a/b", root=root, dataset=dataset, **options)
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


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of v2.1, which LeRobot does not read, and the folder of v3.0 that its own converter makes of it."""
    folder = tmp_path_factory.mktemp("versions")
    write_version_21(folder / "a/b")
    old = shutil.copytree(folder / "a/b", folder / "old")
    place = folder / "a/b" if _NEW else folder
    importlib.import_module(_CONVERTER).convert_dataset("a/b", root=place, push_to_hub=False)
    return old, folder / "a/b"


def test_items_of_version_2_1(versions: tuple[Path, Path]) -> None:
    old, new = versions
    dataset = gear_data.open(str(old))
    for options in arguments(FPS):
        check_items(new, dataset=dataset, **options)


def train(policy: str, module: list[str], output: Path, **options: Any) -> tuple[list[tuple[str, ...]], bytes]:
    """Returns the loss of each step and the weights after the last one.

    Args:
        policy: a name of `POLICIES`.
        module: what `python -m` runs.
        output: the folder to write to.
        options: of the training script, with `__` for a point.
    """
    small = {
        "dataset.video_backend": "pyav", "policy.type": policy, "policy.device": "cpu", "policy.push_to_hub": "false",
        "policy.pretrained_backbone_weights": "null", **POLICIES[policy], "batch_size": 2, "steps": STEPS,
        "log_freq": 1, "num_workers": 0, "save_checkpoint": "true", "save_freq": STEPS, "seed": 7,
        "wandb.enable": "false", "output_dir": output,
        **{name.replace("__", "."): value for name, value in options.items()},
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", *module, *(f"--{name}={value}" for name, value in small.items())],
        capture_output=True, text=True, check=False, cwd=output.parent, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    losses = _LOSS.findall(done.stdout + done.stderr)
    assert len(losses) == STEPS
    (saved,) = output.joinpath("checkpoints/last/pretrained_model").glob("model.safetensors")
    return losses, saved.read_bytes()


@pytest.mark.parametrize("policy", POLICIES)
def test_training_has_equal_weights(policy: str, versions: tuple[Path, Path], tmp_path: Path) -> None:
    place = {"dataset__repo_id": "a/b", "dataset__root": versions[1]}
    theirs = train(policy, ["lerobot.scripts.lerobot_train"], tmp_path / "theirs", **place)
    assert train(policy, OURS, tmp_path / "ours", **place) == theirs


def test_act_trains_on_a_dataset_of_the_hub(
    versions: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"dataset__repo_id": "a/b", "dataset__root": versions[1]}
    local = train("act", OURS, tmp_path / "local", **place)
    with running_hub() as hub:
        hub.add("me/robot", folder_contents(versions[1]), tag="v3.0")
        for name, value in {**hub.environment(), "HF_HOME": str(tmp_path / "home")}.items():
            monkeypatch.setenv(name, value)
        assert train("act", OURS, tmp_path / "hub", dataset__repo_id="me/robot") == local
    assert any(".mp4" in line for line in hub.requests)
    assert list(tmp_path.glob("home/**/*.parquet")) and not list(tmp_path.glob("home/**/*.mp4"))
