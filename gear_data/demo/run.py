"""Demo of all jobs on generated rollouts: convert, feed, train, export."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gear_data
from gear_data.common.progress import progress_bar
from gear_data.demo.report import DemoReport
from gear_data.demo.rollouts import write_rollouts
from gear_data.errors import DestinationExistsError, InvalidArgumentError
from gear_data.storage.atomic import write_text

#: The report. A folder that contains it belongs to the demo, which may replace its files.
DEMO_REPORT = "gear-demo.json"
#: Subfolders that the demo writes, and removes when it runs again.
_SUBFOLDERS = _ROLLOUTS, _DATASET, _TRAINING, _BATCHES = "rollouts", "dataset", "training", "batches"

_EPISODES = 1500
_CONTEXT = 20
_FEED_SECONDS = 1.5


def run_demo(
    folder: str | os.PathLike[str],
    *,
    train_seconds: float = 60.0,
    episodes: int = _EPISODES,
    seed: int = 0,
    progress: bool | None = None,
) -> DemoReport:
    """Runs all jobs on rollouts of Pendulum-v1: convert, feed, train, export.

    The demo writes the rollouts as a HuggingFace dataset, converts it and measures the feed. Then it trains a small
    Decision Transformer, on a CUDA device if there is one, and exports batches for evaluation. Equal seeds give equal
    files, except the report and the training files: these depend on the machine's speed.

    Args:
        folder: a new or empty folder, or a folder of an earlier demo, whose files are replaced.
        train_seconds: time to train; the demo trains at least one step.
        episodes: number of rollouts, 200 steps each.
        seed: seed of rollouts, weights and windows.
        progress: show bars; None shows them only on a terminal.

    Raises:
        MissingExtraError: the extra `train` is not installed.
        InvalidArgumentError: `episodes` is below 1, or `train_seconds` is negative.
        DestinationExistsError: the folder contains files that are not the demo's.
        StorageFullError: the disk is full.
    """
    if episodes < 1:
        raise InvalidArgumentError(f"episodes must be at least 1, not {episodes}")
    if not train_seconds >= 0:
        raise InvalidArgumentError(f"train_seconds must be at least 0, not {train_seconds}")
    if "torch" not in sys.modules:
        # torch reads this when it is loaded: its threads then sleep while they wait for one another. On a busy machine,
        # spinning threads make a training step of this small model ten times as long.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from gear_data.common.extras import import_extra

    for module in ("torch", "gymnasium", "transformers", "matplotlib"):
        import_extra(module)
    target = Path(folder)
    seconds: dict[str, float] = {}
    with _timed(seconds, "total"):
        _prepare(target)
        with _timed(seconds, "rollouts"):
            write_rollouts(target / _ROLLOUTS / "train.parquet", episodes, seed, progress)
        with _timed(seconds, "convert"):
            converted = gear_data.convert(target / _ROLLOUTS, target / _DATASET, progress=progress)
        dataset = gear_data.open(target / _DATASET)
        with _timed(seconds, "feed"):
            feed = _measure_feed(dataset, seed)
        with _timed(seconds, "train"):
            training = _train(dataset, target / _TRAINING, train_seconds, seed, progress)
        with _timed(seconds, "export"):
            # Another seed than the training's, so that the windows differ.
            loader = _make_loader(dataset, 256, seed + 1)
            gear_data.export_batches(loader, target / _BATCHES, batches=10, progress=progress)
    returns = dataset.episodes["return"].to_numpy()
    report = DemoReport(
        folder=str(target),
        episodes=dataset.num_episodes,
        steps=dataset.num_steps,
        return_min=float(returns.min()),
        return_mean=float(returns.mean()),
        return_max=float(returns.max()),
        convert_bytes_per_s=converted.bytes / converted.seconds,
        feed_bytes_per_s=feed["padded_bytes_per_s"],
        feed_windows_per_s=feed["windows_per_s"],
        **training,
        files=_files(target),
        seconds=seconds,
    )
    write_text(target / DEMO_REPORT, json.dumps(report.to_json(), indent=1) + "\n")
    return report


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - started


def _prepare(folder: Path) -> None:
    """Creates the folder with an empty report.

    Removes the subfolders of an earlier demo, and nothing else.
    """
    report = folder / DEMO_REPORT
    if folder.exists() and not folder.is_dir():
        raise DestinationExistsError(
            "the demo needs a folder, and this is a file", file=str(folder), hint="choose another folder"
        )
    if folder.is_dir() and any(folder.iterdir()) and not report.exists():
        raise DestinationExistsError(
            "the folder contains files that are not the demo's", file=str(folder), hint="choose another folder"
        )
    write_text(report, "{}\n")
    for name in _SUBFOLDERS:
        if (folder / name).exists():
            shutil.rmtree(folder / name)


def _files(folder: Path) -> tuple[str, ...]:
    written = [path for name in _SUBFOLDERS for path in (folder / name).rglob("*") if path.is_file()]
    return tuple(sorted(path.relative_to(folder).as_posix() for path in [*written, folder / DEMO_REPORT]))


def _make_loader(dataset: gear_data.Dataset, batch_size: int, seed: int) -> gear_data.SequenceLoader:
    return gear_data.SequenceLoader(
        dataset, batch_size=batch_size, context=_CONTEXT, preset="decision_transformer", seed=seed, normalize=True
    )


def _measure_feed(dataset: gear_data.Dataset, seed: int) -> dict[str, float]:
    """Returns the loader's metrics, measured for a second or two without training."""
    # The first pass is a warm-up: it compiles kernels and loads pages.
    for seconds in (0.2, _FEED_SECONDS):
        loader = _make_loader(dataset, 256, seed)
        end = time.perf_counter() + seconds
        for _ in loader:
            if time.perf_counter() > end:
                break
    return dict(loader.metrics())


def _train(
    dataset: gear_data.Dataset, folder: Path, seconds: float, seed: int, progress: bool | None
) -> dict[str, Any]:
    from gear_data.demo.checkpoint import save_model
    from gear_data.demo.loss_curve import loss_ends, write_loss_curve
    from gear_data.demo.model import Hyperparameters
    from gear_data.demo.trainer import Trainer

    # A small model: a minute on two cores is some hundreds of steps. The learning rate suits a short run.
    hyperparameters = Hyperparameters(hidden_size=64, n_layer=2, learning_rate=1e-3, warmup_steps=50, seed=seed)
    trainer = Trainer(_make_loader(dataset, 64, seed), hyperparameters)
    started = time.perf_counter()
    with progress_bar(round(seconds), "train", "s", progress) as bar:
        for loss in trainer.run():
            elapsed = time.perf_counter() - started
            bar.set_text(f"step {trainer.step:,}, loss {loss:.3f}")
            bar.update(min(int(elapsed), round(seconds)) - bar.n)
            if elapsed >= seconds:
                break
    elapsed = time.perf_counter() - started
    trainer.save(folder / "checkpoint.safetensors")
    save_model(trainer.model, folder / "model")
    # A policy in an environment needs them; see `Rollout.from_spec` and `Normalizer.load`.
    trainer.loader.normalizer.save(folder / "model/normalizer.json")
    write_text(folder / "model/loader.json", json.dumps(trainer.spec()["feed"]) + "\n")
    write_loss_curve(trainer.losses, folder)
    loss_start, loss_end = loss_ends(trainer.losses)
    return {
        "train_device": str(trainer.device),
        "train_steps": trainer.step,
        "train_seconds": elapsed,
        "loss_start": loss_start,
        "loss_end": loss_end,
    }
