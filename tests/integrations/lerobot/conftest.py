"""A LeRobot dataset with two cameras, and its values read without gear-data and without LeRobot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import gear_data
from tests.support.cameras.filmed import FPS, FRONT, WRIST, film
from tests.support.integrations.lerobot_metadata import lerobot_modules
from tests.support.rollouts import make_rollouts, write_d4rl

LENGTHS_SEED = 2
CAMERAS = {FRONT: "observation.images.front", WRIST: "observation.images.wrist"}


@dataclass(frozen=True)
class Recorded:
    """A LeRobot v3.0 folder.

    Attributes:
        root: the folder.
        rows: key -> the values of all steps, [steps, ...].
        first, last: [episodes], the first step of each episode, and the step after the last one.
        tasks: the texts of the tasks.
    """

    root: Path
    rows: dict[str, np.ndarray[Any, Any]]
    first: list[int]
    last: list[int]
    tasks: list[str]

    def item(self, step: int, deltas: dict[str, list[int]], *, uint8: bool = False) -> dict[str, Any]:
        """Returns the item of a step, as LeRobot's documentation describes it, from arrays."""
        (episode,) = [i for i, first in enumerate(self.first) if first <= step < self.last[i]]
        found: dict[str, Any] = {}
        for key, values in self.rows.items():
            steps = [step + delta for delta in deltas.get(key, [0])]
            inside = [min(max(each, self.first[episode]), self.last[episode] - 1) for each in steps]
            taken = np.stack([values[each] for each in inside])
            if key in CAMERAS.values():
                taken = taken.transpose(0, 3, 1, 2)
                taken = taken if uint8 else taken.astype(np.float32) / np.float32(255)
            single = key not in deltas or (key in CAMERAS.values() and len(steps) == 1)
            found[key] = taken[0] if single else taken
            if key in deltas:
                found[f"{key}_is_pad"] = np.array([each != at for each, at in zip(steps, inside, strict=True)])
        found["task"] = self.tasks[int(self.rows["task_index"][step])]
        return found


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("recorded")
    rollouts = make_rollouts(5, seed=LENGTHS_SEED)
    gear_data.convert(write_d4rl(folder / "source.hdf5", rollouts), folder / "dataset", progress=False)
    frames = film(folder / "dataset", [len(each) for each in rollouts])
    ds = gear_data.open(folder / "dataset")
    tasks = ds.episodes.select("episode_id").with_columns(task=np.array(["pick", "place"])[np.arange(5) % 2])
    gear_data.export(ds.with_facts(tasks), folder / "lerobot", "lerobot", fps=FPS)
    table = pq.read_table(folder / "lerobot/data")
    rows = {name: np.array(table.column(name).to_pylist()) for name in table.column_names}
    for key, values in rows.items():
        if values.dtype == np.float64:
            rows[key] = values.astype(np.float32)
    rows |= {CAMERAS[camera]: np.concatenate(episodes) for camera, episodes in frames.items()}
    last = np.cumsum([len(each) for each in rollouts]).tolist()
    listed = pq.read_table(folder / "lerobot/meta/tasks.parquet").to_pandas()
    texts = listed.sort_values("task_index").index.tolist()
    return Recorded(folder / "lerobot", rows, [0, *last[:-1]], last, texts)


@pytest.fixture(autouse=True)
def lerobot(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """LeRobot, or a stand-in where it is not installed. Conversions are in a folder of the tests."""
    monkeypatch.setenv("GEAR_DATA_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with lerobot_modules():
        yield
