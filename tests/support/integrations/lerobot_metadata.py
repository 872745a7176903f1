"""Stand-in for LeRobot, where it is not installed: its metadata, read from the files, and the names of its modules."""

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


class LeRobotDatasetMetadata:
    """What a training script reads of LeRobot's class of this name."""

    def __init__(self, repo_id: str, root: Path, revision: str | None = None) -> None:
        self.repo_id, self.root, self.revision = repo_id, Path(root), revision or "v3.0"
        self.info = json.loads((self.root / "meta/info.json").read_text())
        self.features = self.info["features"]
        self.fps = self.info["fps"]
        self.tasks = pd.read_parquet(self.root / "meta/tasks.parquet")
        self.episodes = pd.read_parquet(self.root / "meta/episodes").to_dict("list")
        self.camera_keys = [key for key, feature in self.features.items() if feature["dtype"] in ("video", "image")]
        self.depth_keys = [key for key in self.camera_keys if self.features[key]["info"].get("is_depth_map")]
        self.depth_unit_of_stats: str | None = None

    def rescale_depth_stats(self, output_unit: str) -> None:
        self.depth_unit_of_stats = output_unit


@contextmanager
def lerobot_modules() -> Iterator[None]:
    """Makes `lerobot.datasets` importable inside the block."""
    if importlib.util.find_spec("lerobot") is not None:
        yield
        return
    reader: Any = ModuleType("lerobot.datasets.lerobot_dataset")
    reader.LeRobotDatasetMetadata = LeRobotDatasetMetadata
    factory: Any = ModuleType("lerobot.datasets.factory")
    packages = {name: ModuleType(name) for name in ("lerobot", "lerobot.datasets")}
    made = {**packages, reader.__name__: reader, factory.__name__: factory}
    sys.modules.update(made)
    try:
        yield
    finally:
        for name in made:
            del sys.modules[name]
