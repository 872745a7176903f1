"""Section (i): batches of SequenceLoader, of peers, and the ceilings."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gear_data
from gpu_sections.ceilings import DEVICE_COPY, SM_READS
from gpu_sections.peers import INDEXING, PEERS, Batch, Steps
from gpu_sections.report import Row, Section, ratio_of_rounds

EPISODE = 1000
#: Seconds of a round of a feed, and rounds. The first round warms up.
ROUND_SECONDS, ROUNDS = 0.4, 4
DEVICE_LOADER, PINNED_LOADER = "gear-data, device", "gear-data, pinned"
#: Title -> residency and backend.
LOADERS = {
    DEVICE_LOADER: ("device", "cuda"),
    PINNED_LOADER: ("pinned", "cuda"),
    "gear-data, pinned, auto": ("pinned", "auto"),
    "gear-data, host, by the CPU": ("host", "cpu"),
}


@dataclass(frozen=True)
class Workload:
    """Batches of one shape.

    Attributes:
        name: a title.
        batch, context: windows of a batch, and steps of a window.
        steps: steps of the dataset; with `--quick`, a sixteenth of them. Their bytes are several times the L2.
        columns: name -> shape and dtype of a step.
        targets: title of a loader -> (name of a ceiling or a peer, the least ratio to it).
    """

    name: str
    batch: int
    context: int
    steps: int
    columns: dict[str, tuple[tuple[int, ...], str]]
    targets: dict[str, tuple[str, float]]


WORKLOADS = (
    Workload(
        "Hopper 256 x 20", 256, 20, 8_000_000,
        {"observations": ((11,), "float32"), "actions": ((3,), "float32"), "rewards": ((), "float32")},
        {DEVICE_LOADER: (INDEXING, 5.0)},
    ),
    Workload(
        "1 KiB x 100 x 1024", 1024, 100, 1_000_000, {"observations": ((1024,), "uint8")},
        {DEVICE_LOADER: (DEVICE_COPY, 0.75), PINNED_LOADER: (SM_READS, 0.9)},
    ),
    Workload(
        "44 B x 100 x 4096", 4096, 100, 8_000_000, {"observations": ((11,), "float32")},
        {PINNED_LOADER: (SM_READS, 0.8)},
    ),
)  # fmt: skip


@dataclass(frozen=True)
class _Cost:
    """What a batch costs: seconds by the clock, and of this process's processors."""

    seconds: float
    processor_seconds: float


def feeds(folder: Path, rates: dict[str, float], quick: bool, left: Callable[[], float]) -> Section:
    """Measures the feeds of each workload in alternating rounds, by the clock.

    The ratio of a loader with a target is to the ceiling or the peer of the target, in the same rounds.

    Args:
        rates: bytes per second of the ceilings.
        left: returns the seconds that are left for the section.
    """
    notes = [
        "GB/s count the bytes of the columns, also of padding",
        "host us: the processor's time of a batch in all threads of this process, but not in worker processes",
    ]
    section = Section([], notes=notes)
    for number, workload in enumerate(WORKLOADS):
        if left() < 30:
            section.left_out.append(workload.name)
            continue
        _measure(section, workload, folder / str(number), rates, quick, left)
    return section


def make_steps(workload: Workload, quick: bool) -> Steps:
    """Returns random steps."""
    rng = np.random.default_rng(0)
    count = workload.steps // 16 if quick else workload.steps
    columns = {}
    for name, (shape, dtype) in workload.columns.items():
        size = (count, *shape)
        uint8 = dtype == "uint8"
        columns[name] = rng.integers(0, 256, size, np.uint8) if uint8 else rng.standard_normal(size, np.float32)
    return Steps(columns, EPISODE, workload.batch, workload.context)


def convert(steps: Steps, folder: Path) -> None:
    """Writes the steps as a dataset."""
    timeouts = np.arange(1, len(steps) + 1) % steps.episode == 0
    flags = {"terminals": np.zeros(len(steps), np.bool_), "timeouts": timeouts}
    gear_data.convert({**steps.columns, **flags}, folder, columns=list(steps.columns), progress=False)


