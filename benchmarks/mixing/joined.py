"""Joined batches of 1 to 60 datasets of unlike shape: cost, memory, and the time to resume late in a run.

The ratio compares sixty datasets with one that has the steps of all sixty: all mixtures have as many steps in memory,
to within one for each dataset, and about as many bytes. So the processor's cache helps one no more than the other. The
datasets have 7 to 32 elements of an action, 19.5 on average in each mixture, which `pad_to` brings to 32. Cameras are
recorded once: the datasets of all mixtures have links to the files.

Linux keeps a large file that was just written or read in huge pages, and a small one in small pages, in which random
reads take longer. So all files without cameras are first read into small pages, as those of an older dataset are by a
run that maps them.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from common import progress, synthetic_episodes, write_parquet

import gear_data
from gear_data import Camera, Mixture, SequenceLoader, VideoOptions

WIDTH, CONTEXT, ROWS = 32, 20, 256
#: Frames of a camera, and windows of a batch with cameras: each has one frame of both.
SIDE, CAMERA_ROWS, FPS = 224, 16, 30
CAMERAS = ("observations.images.front", "observations.images.wrist")
#: The most that a batch of 60 datasets may cost, relative to one of a single dataset; and the most seconds of a resume.
RATIO_TARGET, RESUME_TARGET = 1.3, 1.0
#: The step at which a run resumes.
RESUMED_STEP = 10**6


def action_width(number: int, count: int) -> int:
    """Returns the elements of an action of one of `count` datasets: 7 to 32, of one mean for each count."""
    return 7 + round((number + 0.5) * (WIDTH - 7) / count)


def made_once(path: Path, make: Callable[[Path], Any]) -> gear_data.Dataset:
    """Opens the dataset of a folder, which is made if it does not exist."""
    if not path.exists():
        part = path.with_name(f"{path.name}.part")
        shutil.rmtree(part, ignore_errors=True)  # of a run that was stopped
        make(part)
        part.rename(path)
    return gear_data.open(path)


def make_datasets(folder: Path, count: int, steps: int) -> list[gear_data.Dataset]:
    """Makes `count` datasets with `steps` steps together, or opens those that an earlier run made."""
    made = []
    for number in range(count):
        progress(f"making dataset {number + 1} of {count}")

        def convert(path: Path, number: int = number) -> None:
            source = folder / "source.parquet"
            width = action_width(number, count)
            write_parquet(synthetic_episodes(steps // count, seed=number, action_width=width), source)
            gear_data.convert(source, path, progress=False)

        made.append(made_once(folder / f"{steps}-{count}-{number}", convert))
    return made


def cache_in_small_pages(dataset: gear_data.Dataset) -> None:
    """Reads the files of a dataset into the system's cache, in pages of the smallest size; only on Linux."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in Path(dataset.path).rglob("*.arrow"):
        with path.open("rb", buffering=0) as file:
            os.fsync(file.fileno())  # what is not written stays in the cache
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            while file.read(1 << 20):
                pass


def recorded(folder: Path, episodes: int, frames: int) -> gear_data.Dataset:
    """Records episodes with two cameras and `frames` frames of each camera, or opens those of an earlier run."""
    return made_once(folder / f"recorded-{episodes}-{frames}", lambda path: _record(path, episodes, frames))


