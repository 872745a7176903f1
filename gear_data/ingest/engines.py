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

from gear_data.errors import GearError, WorkerError
from gear_data.ingest.recipe import Recipe
from gear_data.ingest.source import EpisodeSource
from gear_data.ingest.tasks import Task, run_task
from gear_data.ingest.worker import error_from_json
from gear_data.storage.conversion import TaskResult
from gear_data.storage.store import Store

Advance = Callable[[int], object]


class Engine(Protocol):
    """Does tasks."""

    def __call__(self, tasks: Sequence[Task], advance: Advance) -> list[TaskResult]:
        """The results, in the order of the tasks. `advance` is told of source rows used up.

        Raises:
            GearError: that of the first task that failed; those that finished keep their shards for a resumed run.
        """


def in_this_process(recipe: Recipe, source: EpisodeSource, store: Store) -> Engine:
    """One task after another."""

    def run(tasks: Sequence[Task], advance: Advance) -> list[TaskResult]:
        return [run_task(task, recipe, source, store, advance) for task in tasks]

    return run


def in_processes(recipe: Recipe, destination: str, jobs: int) -> Engine:
    """Side by side in processes of this machine. They are started anew rather than forked: readers have threads."""

    def run(tasks: Sequence[Task], advance: Advance) -> list[TaskResult]:
        threads = max(1, len(os.sched_getaffinity(0)) // jobs)
        what = {"source": recipe.source, "options": recipe.to_json()}
        job = json.dumps({**what, "destination": destination, "threads": threads})
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in range(len(tasks)):
            waiting.put(index)
        answers: queue.SimpleQueue[tuple[int, str, Any]] = queue.SimpleQueue()
        workers = [_start() for _ in range(min(jobs, len(tasks)))]
        try:
            for worker in workers:
                threading.Thread(target=_drive, args=(worker, job, tasks, waiting, answers), daemon=True).start()
            return _gather(len(tasks), len(workers), waiting, answers, advance)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()

    return run


def _start() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gear_data.ingest.worker"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")


def _drive(
    worker: subprocess.Popen[str],
    job: str,
    tasks: Sequence[Task],
    waiting: queue.SimpleQueue[int],
    answers: queue.SimpleQueue[tuple[int, str, Any]],
) -> None:
    """Hands a worker one task after another and passes its answers on; says so when it died."""
    index = -1
    try:
        _send(worker, job)
        while True:
            index = waiting.get_nowait()
            _send(worker, json.dumps(tasks[index].to_json()))
            while True:
                ((kind, value),) = json.loads(worker.stdout.readline() if worker.stdout else "").items()
                answers.put((index, kind, value))
                if kind == "error":
                    return
                if kind == "result":
                    break
    except queue.Empty:
        answers.put((index, "idle", None))
    except (OSError, ValueError):
        answers.put((index, "died", worker.wait()))


def _send(worker: subprocess.Popen[str], line: str) -> None:
    if worker.stdin is not None:
        worker.stdin.write(line + "\n")
        worker.stdin.flush()


def _gather(
    tasks: int,
    workers: int,
    waiting: queue.SimpleQueue[int],
    answers: queue.SimpleQueue[tuple[int, str, Any]],
    advance: Advance,
) -> list[TaskResult]:
    results: dict[int, TaskResult] = {}
    failed: dict[int, GearError] = {}
    while workers:
        index, kind, value = answers.get()
        if kind == "rows":
            advance(value)
        elif kind == "result":
            results[index] = TaskResult.from_json(value)
        elif kind == "idle":
            workers -= 1
        else:
            workers -= 1
            failed[index] = error_from_json(value) if kind == "error" else _death(value)
            # No more tasks are begun. The others finish theirs, all that come before this one among them: which error
            # is raised does not depend on who is faster.
            _empty(waiting)
    if failed:
        raise failed[min(failed)]
    return [results[index] for index in range(tasks)]


def _empty(waiting: queue.SimpleQueue[int]) -> None:
    with suppress(queue.Empty):
        while True:
            waiting.get_nowait()


def _death(status: int) -> WorkerError:
    return WorkerError(
        f"a process of the conversion ended with status {status}",
        hint="killed for memory? Use fewer (--jobs) and go on with --resume",
    )
