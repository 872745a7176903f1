"""Ray Train: rows of all workers through a kill and a resume."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import ray.train.torch
import torch

import gear_data
from gear_data.errors import InvalidArgumentError
from gear_data.integrations.ray_train import report_checkpoint
from tests.support.integrations import recorder
from tests.support.integrations.ray_cluster import ray_cluster
from tests.support.integrations.ray_workers import recorded
from tests.support.integrations.training_runs import SCRIPTS, Trained, check_equal, global_batches

#: Seconds. Ray starts dozens of processes: 50 s on an idle machine, and six minutes where other tests take all cores.
pytestmark = pytest.mark.timeout(1500)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
    monkeypatch.setenv("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    with ray_cluster():
        yield


@pytest.mark.usefixtures("cluster")
def test_a_killed_run_resumes_on_another_number_of_workers(
    trained_on: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = global_batches(trained_on, 10, batch_size=64, context=20)
    trainer = ray.train.torch.TorchTrainer

    def train(name: str, workers: int, kill_at: int | None = None, loader: Any = None) -> Trained:
        (tmp_path / name).mkdir()

        def recording(loop: Any, **options: Any) -> Any:
            return trainer(recorded(loop, tmp_path / name, tmp_path / "run", kill_at, loader), **options)

        monkeypatch.setattr(ray.train.torch, "TorchTrainer", recording)
        command = ["with_ray_train.py", trained_on, "--out", tmp_path / "run", "--workers", workers, "--restarts", 0]
        monkeypatch.setattr(sys, "argv", [*map(str, command), "--steps", "10", "--save-every", "4"])
        try:
            runpy.run_path(str(SCRIPTS / "with_ray_train.py"), run_name="__main__")
        except ray.train.TrainingFailedError:
            assert kill_at is not None
        return Trained([recorder.read(str(tmp_path / name / f"rank-{rank}.npy")) for rank in range(workers)], [])

    loader = gear_data.SequenceLoader(gear_data.open(trained_on), 64, context=20)
    check_equal(train("killed", 2, kill_at=6, loader=loader).global_batches(), expected[:7])
    check_equal(train("resumed", 1).global_batches(), expected[4:])
    # The driver's loader, pickled, has no process group; in a worker it reads the worker's rows.
    rows = [np.load(tmp_path / "killed" / f"travelled-{rank}.npy") for rank in range(2)]
    assert np.array_equal(np.concatenate(rows), expected[0])
    for rank in range(2):
        refused = (tmp_path / "killed" / f"refused-{rank}.txt").read_text()
        assert f"the loader reads the rows of rank 0 of 1, and this is worker {rank} of 2\n" in refused


@pytest.mark.parametrize("value", [np.float64(0.5), np.zeros(3)])
def test_a_state_that_could_not_be_loaded_is_refused(
    value: Any, trained_on: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run would notice it when it resumes."""
    reported: list[Any] = []
    monkeypatch.setattr(ray.train, "get_context", lambda: SimpleNamespace(get_world_rank=lambda: 0))
    monkeypatch.setattr(ray.train, "report", lambda metrics, checkpoint: reported.append(metrics))
    loader = gear_data.SequenceLoader(gear_data.open(trained_on), 64, context=20)
    model = torch.nn.Linear(2, 2)
    adam = torch.optim.AdamW(model.parameters())
    model(torch.ones(2)).sum().backward()
    adam.step()
    state = {"model": model.state_dict(), "optimizer": adam.state_dict(), "best": 0.5, "names": ["a"]}
    report_checkpoint({"loss": 0.5}, loader, state)
    with pytest.raises(InvalidArgumentError, match="does not load: numpy") as refused:
        report_checkpoint({"loss": 0.5}, loader, {**state, "best": value})
    assert "float(x) for a number of NumPy" in str(refused.value)
    assert reported == [{"loss": 0.5}]
