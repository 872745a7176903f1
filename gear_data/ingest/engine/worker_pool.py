"""The engine of this machine: one process, or several.

Process pools of libraries (`concurrent.futures`, loky) are not used. Their workers outlive a parent that is killed and
keep on writing shards, while a resumed conversion writes the same files. The pool of the standard library also imports
the user's script again, which fails for a script without `if __name__ == "__main__"`.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from gear_data.common.environment import usable_cores
from gear_data.errors import GearError, WorkerError
from gear_data.ingest.engine.spec import ConversionSpec
from gear_data.ingest.engine.tasks import READY, Advance, Task, run_task
from gear_data.ingest.source import EpisodeSource
from gear_data.storage.writing.file_store import FileStore
from gear_data.storage.writing.staging import TaskResult


@dataclass(frozen=True)
class Worker:
    """A worker process and the connection to it."""

    process: subprocess.Popen[bytes]
    connection: Connection[Any, Any]


class WorkerPool:
    """Worker processes of this machine, killed when the context exits.

    Workers are started as new processes, not forked: a fork would copy the locks of the readers' threads.

    Args:
        spec: the conversion that the workers run.
        destination: the folder or URL that they write to.
        max_workers: the most workers that may run. This process works too.
        inherited: file descriptors that workers keep open: the locks of the destination. If this process is killed,
            nobody else writes to the destination until the workers have ended too.

    Attributes:
        workers: the running workers.
        drivers: threads that talk to workers. A thread ends when its worker does.
        threads: the number of threads of each worker and of this process.
    """

    def __init__(self, spec: ConversionSpec, destination: str, max_workers: int, inherited: Sequence[int] = ()) -> None:
        self._spec = spec
        self._inherited = inherited
        self._destination = destination
        self._max_workers = max_workers
        self.threads = max(1, usable_cores() // (max_workers + 1))
        self.workers: list[Worker] = []
        self.drivers: list[threading.Thread] = []

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.process.kill()
        # They still read from the connections that `resize` closes.
        for driver in self.drivers:
            driver.join()
        self.resize(0)

    def resize(self, count: int) -> None:
        """Starts or kills workers until `count` run, or `max_workers` if that is less.

        A new worker imports its modules and opens the source before it takes its first task.
        """
        count = min(count, self._max_workers)
        while len(self.workers) < count:
            self.workers.append(self._start())
        surplus, self.workers = self.workers[count:], self.workers[:count]
        for worker in surplus:
            worker.process.kill()
        for worker in surplus:
            worker.process.wait()
            worker.connection.close()

    def _start(self) -> Worker:
        ours, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-m", "gear_data.ingest.engine.worker", str(theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno(), *self._inherited], stdin=subprocess.DEVNULL)
        # A worker that died already is reported when it should run a task.
        with suppress(OSError):
            ours.send((self._spec, self._destination, self.threads))
        return Worker(process, ours)


@dataclass(frozen=True)
class PoolEngine:
    """Runs tasks in this process, and in the workers of a pool if it has any."""

    pool: WorkerPool
    spec: ConversionSpec
    source: EpisodeSource
    store: FileStore

    def run(self, tasks: Sequence[Task], advance: Advance) -> list[TaskResult]:
        running = _PoolRun(tasks, self.pool, advance)
        arrow_threads = pa.cpu_count()
        if self.pool.workers:
            pa.set_cpu_count(self.pool.threads)
        try:
            while (index := running.next_task()) is not None:
                try:
                    running.results[index] = run_task(
                        tasks[index], self.spec, self.source, self.store, running.advance_own
                    )
                except GearError as error:
                    running.fail(index, error)
        finally:
            pa.set_cpu_count(arrow_threads)
        return running.wait()


#: The task of a worker that took none yet.
_NO_TASK = -1


class _PoolRun:
    """The state of one run: pending tasks, messages, results and errors.

    A thread per worker sends tasks and receives messages. All other work happens in the thread of the engine.

    A worker takes a task only when it is ready. Until then this process converts, and it does not wait for a worker
    that is not ready when no task is left.
    """

    def __init__(self, tasks: Sequence[Task], pool: WorkerPool, advance: Advance) -> None:
        self.results: dict[int, TaskResult] = {}
        self._errors: dict[int, GearError] = {}
        self._tasks = tasks
        self._dropped = 0
        self._advance = advance
        #: (task of a worker, rows read or the task's result or an error)
        self._messages: queue.SimpleQueue[tuple[int, int | TaskResult | GearError]] = queue.SimpleQueue()
        self._pending: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in range(len(tasks)):
            self._pending.put(index)
        for worker in pool.workers:
            driver = threading.Thread(target=self._drive, args=(worker,), name="gear-worker", daemon=True)
            pool.drivers.append(driver)
            driver.start()

    def next_task(self) -> int | None:
        """Takes the index of the next pending task; None if all were taken."""
        try:
            return self._pending.get_nowait()
        except queue.Empty:
            return None

    def fail(self, index: int, error: GearError) -> None:
        """Records the error of a task and drops all pending tasks.

        Tasks that run already finish, and all tasks before the failed one have started. So the error that `wait` raises
        does not depend on the speed of the workers.
        """
        self._errors[index] = error
        while self.next_task() is not None:
            self._dropped += 1

    def advance_own(self, rows: int) -> None:
        """Reports rows that this process read, and handles the messages that arrived."""
        self._advance(rows)
        with suppress(queue.Empty):
            while True:
                self._handle(*self._messages.get_nowait())

    def wait(self) -> list[TaskResult]:
        """Waits for the tasks that workers took, and returns all results.

        Raises:
            GearError: the error of the first task that failed, or of a worker that failed before its first task.
        """
        while len(self.results.keys() | self._errors.keys() - {_NO_TASK}) + self._dropped < len(self._tasks):
            self._handle(*self._messages.get())
        if len(self.results) < len(self._tasks):
            raise self._errors[min(self._errors)]
        return [self.results[index] for index in range(len(self._tasks))]

    def _handle(self, task: int, value: int | TaskResult | GearError) -> None:
        match value:
            case int(rows):
                self._advance(rows)
            case TaskResult() as result:
                self.results[task] = result
            case GearError() as error:
                self.fail(task, error)

    def _drive(self, worker: Worker) -> None:
        """Sends tasks to a worker that is ready, and passes on its messages.

        It returns when no task is left, when the worker fails, or when the worker dies.
        """
        index = _NO_TASK
        try:
            if (opened := worker.connection.recv()) != READY:
                self._messages.put((index, opened))
                return
            while (pending := self.next_task()) is not None:
                index = pending
                worker.connection.send(self._tasks[index])
                value = 0
                while isinstance(value, int):
                    value = worker.connection.recv()
                    self._messages.put((index, value))
                if isinstance(value, GearError):
                    return
        except (OSError, EOFError):
            self._messages.put((index, _worker_died(worker.process.wait())))


def _worker_died(status: int) -> WorkerError:
    return WorkerError(
        f"a worker process of the conversion ended with status {status}",
        hint="if it ran out of memory, use fewer workers (--jobs, jobs=); continue with --resume (resume=True)",
    )
