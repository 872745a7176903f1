"""Contender LeRobot: add_frame and save_episode of a LeRobotDataset for each environment."""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from harness import versions_of
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from writer_harness import ACTIONS, SHAPES, Recording, Step, Task, serve

FPS = 30


def make_dataset(task: Task, environment: int) -> Any:
    observation, dtype, _ = SHAPES[task.shape]
    features: dict[str, dict[str, Any]] = {
        "action": {"dtype": "float32", "shape": (ACTIONS,), "names": None},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "next.terminated": {"dtype": "bool", "shape": (1,), "names": None},
        "next.truncated": {"dtype": "bool", "shape": (1,), "names": None},
    }
    if dtype == "uint8":
        # LeRobot's images have three channels.
        names = ["height", "width", "channels"]
        features["observation.image"] = {"dtype": "image", "shape": (*observation, 3), "names": names}
    else:
        features["observation.state"] = {"dtype": dtype, "shape": observation, "names": None}
    return LeRobotDataset.create(
        f"recording/{environment}",
        FPS,
        features,
        root=task.folder / f"{environment}",
        use_videos=False,
        image_writer_threads=(1 if task.environments else 4) if dtype == "uint8" else 0,
    )


class LerobotRecorder:
    def __init__(self, task: Task) -> None:
        self._datasets = [make_dataset(task, number) for number in range(max(1, task.environments))]
        self._single, self._images = not task.environments, SHAPES[task.shape][1] == "uint8"

    def append(self, step: Step, ends: tuple[int, ...]) -> None:
        for row, dataset in enumerate(self._datasets):
            values = step if self._single else {name: each[row] for name, each in step.items()}
            frame = {
                "action": values["actions"],
                "next.reward": np.array([values["rewards"]]),
                "next.terminated": np.array([values["terminated"]]),
                "next.truncated": np.array([values["truncated"]]),
                "task": "hop",
            }
            if self._images:
                frame["observation.image"] = np.repeat(values["observations"][..., None], 3, axis=2)
            else:
                frame["observation.state"] = values["observations"]
            dataset.add_frame(frame)
        for row in ends:
            self._datasets[row].save_episode()

    def settle(self) -> None:
        """Does nothing: `save_episode` wrote the episodes that ended."""

    def finish(self) -> None:
        for dataset in self._datasets:
            if dataset.episode_buffer is not None and dataset.episode_buffer["size"]:
                dataset.save_episode()
            dataset.finalize()

    def close(self) -> None:
        for dataset in self._datasets:
            dataset.stop_image_writer()


def build(args: argparse.Namespace) -> Recording:
    return Recording(
        LerobotRecorder,
        versions_of("lerobot", "datasets", "numpy"),
        "a LeRobotDataset for each environment, add_frame and save_episode; frames as PNG of three channels in "
        "Parquet, by image writer threads; the finish is finalize()",
    )


if __name__ == "__main__":
    serve(build, "Rate of LeRobot's recorder.")