def _measure(
    section: Section, workload: Workload, folder: Path, rates: dict[str, float], quick: bool, left: Callable[[], float]
) -> None:
    steps = make_steps(workload, quick)
    convert(steps, folder)
    made: dict[str, Callable[[], Iterator[Batch]]] = {title: partial(make, steps) for title, make in PEERS.items()}
    made |= {title: partial(our_batches, folder, steps, *how) for title, how in LOADERS.items()}
    running: dict[str, Iterator[Batch]] = {}

    def failed(title: str, error: Exception) -> None:
        reason = (str(error).strip() or "no reason").splitlines()[0]
        section.notes.append(f"{workload.name}: {title}: not run: {type(error).__name__}: {reason}")

    for title, make in made.items():
        try:
            feed = make()
            next(feed)
        except Exception as error:  # a peer may raise anything; the other feeds are measured anyway
            failed(title, error)
        else:
            running[title] = feed
    seen: dict[str, list[_Cost]] = {title: [] for title in running}
    for number, title in itertools.product(range(ROUNDS), seen):
        if left() < 5:
            section.left_out.append(f"{workload.name}: round {number}, {title}")
        elif title in running:
            try:
                cost = _measure_round(running[title])
            except Exception as error:  # workers may end for lack of shared memory
                failed(title, error)
                del running[title]
            else:
                seen[title] += [cost] if number else []
    for feed in running.values():
        feed.close()  # type: ignore[attr-defined]
    _report(section, workload, steps, {title: times for title, times in seen.items() if times}, rates)


def _report(
    section: Section, workload: Workload, steps: Steps, seen: dict[str, list[_Cost]], rates: dict[str, float]
) -> None:
    nbytes = steps.batch * steps.context * sum(column[0].nbytes for column in steps.columns.values())
    times = {title: [cost.seconds for cost in found] for title, found in seen.items()}
    for title, own in times.items():
        seconds = statistics.median(own)
        values: dict[str, Any] = {
            "us": seconds * 1e6,
            "lowest": min(own) * 1e6,
            "host us": statistics.median(cost.processor_seconds for cost in seen[title]) * 1e6,
            "GB/s": nbytes / seconds / 1e9,
        }
        values["times torch indexing"] = ratio_of_rounds(times[INDEXING], own) if INDEXING in times else None
        compared, goal = workload.targets.get(title, ("", None))
        ratio = ratio_of_rounds(times[compared], own) if compared in times else None
        if compared in rates:
            ratio = nbytes / seconds / rates[compared]
        section.rows.append(Row(f"{workload.name}: {title}", values, ratio, goal))


def _measure_round(feed: Iterator[Batch]) -> _Cost:
    """Measures the batches of a round, until the GPU has done its work."""
    count = 0
    torch.cuda.synchronize()
    begun, processor = time.perf_counter(), time.process_time()
    while not count or time.perf_counter() - begun < ROUND_SECONDS:
        next(feed)
        count += 1
    # Before the wait for the GPU, which may take the processor's time.
    processor = time.process_time() - processor
    torch.cuda.synchronize()
    return _Cost((time.perf_counter() - begun) / count, processor / count)


def our_batches(folder: Path, steps: Steps, residency: str, backend: str) -> Iterator[Batch]:
    """Yields a loader's batches.

    Raises RuntimeError if the first batch differs from the CPU's.
    """

    def loader(residency: str, **options: Any) -> gear_data.SequenceLoader:
        ds = gear_data.open(folder, residency=residency)
        return gear_data.SequenceLoader(ds, batch_size=steps.batch, context=steps.context, **options)

    batches = iter(loader(residency, device="cuda", execution=gear_data.ExecutionOptions(backend=backend)))
    first = next(batches)
    torch.cuda.synchronize()
    for key, value in next(iter(loader("host"))).items():
        if not torch.equal(first[key].cpu(), value):
            raise RuntimeError(f"'{key}' differs from the CPU loader's")
    del first
    yield from batches
