"""Code that the contenders of benchmarks/writer.py share. It needs only the standard library and NumPy."""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from harness import claim_stdout, say

#: Shape -> shape and dtype of an observation, and steps of an episode.
SHAPES: dict[str, tuple[tuple[int, ...], str, int]] = {
    "hopper": ((11,), "float32", 1000),
    "frames": ((84, 84), "uint8", 200),
}
ACTIONS = 3
#: Windows that samplers draw, and windows in a batch.
CONTEXT, BATCH_SIZE = 20, 256
#: A measurement ends early after this many bytes of observations.
MOST_BYTES = 1 << 30

Step = Mapping[str, Any]
#: Takes a step of all environments, and the environments whose episode ends with it.
Append = Callable[[Step, tuple[int, ...]], None]


@dataclass(frozen=True)
class Task:
    """What is recorded.

    Attributes:
        shape: name in `SHAPES`.
        environments: number of environments; 0 is one environment whose steps have no leading axis.
        folder: an empty folder, for all files.
        options: the arguments of the contender.
        store: the store that a sampler reads, if another writer made it; None: a new store in `folder`.
    """

    shape: str
    environments: int
    folder: Path
    options: argparse.Namespace
    store: str | None = None

    @property
    def capacity(self) -> int:
        """Steps that a contender with a limit keeps."""
        observation, _, _ = SHAPES[self.shape]
        return 1_000_000 if observation == (11,) else 100_000


class Recorder(Protocol):
    """A contender that records."""

    def append(self, step: Step, ends: tuple[int, ...]) -> None:
        """Appends a step of all environments. The episodes of the environments `ends` end with it."""

    def settle(self) -> None:
        """Waits until the contender's store has all steps that it ever has without `finish`."""

    def finish(self) -> None:
        """Makes the recording complete on disk."""

    def close(self) -> None:
        """Frees all that the recorder holds."""


@dataclass(frozen=True)
class Recording:
    """A contender.

    Attributes:
        make: begins a recording.
        versions: of the packages measured.
        notes: how it was set up.
        sample: returns a function that draws batches of a recorder's steps; None if it cannot before the end.
        store_of: the name of a recorder's store, for a writer in another process. None: the writer beside a sampler is
            the recorder that filled the store.
    """

    make: Callable[[Task], Recorder]
    versions: Mapping[str, str]
    notes: str
    sample: Callable[[Recorder], Callable[[], Mapping[str, Any]]] | None = None
    store_of: Callable[[Recorder], str] | None = None


def make_columns(shape: str, environments: int, seed: int) -> dict[str, npt.NDArray[Any]]:
    """Returns one episode of steps of each environment: name -> [steps, environments, ...].

    Every environment's episodes end at another step. Frames are blocks of 12 x 12, which compress as those of games do.
    """
    observation, dtype, length = SHAPES[shape]
    random = np.random.default_rng(seed)
    if dtype == "uint8":
        small = random.integers(0, 256, (length, environments, 7, 7), np.uint8)
        observations: npt.NDArray[Any] = small.repeat(12, 2).repeat(12, 3)
    else:
        observations = random.standard_normal((length, environments, *observation), np.float32)
    truncated = np.zeros((length, environments), np.bool_)
    places = length - 1 - np.arange(environments) * length // environments
    truncated[places, np.arange(environments)] = True
    return {
        "observations": observations,
        "actions": random.uniform(-1, 1, (length, environments, ACTIONS)).astype(np.float32),
        "rewards": random.uniform(0, 4, (length, environments)).astype(np.float32),
        "terminated": np.zeros((length, environments), np.bool_),
        "truncated": truncated,
    }


def endless_steps(shape: str, environments: int, seed: int) -> Iterator[tuple[Step, tuple[int, ...]]]:
    """Yields the same steps again and again, with the environments whose episode ends."""
    columns = make_columns(shape, max(1, environments), seed)
    ends = [tuple(np.flatnonzero(row).tolist()) for row in columns["truncated"]]
    if environments:
        steps = [{name: values[row] for name, values in columns.items()} for row in range(len(ends))]
    else:  # as `env.step` returns them: Python's booleans
        steps = [
            {
                name: values[row, 0].item() if values.dtype == bool else values[row, 0]
                for name, values in columns.items()
            }
            for row in range(len(ends))
        ]
    return itertools.cycle(zip(steps, ends, strict=True))


