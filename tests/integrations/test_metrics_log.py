"""Metrics of a loader in TensorBoard, Weights & Biases and MLflow, read back from their files."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import gear_data
from gear_data.errors import InvalidArgumentError
from gear_data.integrations.metrics_log import MetricsLog
from gear_data.loaders.sequence_loader import SequenceLoader

NAMES = {
    "loader/batches", "loader/windows_per_s", "loader/padded_bytes_per_s", "loader/valid_bytes_per_s",
    "loader/pad_fraction", "loader/wait_fraction",
}  # fmt: skip


@pytest.fixture
def loader(dataset: gear_data.Dataset) -> SequenceLoader:
    return SequenceLoader(dataset, 8, context=4, steps=10)


def train(loader: SequenceLoader, log: Callable[[int], None]) -> list[float]:
    """Returns loader.metrics()["windows"] after each step."""
    windows = []
    for step, _ in enumerate(loader):
        time.sleep(0.001)
        windows.append(loader.metrics()["windows"])
        log(step)
    return windows


def test_rates_are_of_the_time_since_the_last_log(loader: SequenceLoader) -> None:
    logs: list[tuple[dict[str, float], int]] = []
    totals = [loader.metrics()]

    def write(metrics: Mapping[str, float], step: int) -> None:
        logs.append((dict(metrics), step))
        totals.append(loader.metrics())

    train(loader, MetricsLog(loader, write, every=4))
    assert [step for _, step in logs] == [3, 7]
    for (metrics, _), before, after in zip(logs, totals, totals[1:], strict=False):
        assert metrics.keys() == NAMES
        seconds = after["seconds"] - before["seconds"]
        assert metrics["loader/windows_per_s"] == pytest.approx(4 * 8 / seconds)
        waited = after["wait_fraction"] * after["seconds"] - before["wait_fraction"] * before["seconds"]
        assert metrics["loader/wait_fraction"] == pytest.approx(waited / seconds)
        padded, valid = (
            after[name] * after["seconds"] - before[name] * before["seconds"]
            for name in ("padded_bytes_per_s", "valid_bytes_per_s")
        )
        assert metrics["loader/padded_bytes_per_s"] == pytest.approx(padded / seconds)
        assert metrics["loader/pad_fraction"] == pytest.approx(1 - valid / padded)


def test_mixtures_and_weights(dataset: gear_data.Dataset) -> None:
    logs: list[Mapping[str, float]] = []
    mixture = gear_data.Mixture([(dataset[:3], 0.75), (dataset[3:], 0.25)])
    loader = SequenceLoader(mixture, 4, context=4, sampler=gear_data.Weighted("length"), steps=8)
    train(loader, MetricsLog(loader, lambda metrics, _: logs.append(metrics), every=8))
    assert (logs[0]["loader/mixture/0"], logs[0]["loader/mixture/1"]) == (0.75, 0.25)
    lengths = [float(length) for length in dataset[:3].lengths]
    size = sum(lengths) ** 2 / sum(length**2 for length in lengths)
    assert logs[0]["loader/effective_sample_size/0"] == pytest.approx(size, rel=1e-3)


def test_wrong_use(loader: SequenceLoader) -> None:
    for every in (0, -1, 2.0, True):
        with pytest.raises(InvalidArgumentError, match="every="):
            MetricsLog(loader, lambda *_: None, every=every)  # type: ignore[arg-type]
    log = MetricsLog(loader, lambda *_: None, every=1)
    with pytest.raises(InvalidArgumentError, match="DataLoader workers"):
        log(0)


def test_tensorboard(loader: SequenceLoader, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    from gear_data.integrations.tensorboard import log_to_tensorboard

    with SummaryWriter(str(tmp_path)) as writer:
        windows = train(loader, log_to_tensorboard(loader, writer, every=5))
    assert windows == [8 * (step + 1) for step in range(10)]
    events = EventAccumulator(str(tmp_path)).Reload()
    assert set(events.Tags()["scalars"]) == NAMES
    assert [(event.step, event.value) for event in events.Scalars("loader/batches")] == [(4, 5), (9, 10)]
    assert all(event.value > 0 for event in events.Scalars("loader/windows_per_s"))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Folder for the files of the trackers, without a network."""
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_SILENT", "true"), ("MLFLOW_ALLOW_FILE_STORE", "true")):
        monkeypatch.setenv(name, value)
    yield tmp_path


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """Yields the records of a log of LevelDB after a file header of 7 bytes."""
    offset, record = 7, b""
    data = bytes(7) + data
    while offset + 7 <= len(data):
        left = 32768 - offset % 32768
        _, length, kind = struct.unpack_from("<IHB", data, offset)
        if left < 7 or kind == 0:
            offset += left
            continue
        record += data[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def test_wandb(loader: SequenceLoader, offline: Path) -> None:
    import wandb
    from wandb.proto import wandb_internal_pb2

    from gear_data.integrations.wandb import log_to_wandb

    with wandb.init(project="gear-data", dir=str(offline)) as run:
        log = log_to_wandb(loader, run, every=5)

        def train_step(step: int) -> None:
            run.log({"loss": float(step)}, step=1000 + step)
            log(step)

        train(loader, train_step)
    wandb.teardown()  # waits for the process that writes the file
    (file,) = offline.glob("wandb/offline-run-*/*.wandb")
    rows = []
    for data in leveldb_records(file.read_bytes()[7:]):
        record: Any = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): item.value_json for item in items})
    logged = [row for row in rows if "loader/batches" in row]
    assert [(int(row["loader/step"]), float(row["loader/batches"])) for row in logged] == [(4, 5), (9, 10)]
    assert all(row.keys() >= NAMES for row in logged)
    assert sum("loss" in row for row in rows) == 10


def test_mlflow(loader: SequenceLoader, offline: Path) -> None:
    import mlflow

    from gear_data.integrations.mlflow import log_to_mlflow

    mlflow.set_tracking_uri((offline / "mlruns").as_uri())
    with mlflow.start_run() as run:
        train(loader, log_to_mlflow(loader, every=5))
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loader/batches")
    assert [(each.step, each.value) for each in history] == [(4, 5), (9, 10)]
    assert mlflow.get_run(run.info.run_id).data.metrics.keys() == NAMES
