"""Stand-in for LeRobot, where it is not installed: its metadata, its downloads, and the names of its modules."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
from huggingface_hub import snapshot_download


class LeRobotDatasetMetadata:
    """What a training script reads of LeRobot's class of this name."""

    def __init__(self, repo_id: str, root: Path, revision: str | None = None) -> None:
        self.repo_id, self.root, self.revision = repo_id, Path(root), revision or "v3.0"
        if not self.root.joinpath("meta/info.json").exists():
            _download(self, allow_patterns="meta/")
        self.info = json.loads((self.root / "meta/info.json").read_text())
        self.features = self.info["features"]
        self.fps = self.info["fps"]
        self.tasks = pd.read_parquet(self.root / "meta/tasks.parquet")
        self.episodes = pd.read_parquet(self.root / "meta/episodes").to_dict("list")
        self.camera_keys = [key for key, feature in self.features.items() if feature["dtype"] in ("video", "image")]
        self.depth_keys = [key for key in self.camera_keys if self.features[key].get("info", {}).get("is_depth_map")]
        self.depth_unit_of_stats: str | None = None
        self.data_path, self.video_path = self.info["data_path"], self.info["video_path"]

    def rescale_depth_stats(self, output_unit: str) -> None:
        self.depth_unit_of_stats = output_unit


class LeRobotDataset:
    """What LeRobot's class of this name does where files are not on this machine."""

    def __init__(self, repo_id: str, root: Path, revision: str | None, download_videos: bool = True) -> None:
        self.meta = LeRobotDatasetMetadata(repo_id, root, revision)
        _download(self.meta, ignore_patterns=None if download_videos else "videos/")


def _download(meta: LeRobotDatasetMetadata, **patterns: str | None) -> None:
    snapshot_download(meta.repo_id, repo_type="dataset", revision=meta.revision, local_dir=meta.root, **patterns)


@contextmanager
def lerobot_modules() -> Iterator[None]:
    """Makes `lerobot.datasets` importable inside the block."""
    if importlib.util.find_spec("lerobot") is not None:
        yield
        return
    reader: Any = ModuleType("lerobot.datasets.lerobot_dataset")
    reader.LeRobotDatasetMetadata, reader.LeRobotDataset = LeRobotDatasetMetadata, LeRobotDataset
    factory: Any = ModuleType("lerobot.datasets.factory")
    packages = {name: ModuleType(name) for name in ("lerobot", "lerobot.datasets")}
    made = {**packages, reader.__name__: reader, factory.__name__: factory}
    sys.modules.update(made)
    try:
        yield
    finally:
        for name in made:
            del sys.modules[name]
