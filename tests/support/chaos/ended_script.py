"""Jobs whose process ends while their threads work. `tests.chaos.stops.exits` starts them.

Usage: ended_script DATA CAMERAS. DATA has a source (source.parquet) and its dataset (dataset). CAMERAS is a dataset
with cameras.
"""

from __future__ import annotations

import builtins
import itertools
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gear_data
from tests.support.chaos.forked_scripts import fork_scripts

#: The status of a process that the timer ended.
ENDED = 7
OPTIONS: dict[str, Any] = {"batch_size": 64, "context": 16, "seed": 1}
#: What a script still refers to when it ends. The interpreter frees modules in order of their import, so this list goes
#: after the modules that its elements use.
kept: list[Any] = []
builtins.kept = kept  # type: ignore[attr-defined]


def take(loader: gear_data.SequenceLoader) -> Any:
    batches = iter(loader)
    for _ in itertools.islice(batches, 3):
        pass
    return batches


def dropped_batches(data: Path, cameras: Path, scratch: Path) -> None:
    take(gear_data.SequenceLoader(gear_data.open(data / "dataset"), prefetch=4, **OPTIONS))


def kept_batches(data: Path, cameras: Path, scratch: Path) -> None:
    kept.append(take(gear_data.SequenceLoader(gear_data.open(data / "dataset", residency="host"), **OPTIONS)))


def dropped_frames(data: Path, cameras: Path, scratch: Path) -> None:
    take(gear_data.SequenceLoader(gear_data.open(cameras), prefetch=2, **OPTIONS))


def kept_frames(data: Path, cameras: Path, scratch: Path) -> None:
    kept.append(take(gear_data.SequenceLoader(gear_data.open(cameras), prefetch=4, **OPTIONS)))


def endless_transform(data: Path, cameras: Path, scratch: Path) -> None:
    # The interpreter can lose an exception of the timer, for example while it imports a module.
    signal.setitimer(signal.ITIMER_REAL, 0)

    def transform(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        if threading.current_thread() is not threading.main_thread():
            signal.raise_signal(signal.SIGALRM)
            threading.Event().wait()
        return batch

    take(gear_data.SequenceLoader(gear_data.open(data / "dataset"), transform=transform, **OPTIONS))


def written(data: Path, cameras: Path, scratch: Path) -> None:
    writer = gear_data.Writer(scratch / "live", publish_every=0.05)
    kept.append(writer)
    record(writer)


def filmed(data: Path, cameras: Path, scratch: Path) -> None:
    writer = gear_data.Writer(scratch / "live", cameras={"observations.images.front": gear_data.Camera()})
    kept.append(writer)
    record(writer, **{"observations.images.front": np.zeros((48, 64, 3), np.uint8)})


def record(writer: gear_data.Writer, **frames: Any) -> None:
    """Records two episodes, and a part of a third."""
    for number in range(50):
        writer.append(observations=np.zeros(3, np.float32), rewards=1.0, **frames)
        if number % 20 == 19:
            writer.end_episode(terminated=True)


def converted(data: Path, cameras: Path, scratch: Path) -> None:
    gear_data.convert(data / "source.parquet", scratch / "out", jobs=1, progress=False)


def converted_by_two(data: Path, cameras: Path, scratch: Path) -> None:
    gear_data.convert(data / "source.parquet", scratch / "out", jobs=2, progress=False)


def reported(data: Path, cameras: Path, scratch: Path) -> None:
    gear_data.open(cameras).report(frames=4)


def tuned(data: Path, cameras: Path, scratch: Path) -> None:
    gear_data.tune(gear_data.open(data / "dataset"), seconds=2, progress=False, **OPTIONS)


JOBS: dict[str, Callable[[Path, Path, Path], None]] = {
    job.__name__: job
    for job in (
        dropped_batches, kept_batches, dropped_frames, kept_frames, endless_transform, written, filmed, converted,
        converted_by_two, reported, tuned,
    )
}  # fmt: skip


def end(number: int, frame: object) -> None:
    sys.exit(ENDED)


def report_unraisable(what: Any, report: Callable[[Any], object] = sys.__unraisablehook__) -> None:
    """Says what the interpreter drops, except the end itself: it drops one that arrives in a finalizer."""
    if what.exc_type is not SystemExit:
        report(what)


def main(data: str, cameras: str) -> None:
    def run(case: dict[str, Any]) -> None:
        signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, case["moment"])
        try:
            JOBS[case["job"]](Path(data), Path(cameras), Path(case["scratch"]))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    sys.unraisablehook = report_unraisable
    torch.set_num_threads(1)
    for name in gear_data.__all__:
        getattr(gear_data, name)
    # Kernels are loaded before: an exception of the timer would leave the lock of llvmlite locked.
    for folder in (Path(data) / "dataset", Path(cameras)):
        next(iter(gear_data.SequenceLoader(gear_data.open(folder), prefetch=0, **OPTIONS)))
    fork_scripts(run)


if __name__ == "__main__":
    main(*sys.argv[1:])