def _record(path: Path, episodes: int, frames: int) -> None:
    rng = np.random.default_rng(0)
    with gear_data.Writer(path, cameras={name: Camera(fps=FPS) for name in CAMERAS}) as writer:
        for number in range(episodes):
            progress(f"recording episode {number + 1} of {episodes}")
            small = rng.integers(0, 256, (8, 14, 14, 3), np.uint8)
            pictures = np.repeat(np.repeat(small, SIDE // 14, 1), SIDE // 14, 2)
            for t in range(max(2, frames // episodes)):
                images = {
                    name.rpartition(".")[2]: pictures[(t + place) % len(pictures)] for place, name in enumerate(CAMERAS)
                }
                observation = {"state": np.full(10, t, np.float32), "images": images}
                writer.append(observations=observation, actions=np.full(WIDTH, t, np.float32), rewards=0.0)
            writer.end_episode(truncated=True)


def divided(source: gear_data.Dataset, folder: Path, count: int) -> list[gear_data.Dataset]:
    """Returns `count` datasets with as many steps together: linked copies of one that is saved.

    Saving each would wait for the disk.
    """
    paths = [folder / f"cameras-{count}-{number}" for number in range(count)]
    source.select(range(0, len(source), count)).save(paths[0], progress=False)
    for path in paths[1:]:
        shutil.copytree(paths[0], path, copy_function=os.link)
    return [gear_data.open(path) for path in paths]


def loader_of(datasets: Sequence[gear_data.Dataset], cameras: bool) -> SequenceLoader:
    """Returns a loader of joined batches, which is also a mixture if there is one dataset."""
    entries: list[Any] = list(datasets)
    if cameras:  # all were recorded with one width
        widths = [action_width(number, len(datasets)) for number in range(len(datasets))]
        parts = [[{"column": "actions", "elements": [0, width]}] for width in widths]
        entries = [(each, 1, {"stack": {"actions": part}}) for each, part in zip(datasets, parts, strict=True)]
    mixture = Mixture(entries, join=True, pad_to={"actions": WIDTH})
    rows, context = (CAMERA_ROWS, 1) if cameras else (ROWS, CONTEXT)
    # Equal files share decoded frames: without a cache, all mixtures decode as much.
    video = VideoOptions(cache_bytes=0)
    return SequenceLoader(mixture, rows, context=context, seed=1, prefetch=0, video=video)


def _microseconds(iterator: Iterator[Any], batches: int) -> tuple[float, float]:
    """Returns the microseconds of a batch, and those of the processor: other processes disturb them less."""
    begun, used = time.perf_counter(), time.process_time()
    for _ in itertools.islice(iterator, batches):
        pass
    return 1e6 * (time.perf_counter() - begun) / batches, 1e6 * (time.process_time() - used) / batches


def resume_seconds(datasets: Sequence[gear_data.Dataset], cameras: bool) -> float:
    """Returns the seconds from the folders of the datasets to the first batch after step 10^6, as LeRobot's."""
    state = loader_of(datasets, cameras).state_dict() | {"step": RESUMED_STEP}
    begun = time.perf_counter()
    loader = loader_of([gear_data.open(each.path) for each in datasets], cameras)
    loader.load_state_dict(state)
    next(iter(loader))
    return time.perf_counter() - begun


def measure(
    mixtures: dict[int, list[gear_data.Dataset]], rounds: int, batches: int, rss_batches: int, *, cameras: bool
) -> list[dict[str, Any]]:
    """Measures mixtures in turns: a round has `batches` batches of each.

    Args:
        mixtures: number of datasets -> the datasets.
        rounds: rounds that count.
        batches: batches of a round.
        rss_batches: batches between the two looks at the memory.
        cameras: whether the datasets have cameras.
    """
    iterators = {count: iter(loader_of(datasets, cameras)) for count, datasets in mixtures.items()}
    found: dict[int, list[tuple[float, float]]] = {count: [] for count in mixtures}
    for number in range(-2, rounds):  # kernels, mappings and memory are warm after two rounds
        progress(f"{'cameras' if cameras else 'no camera'}: round {number + 1} of {rounds}")
        for count, iterator in iterators.items():
            microseconds = _microseconds(iterator, batches)
            if number >= 0:
                found[count].append(microseconds)
    progress("")
    first, process, results = found[min(found)], psutil.Process(), []
    for count, each in found.items():
        before = process.memory_info().rss
        _microseconds(iterators[count], rss_batches)
        results.append(
            {
                "datasets": count,
                "cameras": len(CAMERAS) if cameras else 0,
                "steps": sum(dataset.num_steps for dataset in mixtures[count]),
                "us": statistics.median(us for us, _ in each),
                "processor_us": statistics.median(us for _, us in each),
                "ratio": statistics.median(own[1] / one[1] for own, one in zip(each, first, strict=True)),
                "rss_bytes_added": process.memory_info().rss - before,
                "rss_batches": rss_batches,
                "resume_seconds": resume_seconds(mixtures[count], cameras),
            }
        )
    return results
