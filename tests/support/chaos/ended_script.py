"""Jobs whose process ends while their threads work. `tests.chaos.stops.exits` starts them.

Usage: ended_script.py DATA CAMERAS. DATA has a source (source.parquet) and its dataset (dataset). CAMERAS is a dataset
with cameras. Each line of standard input describes a job, which runs in a forked child, because imports take seconds.
The child ends as every script does. Lines of standard output say how.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gear_data

#: The status of a process that the timer ended.
ENDED = 7
OPTIONS: dict[str, Any] = {"batch_size": 64, "context": 16, "seed": 1}
#: What a script still refers to when it ends.
kept: list[Any] = []


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
    def transform(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        if threading.current_thread() is not threading.main_thread():
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


def say(what: str) -> None:
    os.write(1, f"{what}\n".encode())


def end(number: int, frame: object) -> None:
    sys.exit(ENDED)


def run(case: dict[str, Any], data: Path, cameras: Path) -> None:
    os.dup2(os.open(case["errors"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, case["moment"])
    JOBS[case["job"]](data, cameras, Path(case["scratch"]))


def main(data: str, cameras: str) -> None:
    torch.set_num_threads(1)
    say("ready")
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if not child:
            run(json.loads(line), Path(data), Path(cameras))
            return
        say(f"pid {child}")
        with contextlib.suppress(ChildProcessError):
            say(f"ended {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")


if __name__ == "__main__":
    main(*sys.argv[1:])
