"""The main job, end to end, on rollouts made on the spot: convert, feed, train, export."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import gear_data
from gear_data.common.progress import progress_bar
from gear_data.errors import DestinationExistsError, InvalidArgumentError
from gear_data.storage.atomic import write_text

FloatArray = npt.NDArray[np.float32]

#: The report, and the mark of a folder that the demo may write over.
DEMO_REPORT = "gear-demo.json"
#: What the demo makes in its folder, and removes from it when it runs again.
_OWN = _ROLLOUTS, _DATASET, _TRAINING, _BATCHES = "rollouts", "dataset", "training", "batches"

_EPISODES = 1500
#: Steps of a Pendulum-v1 episode; it is always cut off there, never terminated.
_LENGTH = 200
_MAX_TORQUE = 2.0
#: Probability that a step changes the noise of an episode.
_NOISE_CHANGES = 0.1
_CONTEXT = 20
_FEED_SECONDS = 1.5


@dataclass(frozen=True)
class DemoReport:
    """What the demo did.

    Attributes:
        folder: where everything lies.
        episodes, steps: of the dataset.
        return_min, return_mean, return_max: of its episodes.
        convert_bytes_per_s: bytes of the dataset by seconds of conversion.
        feed_bytes_per_s: padded bytes of batches of 256 windows of 20 steps; feed_windows_per_s: those windows.
        train_device, train_steps, train_seconds: how training ran.
        loss_start, loss_end: mean action loss of the first and last steps.
        files: names in the folder, of everything written.
        seconds: stage -> wall time; `total` is that of all.
    """

    folder: str
    episodes: int
    steps: int
    return_min: float
    return_mean: float
    return_max: float
    convert_bytes_per_s: float
    feed_bytes_per_s: float
    feed_windows_per_s: float
    train_device: str
    train_steps: int
    train_seconds: float
    loss_start: float
    loss_end: float
    files: tuple[str, ...]
    seconds: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "files": list(self.files)}

    def summary(self) -> str:
        """A few lines for a person."""
        folders = {name.split("/")[0] for name in self.files if "/" in name}
        return "\n".join(
            (
                f"rollouts   {self.episodes:,} episodes, {self.steps:,} steps of Pendulum-v1; "
                f"returns {round(self.return_min):,} to {round(self.return_max):,}, mean {round(self.return_mean):,}",
                f"conversion {self.convert_bytes_per_s / 1e6:,.0f} MB/s",
                f"feed       {self.feed_bytes_per_s / 1e9:.2f} GB/s, {self.feed_windows_per_s:,.0f} windows/s",
                f"training   {self.train_steps:,} steps in {self.train_seconds:.0f} s on {self.train_device}: "
                f"loss {self.loss_start:.4f} -> {self.loss_end:.4f}",
                f"written    {len(self.files)} files in {self.folder}/: {', '.join(sorted(folders))}",
                f"in all     {self.seconds['total']:.0f} s; {self.folder}/{_TRAINING}/loss.png shows the loss",
            )
        )


def run_demo(
    folder: str | os.PathLike[str],
    *,
    train_seconds: float = 60.0,
    episodes: int = _EPISODES,
    seed: int = 0,
    progress: bool | None = None,
) -> DemoReport:
    """Makes rollouts of Gymnasium's Pendulum-v1, writes them as a HuggingFace dataset, converts it, measures the feed,
    trains a small Decision Transformer (on a CUDA device where there is one) and exports batches for evaluation.

    Equal seeds give equal files, but for how many training steps the time allows and what follows from that.

    Args:
        folder: a folder that does not exist, is empty, or is of an earlier demo, whose files are replaced.
        train_seconds: time to train; at least one step is done.
        episodes: rollouts to make, 200 steps each.
        seed: of rollouts, weights and windows.
        progress: show bars; None shows them on a terminal.

    Raises:
        MissingExtraError: the extra `train` is not installed.
        InvalidArgumentError: no episodes, or a negative time.
        DestinationExistsError: the folder holds something that is not the demo's.
        StorageFullError: the disk is full.
    """
    if episodes < 1:
        raise InvalidArgumentError(f"episodes must be at least 1, not {episodes}")
    if not train_seconds >= 0:
        raise InvalidArgumentError(f"train_seconds must be at least 0, not {train_seconds}")
    if "torch" not in sys.modules:
        # Read when torch is loaded: its threads sleep while they wait for one another. On a machine that others use
        # too, spinning makes a training step of this small model ten times as long.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from gear_data.common.extras import import_extra

    for module in ("gymnasium", "transformers", "matplotlib"):
        import_extra(module)
    target = Path(folder)
    seconds: dict[str, float] = {}
    with _timed(seconds, "total"):
        _claim(target)
        with _timed(seconds, "rollouts"):
            _write_rollouts(target / _ROLLOUTS / "train.parquet", episodes, seed, progress)
        with _timed(seconds, "convert"):
            converted = gear_data.convert(target / _ROLLOUTS, target / _DATASET, progress=progress)
        dataset = gear_data.open(target / _DATASET)
        with _timed(seconds, "feed"):
            feed = _measure_feed(dataset, seed)
        with _timed(seconds, "train"):
            training = _train(dataset, target / _TRAINING, train_seconds, seed, progress)
        with _timed(seconds, "export"):
            # Another seed than training's.
            loader = _loader(dataset, 256, seed + 1)
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


def _claim(folder: Path) -> None:
    """Makes the folder ready and marks it; removes what an earlier demo made, and nothing else."""
    mark = folder / DEMO_REPORT
    if folder.exists() and not folder.is_dir():
        raise DestinationExistsError("the demo's folder is a file", file=str(folder))
    if folder.is_dir() and any(folder.iterdir()) and not mark.exists():
        raise DestinationExistsError(
            "the folder holds something that is not the demo's", file=str(folder), hint="choose another folder"
        )
    write_text(mark, "{}\n")
    for name in _OWN:
        if (folder / name).exists():
            shutil.rmtree(folder / name)


def _files(folder: Path) -> tuple[str, ...]:
    made = [path for name in _OWN for path in (folder / name).rglob("*") if path.is_file()]
    return tuple(sorted(path.relative_to(folder).as_posix() for path in [*made, folder / DEMO_REPORT]))


def _write_rollouts(path: Path, episodes: int, seed: int, progress: bool | None) -> None:
    """A row an episode, as HuggingFace's Decision Transformer datasets are."""
    import datasets

    columns = make_rollouts(episodes, seed, progress)
    path.parent.mkdir(parents=True)
    rows = datasets.Dataset.from_dict({name: list(values) for name, values in columns.items()})
    quiet = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        rows.to_parquet(path)
    finally:
        if not quiet:
            datasets.enable_progress_bars()