def timed_appends(
    append: Append, steps: Iterator[tuple[Step, tuple[int, ...]]], seconds: float, most: int
) -> tuple[array[int], float]:
    """Appends for some seconds, at most `most` times. Returns the nanoseconds of each call, and the seconds of all."""
    durations, clock = array("q"), time.perf_counter_ns
    begun = after = clock()
    until = begun + int(seconds * 1e9)
    while after < until and len(durations) < most:
        step, ends = next(steps)
        before = clock()
        append(step, ends)
        after = clock()
        durations.append(after - before)
    return durations, (after - begun) / 1e9


def warm_up(append: Append, steps: Iterator[tuple[Step, tuple[int, ...]]], seconds: float) -> int:
    """Appends for some seconds, and until an episode ended. Returns the number of calls."""
    calls, ended, until = 0, False, time.perf_counter() + seconds
    while not ended or time.perf_counter() < until:
        step, ends = next(steps)
        append(step, ends)
        calls, ended = calls + 1, ended or bool(ends)
    return calls


def latency(durations: array[int]) -> dict[str, float]:
    """Returns the microseconds of a call of `append`."""
    values = np.frombuffer(durations, np.int64) / 1e3
    return {
        "median_us": float(np.median(values)),
        "p99_us": float(np.percentile(values, 99)),
        "max_us": float(values.max()),
    }


def insert(recorder: Recorder, task: Task, seconds: float) -> dict[str, Any]:
    """Measures the insertion of steps, and what it takes to finish the recording."""
    steps = endless_steps(task.shape, task.environments, task.options.seed)
    rows = max(1, task.environments)
    observation, dtype, _ = SHAPES[task.shape]
    most = MOST_BYTES // (rows * int(np.prod(observation)) * np.dtype(dtype).itemsize)
    warm = warm_up(recorder.append, steps, min(0.5, seconds / 4))
    durations, elapsed = timed_appends(recorder.append, steps, seconds, most)
    begun = time.perf_counter()
    recorder.settle()
    settled = time.perf_counter()
    recorder.finish()
    return {
        "steps": rows * len(durations),
        "seconds": elapsed + settled - begun,
        "finish_seconds": time.perf_counter() - settled,
        "finished_steps": rows * (warm + len(durations)),
        **latency(durations),
    }


class PacedWriter(threading.Thread):
    """Appends at a rate until `stop`.

    Args:
        recorder: the recorder.
        task: of the recorder.
        rate: steps per second.
    """

    def __init__(self, recorder: Recorder, task: Task, rate: float) -> None:
        super().__init__(daemon=True)
        self._recorder, self._task, self._rate = recorder, task, rate
        self._warm, self._ended = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._record: dict[str, Any] = {}

    def run(self) -> None:
        try:
            self._append()
        except Exception as error:
            self._error = error
        finally:
            self._warm.set()

    def _append(self) -> None:
        steps = endless_steps(self._task.shape, self._task.environments, self._task.options.seed)
        rows, durations, clock = max(1, self._task.environments), array("q"), time.perf_counter_ns
        warm_up(self._recorder.append, steps, 0.0)
        self._warm.set()
        begun, used = clock(), time.thread_time()
        while not self._ended.is_set():
            due = (clock() - begun) / 1e9 * self._rate
            while rows * len(durations) < due and not self._ended.is_set():
                step, ends = next(steps)
                before = clock()
                self._recorder.append(step, ends)
                durations.append(clock() - before)
            self._ended.wait(0.0005)
        elapsed = (clock() - begun) / 1e9
        share = (time.thread_time() - used) / elapsed
        self._record = {"steps_per_s": rows * len(durations) / elapsed, "cpu_share": share, **latency(durations)}

    def begin(self) -> None:
        """Starts the thread, and waits until it has appended an episode."""
        self.start()
        self._warm.wait()

    def stop(self) -> dict[str, Any]:
        """Ends the thread. Returns its steps per second, and the latency of `append`.

        Raises the exception that ended it earlier.
        """
        self._ended.set()
        self.join()
        if self._error is not None:
            raise self._error
        return self._record


