"""Contender Minari: a DataCollector for each environment."""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import argparse
import os
from typing import Any

import gymnasium
import minari
import numpy as np
from gymnasium.spaces import Box
from harness import versions_of
from writer_harness import ACTIONS, SHAPES, Recording, Step, Task, serve


class Replayed(gymnasium.Env[Any, Any]):
    """An environment whose `step` returns the values that it was given."""

    def __init__(self, shape: str) -> None:
        observation, dtype, _ = SHAPES[shape]
        low, high = (0, 255) if dtype == "uint8" else (-np.inf, np.inf)
        self.observation_space = Box(low, high, observation, np.dtype(dtype).type)
        self.action_space = Box(-1, 1, (ACTIONS,), np.float32)
        self.returned: tuple[Any, ...] = ()
        self._first = np.zeros(observation, dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._first, {}

    def step(self, action: Any) -> tuple[Any, ...]:  # type: ignore[override]
        return self.returned


class MinariRecorder:
    def __init__(self, task: Task) -> None:
        os.environ["MINARI_DATASETS_PATH"] = str(task.folder)
        self._collectors = []
        for _ in range(max(1, task.environments)):
            collector = minari.DataCollector(Replayed(task.shape), jpeg_encoding=False)
            collector.reset()
            self._collectors.append(collector)
        self._single = not task.environments

    def append(self, step: Step, ends: tuple[int, ...]) -> None:
        for row, collector in enumerate(self._collectors):
            values = step if self._single else {name: each[row] for name, each in step.items()}
            collector.env.returned = (
                values["observations"],
                float(values["rewards"]),
                bool(values["terminated"]),
                bool(values["truncated"]),
                {},
            )
            collector.step(values["actions"])
        for row in ends:
            self._collectors[row].reset()

    def settle(self) -> None:
        """Does nothing: the last step of an episode wrote it."""

    def finish(self) -> None:
        for row, collector in enumerate(self._collectors):
            collector.create_dataset(f"recording/environment{row}-v0", algorithm_name="none", eval_env=None)

    def close(self) -> None:
        for collector in self._collectors:
            collector.close()


def build(args: argparse.Namespace) -> Recording:
    return Recording(
        MinariRecorder,
        versions_of("minari", "gymnasium", "numpy"),
        "a DataCollector for each environment, HDF5, no JPEG, over an environment that returns prepared steps; the "
        "finish is create_dataset()",
    )


if __name__ == "__main__":
    serve(build, "Rate of Minari's DataCollector.")