def make_rollouts(episodes: int, seed: int, progress: bool | None = False) -> dict[str, npt.NDArray[Any]]:
    """Episodes of Pendulum-v1 by policies from random to good.

    Episode i mixes the controller, by skill[i], with a random torque that changes now and then; skills are spread over
    [0, 1], so returns run from about -1700 to 0. What the noise is can be told from the actions before, so there is
    something to learn from the sequence.

    Returns:
        `observations` float32 [E, 200, 3], `actions` float32 [E, 200, 1], `rewards` float32 [E, 200], `terminated` and
        `truncated` bool [E, 200].
    """
    import gymnasium

    rng = np.random.default_rng(seed)
    skill = rng.permutation(np.linspace(0.0, 1.0, episodes, dtype=np.float32))
    envs = gymnasium.make_vec("Pendulum-v1", num_envs=episodes, vectorization_mode="sync")
    columns: dict[str, npt.NDArray[Any]] = {
        "observations": np.empty((episodes, _LENGTH, 3), np.float32),
        "actions": np.empty((episodes, _LENGTH, 1), np.float32),
        "rewards": np.empty((episodes, _LENGTH), np.float32),
        "terminated": np.empty((episodes, _LENGTH), np.bool_),
        "truncated": np.empty((episodes, _LENGTH), np.bool_),
    }
    try:
        observations, _ = envs.reset(seed=seed)
        noise = np.zeros(episodes, np.float32)
        with progress_bar(_LENGTH * episodes, "rollouts", "step", progress) as bar:
            for t in range(_LENGTH):
                fresh = rng.uniform(-_MAX_TORQUE, _MAX_TORQUE, episodes).astype(np.float32)
                noise = np.where((rng.random(episodes) < _NOISE_CHANGES) | (t == 0), fresh, noise)
                torque = skill * swing_up(observations) + (1 - skill) * noise
                actions = torque[:, None]
                columns["observations"][:, t], columns["actions"][:, t] = observations, actions
                observations, rewards, terminated, truncated, _ = envs.step(actions)
                columns["rewards"][:, t] = rewards
                columns["terminated"][:, t], columns["truncated"][:, t] = terminated, truncated
                bar.update(episodes)
    finally:
        envs.close()
    return columns