def draw(sample: Callable[[], Mapping[str, Any]], seconds: float) -> dict[str, Any]:
    """Draws batches for some seconds, after a warm-up."""
    warm_until = time.perf_counter() + min(0.5, seconds / 4)
    while time.perf_counter() < warm_until:
        batch = sample()
    batches, begun = 0, time.perf_counter()
    now = begun
    while now < begun + seconds:
        batch = sample()
        batches += 1
        now = time.perf_counter()
    delivers = {name: [list(values.shape), str(values.dtype)] for name, values in batch.items()}
    return {"batches_per_s": batches / (now - begun), "delivers": delivers}


class Session:
    """The requests of benchmarks/writer.py, each a line of words.

    `insert ENVIRONMENTS SECONDS` measures a new recording. `fill STEPS` records steps to sample, and names their store.
    `sample SECONDS` draws batches, `start RATE STORE` begins a writer beside the sampler, and `stop` ends it.
    """

    def __init__(self, recording: Recording, args: argparse.Namespace) -> None:
        self._recording, self._args = recording, args
        self._store: Recorder | None = None
        self._draw: Callable[[], Mapping[str, Any]] | None = None
        self._paced: PacedWriter | None = None

    def answer(self, words: list[str]) -> dict[str, Any]:
        request, *values = words
        found = getattr(self, f"_{request}")(*values)
        return {**found, "notes": self._recording.notes, "versions": dict(self._recording.versions)}

    def _task(self, environments: int, store: str | None = None) -> Task:
        folder = Path(tempfile.mkdtemp(prefix="recording-"))
        return Task(self._args.shape, environments, folder, self._args, store)

    def _insert(self, environments: str, seconds: str) -> dict[str, Any]:
        task = self._task(int(environments))
        recorder = self._recording.make(task)
        try:
            return insert(recorder, task, float(seconds))
        finally:
            recorder.close()
            shutil.rmtree(task.folder, ignore_errors=True)

    def _fill(self, count: str) -> dict[str, Any]:
        if self._recording.sample is None:
            raise ValueError("this contender cannot be sampled while it records")
        task = self._task(self._args.environments)
        self._store = self._recording.make(task)
        for step, ends in itertools.islice(
            endless_steps(task.shape, task.environments, self._args.seed), int(count) // task.environments
        ):
            self._store.append(step, ends)
        self._store.settle()
        self._draw = self._recording.sample(self._store)
        name = self._recording.store_of
        return {"store": "own" if name is None else name(self._store)}

    def _sample(self, seconds: str) -> dict[str, Any]:
        if self._draw is None:
            raise ValueError("sample comes after fill")
        return draw(self._draw, float(seconds))

    def _start(self, rate: str, store: str) -> dict[str, Any]:
        task = self._task(self._args.environments, store)
        recorder = self._recording.make(task) if self._recording.store_of or self._store is None else self._store
        self._paced = PacedWriter(recorder, task, float(rate))
        self._paced.begin()
        return {}

    def _stop(self) -> dict[str, Any]:
        if self._paced is None:
            raise ValueError("stop comes after start")
        return self._paced.stop()


def serve(
    build: Callable[[argparse.Namespace], Recording],
    description: str,
    configure: Callable[[argparse.ArgumentParser], None] | None = None,
) -> None:
    """Runs a contender, which answers the lines of standard input."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--shape", choices=SHAPES, default="hopper", help="shape of the steps (default hopper)")
    parser.add_argument("--environments", type=int, default=32, help="environments beside a sampler (default 32)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the steps and of the samples (default 0)")
    parser.add_argument("--on-request", action="store_true", help="answer the lines of standard input (always done)")
    if configure is not None:
        configure(parser)
    args = parser.parse_args()
    out = claim_stdout()
    session = Session(build(args), args)
    say(out, {"ready": True})
    for line in sys.stdin:
        say(out, session.answer(line.split()))
