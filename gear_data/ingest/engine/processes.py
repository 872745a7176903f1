"""Who does the tasks of a conversion: this process, several of this machine, or a Ray cluster."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import pyarrow as pa

from gear_data.errors import GearError, WorkerError
from gear_data.ingest.engine.spec import ConversionSpec
from gear_data.ingest.engine.tasks import Task, run_task
from gear_data.ingest.engine.worker import error_from_json
from gear_data.ingest.source import EpisodeSource
from gear_data.storage.writing.file_store import FileStore
from gear_data.storage.writing.staging import TaskResult

Advance = Callable[[int], object]
#: A task's index, what kind of answer it is, and the answer; see `ingest.worker`.
Answer = tuple[int, str, Any]
Answers = queue.SimpleQueue[Answer]


class Engine(Protocol):
    """Does tasks."""

    def __call__(self, tasks: Sequence[Task], advance: Advance) -> list[TaskResult]:
        """The results, in the order of the tasks. `advance` is told of source rows used up.

        Raises:
            GearError: that of the first task that failed; those that finished keep their shards for a resumed run.
        """


def in_this_process(spec: ConversionSpec, source: EpisodeSource, store: FileStore) -> Engine:
    """One task after another."""

    def run(tasks: Sequence[Task], advance: Advance) -> list[TaskResult]:
        return [run_task(task, spec, source, store, advance) for task in tasks]

    return run


class Workers:
    """Processes of this machine that do tasks; they end with this context. They are started anew rather than forked:
    readers have threads.

    Args:
        spec, destination: what they convert, and where to.
        most: how many there may be. This process works too.

    Attributes:
        processes: those that run.
        threads: of each, and of this process.
    """

    def __init__(self, spec: ConversionSpec, destination: str, most: int) -> None:
        self._most = most
        self.threads = max(1, len(os.sched_getaffinity(0)) // (most + 1))
        what = {"source": spec.source, "options": spec.to_json()} if most else {}
        self._job = json.dumps({**what, "destination": destination, "threads": self.threads})
        self.processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.adjust(0)

    def adjust(self, count: int) -> None:
        """Starts or ends some, so that there are so many, or `most`. One that is started loads what it needs, and opens
        the source, before it is given anything to do."""
        count = min(count, self._most)
        while len(self.processes) < count:
            command = [sys.executable, "-m", "gear_data.ingest.engine.worker"]
            pipe = subprocess.PIPE
            self.processes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, encoding="utf-8"))
            # One that is dead already is told of where it is given a task.
            with suppress(OSError):
                _send(self.processes[-1], self._job)
        ended, self.processes = self.processes[count:], self.processes[:count]
        for process in ended:
            process.kill()
        for process in ended:
            process.wait()
            for stream in (process.stdin, process.stdout):
                # What was never read cannot be flushed to it.
                with suppress(OSError):
                    if stream is not None:
                        stream.close()


def side_by_side(workers: Workers, spec: ConversionSpec, source: EpisodeSource, store: FileStore) -> Engine:
    """This process, which has the source open already, and the workers."""

    def run(tasks: Sequence[Task], advance: Advance) -> list[TaskResult]:
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in range(len(tasks)):
            waiting.put(index)
        answers: Answers = queue.SimpleQueue()
        gathered = _Gathered(waiting, answers, advance)
        for worker in workers.processes:
            gathered.working += 1
            threading.Thread(target=_drive, args=(worker, tasks, waiting, answers), daemon=True).start()

        def advance_all(rows: int) -> None:
            advance(rows)
            gathered.take_all()

        own_threads = pa.cpu_count()
        pa.set_cpu_count(workers.threads)
        try:
            while (own := _next(waiting)) is not None:
                try:
                    gathered.results[own] = run_task(tasks[own], spec, source, store, advance_all)
                except GearError as error:
                    gathered.fail(own, error)
        finally:
            pa.set_cpu_count(own_threads)
        while gathered.working:
            gathered.take(answers.get())
        if gathered.failed:
            raise gathered.failed[min(gathered.failed)]
        return [gathered.results[index] for index in range(len(tasks))]

    return run


def _drive(
    worker: subprocess.Popen[str], tasks: Sequence[Task], waiting: queue.SimpleQueue[int], answers: Answers
) -> None:
    """Hands a worker one task after another and passes its answers on; says so when it died."""
    index: int | None = -1
    try:
        while (index := _next(waiting)) is not None:
            _send(worker, json.dumps(tasks[index].to_json()))
            while True:
                ((kind, value),) = json.loads(worker.stdout.readline() if worker.stdout else "").items()
                answers.put((index, kind, value))
                if kind == "error":
                    return
                if kind == "result":
                    break
        answers.put((-1, "idle", None))
    except (OSError, ValueError):
        answers.put((-1 if index is None else index, "died", worker.wait()))


def _send(worker: subprocess.Popen[str], line: str) -> None:
    if worker.stdin is not None:
        worker.stdin.write(line + "\n")
        worker.stdin.flush()


def _next(waiting: queue.SimpleQueue[int]) -> int | None:
    try:
        return waiting.get_nowait()
    except queue.Empty:
        return None


class _Gathered:
    """What became of the tasks so far. Used by one thread; `working` is how many workers are."""

    def __init__(self, waiting: queue.SimpleQueue[int], answers: Answers, advance: Advance) -> None:
        self._waiting, self._answers, self._advance = waiting, answers, advance
        self.working = 0
        self.results: dict[int, TaskResult] = {}
        self.failed: dict[int, GearError] = {}

    def take_all(self) -> None:
        """What the workers have said up to now."""
        with suppress(queue.Empty):
            while True:
                self.take(self._answers.get_nowait())

    def take(self, answer: Answer) -> None:
        index, kind, value = answer
        if kind == "rows":
            self._advance(value)
        elif kind == "result":
            self.results[index] = TaskResult.from_json(value)
        else:
            self.working -= 1
            if kind != "idle":
                self.fail(index, error_from_json(value) if kind == "error" else _death(value))

    def fail(self, index: int, error: GearError) -> None:
        self.failed[index] = error
        # No more tasks are begun. The others finish theirs, all that come before this one among them: which error is
        # raised does not depend on who is faster.
        while _next(self._waiting) is not None:
            pass


def _death(status: int) -> WorkerError:
    return WorkerError(
        f"a process of the conversion ended with status {status}",
        hint="killed for memory? Use fewer (--jobs) and go on with --resume",
    )