def swing_up(observations: FloatArray) -> FloatArray:
    """A controller of Pendulum-v1: [N, 3] (cos, sin of the angle from upright, its speed) -> torque [N].

    Far from upright it pumps energy towards that of the upright rest (Astrom and Furuta, "Swinging up a pendulum by
    energy control", 2000); near it, proportional-derivative control holds the rod.
    """
    cosine, sine, speed = observations.T
    # The environment's rod: acceleration = 15 sin(angle) + 3 torque; torque 0 keeps this energy, and the goal has 15.
    energy = speed**2 / 2 + 15 * cosine
    pump = 0.3 * (15 - energy) * np.where(speed >= 0, 1.0, -1.0)
    hold = -8 * np.arctan2(sine, cosine) - 2 * speed
    torque: FloatArray = np.where((cosine > 0.9) & (np.abs(speed) < 4), hold, pump).astype(np.float32)
    return torque.clip(-_MAX_TORQUE, _MAX_TORQUE)


def _loader(dataset: gear_data.Dataset, batch_size: int, seed: int) -> gear_data.SequenceLoader:
    return gear_data.SequenceLoader(
        dataset, batch_size=batch_size, context=_CONTEXT, preset="decision_transformer", seed=seed, normalize=True
    )


def _measure_feed(dataset: gear_data.Dataset, seed: int) -> dict[str, float]:
    """The loader's metrics over a second or two, without training."""
    # The first batches compile kernels and fault pages in.
    for seconds in (0.2, _FEED_SECONDS):
        loader = _loader(dataset, 256, seed)
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
    from gear_data.demo.training import Hyperparameters, Trainer

    # Small, so that a minute on two cores is some hundreds of steps; the learning rate is that of a short run.
    hyperparameters = Hyperparameters(hidden_size=64, n_layer=2, learning_rate=1e-3, warmup_steps=50, seed=seed)
    trainer = Trainer(_loader(dataset, 64, seed), hyperparameters)
    started = time.perf_counter()
    with progress_bar(round(seconds), "train", "s", progress) as bar:
        for loss in trainer.run():
            elapsed = time.perf_counter() - started
            bar.set_postfix(step=trainer.step, loss=f"{loss:.3f}", refresh=False)
            bar.update(min(int(elapsed), round(seconds)) - bar.n)
            if elapsed >= seconds:
                break
    elapsed = time.perf_counter() - started
    trainer.save(folder / "checkpoint.safetensors")
    save_model(trainer.model, folder / "model")
    write_loss_curve(trainer.losses, folder)
    loss_start, loss_end = loss_ends(trainer.losses)
    return {
        "train_device": str(trainer.device),
        "train_steps": trainer.step,
        "train_seconds": elapsed,
        "loss_start": loss_start,
        "loss_end": loss_end,
    }
